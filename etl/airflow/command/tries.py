"""Records Airflow's tries in the ledger: which try asked for a run, and how the run ended.

A try is on record before its request is checked and before it gets the lease; a try that was killed stays without an
outcome. What failed is kept with what the error said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg2

from etl.airflow.task_try import TaskTry
from etl.common.database import rows_as, transaction
from etl.common.errors import SluiceError
from etl.common.migrations import migrate
from etl.common.number_ranges import consecutive
from etl.common.outcome import RunOutcome
from etl.common.statements import Statements
from etl.pipeline.dag_names import replays_of

STATEMENTS = Statements(__name__)

log = logging.getLogger("sluice")

DONE = "done"  # what the statements of the ledger take for a success
MOST = 1_000  # numbers and ranges in one asset event

Became = Callable[[str], None]  # told the run's id, once it has the lease


@contextmanager
def recorded(
    dsn: str, pipeline: str, task_try: TaskTry, how: Callable[[], str] = lambda: DONE
) -> Iterator[Became]:
    """Keep the record of `task_try` around what is done for it; yield a function that notes the run's id.

    `how` tells the outcome of what ended well: after a signal Airflow counts no success, and makes no asset
    event.
    """
    migrate(dsn)
    with transaction(dsn) as cursor:
        STATEMENTS.execute(
            cursor,
            "begin_airflow_try",
            **_key(task_try),
            pipeline=pipeline,
            run_type=task_try.run_type,
            clear_number=task_try.clear_number,
            interval_start=task_try.interval_start,
            interval_end=task_try.interval_end,
        )

    def became(run_id: str) -> None:
        with transaction(dsn) as cursor:
            STATEMENTS.execute(cursor, "airflow_try_runs", **_key(task_try), run=run_id)

    def end(ending: RunOutcome) -> None:
        with transaction(dsn) as cursor:
            STATEMENTS.execute(
                cursor,
                "end_airflow_try",
                **_key(task_try),
                outcome=ending.outcome,
                message=ending.message,
                remedy=ending.remedy,
            )

    try:
        yield became
    except BaseException as error:
        try:
            end(RunOutcome.by(error))
        except (SluiceError, psycopg2.Error) as other:  # what ended the run matters more
            log.warning("the outcome of this try could not be recorded: %s", other)
        raise
    end(RunOutcome(outcome=how()))  # or it is no success: nobody would know what it told of


def _key(task_try: TaskTry) -> dict[str, object]:
    return {
        "dag_id": task_try.dag_id,
        "dag_run_id": task_try.dag_run_id,
        "task_id": task_try.task_id,
        "try_number": task_try.try_number,
    }


def runs_before_clear(dsn: str, task_try: TaskTry) -> tuple[str, ...]:
    """Return the runs of the same DAG run before it or its task was last cleared, if it ever succeeded; else none."""
    with transaction(dsn) as cursor:
        STATEMENTS.execute(
            cursor,
            "runs_before_clear",
            dag_id=task_try.dag_id,
            dag_run_id=task_try.dag_run_id,
            task_id=task_try.task_id,
            clear_number=task_try.clear_number,
            tries_before_clear=task_try.tries_before_clear,
        )
        outcomes = cursor.fetchall()
    succeeded = any(outcome == DONE for _, outcome in outcomes)
    return tuple(run_id for run_id, _ in outcomes if run_id) if succeeded else ()


def replayed_before(dsn: str, task_try: TaskTry) -> str | None:
    """Return the run by which an earlier try made the asked replay and died before it could say so.

    None where there is none.
    """
    with transaction(dsn) as cursor:
        STATEMENTS.execute(
            cursor,
            "replayed_before",
            **_key(task_try),
            clear_number=task_try.clear_number,
            tries_before_clear=task_try.tries_before_clear,
        )
        record = cursor.fetchone()
    return None if record is None else str(record[0])


def delivered_by(dsn: str, task_try: TaskTry) -> set[int]:
    """Return the deliveries of all tries of the same task in the same DAG run."""
    with transaction(dsn) as cursor:
        STATEMENTS.execute(
            cursor,
            "delivered_by_run",
            dag_id=task_try.dag_id,
            dag_run_id=task_try.dag_run_id,
            task_id=task_try.task_id,
        )
        return {number for (number,) in cursor.fetchall()}


@dataclass(frozen=True, kw_only=True)
class _Unreported:
    """One delivery that no asset event has told of."""

    delivery_id: int
    live: bool
    delivered: int
    quarantined: int
    snapshot_id: int | None
    commit_seq: int
    replaced: list[int]  # whose place it took


@dataclass(frozen=True, kw_only=True)
class Untold:
    """What no asset event has told of yet."""

    deliveries: list[int]  # in force, in the order of their commits
    rows: int  # that these delivered
    quarantined: int  # that these held
    replaced: list[int]  # whose place was taken
    touched: list[int]  # whose rows came or left: all of these, and such as came and were replaced meanwhile
    snapshot_id: int | None  # the newest of the lake's table
    told_to: int  # the commit up to which this is all
    told_delivery: int | None  # that this commit made; None: nothing was delivered yet
    told_run: str | None  # which made it


def untold(dsn: str, pipeline: str, task_try: TaskTry) -> Untold:
    """Return the deliveries that this try reports, its own included: all after what the newest asset event tells.

    Airflow makes the event with the task's success, and not before: what a try told that was no success in the end,
    the next one tells. A run that fails in the middle has delivered, and so has a replay from the command line, but
    neither makes an event: what they did is told by the next run that succeeds. Runs of the DAG for replays and
    releases tell of what such runs did, others of all else: two that end at once would both tell of the same.

    How far this try tells is noted in the ledger, too, for where Airflow has no event left.
    """
    dag_id, replays = task_try.dag_id, replays_of(pipeline)
    with transaction(dsn) as cursor:
        STATEMENTS.execute(
            cursor,
            "told_to",
            pipeline=pipeline,
            dag_id=dag_id,
            replays=replays,
            event=task_try.told_to,
            delivery=task_try.told_delivery,
            run=task_try.told_run,
        )
        [(told_to,)] = cursor.fetchall()
        STATEMENTS.execute(
            cursor, "unreported", pipeline=pipeline, dag_id=dag_id, replays=replays, told_to=told_to
        )
        unreported = _named_by_one_event(rows_as(cursor, _Unreported))
        if unreported:
            told_to = unreported[-1].commit_seq
            STATEMENTS.execute(cursor, "airflow_try_tells", **_key(task_try), told_to=told_to)
        STATEMENTS.execute(cursor, "delivery_of_commit", pipeline=pipeline, commit_seq=told_to)
        told_delivery, told_run = cursor.fetchone() or (None, None)
    live = [one for one in unreported if one.live]
    snapshots = [one.snapshot_id for one in live if one.snapshot_id is not None]
    replaced = {old for one in unreported for old in one.replaced}
    return Untold(
        deliveries=[one.delivery_id for one in live],
        rows=sum(one.delivered for one in live),
        quarantined=sum(one.quarantined for one in live),
        replaced=sorted(replaced),
        touched=sorted(replaced | {one.delivery_id for one in unreported}),
        snapshot_id=snapshots[-1] if snapshots else None,
        told_to=told_to,
        told_delivery=told_delivery,
        told_run=told_run,
    )


def _named_by_one_event(unreported: list[_Unreported]) -> list[_Unreported]:
    """Return the first deliveries, about as many as MOST numbers and ranges name; the next event names the others."""
    named, last = 0, -1
    for place, one in enumerate(unreported):
        named += len(consecutive(one.replaced)) + (one.live and one.delivery_id != last + 1)
        if place and named > MOST:
            return unreported[:place]
        last = one.delivery_id if one.live else last
    return unreported
