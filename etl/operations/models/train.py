"""`sluice train`: fits a pipeline's models to delivered rows, and reports how good they are.

The same rows and the same declaration make the same model: the declared seed decides what is sampled. A run that is
under way scores with the version before, and takes the new one with its next batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.common.errors import NeedsPerson, SetupError
from etl.common.wording import pluralize
from etl.operations.models.sample import Sample, drawn
from etl.operations.serving.read import CommittedState, moment
from etl.pipeline import Model, Pipeline, load_pipeline
from etl.pipeline.declaration import described
from etl.sinks.columns import in_words
from etl.sinks.lake.table import LakeTable
from etl.sinks.modes import mode_of
from etl.sources.side_inputs import onnx_forest
from etl.sources.side_inputs.scorers import Version

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyiceberg.table import Table
    from sklearn.ensemble import IsolationForest

    from etl.runs.workspace import Workspace

HELD_OUT = 0.2  # of the rows: what the model is judged by and does not learn from
FEWEST = 100  # rows that a model is fitted to
QUANTILES = {"p01": 0.01, "p05": 0.05, "p50": 0.5, "p95": 0.95, "p99": 0.99}
SAME = 1e-5  # between scikit-learn's scores and those of the file


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model after `train`."""

    version: int
    new: bool  # False: nothing that it is made of has changed since
    location: str
    report: Mapping[str, Any]

    def json(self) -> dict[str, Any]:
        return {**self.report, "new": self.new, "location": self.location}


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """What a model learns from and is judged by; every value is a number."""

    fitted: NDArray[np.float64]
    held_out: NDArray[np.float64]
    labels: NDArray[np.object_] | None  # of the holdout: True, False, or None where it is not known
    without: int  # rows that were drawn and lack a value


def train(workspace: Workspace, pipeline: Pipeline, *, who: str) -> list[Trained]:
    """Make a version of each of the pipeline's models now, unless the one in force is what would be made."""
    if not pipeline.models:
        seen = f"Pipeline {pipeline.name} declares no models"
        raise SetupError(seen, remedy="docs/cookbook/models.md shows how")
    return [_train(workspace, pipeline, name, who) for name in pipeline.models]


def _train(workspace: Workspace, pipeline: Pipeline, name: str, who: str) -> Trained:
    model = pipeline.models[name]
    on, now, table = _learned_from(workspace, pipeline, name)
    current = workspace.models.current(pipeline.name, name)
    settings = _settings(model)
    if current and _is_of(workspace, current, settings, table):
        return Trained(version=current.version, new=False, location=current.location, report=current.report)
    columns = [*model.features, *([model.label] if model.label else [])]
    sample = drawn(table, columns, most=model.rows, seed=model.seed)
    rows = _split(sample, model)
    if len(rows.fitted) < FEWEST:
        raise SetupError(
            f"Pipeline {on.name} has delivered {pluralize(sample.there, 'row')}, {len(rows.fitted):,} of which"
            f" model {name!r} of"
            f" pipeline {pipeline.name} would learn from; {FEWEST} are needed",
            remedy=f"land more and `sluice run {on.name}`, then run the same command again",
        )
    fitted = _fit(rows.fitted, model)
    content = onnx_forest.written(fitted, len(model.features))
    version = current.version + 1 if current else 1
    report = {
        "pipeline": pipeline.name,
        "model": name,
        "version": version,
        "trained_on": on.name,
        "metadata_location": table.metadata_location,
        "deliveries": len(now.deliveries),
        "rows_there": sample.there,
        "rows_drawn": len(sample.rows),
        "rows_without": rows.without,
        "rows_fitted": len(rows.fitted),
        "threshold": float(-fitted.offset_),
        "features": _spread(rows.fitted, model),
        "held_out": _judged(fitted, content, rows),
        "settings": settings,
    }
    location = workspace.models.add(content, report, who=who)
    return Trained(version=version, new=True, location=location, report=report)


