"""A seeded walk over deliveries, replays and releases, some of which fail, beside readers that never look away.

After every step both sinks hold exactly what the walk says. The readers take each look in one REPEATABLE READ
transaction, pointer included, and never see half of anything.
"""

from __future__ import annotations

import datetime as dt
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg2
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from etl import ledger
from etl.apart import Apart
from etl.batch import Receipt, Session
from etl.database import session
from etl.deliver import deliver, deliver_apart
from etl.ending import Ending
from etl.errors import SetupError
from etl.lake import Lake
from etl.pipeline import Pipeline
from etl.plan import Chosen, Plan, plan
from etl.quarantine import Chosen as Rows
from etl.quarantine import held_rows
from etl.release import typed
from etl.run import Place
from etl.services import Services
from etl.settings import Settings
from etl.steps import Step, listen
from tests import oracle
from tests.arrow_batches import ArrowBatch, of, pipeline, start, start_apart
from tests.oracle import MadeBatch

STEPS = 14  # of a walk in `make test`
SEEDS = (1, 4)
LONG_STEPS, LONG_SEEDS = 40, range(100, 115)
FAILURES = (Step.STAGED, Step.POINTER_DRAFTED, Step.DELIVERY_INSERTED, Step.ROWS_MERGED, Step.POINTER_SWAPPED)


class _Stopped(Exception):
    pass


@dataclass(kw_only=True)
class Walk:
    """What was done, and what both sinks must hold after it."""

    chance: random.Random
    place: Place
    declared: Pipeline
    lake: Lake
    made: list[MadeBatch]
    stream: str | None = None
    batches: int = 0  # that the stream has delivered
    content: dict[int, MadeBatch] = field(default_factory=dict)  # by live delivery
    released: dict[int, oracle.Rows] = field(default_factory=dict)  # by live release
    origins: dict[int, int] = field(default_factory=dict)  # by release: what had held its rows

    @property
    def dsn(self) -> str:
        return self.place.services.postgres

    def step(self) -> str:
        chosen = self.chance.choice((self.run, self.replay, self.replay, self.release, self.fail))
        return chosen()

    def run(self) -> str:
        """The stream's next batch."""
        run = start(self.dsn, self.lake, self.declared, stream_id=self.stream)
        self.stream = run.stream_id
        made = self.made[self.batches]
        receipt = deliver(run, of(made))
        self._end(run)
        self.batches += 1
        self.content[receipt.delivery_id] = made
        return f"run {made.batch_id}"

    def replay(self) -> str:
        """Some neighbours, or an interval, again; now and then by a transform that drops rows."""
        first = self.chance.randrange(1, max(self.content, default=1) + 1)
        chosen = Chosen(deliveries=((first, first + self.chance.randrange(4)),))
        interval = self._some_hours() if self.chance.random() < 0.4 else None
        try:
            planned = plan(self.place, self.declared, Chosen(interval=interval) if interval else chosen)
        except SetupError:  # there are releases alone between these numbers
            return "replay of nothing"
        if interval:
            self._require_named(interval, planned)
        if not planned.deliveries:  # of a pipeline that has delivered nothing yet
            return "replay of nothing"
        numbers = [one["delivery_id"] for one in planned.deliveries]
        keeps, fewer = self.chance.random() < 0.5, self.chance.random() < 0.3
        whole = oracle.merged([self.content[number] for number in numbers])
        made = replace(whole, rows=whole.rows[:: 3 if fewer else 1])
        if keeps and fewer and planned.releases:
            keeps = False  # what was released may not be there any more
        change = planned.change("keep" if keeps else "drop", accept_changed=False, who="walk", why="")
        receipt = self._deliver_apart(change, of(made))
        for number in change.supersedes:
            self.content.pop(number, None)
            self.released.pop(number, None)
        self.content[receipt.delivery_id] = made
        self.origins |= dict.fromkeys(change.kept, receipt.delivery_id)
        where = " to ".join(moment.isoformat() for moment in interval) if interval else numbers
        return f"replay of {where}, {'keep' if keeps else 'drop'}{', fewer rows' if fewer else ''}"

    def _some_hours(self) -> tuple[dt.datetime, dt.datetime]:
        start = dt.datetime(2013, 1, 1, self.chance.randrange(24), tzinfo=dt.UTC)
        return start, start + dt.timedelta(hours=self.chance.randrange(1, 5))

    def _require_named(self, interval: tuple[dt.datetime, dt.datetime], planned: Plan) -> None:
        """Every delivery with a row in it, delivered or held; what was released is still held on the lake."""
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

    def release(self) -> str:
        """The rows of one delivery that only lack a name, with one."""
        held = [
            one
            for one in held_rows(self.dsn, self.declared.name, Rows(reason=oracle.UNNAMED))
            if one.reasons == [oracle.UNNAMED]
        ]
        if not held:
            return "release of nothing"
        origin = self.chance.choice(held).delivery_id
        rows = [one for one in held if one.delivery_id == origin]
        ids = tuple(one.quarantine_id for one in rows)
        values = [{**(one.values or {}), "name": oracle.MENDED} for one in rows]
        table = typed(values, oracle.COLUMNS, ids).append_column(
            "_flags0", pa.array([0] * len(ids), pa.int64())
        )
        change = Apart(kind="release", files={}, released_from=origin, rows=ids, who="walk", why="")
        batch = ArrowBatch(batch_id=0, parts=[table.to_batches()], files=())
        receipt = self._deliver_apart(change, batch)
        before = [rows for number, rows in self.released.items() if self.origins[number] == origin]
        self.released[receipt.delivery_id] = oracle.mended(self.content[origin]) - sum(before, Counter())
        self.origins[receipt.delivery_id] = origin
        return f"release from {origin}"

    def _deliver_apart(self, change: Apart, batch: ArrowBatch) -> Receipt:
        run = start_apart(self.dsn, self.lake, self.declared, change)
        try:
            return deliver_apart(run, batch)
        finally:
            self._end(run)

    def _end(self, run: Session) -> None:
        with session(self.dsn) as cursor:
            ledger.end_run(cursor, run.lease, Ending(outcome="done"))
            ledger.give_lease_back(cursor, run.lease)

    def fail(self) -> str:
        """A replay that ends at one of its steps changes nothing."""
        at = self.chance.choice(FAILURES)

        def stop(step: Step) -> None:
            if step == at:
                raise _Stopped

        before = dict(self.content), dict(self.released), dict(self.origins)
        listen(stop)
        try:
            self.replay()
        except _Stopped:
            self.content, self.released, self.origins = before
        finally:
            listen(None)
        return f"replay that fails at {at}"

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


