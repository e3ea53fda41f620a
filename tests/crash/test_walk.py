"""A seeded walk over deliveries, replays, releases and clears, some of which fail or are killed, beside readers.

After every step both sinks hold exactly what the walk says. The readers never look away: they take each look in one
REPEATABLE READ transaction, pointer included, and never see half of anything.
"""

from __future__ import annotations

import datetime as dt
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg2
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from etl.airflow.command.request import selection_of
from etl.airflow.task_try import TaskTry
from etl.common.errors import SetupError
from etl.common.settings import Settings
from etl.common.steps import Listener, Step
from etl.delivery.correction import Correction
from etl.ledger.quarantine import HeldRow, held_rows
from etl.ledger.quarantine import RowSelection as Rows
from etl.operations.audit.audit import audit
from etl.pipeline import Pipeline
from etl.runs.replay.corrections import corrected_rows
from etl.runs.replay.plan import ReplayPlan, Selection, plan
from etl.runs.workspace import Workspace
from etl.services import Services
from etl.sinks.lake.lake import Lake
from tests.support import oracle
from tests.support.arrow_driver import ArrowBatch, of, pipeline
from tests.support.killed.doomed import PIPELINE, Doomed, Order, done, doomed_processes
from tests.support.oracle import MadeBatch
from tests.support.protocol_steps import AFTER_THE_COMMIT, BEFORE_THE_COMMIT

STEPS = 14  # of a short walk
SEED, *MORE_SEEDS = (1, 3, 5)
LONG_STEPS, LONG_SEEDS = 40, range(100, 115)
NOTHING = "nothing to do"


class _Stopped(Exception):
    pass


@dataclass(kw_only=True)
class DagRun:
    """What Airflow asks for, and what became of it."""

    asked: TaskTry  # its newest try
    succeeded: bool = False  # ever
    delivered: set[int] = field(default_factory=set)

    def try_again(self, *, cleared: bool) -> None:
        tried, clears = self.asked.try_number, self.asked.clear_number
        self.asked = replace(self.asked, try_number=tried + 1, clear_number=clears + cleared)


@dataclass(frozen=True, kw_only=True)
class Act:
    """A delivery that is to be made."""

    words: str
    order: Order
    settle: Callable[[int], None]  # what is in the sinks once it is there, under this number
    dag_run: DagRun | None = None  # that asks for it; None: a person, with a command
    origin: int | None = None  # of the rows that it releases


