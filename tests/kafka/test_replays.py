"""Batches of topics replayed: the same offsets read again, in the place of what they had delivered, beside the stream."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import pytest

from etl.common.errors import InputsChanged, OffsetsGone, RecordsMissing, StateChanged
from etl.common.steps import Step
from etl.runs.replay.plan import ReplayPlan, Selection, plan
from etl.runs.replay.replay import Replayed, replay
from tests.support.data.orders import rule
from tests.support.home import Home, once_at
from tests.support.kafka.topics import NEGATIVE, Topics, assert_holds, declare, orders


@pytest.fixture
def three_batches(home: Home, topics: Topics) -> str:
    """Make a topic of two partitions, delivered by three batches of ten records each; some were held."""
    topic = topics.create()
    declare(home, topic, max_offsets=10)
    topics.send(topic, orders(0, 30, negative=[3, 13, 14, 25]))
    assert home.run().batches == 3
    return topic


def planned(home: Home, *deliveries: int) -> ReplayPlan:
    chosen = Selection(deliveries=tuple((one, one) for one in deliveries))
    return plan(home.place, home.pipeline(), chosen, spark=home.spark)


def replayed(home: Home, found: ReplayPlan, **how: object) -> Replayed:
    return replay(home.place, home.pipeline(), found, who="test", spark=home.spark, **how)  # type: ignore[arg-type]


def live_ranges(home: Home) -> list[Sequence[int]]:
    """Return the ranges in force: delivery, partition, start and end."""
    return home.ask(
        "SELECT delivery_id, partition, start_offset, end_offset FROM sluice.delivery_range WHERE live"
        " ORDER BY partition, start_offset"
    )


def test_batches_are_judged_anew_in_their_own_place_and_the_stream_goes_on(
    home: Home, topics: Topics, three_batches: str
) -> None:
    """The second replay takes ranges of one partition that do not follow each other."""
    home.judge(rule("column_values_to_be_between", NEGATIVE, "warning", column="amount", min_value=-10))
    found = planned(home, 1, 3)
    assert not found.changed and [one.end - one.start for one in found.ranges] == [5, 5, 5, 5]
    done = replayed(home, found)
    assert done.receipt is not None and (done.receipt.delivered, done.receipt.quarantined) == (20, 0)
    assert home.ask("SELECT count(*) FROM sluice.quarantine WHERE status = 'held'") == [(2,)]
    home.judge(rule("column_values_to_be_between", NEGATIVE, "warning", column="amount", min_value=0))
    again = replayed(home, planned(home, 2, done.receipt.delivery_id))
    assert again.replaced == (2, done.receipt.delivery_id)
    assert_holds(home, topics.sent)
    newest = again.receipt and again.receipt.delivery_id
    assert live_ranges(home) == [(newest, 0, 0, 15), (newest, 1, 0, 15)]
    topics.send(three_batches, orders(30, 6))
    assert home.run().records == 6
    assert_holds(home, topics.sent)


@pytest.mark.slow
def test_state_is_made_of_every_range_of_a_replay_though_they_do_not_follow_each_other(
    home: Home, topics: Topics, three_batches: str
) -> None:
    replayed(home, planned(home, 1, 3))
    text = (home.root / "my pipelines" / "orders.py").read_text()
    home.declare(text=text.replace("return df.select", "return df.dropDuplicates(['id']).select"))
    with pytest.raises(StateChanged):
        home.run()
    home.recover()
    topics.send(three_batches, orders(0, 33))
    assert home.run().records == 33
    rows = home.ask(
        "SELECT id, count(*) FROM warehouse.orders GROUP BY id HAVING count(*) > 1 OR id > 29 ORDER BY id"
    )
    assert rows == [(30, 1), (31, 1), (32, 1)], "what state had been made of is delivered once"


@pytest.mark.slow
def test_after_a_replay_a_lost_checkpoint_is_made_anew_where_the_ledger_is(
    home: Home, topics: Topics, three_batches: str
) -> None:
    replayed(home, planned(home, 1, 2))
    [(stream,)] = home.ask("SELECT stream_id::text FROM sluice.stream WHERE checkpoint IS NOT NULL")
    shutil.rmtree(home.checkpoint(stream))
    home.recover()
    topics.send(three_batches, orders(30, 4))
    assert home.run().records == 4
    assert_holds(home, topics.sent)


def test_what_aged_out_since_stops_a_replay_until_a_person_takes_what_is_left(
    home: Home, topics: Topics, three_batches: str
) -> None:
    topics.age(three_batches, 0, 3)
    topics.age(three_batches, 1, 5)
    found = planned(home, 1)
    assert found.changed == [
        f"of kafka://{three_batches}/0/0-5 only kafka://{three_batches}/0/3-5 is there",
        f"kafka://{three_batches}/1/0-5 is gone",
    ]
    assert "2 ranges of 10 offsets; Kafka has 2 of these\n" in "\n".join(found.lines())
    with pytest.raises(InputsChanged, match="2 of the inputs are not as they were"):
        replayed(home, found)
    assert_holds(home, topics.sent)
    done = replayed(home, found, accept_changed=True)
    assert done.receipt is not None and done.receipt.rows_in == 2
    gone = {(number, place) for number, start in ((0, 3), (1, 5)) for place in range(start)}
    assert_holds(home, [one for one in topics.sent if (one.record.partition, one.offset) not in gone])
    topics.send(three_batches, orders(30, 2))
    assert home.run().records == 2


def test_a_topic_that_was_made_anew_has_nothing_of_what_was_read(
    home: Home, topics: Topics, three_batches: str
) -> None:
    before = planned(home, 2)
    topics.remake(three_batches)
    topics.send(three_batches, orders(100, 30))
    found = planned(home, 2)
    assert not found.there and all("was deleted and recreated" in one for one in found.changed)
    with pytest.raises(OffsetsGone, match="deleted and recreated"):
        replayed(home, before)  # planned while it was the old one
    assert_holds(home, topics.sent[:30])


def test_what_ages_out_while_a_replay_begins_is_told_and_nothing_is_changed(
    home: Home, topics: Topics, three_batches: str
) -> None:
    found = planned(home, 1)
    with (
        once_at(Step.ATTEMPT_OPENED, lambda: topics.age(three_batches, 0, 5)),
        pytest.raises(RecordsMissing, match="did not give orders what it was to read"),
    ):
        replayed(home, found)
    assert_holds(home, topics.sent)


@pytest.mark.slow
def test_what_a_run_delivered_is_replayed_by_its_id(home: Home, topics: Topics, three_batches: str) -> None:
    topics.send(three_batches, orders(30, 5))
    run = home.run().run
    found = plan(home.place, home.pipeline(), Selection(runs=(run,)), spark=home.spark)
    assert found.numbers == [4]
    done = replayed(home, found)
    assert done.receipt is not None and done.receipt.rows_in == 5
    assert_holds(home, topics.sent)
