"""A replay into an upsert sink leaves what a rebuild from the remaining changes would: nothing lost, nothing left over."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from etl.errors import SetupError
from etl.plan import Chosen, plan
from etl.replay import replay
from etl.steps import Step
from tests import oracle
from tests.oracle import Rows
from tests.spark.runs import START, Home, once_at
from tests.spark.test_sink_modes import LEVEL, Level, assert_clean, declare, land, made_levels

SCHEMA, SINK = "article string, at timestamp, left bigint", 'Upsert(keys=("article",), newest="at")'


@dataclass(kw_only=True)
class Levels:
    """A pipeline of levels, and what each delivery that is in force brought, in the order of their commits."""

    home: Home
    live: list[tuple[int, Sequence[Level]]] = field(default_factory=list)

    @classmethod
    def start(cls, home: Home) -> Levels:
        declare(home, "levels", LEVEL, schema=SCHEMA, sink=SINK)
        return cls(home=home)

    def write(self, batch: int, levels: Sequence[Level]) -> None:
        land(self.home, f"levels/{batch}.jsonl", [level.record for level in levels])

    def deliver(self, batch: int, levels: Sequence[Level]) -> None:
        """The stream's next batch."""
        self.write(batch, levels)
        assert self.home.run("levels").batches == 1
        self.live.append((self._newest_delivery(), levels))

    def replay(self, first: int, last: int, levels: Sequence[Level]) -> None:
        """Replay deliveries by their numbers, which now have these levels in the file of the first."""
        home, pipeline = self.home, self.home.pipeline("levels")
        said = plan(home.place, pipeline, Chosen(deliveries=(first, last)))
        again = said.change(None, who="tests", why="")
        replay(home.place, pipeline, said, who="tests", accept_changed=True, spark=home.spark)
        self.live = [one for one in self.live if one[0] not in again.supersedes]
        self.live.append((self._newest_delivery(), levels))

    def _newest_delivery(self) -> int:
        [(number,)] = self.home.ask(
            "SELECT delivery_id FROM sluice.delivery ORDER BY commit_seq DESC LIMIT 1"
        )
        return int(number)

    def assert_rebuilt(self) -> None:
        """The table is what the live changes amount to, applied one after the other; the lake has all of them."""
        eyes = self.home.reader("levels")
        every = [level for _, levels in self.live for level in levels]
        assert oracle.difference(eyes.on_lake(system=()), Rows(level.row[:3] for level in every)) == ""
        latest: dict[str | None, Level] = {}
        for _, levels in self.live:
            for level in sorted(levels, key=lambda one: one.at or 0):
                before = latest.get(level.article)
                if before is None or (level.at or 0) >= (before.at or 0):
                    latest[level.article] = level
        wanted = Rows(level.row[:3] for level in latest.values())
        assert oracle.difference(eyes.in_postgres(system=()), wanted) == ""
        assert_clean(self.home, "levels")


@pytest.fixture
def levels(home: Home) -> Levels:
    return Levels.start(home)


def level(article: str, at: int, left: int = 0) -> Level:
    return Level(article=article, at=START + at, left=left, batch=0)


def test_what_a_replaced_row_had_covered_comes_back(levels: Levels) -> None:
    levels.deliver(0, [level("a", 5), level("b", 1)])
    levels.deliver(1, [level("a", 9), level("b", 9), level("c", 9)])
    levels.deliver(2, [level("b", 12)])
    [_, (second, _), _] = levels.live
    levels.write(1, [level("d", 9)])
    levels.replay(second, second, [level("d", 9)])  # a is what batch 0 brought; c is gone
    levels.assert_rebuilt()
    levels.write(1, [])
    third = levels.live[-1][0]
    levels.replay(third, third, [])
    levels.assert_rebuilt()


@pytest.mark.parametrize("what", ["the stream", "another replay"])
def test_what_is_committed_while_a_replay_is_under_way_counts(levels: Levels, what: str) -> None:
    """Both come after the change log was staged: one brings a row that only the replaced one covers, one takes it away."""
    levels.deliver(0, [level("a", 5), level("b", 5)])
    levels.deliver(1, [level("a", 9), level("b", 9)])
    (first, _), (second, _) = levels.live

    def meanwhile() -> None:
        if what == "the stream":
            levels.deliver(2, [level("a", 7)])
        else:
            levels.write(0, [level("a", 3)])
            levels.replay(first, first, [level("a", 3)])

    levels.write(1, [level("c", 1)])
    with once_at(Step.POINTER_DRAFTED, meanwhile):
        levels.replay(second, second, [level("c", 1)])
    assert len(levels.live) == (3 if what == "the stream" else 2)
    levels.assert_rebuilt()


def test_changes_that_postgres_lost_before_the_commit_are_staged_again(levels: Levels) -> None:
    """PostgreSQL empties unlogged tables when it crashes."""
    levels.deliver(0, [level("a", 5)])
    levels.deliver(1, [level("a", 9)])
    second = levels.live[-1][0]

    def empty() -> None:
        [name] = [one for one in levels.home.staging_tables() if one.endswith("_log")]
        levels.home.ask(f"TRUNCATE sluice_stage.{name}")

    levels.write(1, [level("c", 1)])
    with once_at(Step.POINTER_DRAFTED, empty):
        levels.replay(second, second, [level("c", 1)])
    levels.assert_rebuilt()
    assert levels.home.ask("SELECT outcome FROM sluice.attempt ORDER BY delivery_id DESC LIMIT 2") == [
        ("delivered",),
        ("failed",),
    ]


def test_many_replays_leave_what_a_rebuild_would(levels: Levels) -> None:
    chance = random.Random(5)
    made = made_levels(5)
    files: dict[int, int] = {}  # delivery -> the file that it was made of
    for number, batch in enumerate(made):
        levels.deliver(number, batch)
        files[levels.live[-1][0]] = number
    for _ in range(6):
        old, before = chance.choice(levels.live)
        kept = [replace(one, left=chance.randrange(100)) for one in before if chance.random() < 0.7]
        levels.write(files[old], kept)
        levels.replay(old, old, kept)
        files[levels.live[-1][0]] = files[old]
        levels.assert_rebuilt()


def test_an_interval_of_a_column_is_not_asked_of_an_upserted_table(levels: Levels) -> None:
    levels.deliver(0, [level("a", 5)])
    pipeline = replace(levels.home.pipeline("levels"), interval="at")
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    with pytest.raises(SetupError, match="does not say which batches"):
        plan(levels.home.place, pipeline, Chosen(interval=(start, start)))