@dataclass(kw_only=True)
class Walk:
    """What was done, and what both sinks must hold after it."""

    chance: random.Random
    place: Workspace
    declared: Pipeline
    lake: Lake
    made: list[MadeBatch]
    doomed: Doomed
    stream: str = field(default_factory=lambda: str(uuid.uuid4()))
    batches: int = 0  # of the stream that its checkpoint has marked as done
    content: dict[int, MadeBatch] = field(default_factory=dict)  # by live delivery
    released: dict[int, oracle.Rows] = field(default_factory=dict)  # by live release
    origins: dict[int, int] = field(default_factory=dict)  # by release: what had held its rows
    heirs: dict[int, int] = field(default_factory=dict)  # by delivery: what took its place
    dag_runs: list[DagRun] = field(default_factory=list)
    bag: list[Callable[[], str]] = field(default_factory=list)  # the next steps; then all kinds again
    done: list[str] = field(default_factory=list)

    @property
    def dsn(self) -> str:
        return self.place.services.postgres

    def step(self) -> None:
        if not self.bag:
            beside = (self.replay, self.replay, self.release, self.clear, self.overtake)
            self.bag = [self.run, *beside, self.fail, self.kill, self.kill]
            self.chance.shuffle(self.bag)
        self.done.append(self.bag.pop()())
        self.require_equal()

    def run(self) -> str:
        """Deliver the stream's next batch."""
        return self._do(self._batch(self._dag_run("scheduled")))

    def replay(self) -> str:
        """Some neighbours, or an interval, again."""
        return self._do(self._some_replay())

    def release(self) -> str:
        """Release the rows of one delivery that only lack a name, with one."""
        return self._do(self._some_release())

    def clear(self) -> str:
        """Clear a DAG run: what it delivered comes again, exactly; after a failure the stream goes on."""
        return self._do(self._cleared())

    def overtake(self) -> str:
        """Replay a batch, and have the stream deliver its next one once the replay is staged."""
        batches: list[str] = []

        def meanwhile(step: Step) -> None:
            if step == Step.POINTER_DRAFTED and not batches:
                batches.append(self.run())

        words = self._do(self._some_replay(), meanwhile)
        return f"overtaken by {batches[0]}: {words}" if batches else words

    def fail(self) -> str:
        """End a delivery with an error at one of its steps, which changes nothing."""
        act, at = self._some_act(), self.chance.choice(BEFORE_THE_COMMIT)
        if act is None:
            return NOTHING

        def stop(step: Step) -> None:
            if step == at:
                raise _Stopped

        if self._is_delivered(act):  # it comes to no step
            return self._do(act)
        with pytest.raises(_Stopped):
            done(act.order, stop)
        return f"fail at {at}: {act.words}"

    def kill(self) -> str:
        """SIGKILL at any step of a delivery, and what a person does then; the ledger alone tells whether it was made."""
        act, at = self._some_act(), self.chance.choice(list(Step))
        if act is None:
            return NOTHING
        before, once = self._in_ledger(), self._is_delivered(act)
        killed = self.doomed.killed(act.order, at)
        new = self._in_ledger() - before
        made = not once and (not killed or at in AFTER_THE_COMMIT)
        assert len(new) == made, (self.done, act.words, at)
        for number in new:
            self._settle(act, number)
        if not killed:
            self._end(act)
            return f"{act.words}, which never came to {at}"
        self.done.append(f"kill at {at}: {act.words}")
        self.require_equal()
        return f"after it: {self._do(self._after_kill(act))}"

    def _after_kill(self, act: Act) -> Act | None:
        """Another try, a clear, or what was asked for is forgotten."""
        if act.origin is not None:
            return self._release(act.origin)
        if act.dag_run is None or self.chance.random() < 0.2:
            return None
        act.dag_run.try_again(cleared=self.chance.random() < 0.3)
        return self._asked(act.dag_run)

    def _do(self, act: Act | None, on_step: Listener | None = None) -> str:
        if act is None:
            return NOTHING
        receipt = done(act.order, on_step)
        if receipt.delivered_before:
            assert self._heir(receipt.delivery_id) in self.content, self.done
        else:
            self._settle(act, receipt.delivery_id)
        self._end(act)
        return act.words

    def _settle(self, act: Act, number: int) -> None:
        act.settle(number)
        if act.dag_run:
            act.dag_run.delivered.add(number)

    def _end(self, act: Act) -> None:
        """Record that the act ended well."""
        self.batches += act.order.change is None
        if act.dag_run:
            act.dag_run.succeeded = True

    def _is_delivered(self, act: Act) -> bool:
        """Tell whether the ledger has the act's batch, which was killed after its commit and not tried again."""
        query = "SELECT 1 FROM sluice.delivery WHERE (stream_id, batch_id, kind) = (%s, %s, 'stream')"
        batch = [act.order.stream_id, act.order.batch.batch_id]
        return act.order.change is None and bool(oracle.ask(self.dsn, query, batch))

    def _in_ledger(self) -> set[int]:
        return {number for (number,) in oracle.ask(self.dsn, "SELECT delivery_id FROM sluice.delivery")}

    def _some_act(self) -> Act | None:
        def batch() -> Act:
            return self._batch(self._dag_run("scheduled"))

        beside = (self._some_replay, self._some_release, self._cleared)
        return self.chance.choice((batch, batch, *beside))()

    def _dag_run(self, run_type: str, **form: str) -> DagRun:
        asked = TaskTry(
            dag_id=self.declared.name,
            dag_run_id=f"run {len(self.dag_runs)}",
            task_id="run",
            try_number=1,
            run_type=run_type,
            clear_number=0,
        )
        self.dag_runs.append(DagRun(asked=replace(asked, **form)))
        return self.dag_runs[-1]

    def _cleared(self) -> Act | None:
        dag_run = self.chance.choice(self.dag_runs)
        dag_run.try_again(cleared=True)
        act = self._asked(dag_run)
        return act and replace(act, words=f"clear of {dag_run.asked.dag_run_id}: {act.words}")

    def _asked(self, dag_run: DagRun) -> Act | None:
        """Return what the newest try of a DAG run asks for."""
        chosen = selection_of(self.place, self.declared, dag_run.asked)
        if dag_run.asked.run_type == "scheduled":
            assert (chosen is not None) == dag_run.succeeded, (self.done, dag_run)
        return self._batch(dag_run) if chosen is None else self._replay(dag_run, chosen)

    def _batch(self, dag_run: DagRun) -> Act:
        made = self.made[self.batches]

        def settle(number: int) -> None:
            self.content[number] = made

        order = self._order(of(made), None, dag_run)
        return Act(words=f"run {made.batch_id}", order=order, settle=settle, dag_run=dag_run)

    def _order(self, batch: ArrowBatch, change: Correction | None, dag_run: DagRun | None) -> Order:
        asked = dag_run.asked if dag_run else None
        return Order(
            dsn=self.dsn, lake=self.lake, batch=batch, stream_id=self.stream, change=change, asked=asked
        )

    def _some_replay(self) -> Act | None:
        if self.chance.random() < 0.4:
            first, end = self._some_hours()
            interval = {"interval_start": first.isoformat(), "interval_end": end.isoformat()}
            return self._asked(self._dag_run("backfill", **interval))
        number = self.chance.randrange(1, max(self.content, default=1) + 1)
        last = number + self.chance.randrange(4)
        return self._asked(self._dag_run("manual", deliveries=f"{number}..{last}"))

    def _replay(self, dag_run: DagRun, chosen: Selection) -> Act | None:
        """Now and then by a transform that drops rows, or all of them."""
        try:
            planned = plan(self.place, self.declared, chosen)
        except SetupError:  # there are releases alone between these numbers
            return None
        if chosen.interval:
            self._require_named(chosen.interval, planned)
        if chosen.runs:
            inherited = {self._heir(number) for number in dag_run.delivered}
            assert inherited == set(planned.numbers), (self.done, dag_run, planned.numbers)
        if not planned.deliveries:  # of a pipeline that has delivered nothing yet
            return None
        whole = oracle.merged([self.content[number] for number in planned.numbers])
        keeps, every = self.chance.random() < 0.5, self.chance.choice((*[1] * 8, 3, 3, len(whole.rows) + 1))
        made = replace(whole, rows=whole.rows[every - 1 :: every])
        if keeps and every > 1 and planned.releases:
            keeps = False  # what was released may not be there any more
        change = planned.change("keep" if keeps else "drop", accept_changed=False, who="walk", why="")

        def settle(new: int) -> None:
            for number in change.supersedes:
                self.content.pop(number, None)
                self.released.pop(number, None)
            self.heirs |= dict.fromkeys(change.supersedes, new)
            self.content[new] = made
            self.origins |= dict.fromkeys(change.kept_releases, new)

        shrinks = f", {len(made.rows)} of {len(whole.rows)} rows" if every > 1 else ""
        words = f"replay of {chosen.describe()}, {'keep' if keeps else 'drop'}{shrinks}"
        order = self._order(of(made), change, dag_run)
        return Act(words=words, order=order, settle=settle, dag_run=dag_run)

    def _heir(self, number: int) -> int:
        while number in self.heirs:
            number = self.heirs[number]
        return number

    def _some_hours(self) -> tuple[dt.datetime, dt.datetime]:
        start = dt.datetime(2013, 1, 1, self.chance.randrange(24), tzinfo=dt.UTC)
        return start, start + dt.timedelta(hours=self.chance.randrange(1, 5))

    def _require_named(self, interval: tuple[dt.datetime, dt.datetime], planned: ReplayPlan) -> None:
        """Require a row in every delivery, delivered or held; what was released is still held on the lake."""
        first, end = (moment.timestamp() * 1e6 for moment in interval)
        within = {
            number: sum(row.values[1] is not None and first <= row.values[1] < end for row in made.rows)
            for number, made in self.content.items()
        }
        named = {number for number, count in within.items() if count}
        assert named == set(planned.numbers), (interval, named, planned.numbers)
        besides = sum(
            len(self.content[number].rows) + len(self.content[number].malformed) - within[number]
            for number in named
        )
        assert planned.besides == {"row": besides}, interval

    def _nameless(self) -> list[HeldRow]:
        held = held_rows(self.dsn, self.declared.name, Rows(reason=oracle.UNNAMED))
        return [one for one in held if one.reasons == [oracle.UNNAMED]]

    def _some_release(self) -> Act | None:
        held = self._nameless()
        return self._release(self.chance.choice(held).delivery_id) if held else None

    def _release(self, origin: int) -> Act | None:
        """Make the act that releases the rows; None where they are released already."""
        rows = [one for one in self._nameless() if one.delivery_id == origin]
        if not rows:
            return None
        ids = tuple(one.quarantine_id for one in rows)
        named = {number: {"name": oracle.MENDED} for number in ids}
        table = corrected_rows(rows, named, oracle.COLUMNS).append_column(
            "_flags0", pa.array([0] * len(ids), pa.int64())
        )
        change = Correction(name="release", files={}, released_from=origin, rows=ids, who="walk", why="")
        batch = ArrowBatch(batch_id=0, parts=[table.to_batches()], files=())

        def settle(number: int) -> None:
            before = [rows for one, rows in self.released.items() if self.origins[one] == origin]
            self.released[number] = oracle.mended(self.content[origin]) - sum(before, Counter())
            self.origins[number] = origin

        order = self._order(batch, change, None)
        return Act(words=f"release from {origin}", order=order, settle=settle, origin=origin)

    def require_equal(self) -> None:
        assert self.difference() == "", "\n".join(self.done)

    def difference(self) -> str:
        wanted = oracle.expected(list(self.content.values()))
        delivered = sum(self.released.values(), wanted.delivered)
        return reader_of(self).difference(replace(wanted, delivered=delivered))


