"""Runs over a topic with many records, killed with SIGKILL and run again: each record is in both sinks once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.support.data.orders import MALFORMED
from tests.support.home import Home
from tests.support.kafka.topics import NEGATIVE, Topics, declare, ranges
from tests.support.killed.runs import Runs, kill, runs_of

Kills = tuple[tuple[str, int, int], ...]
# (step, in which batch, batches that readers see afterwards): each run goes on from the last
KILLS = (
    ("pointer-swapped", 2, 2),  # its transaction is under way
    ("committed", 5, 6),  # batch 5 is delivered, and Spark has not marked it as done
)
MORE_KILLS = (("rows-encoded", 0, 0), ("committed", 3, 4), ("judged", 6, 6), ("inputs-inserted", 8, 8))
MANY, MILLION = 100_000, 1_000_000
BATCHES, PARTITIONS = 10, 4
VALUE = """
CASE WHEN id % 50000 = 1 THEN '{broken'
ELSE to_json(named_struct('id', id, 'amount', cast(if(id % 2000 = 0, -1, id) as double))) END
"""


@pytest.fixture
def runs(home: Home, tmp_path: Path) -> Iterator[Runs]:
    with runs_of(home, tmp_path) as found:
        yield found


def killed_and_finished(runs: Runs, kills: Kills) -> None:
    delivered = 0
    for step, batch, delivered_then in kills:
        process = runs.start(step, batch - delivered)
        kill(process, runs.wait_for_step(process))
        runs.forget()
        delivered = delivered_then
        assert runs.home.ask("SELECT count(*) FROM sluice.delivery") == [(delivered,)]
    assert runs.home.run().batches == BATCHES - delivered


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("records", "kills"),
    [
        pytest.param(MANY, KILLS, id="two kills", marks=pytest.mark.slow),
        pytest.param(MILLION, KILLS, id="a million, two kills", marks=pytest.mark.slow),
        pytest.param(MILLION, MORE_KILLS, id="a million, four kills", marks=pytest.mark.slow),
    ],
)
def test_many_records_with_kills_are_counted_exactly_in_both_sinks(
    runs: Runs, topics: Topics, records: int, kills: Kills
) -> None:
    home, topic = runs.home, topics.create(partitions=PARTITIONS)
    declare(home, topic, max_offsets=records // BATCHES)
    made = topics.spark.range(records).selectExpr(
        "cast(id as string) AS key", f"{VALUE} AS value", f"cast(id % {PARTITIONS} as int) AS partition"
    )
    made.write.format("kafka").options(**{"kafka.bootstrap.servers": topics.servers, "topic": topic}).save()
    killed_and_finished(runs, kills)

    reasons = {NEGATIVE: records // 2_000, MALFORMED: records // 50_000}
    eyes, kept = home.reader(), records - sum(reasons.values())
    counted = "count(*), count(DISTINCT id), count(DISTINCT (part, place))"
    assert home.ask(f"SELECT {counted} FROM warehouse.orders") == [(kept, kept, kept)]
    paths = [path.removeprefix("s3://") for path in eyes.files("orders")]
    lake = pq.read_table(paths, filesystem=eyes.store, columns=["id"])
    assert (lake.num_rows, pc.count_distinct(lake["id"]).as_py()) == (kept, kept)
    held = "SELECT reasons, count(*), count(DISTINCT coalesce(q.source_path, q.row)) FROM sluice.quarantine q GROUP BY 1"
    assert sorted(home.ask(held)) == [([why], number, number) for why, number in reasons.items()]
    assert eyes.held_on_lake().total() == sum(reasons.values())
    each = records // PARTITIONS // BATCHES
    assert ranges(home, topic) == [
        (partition, start, start + each)
        for partition in range(PARTITIONS)
        for start in range(0, records // PARTITIONS, each)
    ]
    home.assert_clean()
