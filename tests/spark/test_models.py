"""Models scored in the stream: what both sinks have equals plain scikit-learn on the same rows, version by version."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import re
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.ensemble import IsolationForest

from etl.airflow.pages import pages
from etl.airflow.pages.render import Frame
from etl.common.errors import Busy, NeedsPerson, SetupError
from etl.delivery.batch import Receipt
from etl.ledger.quarantine import RowSelection as Held
from etl.ledger.quarantine import held_rows
from etl.operations.datasets.generated import count_fates, generated
from etl.operations.maintenance.sweep import sweep
from etl.operations.models.sample import Sample
from etl.operations.models.train import Trained, _split, train
from etl.operations.suites.try_out import try_out
from etl.operations.suites.what_if import put_out
from etl.pipeline import Model, load_pipeline
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.release import release
from etl.runs.replay.replay import replay
from etl.runs.run import run
from tests.support.data.pickles import Malicious
from tests.support.home import Home
from tests.support.pages.drawn import draw, shown

READINGS = """
from etl.pipeline import Append, Files, Pipeline

def same(df):
    return df

PIPELINE = Pipeline(
    name="readings", sources=(Files("readings/*.jsonl"),), schema="id bigint, a double, b float, odd boolean",
    transform=same, sink=Append(),
)
"""
SCORED = """
from etl.pipeline import Append, Files, Model, Pipeline

def transform(df, *, anomaly):
    from pyspark.sql import functions as F
    scored = df.withColumn("score", anomaly.score("a", F.col("b") * 1)){more}
    return scored.select("id", "score", (F.col("score") > anomaly.threshold).alias("found"),
                         F.lit(anomaly.version).alias("version"))

PIPELINE = Pipeline(
    name="scored", sources=(Files("scored/*.jsonl", max_files=1),),
    schema="id bigint, a double, b double, at timestamp",
    models={{"anomaly": Model("readings", features=("a", "b"), {model})}},
    transform=transform, sink=Append(), max_quarantine_share=1.0,
)
"""
ONCE = '.withWatermark("at", "2 hours").dropDuplicatesWithinWatermark(["id"])'
TREES = "trees=20"


def made(count: int, *, seed: int) -> np.ndarray:
    """Make rows of which the last tenth is odd."""
    rows = np.random.default_rng(seed).normal((5, -2), 1, (count, 2))
    rows[-count // 10 :] += 6
    return rows.round(3)


def land_readings(home: Home, count: int = 600, *, seed: int = 1) -> None:
    lines = [
        json.dumps(
            {"id": number, "a": a, "b": b, "odd": number >= count - count // 10 if number % 2 else None}
        )
        for number, (a, b) in enumerate(made(count, seed=seed).tolist())
    ]
    home.write(f"readings/{seed:03}.jsonl", "\n".join(lines))
    home.run("readings")


def land_scored(home: Home, number: int) -> np.ndarray:
    rows = made(40, seed=100 + number)
    lines = [
        json.dumps({"id": number * 100 + at, "a": a, "b": b, "at": f"2026-01-01T0{number}:00:00Z"})
        for at, (a, b) in enumerate(rows.tolist())
    ]
    home.write(f"scored/{number:03}.jsonl", "\n".join(lines))
    return rows


def declare(home: Home, *, model: str = TREES, more: str = "") -> None:
    home.declare("readings", text=READINGS)
    home.declare("scored", text=SCORED.format(model=model, more=more))


def test_whole_numbers_beyond_a_doubles_precision_are_learned_from() -> None:
    rows = pa.table({"a": [2**53 + 1] * 20, "b": [1] * 20})
    found = _split(Sample(rows=rows, there=20), Model("readings", features=("a", "b")))
    values = np.concatenate([found.fitted, found.held_out])
    assert (values == [2.0**53, 1.0]).all() and len(values) == 20


def trained(home: Home) -> Trained:
    [found] = train(home.place, home.pipeline("scored"), who="a test")
    return found


def delivered(home: Home, table: str, columns: list[str]) -> np.ndarray:
    """Return what the lake has of the table, in the order of its files' names."""
    reader = home.reader(table)
    paths = [path.removeprefix("s3://") for path in sorted(reader.files(table))]
    tables = [
        pq.read_table(path, columns=columns, filesystem=reader.store, partitioning=None) for path in paths
    ]
    return np.concatenate([np.column_stack([one.column(name) for name in columns]) for one in tables])


def learned(rows: np.ndarray) -> np.ndarray:
    """Return the rows that are not held out: a fifth is, by the seed."""
    return np.random.default_rng(1).random(len(rows)) >= 0.2


