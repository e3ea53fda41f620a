"""A pipeline whose asset watches a topic of Kafka: a message starts a run, and none is missed, whatever it holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.airflow.in_a_batch import held_in_the_commit, until_in_the_commit
from tests.support.airflow.orders_stack import PATIENCE, Stack
from tests.support.data.orders import DECLARATION, Landed, orders
from tests.support.documented import blocks
from tests.support.environment import JARS
from tests.support.kafka.broker import Broker, a_broker
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NAME, TOPIC = "announced", "orders.ready"
# What docs/airflow.md shows: the trigger, and the configuration of its Connection.
[TRIGGER] = [one.text for one in blocks("python") if "AwaitMessageTrigger" in one.text]
[CONFIGURATION] = [json.loads(one.text) for one in blocks("json") if "auto.offset.reset" in one.text]
ARRIVED = """
def arrived():
    from airflow.sdk import Asset, AssetOrTimeSchedule, AssetWatcher, CronTriggerTimetable

    watched = Asset("orders are announced", watchers=[AssetWatcher(name="orders.ready", trigger=announced())])
    yearly = CronTriggerTimetable("0 0 1 1 *", timezone="UTC")
    return AssetOrTimeSchedule(timetable=yearly, assets=[watched])
"""
WITHOUT_TEXT = (b"", None, b"\xff\xfe")  # such values alone make no event in Airflow's own way


@dataclass(kw_only=True)
class Announced:
    """The pipeline, and whoever lands its files and says so on the topic."""

    stack: Stack
    broker: Broker
    landed: Landed = field(default_factory=Landed)
    told: int = 0  # messages

    def land(self) -> None:
        start = len(self.landed.orders)
        self.landed += self.stack.home.land(f"{NAME}/{start}.jsonl", orders(start, 5))

    def announce(self, *values: bytes | None) -> None:
        producer = Producer({"bootstrap.servers": self.broker.servers})
        for value in values:
            producer.produce(TOPIC, value)
        assert producer.flush(PATIENCE) == 0
        self.told += len(values)

    def runs(self) -> list[str]:
        """Return the runs that messages have started, the first one first."""
        found = [run for run in self.stack.api.runs(NAME) if run.startswith("asset_triggered__")]
        return found[::-1]

    def started(self, count: int) -> str:
        """Wait for so many runs; return the last one."""
        until(lambda: len(self.runs()) >= count, lambda: f"run {count}: {self.runs()}", patience=PATIENCE)
        assert len(self.runs()) == count
        return self.runs()[-1]

    def offsets(self, run: str) -> list[int]:
        """Return the offsets of the messages that started a run."""
        events = self.stack.call("GET", f"/dags/{NAME}/dagRuns/{quote(run, safe='')}/upstreamAssetEvents")
        places = [one["extra"]["payload"] for one in events["asset_events"]]
        assert {(one["topic"], one["partition"]) for one in places} == {(TOPIC, 0)}
        return sorted(one["offset"] for one in places)

    def events(self) -> int:
        found = self.stack.call("GET", "/assets/events?limit=100&name_pattern=announced")["asset_events"]
        return len([one for one in found if one["name"] == "orders are announced"])

    def assert_delivered(self) -> None:
        eyes = self.stack.home.reader(NAME)
        assert eyes.in_postgres(system=()) == eyes.on_lake(system=()) == self.landed.delivered
        self.stack.home.assert_one_history(NAME)


@pytest.fixture
def announced(stack: Stack) -> Iterator[Announced]:
    """Return the pipeline, watching a topic that is empty yet."""
    with a_broker(JARS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.servers})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(PATIENCE)
        client = json.dumps({**CONFIGURATION, "bootstrap.servers": broker.servers})
        stack.call("POST", "/connections", connection_id="kafka_default", conn_type="kafka", extra=client)
        text = DECLARATION.format(name=NAME, max_files=None, share=1.0)
        text = text.replace('suite="orders"', 'suite="orders", schedule=arrived')
        stack.home.declare(NAME, text=TRIGGER + ARRIVED + text)
        stack.home.make_folder(NAME)
        stack.wait_for_dag(NAME)
        stack.api.unpause(NAME)
        owed = until(lambda: [*stack.api.runs(NAME)], "the run that its schedule owes", patience=PATIENCE)
        assert [stack.ended(run, NAME) for run in owed] == ["success"]
        stack.read_dags()  # of a DAG that was paused Airflow watches no asset before it reads its file anew
        yield Announced(stack=stack, broker=broker)
        stack.api.pause(NAME)


def test_each_message_starts_a_run_or_the_next_one_also_after_the_broker_was_away(
    announced: Announced,
) -> None:
    stack = announced.stack
    announced.land()
    announced.announce(b"the first file is complete")
    first = announced.started(1)
    assert stack.ended(first, NAME) == "success"
    assert announced.offsets(first) == [0]
    announced.assert_delivered()

    with held_in_the_commit(stack, NAME):
        announced.land()
        announced.announce(b"")
        second = announced.started(2)
        until_in_the_commit(stack)
        announced.land()
        announced.announce(*WITHOUT_TEXT)
        until(lambda: announced.events() == announced.told, "an event of each message", patience=PATIENCE)
        assert stack.api.state(NAME, second) == "running"
    assert stack.ended(second, NAME) == "success"
    third = announced.started(3)
    assert stack.ended(third, NAME) == "success"
    assert (announced.offsets(second), announced.offsets(third)[0]) == ([1], 2)
    announced.assert_delivered()

    log = stack.found.log("triggerer")
    said = len(log.read_text())
    announced.broker.kill()
    until(lambda: "Exception received:" in log.read_text()[said:], "what is told", patience=PATIENCE)
    announced.broker.start()
    announced.land()
    announced.announce(b"back")
    assert stack.ended(announced.started(4), NAME) == "success"
    announced.assert_delivered()