def reader_of(walk: Walk) -> oracle.Reader:
    store = walk.lake.store
    return oracle.Reader(
        dsn=walk.dsn, endpoint=store.endpoint, region=store.region, pipeline=walk.declared.name
    )


@dataclass(kw_only=True)
class Looking:
    """A reader of both sinks, again and again, until it is told to end."""

    eyes: oracle.Reader
    over: threading.Event = field(default_factory=threading.Event)
    looks: int = 0
    wrong: list[str] = field(default_factory=list)

    def __call__(self) -> None:
        connection = psycopg2.connect(self.eyes.dsn)
        connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
        while not (self.over.is_set() or self.wrong):
            with connection, connection.cursor() as cursor:
                if found := self._look(cursor):
                    self.wrong.append(found)
            self.looks += 1
        connection.close()

    def _look(self, cursor: psycopg2.extensions.cursor) -> str:
        def ask(query: str) -> list[tuple[int, int]]:
            cursor.execute(query, {"pipeline": self.eyes.pipeline})
            return cursor.fetchall()

        ledger = ask("SELECT delivery_id, delivered FROM sluice.delivery WHERE live AND delivered > 0")
        table = ask(f"SELECT _delivery_id, count(*) FROM warehouse.{self.eyes.pipeline} GROUP BY 1")
        [(pointer,)] = ask(
            "SELECT metadata_location FROM sluice.iceberg_tables WHERE table_name = %(pipeline)s"
        )
        lake = self._in_lake(str(pointer))
        return "" if sorted(ledger) == sorted(table) == lake else f"{ledger} in the ledger, {table}, {lake}"

    def _in_lake(self, pointer: str) -> list[tuple[int, int]]:
        properties = {"s3.region": self.eyes.region, "s3.force-virtual-addressing": "false"}
        properties |= {"s3.endpoint": self.eyes.endpoint} if self.eyes.endpoint else {}
        found: Counter[int] = Counter()
        for task in StaticTable.from_metadata(pointer, properties=properties).scan().plan_files():
            name = task.file.file_path.rpartition("/")[2]
            found[int(name.partition("-")[0])] += task.file.record_count
        return sorted(found.items())


