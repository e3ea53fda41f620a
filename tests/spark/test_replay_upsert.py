"""A replay into an upsert sink leaves what a rebuild from the remaining changes would: nothing lost, nothing left over."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from etl.common.errors import NeedsPerson
from etl.common.steps import Step
from etl.delivery.upserts import spark_change_log
from etl.ledger.quarantine import RowSelection as Held
from etl.ledger.quarantine import held_rows
from etl.runs.replay.plan import ReplayPlan, Selection, plan
from etl.runs.replay.release import release
from etl.runs.replay.replay import replay
from etl.spark.frames import parquet
from tests.support import oracle
from tests.support.catalog import open_catalog
from tests.support.data.levels import DECLARATION as DECLARATION
from tests.support.data.levels import LEVEL, Level, assert_clean, declare, land, made_levels
from tests.support.data.orders import START, rule
from tests.support.home import Home, failing_at, once_at
from tests.support.oracle import Rows
from tests.support.protocol_steps import BEFORE_THE_COMMIT

SCHEMA, SINK = "article string, at timestamp, left bigint", 'Upsert(keys=("article",), newest="at")'


@dataclass(kw_only=True)
class Levels:
    """A pipeline of levels, and what each delivery that is in force brought, in the order of their commits."""

    home: Home
    live: list[tuple[int, Sequence[Level]]] = field(default_factory=list)
    landed: dict[int, Sequence[Level]] = field(default_factory=dict)  # by the number of the file

    @classmethod
    def start(cls, home: Home) -> Levels:
        declare(home, "levels", LEVEL, schema=SCHEMA, sink=SINK)
        return cls(home=home)

    @contextmanager
    def keeping(self, condition: str) -> Iterator[None]:
        """Have the transform leave all other rows out while the block runs."""
        text = DECLARATION.format(name="levels", schema=SCHEMA, sink=SINK, suite="")
        self.home.declare("levels", text=text.replace("lambda df: df", f"lambda df: df.where({condition!r})"))
        try:
            yield
        finally:
            self.home.declare("levels", text=text)

    def write(self, batch: int, levels: Sequence[Level]) -> None:
        self.landed[batch] = levels
        land(self.home, f"levels/{batch}.jsonl", [level.record for level in levels])

    def deliver(self, *batches: Sequence[Level]) -> None:
        """Deliver the stream's next batches, by one run."""
        for levels in batches:
            self.write(len(self.landed), levels)
        assert self.home.run("levels").batches == len(batches)
        newest = "SELECT delivery_id FROM sluice.delivery ORDER BY commit_seq DESC LIMIT %s"
        numbers = [number for (number,) in reversed(self.home.ask(newest, len(batches)))]
        self.live += zip(numbers, batches, strict=True)

    def planned(self, first: int, last: int) -> ReplayPlan:
        return plan(self.home.place, self.home.pipeline("levels"), Selection(deliveries=((first, last),)))

    def replay(self, first: int, last: int, levels: Sequence[Level]) -> None:
        """Replay deliveries by their numbers, which now have these levels in the file of the first."""
        self.replay_planned(self.planned(first, last), levels)

    def replay_planned(
        self, said: ReplayPlan, levels: Sequence[Level], *, accept_changed: bool = True
    ) -> None:
        home, pipeline = self.home, self.home.pipeline("levels")
        again = said.change(None, accept_changed=False, who="tests", why="")
        replay(home.place, pipeline, said, who="tests", accept_changed=accept_changed, spark=home.spark)
        self.live = [one for one in self.live if one[0] not in again.supersedes]
        self.live.append((self.newest_delivery, levels))

    def replay_kept(self, delivery: int, condition: str, levels: Sequence[Level]) -> None:
        """Replay one from the same files, of which the transform now keeps these levels."""
        with self.keeping(condition):
            self.replay_planned(self.planned(delivery, delivery), levels, accept_changed=False)

    @property
    def newest_delivery(self) -> int:
        [(number,)] = self.home.ask(
            "SELECT delivery_id FROM sluice.delivery ORDER BY commit_seq DESC LIMIT 1"
        )
        return int(number)

    def assert_rebuilt(self) -> None:
        """Require the table that the live changes amount to, one after the other; the lake has all of them."""
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


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the objects of the change log as they are read."""
    found: list[str] = []

    def recorded(spark: Any, uris: Sequence[str], schema: Any) -> Any:
        found.extend(uris)
        return parquet(spark, uris, schema)

    monkeypatch.setattr(spark_change_log, "parquet", recorded)
    return found


def level(article: str, at: int | None, left: int = 0) -> Level:
    return Level(article=article, at=at if at is None else START + at, left=left, batch=0)


def objects(levels: Levels, delivery: int) -> list[str]:
    query = "SELECT path FROM sluice.delivery_file WHERE delivery_id = %s AND kind = 'data'"
    return [path for (path,) in levels.home.ask(query, delivery)]


@pytest.mark.slow
def test_a_replay_that_brings_all_keys_again_reads_no_object_of_the_log(
    levels: Levels, read: list[str]
) -> None:
    levels.deliver(
        [level("a", 5), level("b", 5), level("c", 9)],
        [level("a", 9), level("b", 5, 2), level("c", 5)],  # of c it has no row in the table
    )
    [(first, _), (second, brought)] = levels.live
    levels.replay_kept(second, "article <= 'c'", brought)
    assert read == []
    levels.assert_rebuilt()
    third = levels.newest_delivery
    all_of_it = {*objects(levels, first), *objects(levels, third)}
    levels.write(1, [level("a", 9, 4), level("b", 6)])
    levels.replay(third, third, [level("a", 9, 4), level("b", 6)])  # and changed inputs are taken
    assert set(read) == all_of_it, "then the table is not taken to be right"
    levels.assert_rebuilt()


def test_only_objects_that_may_have_a_key_that_was_lost_are_read(levels: Levels, read: list[str]) -> None:
    levels.deliver(
        [level("a", 1), level("b", 1), level("c", 1)],
        [level("m", 1), level("n", 1)],
        [level("a", 9), level("b", 9), level("n", 9), level("o", 9)],
    )
    (first, _), _, (third, brought) = levels.live
    levels.replay_kept(third, "article <> 'b'", [one for one in brought if one.article != "b"])
    assert read == objects(levels, first)
    levels.assert_rebuilt()


@pytest.mark.parametrize("before", [7, None])
def test_of_a_key_whose_version_went_down_the_newest_of_all_that_is_left_wins(
    levels: Levels, before: int | None
) -> None:
    levels.deliver(
        [level("a", before), level("b", before), level("c", None), level("d", None)],
        [level(one, 9) for one in "ab"]
        + [level(one, at) for one in "ab" for at in (5, 8)]
        + [level("c", None, 1)],
    )
    second = levels.newest_delivery
    at = "at - timestamp'2020-01-01T00:00:00Z'"
    kept = [level("a", 5), level("b", 8), level("b", 5), level("c", None, 1)]
    condition = f"at IS NULL OR {at} = INTERVAL '0.000005' SECOND OR (article = 'b' AND {at} = INTERVAL '0.000008' SECOND)"
    levels.replay_kept(second, condition, kept)
    levels.assert_rebuilt()


def test_a_key_that_comes_uncovered_while_a_replay_is_under_way_gets_its_changes(levels: Levels) -> None:
    """Another replay takes away the row that had covered both; what it puts back is what this one replaces."""
    levels.deliver(
        [level("a", 5), level("b", 5)],
        [level("a", 9), level("b", 9)],
        [level("a", 12), level("b", 12)],
    )
    _, (second, _), (third, _) = levels.live

    def meanwhile() -> None:
        levels.write(2, [level("b", 12)])
        levels.replay(third, third, [level("b", 12)])

    levels.write(1, [])
    with once_at(Step.POINTER_DRAFTED, meanwhile):
        levels.replay(second, second, [])
    levels.assert_rebuilt()


def test_what_the_lock_finds_uncovered_is_read_before_it_is_tried_again(
    levels: Levels, read: list[str]
) -> None:
    """A row that was changed by hand moves no pointer."""
    levels.deliver([level("a", 5), level("b", 5)], [level("a", 9)])
    [(first, _), (second, brought)] = levels.live

    def newer() -> None:
        assert read == []
        levels.home.ask(
            "UPDATE warehouse.levels SET at = at + interval '1 day' WHERE article = 'a' RETURNING 1"
        )

    with once_at(Step.POINTER_DRAFTED, newer):
        levels.replay_planned(levels.planned(second, second), brought, accept_changed=False)
    assert read == objects(levels, first)
    levels.assert_rebuilt()


def test_a_key_that_the_table_lost_by_hand_is_the_newest_of_all_that_is_left(levels: Levels) -> None:
    levels.deliver(
        [level("a", 7), level("b", 7), level("c", 7)],
        [level("a", 9), level("b", 9), level("c", 9)],
    )
    second = levels.newest_delivery
    levels.home.ask("DELETE FROM warehouse.levels WHERE article IN ('a', 'b') RETURNING 1")
    levels.write(1, [level("a", 3)])
    levels.replay(second, second, [level("a", 3)])
    levels.assert_rebuilt()


def test_an_object_that_is_gone_comes_back_with_its_delivery_and_so_do_keys_that_only_it_could_tell(
    levels: Levels, read: list[str]
) -> None:
    levels.deliver([level("a", 5), level("b", 5)], [level("a", 9), level("c", 9)])
    [(first, _), (second, _)] = levels.live
    remove(levels, second)
    levels.home.ask("DELETE FROM warehouse.levels WHERE article = 'a' RETURNING 1")
    levels.write(1, [level("c", 9)])
    levels.replay(second, second, [level("c", 9)])
    assert read == objects(levels, first)
    levels.assert_rebuilt()


def test_a_replay_that_needs_an_object_that_is_gone_names_the_deliveries_to_be_replayed_with_it(
    levels: Levels,
) -> None:
    levels.deliver(
        [level("a", 5), level("b", 5)],
        [level("b", 7)],
        [level("a", 9), level("c", 9)],
    )
    [(first, brought), (_, _), (third, _)] = levels.live
    remove(levels, first)
    with pytest.raises(NeedsPerson, match=r"1 of the objects that may have it are gone from S3") as refused:
        levels.replay_kept(third, "article = 'c'", [level("c", 9)])
    assert f"--deliveries {first},{third} --accept-changed" in refused.value.remedy
    said = plan(
        levels.home.place,
        levels.home.pipeline("levels"),
        Selection(deliveries=((first, first), (third, third))),
    )
    levels.replay_planned(said, [*brought, level("a", 9), level("c", 9)])
    levels.assert_rebuilt()


def test_a_release_of_which_the_object_is_gone_is_replayed_by_what_had_held_its_rows(levels: Levels) -> None:
    home = levels.home
    text = DECLARATION.format(name="levels", schema=SCHEMA, sink=SINK, suite='suite="levels",')
    home.declare("levels", text=text)
    home.judge(
        rule("column_values_to_be_between", "left", "warning", column="left", min_value=0), name="levels"
    )
    levels.deliver([level("a", 5, -1), level("b", 5)])
    home.judge(name="levels")
    [(first, _)] = levels.live
    pipeline, held = home.pipeline("levels"), held_rows(home.dsn, "levels", Held(status="held"))
    [released] = release(home.place, pipeline, held, {}, who="tests", why="it may be", spark=home.spark)
    levels.deliver([level("a", 9), level("c", 9)])
    last = levels.newest_delivery
    remove(levels, released.delivery_id)
    levels.write(1, [level("c", 9)])
    with pytest.raises(NeedsPerson) as refused:
        levels.replay(last, last, [])
    assert f"--deliveries {first},{last} --accept-changed --releases drop" in refused.value.remedy
    said = plan(home.place, pipeline, Selection(deliveries=((first, first), (last, last))))
    replay(home.place, pipeline, said, who="tests", accept_changed=True, releases="drop", spark=home.spark)
    found = home.reader("levels").in_postgres(system=())
    assert found == Rows(one.row[:3] for one in (level("a", 5, -1), level("b", 5), level("c", 9)))
    home.assert_clean("levels")


def remove(levels: Levels, delivery: int) -> None:
    """Remove rows by hand, as no tool of the pipeline would."""
    for path in objects(levels, delivery):
        levels.home.reader("levels").store.delete_file(path.removeprefix("s3://"))


def test_what_a_replaced_row_had_covered_comes_back(levels: Levels) -> None:
    levels.deliver(
        [level("a", 5), level("b", 1)],
        [level("a", 9), level("b", 9), level("c", 9)],
        [level("b", 12)],
    )
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
    levels.deliver([level("a", 5, 2), level("b", 1, 4)], [level("a", 9, 6), level("b", 9, 8)])
    second = levels.live[-1][0]
    text = DECLARATION.format(name="levels", schema=SCHEMA, sink=SINK, suite="")
    home.declare(
        "levels", text=text.replace("lambda df: df", 'lambda df: df.withColumn("half", df.left / 2)')
    )
    levels.write(1, [level("b", 9, 8), level("c", 9, 10)])
    levels.replay(second, second, [level("b", 9, 8), level("c", 9, 10)])  # a is what batch 0 brought
    found = home.ask('SELECT article, "left", half FROM warehouse.levels ORDER BY article')
    assert found == [("a", 2, None), ("b", 8, 4.0), ("c", 10, 5.0)]
    table = open_catalog(home.place).load_table("warehouse.levels")
    lake = table.scan(selected_fields=("article", "left", "half")).to_arrow().to_pylist()
    assert Rows(tuple(one.values()) for one in lake) == Rows([*found, ("b", 4, None)])
    assert_clean(home, "levels")


@pytest.mark.parametrize("what", ["the stream", "another replay"])
def test_what_is_committed_while_a_replay_is_under_way_counts(levels: Levels, what: str) -> None:
    """Both come after the change log was staged: one brings a row that only the replaced one covers, one takes it away."""
    levels.deliver([level("a", 5), level("b", 5)], [level("a", 9), level("b", 9)])
    (first, _), (second, _) = levels.live

    def meanwhile() -> None:
        if what == "the stream":
            levels.deliver([level("a", 7)])
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
    levels.deliver([level("a", 5)], [level("a", 9)])
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
        kinds = (self.deliver, self.replay, self.keep_some, self.fail, self.overtaken)
        for step in self.chance.sample(kinds, counts=[count // len(kinds)] * len(kinds), k=count):
            yield step()
            self.levels.assert_rebuilt()

    def deliver(self) -> str:
        """Deliver the stream's next batch."""
        self.levels.deliver(self.made[self.batches])
        self.files[self.levels.newest_delivery] = [self.batches]
        self.batches += 1
        return "delivered"

    def replay(self) -> str:
        return self._replayed(nullcontext())

    def keep_some(self) -> str:
        """Replay a delivery from the same files, of which the transform keeps some rows, or all, or none."""
        number, _ = self.chance.choice(self.levels.live)
        files, most = self.files[number], self.chance.choice((0, 50, 90, 100))
        landed = [one for file in files for one in self.levels.landed[file]]
        self.levels.replay_kept(
            number, f"left % 100 < {most}", [one for one in landed if one.left % 100 < most]
        )
        self.files[self.levels.newest_delivery] = files
        return "replayed"

    def overtaken(self) -> str:
        """Have the stream deliver when all of a replay is staged."""
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
        """End a replay at one of its steps, which changes nothing."""
        some = self._neighbours()
        with failing_at(self.chance.choice(BEFORE_THE_COMMIT)):
            self.levels.replay(*some.asked, self._levels(some))
        return "failed"

    def _neighbours(self) -> _Some:
        """Return a range of numbers, with what took the place of those within it that were replaced."""
        first = self.chance.choice(sorted(number for number, _ in self.levels.live))
        asked = first, first + self.chance.randrange(3)
        return _Some(asked=asked, numbers=self.levels.planned(*asked).numbers)

    def _levels(self, some: _Some) -> list[Level]:
        """Return for each article and moment the level of the last delivery."""
        live = dict(self.levels.live)
        return list({(one.article, one.at): one for number in some.numbers for one in live[number]}.values())


