"""Rows that are copied while others are still staged are seen once, with the commit, or never."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

import psycopg2
import pyarrow as pa
import pytest

from etl.common import steps
from etl.common.database import Connection, cancel_statements
from etl.common.errors import ContractBroken, Fenced, ServiceAway
from etl.common.steps import Step
from etl.delivery import copy_ahead
from etl.delivery.batch import DeliveryContext, Receipt
from etl.delivery.deliver import deliver, deliver_correction
from etl.delivery.row_filter import TaskReport
from etl.delivery.stage import StageTask
from etl.sinks.warehouse import staging
from tests.support import oracle
from tests.support.arrow_driver import ArrowBatch, broken, here, of, reader
from tests.support.events_run import (
    assert_delivered,
    assert_nothing_visible,
    at,
    replay_of,
    rob,
    waits_for_a_lock,
)
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _all_sent_and_looked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "REPORTED_BYTES", 0)
    monkeypatch.setattr(copy_ahead, "FIRST_LOOK", 0.01)
    monkeypatch.setattr(copy_ahead, "PAUSE", 0.01)


@dataclass(kw_only=True)
class Watched:
    """A run whose tasks do something once what they staged has been copied ahead."""

    run: DeliveryContext
    made: oracle.MadeBatch
    seen: Counter[Step] = field(default_factory=Counter)

    def batch(self, then: Callable[[], None] = lambda: None) -> ArrowBatch:
        """Return the batch, whose first task ends when its rows are copied and `then` is done."""
        batch, done = of(self.made), list[TaskReport]()

        def run_task(task: StageTask, part: Iterable[pa.RecordBatch], partition: int) -> TaskReport:
            report = here(replace(task, on_step=self.listen), part, partition)
            if not done:
                done.append(report)
                until(lambda: self.seen[Step.ROWS_COPIED], "rows to be copied", patience=30, every=0.01)
                then()
            return report

        batch.run_task = run_task
        return batch

    def listen(self, step: Step) -> None:
        self.seen[step] += 1


@pytest.fixture
def watched(run: DeliveryContext, made: list[oracle.MadeBatch]) -> Iterator[Watched]:
    found = Watched(run=run, made=made[0])
    steps.listen(found.listen)
    yield found
    steps.listen(None)


def rows_of(run: DeliveryContext) -> int:
    [(count,)] = oracle.ask(run.sinks.dsn, "SELECT count(*) FROM warehouse.events")
    return int(count)


def held_of(run: DeliveryContext) -> int:
    [(count,)] = oracle.ask(run.sinks.dsn, "SELECT count(*) FROM sluice.quarantine")
    return int(count)


def test_rows_are_copied_beside_staging_and_seen_with_the_commit(watched: Watched) -> None:
    run, at_work = watched.run, list[int]()
    deliver(run, watched.batch(lambda: at_work.extend((rows_of(run), held_of(run)))))
    assert at_work == [0, 0]
    assert_delivered(run, [watched.made])
    assert held_of(run) > 0
    dead = "SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE relname IN ('events', 'quarantine')"
    assert oracle.ask(run.sinks.dsn, dead) == [(0,)], "none was copied twice"


def test_held_rows_have_their_numbers_before_the_commit_begins_to_write(watched: Watched) -> None:
    numbers = "SELECT last_value FROM sluice.quarantine_quarantine_id_seq"
    taken = list[int]()

    def observe(step: Step) -> None:
        if step == Step.PIPELINE_LOCKED:
            taken.extend(number for (number,) in oracle.ask(watched.run.sinks.dsn, numbers))

    with steps.observed_by(observe):
        deliver(watched.run, watched.batch())
    assert taken == [held_of(watched.run)]


def test_the_ledger_has_the_moment_of_the_commit(watched: Watched) -> None:
    moments: list[dt.datetime] = []

    def now() -> None:
        moments.extend(oracle.ask(watched.run.sinks.dsn, "SELECT clock_timestamp()")[0])

    deliver(watched.run, watched.batch(now))
    [(committed, closed)] = oracle.ask(
        watched.run.sinks.dsn,
        "SELECT committed_at, closed_at FROM sluice.delivery JOIN sluice.attempt USING (delivery_id)",
    )
    assert min(committed, closed) > moments[0]


def test_what_a_losing_task_staged_is_copied_and_taken_back(watched: Watched) -> None:
    run = watched.run
    batch = watched.batch()
    first = batch.run_task

    def twice(task: StageTask, part: Iterable[pa.RecordBatch], partition: int) -> TaskReport:
        """Stage twice, as Spark does beside a slow task; the report of the second arrives."""
        rows = list(part)
        first(task, rows, partition)
        return here(task, rows, partition)

    batch.run_task = twice
    deliver(run, batch)
    assert watched.seen[Step.ROWS_COPIED]
    assert_delivered(run, [watched.made])


def test_whoever_waits_for_the_table_has_it_while_rows_are_staged(watched: Watched) -> None:
    """Who changes the table would wait until the batch is committed, and each reader behind it as long."""

    def change() -> None:
        oracle.ask(watched.run.sinks.dsn, "SET lock_timeout = '20s'; LOCK TABLE warehouse.events")

    deliver(watched.run, watched.batch(change))
    assert_delivered(watched.run, [watched.made])


def test_a_batch_that_is_stopped_leaves_no_row_and_is_not_copied_ahead_again(watched: Watched) -> None:
    run = watched.run
    stopped = replace(watched.batch(), judged=broken("rule", table_rule=True))
    with pytest.raises(ContractBroken):
        deliver(run, stopped)
    assert_nothing_visible(run)
    copied = watched.seen[Step.ROWS_COPIED]
    deliver(run, of(watched.made))
    assert watched.seen[Step.ROWS_COPIED] == copied > 0
    assert_delivered(run, [watched.made])


def test_a_failed_batch_leaves_no_row(watched: Watched) -> None:
    def fail() -> None:
        raise RuntimeError("the worker is gone")

    with pytest.raises(RuntimeError, match="the worker is gone"):
        deliver(watched.run, watched.batch(fail))
    assert watched.seen[Step.ROWS_COPIED]
    assert_nothing_visible(watched.run)


def test_a_fenced_run_delivers_nothing_of_what_it_copied(watched: Watched) -> None:
    others: list[DeliveryContext] = []
    with pytest.raises(Fenced):
        deliver(watched.run, watched.batch(lambda: others.append(rob(watched.run))))
    assert watched.seen[Step.ROWS_COPIED]
    assert rows_of(watched.run) == 0
    steps.listen(None)
    deliver(others[0], of(watched.made))
    assert reader(watched.run).difference(oracle.expected([watched.made])) == ""


@contextmanager
def kept_waiting(watched: Watched) -> Iterator[tuple[Connection, Future[Receipt]]]:
    """Yield another session, which has the pipeline's row, and the delivery whose commit waits for it."""
    dsn = watched.run.sinks.dsn
    with closing(psycopg2.connect(dsn)) as other, ThreadPoolExecutor(1) as beside:

        def hold() -> None:
            other.cursor().execute("SELECT FROM sluice.pipeline WHERE name = 'events' FOR UPDATE")

        done = beside.submit(deliver, at(watched.run, Step.JUDGED, hold), of(watched.made))
        until(lambda: waits_for_a_lock(dsn), "the commit to wait", patience=30, every=0.01)
        yield other, done


