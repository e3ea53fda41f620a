"""Files, rate and socket hold to what every kind of source does; topics of Kafka do in tests/kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from etl.runs.summary import Summary
from tests.support.data.orders import orders
from tests.support.followed import Followed, following
from tests.support.home import Home
from tests.support.live_sources import RATE, TICKS, Sender, declare, sending
from tests.support.source_kinds import Filled, FilledLive, SourceKindContract

pytestmark = pytest.mark.timeout(600)


@dataclass(kw_only=True)
class FilledFiles(Filled):
    foreseen: bool = True

    def give(self, count: int) -> None:
        numbers = self.number(count)
        self.home.land(f"orders/{numbers.start}.jsonl", orders(numbers.start, count))
        self.wanted.update(numbers)

    def run(self) -> Summary:
        return self.home.run()


@dataclass(kw_only=True)
class FilledRate(FilledLive):
    name: str = "ticks"

    def hand_over(self, count: int) -> None:
        return None


@dataclass(kw_only=True)
class FilledSocket(FilledLive):
    sender: Sender

    def hand_over(self, count: int) -> range:
        numbers = self.number(count)
        self.sender.accept()
        self.sender.send([order.json for order in orders(numbers.start, count)])
        return numbers


@pytest.fixture
def follow(home: Home) -> Iterator[Callable[[str], Followed]]:
    with following(home) as start:
        yield start


class TestFiles(SourceKindContract):
    @pytest.fixture
    def filled(self, home: Home) -> Filled:
        return FilledFiles(home=home)


class TestRate(SourceKindContract):
    @pytest.fixture
    def filled(self, home: Home, follow: Callable[[str], Followed]) -> Filled:
        home.declare("ticks", text=RATE)
        home.columns = TICKS
        return FilledRate(home=home, follow=follow)


class TestSocket(SourceKindContract):
    @pytest.fixture
    def filled(self, home: Home, follow: Callable[[str], Followed]) -> Iterator[Filled]:
        with sending() as sender:
            declare(home, sender.port)
            yield FilledSocket(home=home, follow=follow, sender=sender)
