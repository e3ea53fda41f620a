"""Topics of Kafka hold to what every kind of source does."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from etl.runs.summary import Summary
from tests.support.home import Home
from tests.support.kafka.topics import Topics, declare, orders
from tests.support.source_kinds import Filled, SourceKindContract

pytestmark = pytest.mark.timeout(600)


@dataclass(kw_only=True)
class FilledTopic(Filled):
    topics: Topics
    topic: str

    def give(self, count: int) -> None:
        numbers = self.number(count)
        self.topics.send(self.topic, orders(numbers.start, count))
        self.wanted.update(numbers)

    def run(self) -> Summary:
        return self.home.run()


class TestTopics(SourceKindContract):
    @pytest.fixture
    def filled(self, home: Home, topics: Topics) -> Filled:
        topic = topics.create()
        declare(home, topic)
        return FilledTopic(home=home, topics=topics, topic=topic)
