"""Says what a run notes of its deliveries for their OpenLineage events, and where these events go.

While the setting is off nothing is noted, sent or imported.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from etl.common.errors import SetupError
from etl.common.record_columns import UNKNOWN
from etl.common.settings import Settings
from etl.ledger.telemetry.lineage import LineageNote
from etl.pipeline import Pipeline
from etl.pipeline.patterns import split_pattern

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from etl.sources.base import Source
    from etl.spark.column_lineage import Lineage

log = logging.getLogger("sluice")

PARENT = "OPENLINEAGE_PARENT_ID"  # namespace/job/run, as other tools of OpenLineage take it


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What became of events."""

    sent: int
    problems: tuple[str, ...]  # why others were not: one sentence each

    @property
    def whole(self) -> bool:
        return not self.problems

    def json(self) -> dict[str, Any]:
        return asdict(self)


def lineage_note(
    settings: Settings, pipeline: Pipeline, source: Source, frame: DataFrame
) -> LineageNote | None:
    """Return what each delivery's event needs to know of the run, whose transform makes `frame`; None while none is sent."""
    if settings.openlineage is None:
        return None
    sources = (
        _folder(one.patterns[0], settings.landing) if one.patterns else None for one in pipeline.sources
    )
    made_of = _made_of(pipeline, source, frame)
    return LineageNote(sources=tuple(sources), parent=os.environ.get(PARENT), made_of=made_of)


def _made_of(pipeline: Pipeline, source: Source, frame: DataFrame) -> Mapping[str, Any] | None:
    """Return which fields the columns of `frame` are made of, as the outbox has it; None where that can't be read."""
    from etl.spark.column_lineage import column_lineage

    streams = {
        observed: (name, [field for field in source.fields[name].names if field != UNKNOWN])
        for name, observed in source.observed_as.items()
    }
    try:
        found = column_lineage(frame, streams, source.lookups)
    except Exception:
        log.exception("what the columns of %s are made of can't be read from its plan", pipeline.name)
        return None
    return {
        "columns": {name: _as_noted(lineage) for name, lineage in found.columns.items()},
        "rows": _as_noted(found.rows),
        "streams": [one.stream or "" for one in pipeline.sources],
        "topics": {
            topic: one.stream or "" for one in pipeline.sources for topic in getattr(one, "topics", ())
        },
    }


def _as_noted(lineage: Lineage) -> list[dict[str, Any]]:
    return [{**asdict(origin), "how": sorted(how)} for origin, how in sorted(lineage.items())]


def _folder(pattern: str, landing: str) -> str:
    folder = split_pattern(pattern).folder
    return folder if "://" in folder or folder.startswith("/") else f"{landing}/{folder}".rstrip("/")


def require_openlineage(settings: Settings) -> str:
    """Return where events go. Raises SetupError where nothing says so, or where the library is missing."""
    if settings.openlineage is None:
        raise SetupError(
            "Nothing says where OpenLineage events go",
            remedy="set SLUICE_OPENLINEAGE, such as to http://marquez.example:5000; docs/monitoring.md",
        )
    if find_spec("openlineage") is None:
        raise SetupError(
            "SLUICE_OPENLINEAGE is set, and openlineage-python is not installed",
            remedy="install Sluice with its extra: sluice[openlineage]; or unset SLUICE_OPENLINEAGE",
        )
    return settings.openlineage.get_secret_value()