def walked(dsn: str, lake: Lake, services: Services, home: Path, *, seed: int, steps: int) -> Sequence[str]:
    """Walk, and return what was done; fails at the first step after which anything is not as it must be."""
    declared = replace(pipeline("events"), interval="at")
    place = Place(
        settings=Settings(home=home, landing=str(home)),
        services=replace(services, postgres=dsn, lake=lake.root),
    )
    made = oracle.make(seed, batches=steps + 2, rows=40)
    walk = Walk(chance=random.Random(seed), place=place, declared=declared, lake=lake, made=made)
    done = [walk.run(), walk.run()]
    looking = [Looking(eyes=reader_of(walk)) for _ in range(2)]
    threads = [threading.Thread(target=one) for one in looking]
    for thread in threads:
        thread.start()
    try:
        for _ in range(steps):
            done.append(walk.step())
            assert walk.difference() == "", "\n".join(done)
    finally:
        for one in looking:
            one.over.set()
        for thread in threads:
            thread.join()
    assert [one.wrong for one in looking] == [[], []], done
    assert all(one.looks for one in looking)
    return done


@pytest.mark.parametrize("seed", SEEDS)
def test_a_walk_leaves_both_sinks_as_it_says(
    dsn: str, lake: Lake, services: Services, tmp_path: Path, seed: int
) -> None:
    done = walked(dsn, lake, services, tmp_path, seed=seed, steps=STEPS)
    assert {words.split()[0] for words in done} >= {"run", "replay", "release"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", LONG_SEEDS)
def test_a_long_walk_leaves_both_sinks_as_it_says(
    dsn: str, lake: Lake, services: Services, tmp_path: Path, seed: int
) -> None:
    walked(dsn, lake, services, tmp_path, seed=seed, steps=LONG_STEPS)