def test_no_session_is_ended_that_holds_the_pipeline_and_asks_for_the_table(watched: Watched) -> None:
    """The commit has the table and waits for the pipeline's row, the other has the row and waits for the table."""
    run = watched.run
    with kept_waiting(watched) as (other, done):
        other.cursor().execute("SET lock_timeout = '20s'; LOCK TABLE warehouse.events")
        other.rollback()
        assert done.result(30).delivered
    assert_delivered(run, [watched.made])


def test_a_batch_is_delivered_whose_copying_lost_its_connection(watched: Watched) -> None:
    def cut() -> None:
        holders = "SELECT pid FROM pg_locks WHERE relation = 'warehouse.events'::regclass AND mode = 'RowExclusiveLock'"
        assert oracle.ask(
            watched.run.sinks.dsn, f"SELECT pg_terminate_backend(pid) FROM ({holders}) one"
        ) == [(True,)]

    deliver(watched.run, watched.batch(cut))
    assert_delivered(watched.run, [watched.made])


def test_no_row_is_copied_ahead_into_a_table_that_is_to_gain_a_column(watched: Watched) -> None:
    """Or nobody could read the table for as long as the batch is staged."""
    run = watched.run
    oracle.ask(run.sinks.dsn, "ALTER TABLE warehouse.events DROP COLUMN ok")
    deliver(run, of(watched.made))
    assert not watched.seen[Step.ROWS_COPIED]
    assert_delivered(run, [watched.made])


def test_a_commit_that_is_cancelled_while_it_waits_is_not_tried_in_another_way(watched: Watched) -> None:
    run = watched.run
    with kept_waiting(watched) as (other, done):

        def ended() -> bool:
            cancel_statements()  # which may come between two tries of it
            return done.done()

        until(ended, "the commit to end", patience=30)
        other.rollback()
        with pytest.raises(ServiceAway, match="somebody cancelled a statement of its commit"):
            done.result(30)
    assert_nothing_visible(run)


def test_rows_are_copied_again_where_a_replay_comes_between(
    watched: Watched, made: list[oracle.MadeBatch]
) -> None:
    run = watched.run
    replay = replay_of(run, made[0])
    watched.made = made[1]

    def overtake() -> None:
        deliver_correction(replay, replace(of(made[0]), batch_id=0))

    with steps.observed_by(watched.listen):
        deliver(at(run, Step.POINTER_DRAFTED, overtake), of(made[1]))
    assert watched.seen[Step.POINTER_DRAFTED] == 3, "the batch was drafted twice, the replay once"
    assert_delivered(run, made[:2])


def test_a_batch_whose_rows_are_all_held_is_held(watched: Watched) -> None:
    held = replace(watched.made, rows=tuple(row for row in watched.made.rows if row.reasons))
    assert held.rows
    assert deliver(watched.run, of(held)).delivered == 0
    assert_delivered(watched.run, [held])