def by_scikit_learn(home: Home, table: str, columns: list[str], **settings: Any) -> IsolationForest:
    rows = delivered(home, table, columns)
    return IsolationForest(random_state=1, **settings).fit(rows[learned(rows)])


def on_both_sinks(home: Home, name: str, columns: list[str], key: int) -> dict[Any, tuple[Any, ...]]:
    """Return the rows by their first columns, the same in PostgreSQL and on the lake."""
    found = home.ask(f"SELECT {', '.join(columns)} FROM warehouse.{name}")
    reader = home.reader(name)
    lake = [
        tuple(row.values())
        for path in reader.files(name)
        for row in pq.read_table(
            path.removeprefix("s3://"), columns=columns, filesystem=reader.store, partitioning=None
        ).to_pylist()
    ]
    assert {*lake} == {*found}
    by_key = {row[:key]: row for row in found}
    assert len(by_key) == len(found)
    return by_key


def assert_scored(home: Home, rows: np.ndarray, number: int, version: int, by: IsolationForest) -> None:
    """Require that this version scored the rows of a landed file."""
    found = on_both_sinks(home, "scored", ["id", "score", "found", "version"], 1)
    mine = [found[number * 100 + at,] for at in range(len(rows))]
    wanted = -by.score_samples(rows)
    np.testing.assert_allclose([row[1] for row in mine], wanted, atol=1e-6)
    assert [row[2] for row in mine] == list(wanted > -by.offset_)
    assert {row[3] for row in mine} == {version}


@pytest.mark.slow
def test_device_anomalies(shipped: Home) -> None:
    """Trained on what device_events delivered, every reading is scored as plain scikit-learn scores it."""
    files = generated("devices", [dt.date(2026, 1, 1)], seed=7)
    for file in files:
        shipped.write(file.path, file.content)
    for name in ("device_events", "device_anomalies"):
        declared = load_pipeline(name, shipped.place.settings.pipelines)
        [source] = declared.sources
        pipeline = replace(declared, sources=(replace(source, max_files=12),))
        if name == "device_anomalies":
            with pytest.raises(
                SetupError, match="was not trained yet\n  next: `sluice train device_anomalies`"
            ):
                run(shipped.place, pipeline, spark=shipped.spark)
            [model] = train(shipped.place, pipeline, who="a test")
        run(shipped.place, pipeline, spark=shipped.spark)
    shipped.assert_clean("device_anomalies")

    lines = [line for file in files for line in file.content.decode().splitlines() if line.endswith("}")]
    readings = {
        (one["device"], one["reading"]): one for one in map(json.loads, lines) if one["temperature"] != 999.9
    }
    forest = by_scikit_learn(shipped, "device_events", ["temperature", "voltage"], contamination=0.015)
    rows = [(one["temperature"], one["voltage"]) for one in readings.values()]
    wanted = dict(zip(readings, -forest.score_samples(np.array(rows)), strict=True))
    columns = ["device", "reading", "score", "anomaly", "model_version"]
    found = on_both_sinks(shipped, "device_anomalies", columns, 2)
    assert found.keys() == wanted.keys()
    np.testing.assert_allclose([found[key][2] for key in wanted], [*wanted.values()], atol=1e-6)
    assert {key for key, row in found.items() if row[3]} == {
        key for key, score in wanted.items() if score > -forest.offset_
    }
    assert {row[4] for row in found.values()} == {1}

    faulty = {key for key, one in readings.items() if one["faulty"]}
    assert len(faulty) == count_fates(files)["faulty"] > 50
    caught = {key for key, row in found.items() if row[3]}
    assert len(caught & faulty) > 0.9 * len(faulty)
    assert len(caught & faulty) > 0.6 * len(caught)
    labels = model.report["held_out"]["labels"]
    assert labels["recall"] > 0.9 and labels["precision"] > 0.6
    scored_by = shipped.ask(
        "SELECT d.batch_id, m.version, m.digest FROM sluice.delivery d JOIN sluice.delivery_model m USING (delivery_id)"
        " WHERE d.pipeline = 'device_anomalies' ORDER BY 1"
    )
    with shipped.place.lake.open(model.location) as source:
        digest = sha256(source.read()).hexdigest()
    assert scored_by == [(0, 1, digest), (1, 1, digest)]
    query = "SELECT column_name FROM sluice.column_metric WHERE minimum > 0 AND maximum < 1"
    assert shipped.ask(query) == [("score",), ("score",)]

    too_warm = Held(reason="the temperature is what the sensor measures")
    held, *_ = held_rows(shipped.dsn, "device_anomalies", too_warm)
    corrected = {held.quarantine_id: {"temperature": 21.0}}
    release(shipped.place, pipeline, [held], corrected, who="a test", why="a test", spark=shipped.spark)
    assert shipped.ask("SELECT kind FROM sluice.delivery ORDER BY delivery_id DESC LIMIT 1") == [("release",)]
    assert {kind for (kind,) in shipped.ask("SELECT kind FROM sluice.delivery_model")} == {"stream"}


