"""What Kafka or the checkpoint lost is a stop that names it, and a command that goes on exactly once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from etl.common.errors import (
    CheckpointDamaged,
    CheckpointLost,
    ContractBroken,
    OffsetsGone,
    SetupError,
    StateChanged,
)
from etl.common.steps import Step
from etl.operations.suites.try_out import try_out
from etl.runs.recovery.base import AcceptedGaps
from etl.runs.recovery.recover import recover
from tests.support.data.orders import rule
from tests.support.home import Home, once_at
from tests.support.kafka.topics import NEGATIVE, Topics, assert_holds, changed, declare, orders, ranges

YES = AcceptedGaps(who="ann", why="retention was too short")


def mend(home: Home, accepted: AcceptedGaps | None = None) -> object:
    return recover(home.place, home.pipeline(), accepted=accepted, spark=home.spark)


def wipe(home: Home) -> None:
    shutil.rmtree(home.place.settings.checkpoints)


def test_a_lost_checkpoint_is_made_anew_at_the_ledgers_offsets(home: Home, topics: Topics) -> None:
    topic = topics.create()
    declare(home, topic)
    topics.send(topic, orders(0, 30))
    home.run()
    wipe(home)
    topics.send(topic, orders(30, 10))
    with pytest.raises(CheckpointLost, match="sluice recover"):
        home.run()
    mend(home)
    assert home.run().records == 10
    assert_holds(home, topics.sent)
    assert home.recover().problem is None


def test_a_checkpoint_that_is_elsewhere_than_the_ledger_is_refused(home: Home, topics: Topics) -> None:
    topic = topics.create()
    declare(home, topic)
    topics.send(topic, orders(0, 10))
    home.run()
    [(stream,)] = home.ask("SELECT stream_id::text FROM sluice.stream")
    offsets = home.checkpoint(stream) / "offsets" / "0"
    offsets.write_text(offsets.read_text().replace(f'"{topic}":{{"0":5', f'"{topic}":{{"0":4'))
    with pytest.raises(CheckpointDamaged, match=f"{topic}/0 at 4, the ledger at 5"):
        home.run()
    mend(home)
    topics.send(topic, orders(10, 3))
    home.run()
    assert_holds(home, topics.sent)


def test_partitions_and_topics_that_are_added_are_read_from_their_first_record(
    home: Home, topics: Topics
) -> None:
    one, other = topics.create("one"), topics.create("other")
    declare(home, one)
    topics.send(one, orders(0, 9))
    home.run()
    topics.widen(one, 4)
    topics.send(one, orders(9, 20, partitions=4))
    topics.send(other, orders(100, 7))
    assert home.run().records == 20
    declare(home, one, other)
    assert home.run().records == 7
    assert_holds(home, topics.sent)
    assert {number for number, *_ in ranges(home, one)} == {0, 1, 2, 3}


def test_an_added_topic_whose_first_records_aged_out_begins_at_its_earliest(
    home: Home, topics: Topics
) -> None:
    """Spark would stop for good: it takes a partition that does not begin at 0 for one that lost records."""
    one, other = topics.create("one"), topics.create("other", partitions=1)
    declare(home, one)
    topics.send(one, orders(0, 5))
    home.run()
    sent = topics.send(other, orders(100, 8, partitions=1))
    topics.age(other, 0, before=3)
    declare(home, one, other)
    with pytest.raises(CheckpointDamaged, match=f"{other}/0 begins at 3"):
        home.run()
    mend(home)
    assert home.run().records == 5
    assert_holds(home, [*topics.sent[:5], *sent[3:]])


def test_records_that_aged_out_unread_are_a_stop_until_a_person_accepts_it(
    home: Home, topics: Topics
) -> None:
    topic = topics.create(partitions=1)
    declare(home, topic)
    topics.send(topic, orders(0, 10, partitions=1))
    home.run()
    topics.send(topic, orders(10, 10, partitions=1))
    topics.age(topic, 0, before=14)
    for refused in (home.run, lambda: mend(home)):
        with pytest.raises(OffsetsGone, match=f"{topic}/0 from 10 up to 13") as told:
            refused()
        assert "--accept-gone" in told.value.remedy
    assert_holds(home, topics.sent[:10])
    mend(home, YES)
    assert home.run().records == 6
    assert_holds(home, topics.sent[:10] + topics.sent[14:])
    gap = home.ask("SELECT topic, start_offset, end_offset, who, why FROM sluice.accepted_gap")
    assert gap == [(topic, 10, 14, YES.who, YES.why)]
    assert ranges(home, topic)[-1] == (0, 14, 20)


def test_records_that_age_out_while_they_are_read_are_named(
    home: Home, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(partitions=1)
    declare(home, topic, max_offsets=5)
    for number in range(0, 30, 5):
        topics.send(topic, orders(number, 5, partitions=1))
    file = tmp_path / "client.properties"
    file.write_text("max.partition.fetch.bytes=1\n")  # else the client has all of them before they are gone
    mine = changed(home, kafka_properties=file)
    with (
        once_at(Step.JUDGED, lambda: topics.age(topic, 0, before=28)),
        pytest.raises(OffsetsGone, match=rf"{topic}/0 from \d+ up to 27"),
    ):
        mine.run()
    [(reached,)] = home.ask("SELECT max(end_offset) FROM sluice.delivery_range")
    assert reached < 28
    assert_holds(home, topics.sent[:reached])
    mend(home, YES)
    home.run()
    assert_holds(home, topics.sent[:reached] + topics.sent[28:])


def test_a_topic_that_was_made_anew_is_a_stop_though_its_name_is_the_same(home: Home, topics: Topics) -> None:
    topic = topics.create()
    declare(home, topic)
    topics.send(topic, orders(0, 10))
    home.run()
    topics.remake(topic)
    after = topics.send(topic, orders(100, 30))  # more than the ledger has: offsets alone would hide it
    with pytest.raises(OffsetsGone, match=f"{topic} was deleted and recreated"):
        home.run()
    assert_holds(home, topics.sent[:10])
    mend(home, YES)
    assert home.run().records == 30
    assert_holds(home, [*topics.sent[:10], *after])
    assert len(set(home.ask("SELECT topic_id FROM sluice.delivery_range"))) == 2


def test_a_topic_that_is_made_anew_within_a_batch_is_not_delivered(home: Home, topics: Topics) -> None:
    topic = topics.create()
    declare(home, topic)
    topics.send(topic, orders(0, 10))
    home.run()
    topics.send(topic, orders(10, 10))
    with (
        once_at(Step.STAGED, lambda: topics.remake(topic)),
        pytest.raises(OffsetsGone, match="was deleted and recreated while orders read it"),
    ):
        home.run()
    assert_holds(home, topics.sent[:10])


def test_what_is_of_files_alone_says_so(home: Home) -> None:
    declare(home, "orders")
    with pytest.raises(SetupError, match="a try reads only landed files"):
        try_out(home.place, home.pipeline(), ["one.json"])


def test_a_topic_that_is_not_there_is_named(home: Home) -> None:
    declare(home, "nowhere")
    with pytest.raises(SetupError, match="has no topic nowhere"):
        home.run()


def test_a_transform_over_topics_that_begins_to_keep_state_has_it_made_of_what_was_delivered(
    home: Home, topics: Topics
) -> None:
    topic = topics.create(partitions=1)
    declare(home, topic)
    topics.send(topic, orders(0, 5, partitions=1))
    home.run()
    text = (home.root / "my pipelines" / "orders.py").read_text()
    home.declare(text=text.replace("return df.select", "return df.dropDuplicates(['id']).select"))
    with pytest.raises(StateChanged, match="rebuild the state from all that was delivered: `sluice recover"):
        home.run()
    mend(home)
    topics.send(topic, orders(3, 5, partitions=1))
    home.run()
    assert home.ask("SELECT id FROM warehouse.orders ORDER BY id") == [(number,) for number in range(8)]


def test_a_topic_that_was_planned_and_is_no_longer_declared(home: Home, topics: Topics) -> None:
    first, second = topics.create("a", partitions=1), topics.create("b", partitions=1)
    declare(home, first)
    topics.send(first, orders(0, 5, partitions=1))
    home.run()
    declare(home, first, second)
    judge_strictly(home)
    topics.send(first, orders(5, 5, partitions=1))
    topics.send(second, orders(10, 5, partitions=1, negative=[12]))
    with pytest.raises(ContractBroken):
        home.run()
    declare(home, first)
    with pytest.raises(CheckpointDamaged, match=f"it reads {second}, which is not declared there"):
        home.run()
    mend(home)
    assert home.run().records == 5


def judge_strictly(home: Home) -> None:
    home.judge(rule("column_values_to_be_between", NEGATIVE, "critical", column="amount", min_value=0))


def stopped_at_first(home: Home, topics: Topics) -> str:
    """Make a topic whose first ten records are planned as a batch, which broke its contract."""
    topic = topics.create(partitions=1)
    declare(home, topic)
    judge_strictly(home)
    topics.send(topic, orders(0, 10, partitions=1, negative=[3]))
    with pytest.raises(ContractBroken):
        home.run()
    return topic


def test_what_aged_out_of_a_first_batch_that_was_never_delivered_is_left_out_on_record_alone(
    home: Home, topics: Topics
) -> None:
    topic = stopped_at_first(home, topics)
    topics.age(topic, 0, before=8)
    for refused in (home.run, lambda: mend(home)):
        with pytest.raises(OffsetsGone, match=f"{topic}/0 from 0 up to 7"):
            refused()
    mend(home, YES)
    assert home.run().records == 2
    gap = "SELECT start_offset, end_offset, who FROM sluice.accepted_gap"
    assert home.ask(gap) == [(0, 8, "ann")]


@pytest.mark.slow
def test_a_decision_on_a_first_batch_is_not_applied_to_a_topic_that_was_made_anew(
    home: Home, topics: Topics
) -> None:
    topic = stopped_at_first(home, topics)
    decided = home.sluice("decide", "orders", "--batch", "0", "--accept", "--why", "one row is fine")
    assert decided.returncode == 0, decided.stderr
    topics.remake(topic, partitions=1)
    topics.send(topic, orders(100, 12, partitions=1, negative=[103]))
    with pytest.raises(OffsetsGone, match=r"was deleted and recreated.*from 0 on"):
        home.run()
    mend(home, YES)
    with pytest.raises(ContractBroken):
        home.run()
    assert home.ask("SELECT count(*) FROM sluice.delivery") == [(0,)]
    assert home.ask("SELECT start_offset, end_offset FROM sluice.accepted_gap") == [(0, None)]


def test_a_try_may_be_given_longer_without_the_whole(home: Home, topics: Topics) -> None:
    topic = topics.create(partitions=1)
    declare(home, topic)
    topics.send(topic, orders(0, 5, partitions=1))
    file = home.root / "kafka.properties"
    file.write_text("request.timeout.ms=60000\n")
    assert changed(home, kafka_properties=file).run().records == 5
