"""A broker that is killed beneath a run, and comes back, or stays away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from etl.common.errors import ServiceAway
from etl.common.settings import Settings
from etl.common.steps import Step
from tests.support.home import Home, once_at
from tests.support.kafka.broker import Broker, a_broker
from tests.support.kafka.topics import NAME, Topics, assert_holds, changed, declare, orders


@pytest.fixture(scope="module")
def broker(settings: Settings) -> Iterator[Broker]:
    """Run a broker of this module's own, since these tests kill it."""
    with a_broker(settings.jars) as found:
        yield found


@pytest.mark.slow
def test_a_broker_that_is_killed_and_comes_back_within_a_run(
    home: Home, topics: Topics, broker: Broker
) -> None:
    topic = topics.create()
    declare(home, topic, max_offsets=10)
    topics.send(topic, orders(0, 40))

    back = threading.Thread(target=broker.start)

    def fail() -> None:
        broker.kill()
        back.start()  # it is away when the batch asks whose its topic is, and when the next one is read

    with once_at(Step.STAGED, fail):
        done = home.run()
    back.join()
    assert (done.batches, done.records) == (4, 40)
    assert_holds(home, topics.sent)


@pytest.mark.slow
def test_a_broker_that_stays_away_is_an_outage_and_the_next_run_goes_on(
    home: Home, topics: Topics, broker: Broker, tmp_path: Path
) -> None:
    file = tmp_path / "impatient.properties"
    file.write_text("default.api.timeout.ms=3000\nrequest.timeout.ms=2000\n")
    topic = topics.create()
    declare(home, topic, max_offsets=10)
    impatient = changed(home, kafka_properties=file)
    topics.send(topic, orders(0, 40))
    with once_at(Step.COMMITTED, broker.kill), pytest.raises(ServiceAway, match=f"sluice run {NAME}"):
        impatient.run()
    with pytest.raises(ServiceAway):
        impatient.run()
    broker.start()
    assert home.run().records == 30
    assert_holds(home, topics.sent)