def walked(levels: Levels, *, seed: int, steps: int) -> Counter[str]:
    walk = Walk(levels=levels, chance=random.Random(seed), made=made_levels(steps + 3))
    for _ in range(3):
        walk.deliver()
    return Counter(walk.steps(steps))


@pytest.mark.slow
def test_a_walk_leaves_what_a_rebuild_would(levels: Levels) -> None:
    done = walked(levels, seed=5, steps=10)
    assert done.keys() >= {"delivered", "replayed", "overtaken", "failed"}, done


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 105))
def test_a_long_walk_leaves_what_a_rebuild_would(levels: Levels, seed: int) -> None:
    walked(levels, seed=seed, steps=40)


def test_an_interval_names_deliveries_by_their_changes_whatever_the_table_has_of_them(levels: Levels) -> None:
    levels.deliver(
        [level("a", 5), level("b", 1)],
        [level("a", 9), level("c", 5)],
        [level("a", 12), level("c", 12)],  # of 5 the table has no row now
    )
    pipeline = replace(levels.home.pipeline("levels"), interval="at")

    def named(first: int, end: int) -> ReplayPlan:
        moments = (dt.datetime.fromtimestamp((START + at) / 1e6, dt.UTC) for at in (first, end))
        return plan(levels.home.place, pipeline, Selection(interval=(next(moments), next(moments))))

    batches = [
        [one.batch_id for one in named(*span).deliveries] for span in ((5, 9), (9, 12), (6, 9), (12, 13))
    ]
    assert batches == [[0, 1], [1], [], [2]]
    levels.write(0, [level("b", 2)])
    levels.write(1, [])
    said = named(5, 6)
    assert said.besides == {"row": 2}
    levels.replay_planned(said, [level("b", 2)])
    levels.assert_rebuilt()