@pytest.mark.parametrize(
    "more",
    [pytest.param("", id="without state", marks=pytest.mark.slow), pytest.param(ONCE, id="with state")],
)
def test_a_version_trained_between_two_batches_scores_the_next_one(home: Home, more: str) -> None:
    declare(home, more=more)
    land_readings(home)
    trained(home)
    files = [land_scored(home, number) for number in range(4)]

    def train_again(receipt: Receipt) -> None:
        if receipt.batch_id in (0, 2):
            declare(home, model=f"trees={30 + receipt.batch_id}", more=more)
            trained(home)

    summary = home.run("scored", progress=train_again)
    assert summary.batches == 4 + bool(more)
    trees = {1: 20, 2: 30, 3: 32}
    forests = {
        version: by_scikit_learn(home, "readings", ["a", "b"], n_estimators=count, contamination=0.01)
        for version, count in trees.items()
    }
    for number, version in enumerate((1, 2, 2, 3)):
        assert_scored(home, files[number], number, version, forests[version])
    recorded = home.ask(
        "SELECT batch_id, version FROM sluice.delivery_model WHERE model = 'anomaly' ORDER BY batch_id LIMIT 4"
    )
    assert recorded == [(0, 1), (1, 2), (2, 2), (3, 3)]
    page, _ = draw(home.dsn, lambda cursor: pages.batch(cursor, "scored", Frame(), delivery=3))
    assert re.search(r"Model anomaly\s+version 2, trained \d", shown(page))
    home.assert_clean("scored")

    if more:
        shutil.rmtree(home.checkpoint(summary.stream, "scored"))
        home.recover("scored")
        files.append(land_scored(home, 4))
        assert home.run("scored").delivered == len(files[4])
        assert_scored(home, files[4], 4, 3, forests[3])
    else:
        planned = plan(home.place, home.pipeline("scored"), Selection(batches=(0, 0)))
        replay(home.place, home.pipeline("scored"), planned, who="a test", spark=home.spark)
        assert_scored(home, files[0], 0, 3, forests[3])
        [(kind, version)] = home.ask(
            "SELECT kind, version FROM sluice.delivery_model WHERE live AND kind <> 'stream'"
        )
        assert (kind, version) == ("replay", 3)
        file = str(home.landing / "scored" / "001.jsonl")
        said = try_out(home.place, home.pipeline("scored"), [file], most=40, spark=home.spark)
        scores = [row[1] for row in sorted(said.rows)]
        np.testing.assert_allclose(scores, -forests[3].score_samples(files[1]), atol=1e-6)
        assert home.spark is not None
        assert put_out(home.place, home.pipeline("scored"), home.spark).columns == [*said.columns]


def test_a_model_that_is_not_what_was_trained_stops_the_run_and_is_not_executed(
    home: Home, tmp_path: Path
) -> None:
    declare(home)
    land_readings(home)
    first = trained(home)
    rows = land_scored(home, 0)
    mark = tmp_path / "it was executed"
    with home.place.lake.open(first.location) as source:
        good = source.read()
    bad = pickle.dumps(Malicious(mark))
    for content in (bad, good[:-1], good + b"\n"):
        home.place.lake.write_bytes(first.location, content)
        with pytest.raises(NeedsPerson, match="is not what was trained: its SHA-256"):
            home.run("scored")
    home.reader("scored").store.delete_file(first.location.removeprefix("s3://"))
    with pytest.raises(NeedsPerson, match="is gone from the lake"):
        home.run("scored")
    home.place.lake.write_bytes(first.location, bad)
    home.ask("UPDATE sluice.model SET digest = %s", sha256(bad).hexdigest())
    with pytest.raises(NeedsPerson, match="is no isolation forest in ONNX"):
        home.run("scored")
    assert not mark.exists()
    assert home.ask("SELECT count(*) FROM sluice.delivery WHERE pipeline = 'scored'") == [(0,)]

    second = trained(home)
    assert (second.version, second.new) == (2, True), "the one in force is not whole"
    assert home.run("scored").delivered == len(rows)
    forest = by_scikit_learn(home, "readings", ["a", "b"], n_estimators=20, contamination=0.01)
    assert_scored(home, rows, 0, 2, forest)


