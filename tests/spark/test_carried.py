"""Malformed records come with the pass that counts them; files are read again only for those that do not fit in."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etl.common.record_columns import DETAIL, RAW, SOURCE_PATH
from etl.sources import base
from etl.sources.base import Source
from etl.sources.counts import LONGEST_CARRIED
from tests.support.home import Home

DECLARATION = """
from etl.pipeline import Append, Files, Pipeline

PIPELINE = Pipeline(
    name="taps", sources=(Files("taps/*.jsonl"), Files("taps/*.csv")), schema="id int, s string",
    transform=lambda df: df, sink=Append(), max_quarantine_share=1.0, {more}
)
"""
HELD = "SELECT source_path, raw, detail, reasons FROM sluice.quarantine ORDER BY 1, 2"
NO_ID = 'id: found "x", wanted int, from -2147483648 to 2147483647'


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Source]:
    """Return the sources that were asked for their malformed records, as they are asked."""
    asked: list[Source] = []
    malformed = Source.malformed

    def noted(self: Source, *args: object, **more: object) -> object:
        asked.append(self)
        return malformed(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Source, "malformed", noted)
    return asked


def land(home: Home, name: str, *raws: str, good: int = 3) -> list[tuple[str, str, str, list[str]]]:
    """Land a file of good records and malformed ones, and return what must be held of these."""
    lines = [*(f'{{"id": {number}, "s": "a"}}' for number in range(good)), *raws]
    home.write(f"taps/{name}.jsonl", "".join(f"{line}\n" for line in lines))
    return [(home.uri(f"taps/{name}.jsonl"), raw, NO_ID, ["malformed"]) for raw in sorted(raws)]


def record(size: int) -> str:
    frame = '{"id": "x", "s": ""}'
    return frame.replace('""', f'"{"s" * (size - len(frame))}"')


def longest(home: Home, name: str) -> int:
    """Return the bytes of the longest record that a report of this file has."""
    told = {RAW: record(40), SOURCE_PATH: home.uri(f"taps/{name}.jsonl"), DETAIL: NO_ID}
    return 40 + LONGEST_CARRIED - len(json.dumps(told))


def test_they_are_held_with_file_and_detail_without_a_second_look(
    home: Home, looks: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Source, "count", None)  # which would be a second pass
    home.declare("taps", text=DECLARATION.format(more=""))
    held = land(home, "a", record(40), record(40), record(longest(home, "a"))) + land(home, "b", record(30))
    home.write("taps/c.csv", "s,id\na,1\nb,x\n")
    csv = (
        home.uri("taps/c.csv"),
        "b,x",
        'id: found "x", wanted int, from -2147483648 to 2147483647',
        ["malformed"],
    )
    summary = home.run("taps")
    assert (summary.rows_in, summary.malformed) == (12, 5)
    assert home.ask(HELD) == [*held, csv]
    assert looks == []
    home.assert_clean("taps")


def test_they_cost_no_job_of_spark(home: Home) -> None:
    assert home.spark is not None
    scheduler = home.spark.sparkContext._jsc.sc().dagScheduler()
    home.declare("taps", text=DECLARATION.format(more=""))
    jobs = []
    for name, raws in {"a": (), "b": (), "c": (record(40), record(50))}.items():
        land(home, name, *raws)
        before = scheduler.numTotalJobs()
        assert home.run("taps").malformed == len(raws)
        jobs.append(scheduler.numTotalJobs() - before)
    assert jobs[1] == jobs[2]


@pytest.mark.parametrize("why", ["long", "many"])
def test_files_are_read_again_for_longer_or_more_ones(
    home: Home, looks: list[Source], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "many":
        monkeypatch.setattr(base, "MOST_CARRIED", 2)
    home.declare("taps", text=DECLARATION.format(more=""))
    sizes = (40, 50, 60) if why == "many" else (40, longest(home, "a") + 1)
    held = land(home, "a", *map(record, sizes))
    assert home.run("taps").malformed == len(sizes)
    assert sorted(home.ask(HELD)) == sorted(held)
    assert len(looks) == 1
    home.assert_clean("taps")


def test_late_records_are_read_again(home: Home, looks: list[Source]) -> None:
    text = DECLARATION.format(more='late="at"').replace("id int, s string", "id int, s string, at timestamp")
    home.declare(
        "taps",
        text=text.replace(
            "lambda df: df,", 'lambda df: df.withWatermark("at", "1 hour").dropDuplicates(["id", "at"]),'
        ),
    )
    home.write("taps/a.jsonl", '{"id": 1, "at": "2026-01-01T10:00:00Z"}\n{"id": "x", "s": ""}\n')
    home.run("taps")
    home.write(
        "taps/b.jsonl", '{"id": 2, "at": "2026-01-01T01:00:00Z"}\n{"id": 3, "at": "2026-01-01T10:30:00Z"}\n'
    )
    home.run("taps")
    _, (path, raw, detail, reasons) = home.ask(HELD)
    assert (path, reasons) == (home.uri("taps/b.jsonl"), ["late"]) and '"id":2' in raw
    assert detail == "its event time is missing, or not after the watermark, 2026-01-01 09:00:00 UTC"
    assert len(looks) == 1, "for the late one; the malformed one came with its pass"
    home.assert_clean("taps")


def test_a_record_is_held_once_whatever_the_plan_makes_of_the_rows(home: Home) -> None:
    """A product reads its input for each partition of the other side, and for none where that has none."""
    lookup = 'lookups={"shops": Lookup("shops/*.csv", schema="k int, v string", key=("k",))}'
    product = 'lambda df, shops: df.join(shops.repartition(3).hint("shuffle_replicate_nl")).where("id > k").drop("k"),'
    text = DECLARATION.format(more=lookup).replace("lambda df: df,", product)
    home.declare("taps", text=text.replace("import Append, Files,", "import Append, Files, Lookup,"))
    held = []
    for name, shops in {"a": "", "b": "0,x\n1,y\n"}.items():
        home.write("shops/a.csv", f"k,v\n{shops}")
        held += land(home, name, record(40), record(50))
        assert home.run("taps").malformed == 2
        assert sorted(home.ask(HELD)) == sorted(held)
    home.assert_clean("taps")


def test_what_spark_reads_itself_is_held_once_whatever_the_plan_makes_of_the_rows(home: Home) -> None:
    """A record of Parquet is held by its time alone."""
    lookup = 'lookups={"shops": Lookup("shops/*.csv", schema="k int, v string", key=("k",))}'
    text = f"""
