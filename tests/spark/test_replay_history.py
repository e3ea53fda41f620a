"""History that the stream leaves out for `start=`: a replay of its interval loads it, once, and nothing else does."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from etl.common.errors import CheckpointDamaged, CheckpointLost, InputsChanged
from etl.common.paths import to_uri
from etl.common.steps import Step
from etl.pipeline import Append, Files, Pipeline
from etl.sources.cutoff import StartCutoff
from etl.sources.evidence import path_of
from tests.support.data.by_day import declare, land, load, planned
from tests.support.data.orders import Landed, orders
from tests.support.home import Home, once_at


def assert_holds(home: Home, landed: Landed) -> None:
    home.assert_holds(landed)
    home.assert_clean()


def test_history_is_loaded_by_the_replay_of_its_interval_and_replaced_by_the_next(home: Home) -> None:
    declare(home)
    history = [land(home, 0), land(home, 1)]
    landed = land(home, 2) + land(home, 3)
    assert home.run().batches == 1, "two files a batch, and none for the history alone"
    assert_holds(home, landed)

    said = planned(home, 0, 1)
    assert (said.deliveries, [one.path for one in said.history]) == (
        [],
        ["orders/dt=2024-02-26/a.jsonl", "orders/dt=2024-02-27/a.jsonl"],
    )
    assert any("2 files" in line and "to be loaded" in line for line in said.lines())
    first = load(home, 0)
    assert first.replaced == ()
    landed += history[0]
    assert_holds(home, landed)

    late = land(home, 0, "late", 900)
    home.run()
    assert_holds(home, landed)
    again = load(home, 0, 1)  # what was loaded is replaced, what was not is loaded with it
    assert first.receipt is not None
    assert again.replaced == (first.receipt.delivery_id,)
    landed += history[1] + late
    assert_holds(home, landed)
    landed += land(home, 3, "b", 1000)
    home.run()
    assert_holds(home, landed)
    assert home.run().batches == 0


@pytest.mark.slow
def test_a_new_checkpoint_neither_takes_history_nor_loses_it(home: Home) -> None:
    declare(home)
    loaded, left = land(home, 0), land(home, 1)
    landed = land(home, 2)
    home.run()
    load(home, 0)
    landed += loaded
    shutil.rmtree(home.checkpoint(home.ask("SELECT current_stream::text FROM sluice.pipeline")[0][0]))
    with pytest.raises(CheckpointLost):
        home.run()
    home.recover()
    landed += land(home, 3)
    assert home.run().batches == 1
    assert_holds(home, landed)
    load(home, 1)
    assert_holds(home, landed + left)


def test_an_earlier_start_hands_the_stream_what_was_not_loaded(home: Home) -> None:
    declare(home)
    landed = land(home, 0) + land(home, 1) + land(home, 2)
    home.run()
    load(home, 0)
    declare(home, start="date(2024, 2, 26)")
    with pytest.raises(CheckpointDamaged, match=r"1 file as read that no delivery has: .*dt=2024-02-27/a"):
        home.run()
    home.recover()
    home.run()
    assert_holds(home, landed)


def test_history_that_cant_be_read_is_no_reason_for_the_stream_to_stop(home: Home) -> None:
    declare(home)
    home.write("orders/dt=2024-02-26/a.csv", "other,columns\n1,2\n")
    landed = land(home, 2)
    assert home.run().batches == 1
    home.write("orders/dt=2024-02-27/a.csv", "other,columns\n1,2\n")
    landed += land(home, 3)
    assert home.run().batches == 1
    assert_holds(home, landed)


def test_history_can_come_before_the_first_run_and_of_two_that_load_it_one_does(home: Home) -> None:
    declare(home)
    landed = land(home, 0)
    home.make_folder("orders")
    with once_at(Step.POINTER_DRAFTED, lambda: load(home, 0)), pytest.raises(InputsChanged):
        load(home, 0)
    assert_holds(home, landed)
    landed += land(home, 2)
    home.run()
    assert_holds(home, landed)


def test_older_history_does_not_cover_what_is_newer_in_an_upsert_sink(home: Home) -> None:
    declare(home, sink='Upsert(keys=("id",), newest="at")')
    older, newer = orders(100, 8), [replace(one, amount=9.0, at=one.at + 1) for one in orders(104, 8)]
    home.land("orders/dt=2024-02-26/a.jsonl", older)
    home.land("orders/dt=2024-02-28/a.jsonl", newer)
    home.run()
    for _ in range(2):
        load(home, 0)
        found = dict(home.ask("SELECT id, amount FROM warehouse.orders"))
        assert sorted(found) == list(range(100, 112))
        assert {number for number, amount in found.items() if amount == 9.0} == set(range(104, 112))


PATHS: Sequence[str] = [
    *(f"/in/x/dt={day}/a b+%41é.jsonl" for day in ("2024-02-26", "2024-02-28", "2024-03-01", "2024-02-31")),
    *(f"/in/x/{folder}/f" for folder in ("dt=0000-01-01", "xdt=2024-01-01", "dt=2024-1-1", "dt=2024-00-10")),
    *(
        f"/in/{day}/f"
        for day in ("20240227", "20240228", "202402281", "2024022 7", "27-02-2024", "28-02-2024")
    ),
    *(f"/in/{day}/f" for day in ("2024-058", "2024-059", "2024-366", "2024-000", "2024-367", "2023-366")),
    *(f"/in/2024/02/{hour}/f" for hour in ("27/23", "28/00", "28/24")),
    *(f"/in/2024/2/{hour}/f" for hour in ("7/3", "27/9", "28/0", "0/9", "027/9")),
    *(f"/in/y=2024/m={month}/f" for month in ("1", "2", "02", "3", "0", "001")),
    *(f"/in/a+b {day}/f" for day in ("2024", "2023")),
    "/dt=2024-01-01/x/f",
    "s3a://in/dt=2024-01-01/f",
]


@pytest.mark.parametrize(
    "template",
    [
        "dt={interval:%Y-%m-%d}",
        "{interval:%Y%m%d}",
        "{interval:%d-%m-%Y}",
        "{interval:%Y-%j}",
        "{interval:%Y/%m/%d/%H}",
        "y={interval:%Y/m=%m}",
        "a+b {interval:%Y}",
    ],
)
@pytest.mark.parametrize("landing", ["/in", "/dt=2024-01-01"])
def test_spark_leaves_out_exactly_the_files_that_are_not_on_record(
    spark: SparkSession, template: str, landing: str
) -> None:
    start = dt.datetime(2024, 2, 28)  # noqa: DTZ001 - in UTC, as a declaration may have it
    before = StartCutoff.of(_pipeline(template, start))
    assert before is not None
    uris = [to_uri(path) for path in PATHS]
    frame = spark.createDataFrame([(uri,) for uri in uris], "uri string")
    found = {row.uri for row in frame.where(before.column(F.col("uri"), landing)).collect()}
    assert found == {uri for uri in uris if before.has(path_of(uri, landing))}


def _pipeline(template: str, start: dt.datetime) -> Pipeline:
    return Pipeline(
        name="x",
        sources=(Files("**/*.jsonl"),),
        schema="id bigint",
        transform=lambda df: df,
        sink=Append(),
        interval=template,
        start=start,
    )