def test_training_again_makes_a_version_when_there_is_something_new(home: Home) -> None:
    declare(home, model='trees=20, label="odd", flagged=0.1')
    with pytest.raises(SetupError, match="which has delivered nothing yet\n  next: `sluice run readings`"):
        trained(home)
    land_readings(home, 60, seed=1)
    with pytest.raises(SetupError, match=r"60 rows, \d+ of which .* would learn from; 100 are needed"):
        trained(home)
    land_readings(home, 600, seed=2)
    first = trained(home)
    assert (first.version, first.new) == (1, True)
    assert (first.report["rows_there"], first.report["deliveries"]) == (660, 2)
    held_out = first.report["held_out"]
    assert first.report["rows_fitted"] + held_out["rows"] == 660
    forest = by_scikit_learn(home, "readings", ["a", "b"], n_estimators=20, contamination=0.1)
    rows = delivered(home, "readings", ["a", "b", "odd"])
    rows = rows[~learned(rows)]
    above, odd = forest.predict(rows[:, :2].astype(float)) < 0, rows[:, 2]
    assert held_out["flagged"] == above.sum()
    counts = {
        "rows": (odd != None).sum(),  # noqa: E711 - of each element
        "anomalies": (odd == True).sum(),  # noqa: E712
        "flagged": above[odd != None].sum(),  # noqa: E711
        "both": above[odd == True].sum(),  # noqa: E712
    }
    assert 0 < counts["rows"] < held_out["rows"], "half of the labels are not known"
    shares = {
        "precision": counts["both"] / counts["flagged"],
        "recall": counts["both"] / counts["anomalies"],
    }
    assert held_out["labels"] == counts | shares

    again = trained(home)
    assert (again.version, again.new, again.location) == (1, False, first.location)
    land_readings(home, 60, seed=3)
    home.place.lake.write_text(f"{home.place.lake.root}/_models/left behind", "")
    done = home.sluice_here("train", "scored", "--json")
    assert done.returncode == 0, done.stderr
    [told_of] = json.loads(done.stdout)
    assert (told_of["version"], told_of["new"], told_of["rows_there"]) == (2, True, 720)
    with home.place.lake.open(told_of["location"].replace("model.onnx", "report.json")) as source:
        assert json.loads(source.read()) == {k: v for k, v in told_of.items() if k not in ("new", "location")}
    shown = home.sluice_here("train", "scored")
    assert "version 2, in force; its rows and declaration have not changed since" in shown.stdout
    assert "of 720 rows of readings" in shown.stdout and "recall" in shown.stdout

    for name in ("readings", "scored"):
        land_scored(home, 0)
        home.run(name)
        at = home.place.settings.model_copy(update={"backup_horizon": dt.timedelta(0)})
        sweep(replace(home.place, settings=at), home.pipeline(name))
    models = [path for path, _ in home.objects() if "/_models/scored/" in path]
    assert len(models) == 4, "two versions, each with its report"

    with pytest.raises(Busy, match=r"Version 2 .* was made by another meanwhile"):
        home.place.models.add(b"another", told_of, who="a test")
    assert home.ask("SELECT version FROM sluice.model ORDER BY version") == [(1,), (2,)]


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("features=('a', 'c')", "'c', which in warehouse.readings is no column"),
        ("features=('a', 'odd')", "'odd', which in warehouse.readings is a boolean"),
        ("features=('a', 'b'), label='id'", "'id', which in warehouse.readings is a bigint"),
    ],
)
def test_a_column_that_is_not_there_or_is_no_number_is_told(home: Home, model: str, told: str) -> None:
    declare(home)
    text = (home.root / "my pipelines" / "scored.py").read_text()
    home.declare(
        "scored", text=text.replace("features=('a', 'b')", model).replace('features=("a", "b")', model)
    )
    land_readings(home, 10)
    with pytest.raises(SetupError, match=told):
        trained(home)


def test_a_model_of_other_features_wants_to_be_trained(home: Home) -> None:
    declare(home)
    land_readings(home)
    trained(home)
    land_scored(home, 0)
    file = home.root / "my pipelines" / "scored.py"
    file.write_text(file.read_text().replace('("a", "b")', '("b", "a")'))
    with pytest.raises(SetupError, match="declared with b, a, and its version 1 learned from a, b"):
        home.run("scored")
    assert trained(home).version == 2
    assert home.run("scored").delivered == 40


def test_a_sample_is_drawn_by_its_seed_and_of_all_files(home: Home) -> None:
    declare(home, model="trees=20, rows=200, seed=3")
    for seed in (1, 2, 3):
        land_readings(home, 200, seed=seed)
    first = trained(home)
    assert (first.report["rows_there"], first.report["rows_drawn"]) == (600, 200)
    home.ask("DELETE FROM sluice.model")
    again = trained(home)
    assert again.location == first.location, "named by the digest: the same bytes"
    declare(home, model="trees=20, rows=200, seed=4")
    assert trained(home).report["features"] != first.report["features"]