from datetime import timedelta
from etl.pipeline import Append, Files, Lookup, Pipeline

PIPELINE = Pipeline(
    name="taps", sources=(Files("taps/*.parquet"),), schema="id int, at timestamp", sink=Append(), {lookup},
    transform=lambda df, shops: df.join(shops.repartition(3).hint("shuffle_replicate_nl")).where("id > k").drop("k"),
    not_after={{"at": timedelta(hours=1)}}, max_quarantine_share=1.0,
)
"""
    home.declare("taps", text=text)
    moments = [datetime(2026, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)]
    for turn, shops in enumerate(("", "0,x\n1,y\n")):
        home.write("shops/a.csv", f"k,v\n{shops}")
        table = pa.table({"id": pa.array([turn, turn + 10], pa.int32()), "at": moments})
        file = home.landing / f"taps/{turn}.parquet"
        file.parent.mkdir(exist_ok=True)
        pq.write_table(table, file)
        assert home.run("taps").malformed == 1
    held = [(home.uri(f"taps/{turn}.parquet"), ["future"]) for turn in range(2)]
    assert home.ask("SELECT source_path, reasons FROM sluice.quarantine ORDER BY 1") == held
    home.assert_clean("taps")


def test_a_transform_that_does_not_take_all_rows_loses_no_malformed_record(
    home: Home, looks: list[Source]
) -> None:
    """What is read at once is reported before its rows."""
    first = "lambda df: df.mapInArrow(lambda batches: [next(batches)], df.schema),"
    home.declare("taps", text=DECLARATION.format(more="").replace("lambda df: df,", first))
    held = land(home, "a", record(40), record(50), good=15_000)
    home.run("taps")
    assert sorted(home.ask(HELD)) == sorted(held)
    assert looks == []
