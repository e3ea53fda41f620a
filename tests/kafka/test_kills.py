"""Whole runs over topics, killed with SIGKILL and run again: each record is in both sinks once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.killed import Runs, kill, runs_of
from tests.kafka.topics import Topics, assert_holds, declare, orders, ranges
from tests.spark.runs import Home

# (step, in which batch, batches that readers see afterwards): each run goes on from the last
KILLS = (
    ("pointer-swapped", 0, 0),  # its transaction is under way
    ("committed", 1, 2),  # batch 1 is delivered, and Spark has not marked it as done
)
MANY = (("rows-copied", 0, 0), ("committed", 3, 4), ("judged", 6, 6), ("inputs-inserted", 8, 8))
MILLION = 1_000_000


@pytest.fixture
def runs(home: Home, tmp_path: Path) -> Iterator[Runs]:
    with runs_of(home, tmp_path) as found:
        yield found


def killed_and_finished(runs: Runs, kills: tuple[tuple[str, int, int], ...]) -> None:
    delivered = 0
    for step, batch, delivered_then in kills:
        process = runs.start(step, batch - delivered)
        kill(process, runs.wait_for_step(process))
        runs.forget()
        delivered = delivered_then
        assert runs.home.ask("SELECT count(*) FROM sluice.delivery") == [(delivered,)]
    runs.home.run()


@pytest.mark.timeout(900)
def test_a_run_over_topics_killed_at_any_point_is_finished_by_the_next_one(
    runs: Runs, topics: Topics
) -> None:
    topic = topics.create()
    declare(runs.home, topic, max_offsets=10)
    topics.send(topic, orders(0, 30, negative=[3, 23]))
    killed_and_finished(runs, KILLS)
    assert_holds(runs.home, topics.sent)
    assert ranges(runs.home, topic) == [
        (partition, start, start + 5) for partition in (0, 1) for start in range(0, 15, 5)
    ]
    runs.home.assert_clean()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_records_with_kills_are_counted_exactly_in_both_sinks(runs: Runs, topics: Topics) -> None:
    topic = topics.create(partitions=4)
    declare(runs.home, topic, max_offsets=MILLION // 10)
    value = "to_json(named_struct('id', id, 'amount', cast(id as double)))"
    made = topics.spark.range(MILLION).selectExpr(
        "cast(id as string) AS key", f"{value} AS value", "cast(id % 4 as int) AS partition"
    )
    made.write.format("kafka").options(**{"kafka.bootstrap.servers": topics.servers, "topic": topic}).save()
    killed_and_finished(runs, MANY)
    home = runs.home
    sums = "count(*), count(DISTINCT id), min(id), max(id), count(DISTINCT (part, place))"
    whole = (MILLION, MILLION, 0, MILLION - 1, MILLION)
    assert home.ask(f"SELECT {sums} FROM warehouse.orders") == [whole]
    rows = home.reader().rows_in(home.reader().files("orders"), ["id"])
    assert (rows.total(), len(rows)) == (MILLION, MILLION)
    assert home.ask("SELECT sum(end_offset - start_offset) FROM sluice.delivery_range") == [(MILLION,)]