def walked(
    dsn: str, lake: Lake, services: Services, home: Path, doomed: Doomed, *, seed: int, steps: int
) -> Sequence[str]:
    """Walk, and return what was done; fails at the first step after which anything is not as it must be."""
    declared = replace(pipeline(PIPELINE), interval="at")
    place = Workspace(
        settings=Settings(home=home, landing=str(home)),
        services=replace(services, postgres=dsn, lake=lake.root),
    )
    made = oracle.make(seed, batches=steps + 3, rows=40)
    walk = Walk(
        chance=random.Random(seed), place=place, declared=declared, lake=lake, made=made, doomed=doomed
    )
    walk.done += [walk.run(), walk.run()]
    looking = [Looking(eyes=reader_of(walk)) for _ in range(2)]
    threads = [threading.Thread(target=one) for one in looking]
    for thread in threads:
        thread.start()
    try:
        for _ in range(steps):
            walk.step()
    finally:
        for one in looking:
            one.over.set()
        for thread in threads:
            thread.join()
    assert [one.wrong for one in looking] == [[], []], walk.done
    assert all(one.looks for one in looking)
    walk.done.append(walk.run())  # which puts away what those that were killed left open
    report = audit(place, declared)
    assert report.clean, (walk.done, list(report.lines()))
    return walk.done


@pytest.fixture(scope="module")
def doomed(services: Services) -> Iterator[Doomed]:
    with doomed_processes(services) as found:
        yield found


@pytest.mark.parametrize("seed", [SEED, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MORE_SEEDS)])
def test_a_walk_leaves_both_sinks_as_it_says(
    dsn: str, lake: Lake, services: Services, tmp_path: Path, doomed: Doomed, seed: int
) -> None:
    done = walked(dsn, lake, services, tmp_path, doomed, seed=seed, steps=STEPS)
    kinds = {words.split()[0] for words in done}
    assert kinds >= {"run", "replay", "release", "clear", "overtaken", "fail", "kill"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", LONG_SEEDS)
def test_a_long_walk_leaves_both_sinks_as_it_says(
    dsn: str, lake: Lake, services: Services, tmp_path: Path, doomed: Doomed, seed: int
) -> None:
    walked(dsn, lake, services, tmp_path, doomed, seed=seed, steps=LONG_STEPS)