def _learned_from(
    workspace: Workspace, pipeline: Pipeline, name: str
) -> tuple[Pipeline, CommittedState, Table]:
    """Return the pipeline whose rows the model learns from, and its ledger and table as of now.

    Raises SetupError where a model can't learn from it.
    """
    model, what = pipeline.models[name], f"Model {name!r} of pipeline {pipeline.name}"
    on = load_pipeline(model.trained_on, workspace.settings.pipelines)
    if mode_of(on.sink).key is not None:
        raise SetupError(
            f"{what} is trained on {on.name}, an upsert sink: its table on the lake has every change of a row",
            remedy="train it on a pipeline that appends or replaces",
        )
    now = moment(workspace, on)
    if now.pointer is None or not now.deliveries:
        seen = f"{what} is trained on {on.name}, which has delivered nothing yet"
        raise SetupError(seen, remedy=f"`sluice run {on.name}`, then run the same command again")
    table = LakeTable.of(workspace.lake, on.table).at(now.pointer)
    columns = {field.name: field.type for field in table.schema().as_arrow()}
    wanted = dict.fromkeys(model.features, _is_number)
    if model.label:
        wanted[model.label] = pa.types.is_boolean
    for column, fits in wanted.items():
        if column not in columns or not fits(columns[column]):
            there = f"is {in_words(columns[column])}" if column in columns else "is no column"
            raise SetupError(
                f"{what} is declared with {column!r}, which in {on.table} {there}",
                remedy=f"features are numbers and a label is boolean; it has {', '.join(columns)}",
            )
    return on, now, table


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _settings(model: Model) -> dict[str, Any]:
    """Return all that decides what is made of the same rows."""
    import sklearn

    return {**described(model), "library": f"scikit-learn {sklearn.__version__}"}


def _is_of(workspace: Workspace, current: Version, settings: Mapping[str, Any], table: Table) -> bool:
    """Tell whether the current version is what would be made now, and whole."""
    if (current.report["settings"], current.metadata_location) != (settings, table.metadata_location):
        return False
    try:
        workspace.models.content(current)
    except NeedsPerson:
        return False
    return True


def _split(sample: Sample, model: Model) -> _Rows:
    values = np.column_stack([_as_scored(sample.rows.column(name)) for name in model.features])
    with np.errstate(over="ignore"):
        whole = np.isfinite(values.astype(np.float32)).all(axis=1)
    out = np.random.default_rng(model.seed).random(len(values)) < HELD_OUT
    labels = None
    if model.label:
        labels = np.array(sample.rows.column(model.label).to_pylist(), dtype=object)[whole & out]
    return _Rows(
        fitted=values[whole & ~out], held_out=values[whole & out], labels=labels, without=int((~whole).sum())
    )


def _as_scored(values: pa.ChunkedArray) -> NDArray[np.float64]:
    """Convert the values to doubles as a run has them: whole numbers beyond 2^53 are the nearest double."""
    scores: NDArray[np.float64] = pc.cast(values, pa.float64(), safe=False).to_numpy()
    return scores


def _fit(rows: NDArray[np.float64], model: Model) -> IsolationForest:
    from sklearn.ensemble import IsolationForest

    forest = IsolationForest(n_estimators=model.trees, contamination=model.flagged, random_state=model.seed)
    return forest.fit(rows)


def _spread(rows: NDArray[np.float64], model: Model) -> dict[str, dict[str, float]]:
    return {
        name: {
            "least": float(column.min()),
            "median": float(np.median(column)),
            "greatest": float(column.max()),
        }
        for name, column in zip(model.features, rows.T, strict=True)
    }


def _judged(fitted: IsolationForest, content: bytes, rows: _Rows) -> dict[str, Any]:
    """Judge the model by rows that it did not learn from, scored as a run scores them.

    Raises NeedsPerson where the written file scores them otherwise than scikit-learn's own model.
    """
    scores = onnx_forest.scores(content, rows.held_out)
    difference = np.abs(scores + fitted.score_samples(rows.held_out)).max(initial=0)
    if not difference < SAME:
        raise NeedsPerson(
            f"The model that was written scores {pluralize(len(scores), 'row')} up to {difference:g} apart from"
            " scikit-learn's own",
            remedy="nothing was changed; go back to the locked scikit-learn and onnxruntime, and report it",
        )
    above = scores > -fitted.offset_
    quantiles = (
        {name: float(np.quantile(scores, share)) for name, share in QUANTILES.items()} if len(scores) else {}
    )
    return {
        "rows": len(scores),
        "flagged": int(above.sum()),
        "scores": quantiles,
        "labels": None if rows.labels is None else _agreement(above, rows.labels),
    }


def _agreement(above: NDArray[np.bool_], labels: NDArray[np.object_]) -> dict[str, Any]:
    """Say how what is above the threshold and what is known to be an anomaly agree.

    Only the rows whose label is known count.
    """
    known = np.array([one is not None for one in labels], dtype=bool)
    flagged, anomalies = above[known], labels[known].astype(bool)
    both = int((flagged & anomalies).sum())
    return {
        "rows": int(known.sum()),
        "anomalies": int(anomalies.sum()),
        "flagged": int(flagged.sum()),
        "both": both,
        "precision": both / int(flagged.sum()) if flagged.any() else None,
        "recall": both / int(anomalies.sum()) if anomalies.any() else None,
    }
