"""A replay into an upsert sink leaves what a rebuild from the remaining changes would: nothing lost, nothing left over."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from etl.plan import Chosen, Plan, plan
from etl.read import catalog_properties
from etl.replay import replay
from etl.steps import Step
from tests import oracle
from tests.crash.test_walk import FAILURES
from tests.oracle import Rows
from tests.spark.runs import START, Home, failing_at, once_at
from tests.spark.test_sink_modes import LEVEL, Level, assert_clean, declare, land, made_levels
from tests.spark.test_sink_modes import SINK as DECLARATION

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
        self.live.append((self.newest_delivery, levels))

    def planned(self, first: int, last: int) -> Plan:
        return plan(self.home.place, self.home.pipeline("levels"), Chosen(deliveries=((first, last),)))

    def replay(self, first: int, last: int, levels: Sequence[Level]) -> None:
        """Replay deliveries by their numbers, which now have these levels in the file of the first."""
        self.replay_planned(self.planned(first, last), levels)

    def replay_planned(self, said: Plan, levels: Sequence[Level]) -> None:
        home, pipeline = self.home, self.home.pipeline("levels")
        again = said.change(None, accept_changed=False, who="tests", why="")
        replay(home.place, pipeline, said, who="tests", accept_changed=True, spark=home.spark)
        self.live = [one for one in self.live if one[0] not in again.supersedes]
        self.live.append((self.newest_delivery, levels))

    @property
    def newest_delivery(self) -> int:
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
        self.home.assert_clean("levels")


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


def test_a_replay_brings_a_column_that_the_changes_before_it_lack(levels: Levels) -> None:
    home = levels.home
    levels.deliver(0, [level("a", 5, 2), level("b", 1, 4)])
    levels.deliver(1, [level("a", 9, 6), level("b", 9, 8)])
    second = levels.live[-1][0]
    text = DECLARATION.format(name="levels", schema=SCHEMA, sink=SINK, suite="")
    home.declare(
        "levels", text=text.replace("lambda df: df", 'lambda df: df.withColumn("half", df.left / 2)')
    )
    levels.write(1, [level("b", 9, 8), level("c", 9, 10)])
    levels.replay(second, second, [level("b", 9, 8), level("c", 9, 10)])  # a is what batch 0 brought
    found = home.ask('SELECT article, "left", half FROM warehouse.levels ORDER BY article')
    assert found == [("a", 2, None), ("b", 8, 4.0), ("c", 10, 5.0)]
    table = SqlCatalog("sluice", **catalog_properties(home.place)).load_table("warehouse.levels")
    lake = table.scan(selected_fields=("article", "left", "half")).to_arrow().to_pylist()
    assert Rows(tuple(one.values()) for one in lake) == Rows([*found, ("b", 4, None)])
    assert_clean(home, "levels")


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


@dataclass(frozen=True, kw_only=True)
class _Some:
    """Deliveries in force."""

    asked: tuple[int, int]  # first and last
    numbers: Sequence[int]


@dataclass(kw_only=True)
class Walk:
    """Deliveries and replays by chance, each of them seen to leave what a rebuild would."""

    levels: Levels
    chance: random.Random
    made: Sequence[Sequence[Level]]
    files: dict[int, Sequence[int]] = field(default_factory=dict)  # by delivery in force
    batches: int = 0

    def steps(self, count: int) -> Iterator[str]:
        """So many, of each kind as many as of the others."""
        kinds = (self.deliver, self.replay, self.replay, self.fail, self.overtaken)
        for step in self.chance.sample(kinds, counts=[count // len(kinds)] * len(kinds), k=count):
            yield step()
            self.levels.assert_rebuilt()

    def deliver(self) -> str:
        """The stream's next batch."""
        self.levels.deliver(self.batches, self.made[self.batches])
        self.files[self.levels.newest_delivery] = [self.batches]
        self.batches += 1
        return "delivered"

    def replay(self) -> str:
        return self._replayed(nullcontext())

    def overtaken(self) -> str:
        """The stream delivers when all of a replay is staged."""
        self._replayed(once_at(Step.POINTER_DRAFTED, self.deliver))
        return "overtaken"

    def _replayed(self, during: AbstractContextManager[None]) -> str:
        """Some neighbours again, whose files have fewer rows now, or none, and other figures."""
        some = self._neighbours()
        levels = self._levels(some)
        files = [file for number in some.numbers for file in self.files[number]]
        share = self.chance.choice((0.0, 0.7, 0.7, 1.0))
        now = [
            replace(one, left=self.chance.randrange(100)) for one in levels if self.chance.random() < share
        ]
        for file in files:
            self.levels.write(file, now if file == files[0] else [])
        with during:
            self.levels.replay(*some.asked, now)
        self.files[self.levels.newest_delivery] = files
        return "replayed" if now else "replayed by nothing"

    def fail(self) -> str:
        """A replay that ends at one of its steps changes nothing."""
        some = self._neighbours()
        with failing_at(self.chance.choice(FAILURES)):
            self.levels.replay(*some.asked, self._levels(some))
        return "failed"

    def _neighbours(self) -> _Some:
        """A range of numbers, with what took the place of those within it that were replaced."""
        first = self.chance.choice(sorted(number for number, _ in self.levels.live))
        asked = first, first + self.chance.randrange(3)
        return _Some(asked=asked, numbers=self.levels.planned(*asked).numbers)

    def _levels(self, some: _Some) -> list[Level]:
        """Of each article and moment the level of the last delivery."""
        live = dict(self.levels.live)
        return list({(one.article, one.at): one for number in some.numbers for one in live[number]}.values())


def walked(levels: Levels, *, seed: int, steps: int) -> Counter[str]:
    walk = Walk(levels=levels, chance=random.Random(seed), made=made_levels(steps + 3))
    for _ in range(3):
        walk.deliver()
    return Counter(walk.steps(steps))


def test_a_walk_leaves_what_a_rebuild_would(levels: Levels) -> None:
    done = walked(levels, seed=5, steps=10)
    assert done.keys() >= {"delivered", "replayed", "overtaken", "failed"}, done


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 105))
def test_a_long_walk_leaves_what_a_rebuild_would(levels: Levels, seed: int) -> None:
    walked(levels, seed=seed, steps=40)


def test_an_interval_names_deliveries_by_their_changes_whatever_the_table_has_of_them(levels: Levels) -> None:
    levels.deliver(0, [level("a", 5), level("b", 1)])
    levels.deliver(1, [level("a", 9), level("c", 5)])
    levels.deliver(2, [level("a", 12), level("c", 12)])  # of 5 the table has no row now
    pipeline = replace(levels.home.pipeline("levels"), interval="at")

    def named(first: int, end: int) -> Plan:
        moments = (dt.datetime.fromtimestamp((START + at) / 1e6, dt.UTC) for at in (first, end))
        return plan(levels.home.place, pipeline, Chosen(interval=(next(moments), next(moments))))

    batches = [
        [one["batch_id"] for one in named(*span).deliveries] for span in ((5, 9), (9, 12), (6, 9), (12, 13))
    ]
    assert batches == [[0, 1], [1], [], [2]]
    levels.write(0, [level("b", 2)])
    levels.write(1, [])
    said = named(5, 6)
    assert said.besides == {"row": 2}
    levels.replay_planned(said, [level("b", 2)])
    levels.assert_rebuilt()
