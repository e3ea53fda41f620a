"""A run that stays up over a topic delivers what comes meanwhile, once, and sees what becomes of the topic."""

from __future__ import annotations

import pytest

from etl.common.errors import NeedsPerson
from etl.runs.recovery.base import AcceptedGaps
from etl.runs.recovery.recover import recover
from tests.support.followed import following
from tests.support.home import Home
from tests.support.kafka.topics import NAME, Topics, assert_holds, declare, orders, ranges

pytestmark = pytest.mark.timeout(600)


def test_what_comes_meanwhile_is_read_also_of_partitions_that_are_added(home: Home, topics: Topics) -> None:
    topic = topics.create(partitions=1)
    declare(home, topic, max_offsets=20)
    topics.send(topic, orders(0, 50, partitions=1, negative=[7]))
    with following(home) as start:
        up = start(NAME)
        up.wait_for_rows(50)
        topics.send(topic, orders(50, 5, partitions=1))
        up.wait_for_rows(55)
        topics.widen(topic, 2)
        topics.send(topic, orders(55, 10))
        up.wait_for_rows(65)
        assert up.stop().records == 65
    behind = "SELECT batch_id, behind FROM sluice.batch_progress ORDER BY batch_id LIMIT 3"
    assert home.ask(behind) == [(0, 30), (1, 10), (2, 0)]
    topics.send(topic, orders(65, 4))
    assert home.run().records == 4
    assert_holds(home, topics.sent)
    assert {partition for partition, *_ in ranges(home, topic)} == {0, 1}


@pytest.mark.slow
def test_a_topic_that_is_made_anew_between_two_batches_ends_it_and_none_of_the_other_is_delivered(
    home: Home, topics: Topics
) -> None:
    topic = topics.create()
    declare(home, topic)
    topics.send(topic, orders(0, 10))
    with following(home) as start:
        up = start(NAME)
        up.wait_for_rows(10)
        up.wait(lambda: up.control.waiting, "trigger that finds nothing")
        topics.remake(topic)
        after = topics.send(topic, orders(100, 30))  # more than the ledger has: offsets alone would hide it
        error = up.error()
    assert isinstance(error, NeedsPerson), error
    assert_holds(home, topics.sent[:10])
    yes = AcceptedGaps(who="ann", why="it was made anew")
    recover(home.place, home.pipeline(), accepted=yes, spark=home.spark)
    assert home.run().records == 30
    assert_holds(home, [*topics.sent[:10], *after])
