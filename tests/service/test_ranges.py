"""Offsets of Kafka in the ledger: of each partition a delivery starts where the one before it ended, or is refused."""

from __future__ import annotations

import pytest

from etl.common.database import transaction
from etl.common.errors import InputsChanged
from etl.delivery.batch import DeliveryContext
from etl.delivery.deliver import deliver
from etl.ledger import offsets
from etl.ledger.offsets import Gap, Range, Reached
from tests.support.arrow_driver import ArrowBatch


def batch(number: int, *read: tuple[int, int, int], topic_id: str = "first") -> ArrowBatch:
    """Return a batch of these ranges: partition, start and end."""
    ranges = [
        Range(source=0, topic="orders", topic_id=topic_id, partition=partition, start=start, end=end)
        for partition, start, end in read
    ]
    return ArrowBatch(batch_id=number, parts=[[]], paths=(), read=ranges)


def reached(run: DeliveryContext) -> list[tuple[str, int, int]]:
    with transaction(run.sinks.dsn) as cursor:
        found = offsets.reached(cursor, run.lease.pipeline)
    assert all(isinstance(one, Reached) and one.topic == "orders" for one in found)
    return [(one.topic_id, one.partition, one.reached) for one in found]


@pytest.mark.parametrize(
    ("start", "end"), [(9, 20), (11, 20), (0, 20), (20, 30)], ids=["overlap", "gap", "all again", "far gap"]
)
def test_a_range_that_does_not_start_where_the_last_one_ended_is_refused(
    run: DeliveryContext, start: int, end: int
) -> None:
    deliver(run, batch(0, (0, 0, 10), (1, 5, 7)))
    with pytest.raises(InputsChanged, match=rf"kafka://orders/0/{start}-{end}, the ledger is at 10"):
        deliver(run, batch(1, (0, start, end), (1, 7, 9)))
    assert reached(run) == [("first", 0, 10), ("first", 1, 7)]
    deliver(run, batch(1, (0, 10, 20), (1, 7, 9)))
    assert reached(run) == [("first", 0, 20), ("first", 1, 9)]


def test_a_partition_is_known_from_when_it_was_first_seen_empty(run: DeliveryContext) -> None:
    deliver(run, batch(0, (0, 50, 50)))
    deliver(run, batch(1, (0, 50, 50)))
    with pytest.raises(InputsChanged):
        deliver(run, batch(2, (0, 49, 60)))
    deliver(run, batch(2, (0, 50, 60)))
    assert reached(run) == [("first", 0, 60)]


def test_another_topic_of_the_same_name_begins_anew(run: DeliveryContext) -> None:
    deliver(run, batch(0, (0, 0, 10)))
    with transaction(run.sinks.dsn) as cursor:
        gone = Gap(topic="orders", topic_id="first", partition=0, start=10, end=None)
        offsets.accept(cursor, run.lease.pipeline, [gone], who="ann", why="made anew")
    deliver(run, batch(1, (0, 0, 3), topic_id="second"))
    assert reached(run) == [("second", 0, 3)]


def test_a_range_may_start_behind_an_accepted_gap_and_nowhere_else(run: DeliveryContext) -> None:
    deliver(run, batch(0, (0, 0, 10)))
    with transaction(run.sinks.dsn) as cursor:
        gone = Gap(topic="orders", topic_id="first", partition=0, start=10, end=14)
        offsets.accept(cursor, run.lease.pipeline, [gone], who="ann", why="aged out")
    for start in (10, 15):
        with pytest.raises(InputsChanged, match="the ledger is at 14"):
            deliver(run, batch(1, (0, start, 20)))
    deliver(run, batch(1, (0, 14, 20)))
    assert reached(run) == [("first", 0, 20)]


def test_a_batch_that_was_delivered_is_not_taken_for_another_one(run: DeliveryContext) -> None:
    first = deliver(run, batch(0, (0, 0, 10), (1, 0, 0)))
    assert deliver(run, batch(0, (0, 0, 10), (1, 0, 0))).delivery_id == first.delivery_id
    with pytest.raises(InputsChanged, match="kafka://orders/0/0-11"):
        deliver(run, batch(0, (0, 0, 11), (1, 0, 0)))
