"""The ledger's note of Airflow's tries: who asked for a run, and what became of it.

A try is on record before anything is looked at for it, whether what it asks for makes sense and whether it gets
the lease or not; one that was killed stays without an outcome.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg2

from etl.airflow.task_try import TaskTry
from etl.common.database import execute, migrate, rows, transaction
from etl.common.errors import SluiceError
from etl.pipeline.dag_names import replays_of

log = logging.getLogger("sluice")

DONE = "done"  # what the statements of the ledger take for a success

Became = Callable[[str], None]  # told the run's id, once it has the lease


@contextmanager
def recorded(
    dsn: str, pipeline: str, asked: TaskTry, how: Callable[[], str] = lambda: DONE
) -> Iterator[Became]:
    """Keep the record of `asked` around what is done for it; yield a function that notes the run's id.

    `how` tells the outcome of what ended well: after a signal Airflow counts no success, and makes no asset
    event.
    """
    values = dataclasses.asdict(asked)
    migrate(dsn)
    with transaction(dsn) as cursor:
        execute(cursor, "ledger", "begin_airflow_try", {**values, "pipeline": pipeline})

    def became(run_id: str) -> None:
        with transaction(dsn) as cursor:
            execute(cursor, "ledger", "airflow_try_runs", {**values, "run": run_id})

    def end(outcome: str) -> None:
        with transaction(dsn) as cursor:
            execute(cursor, "ledger", "end_airflow_try", {**values, "outcome": outcome})

    try:
        yield became
    except BaseException as error:
        try:
            end(type(error).__name__)
        except (SluiceError, psycopg2.Error) as other:  # what ended the run matters more
            log.warning("the outcome of this try could not be recorded: %s", other)
        raise
    end(how())  # or it is no success: nobody would know what it told of


def runs_before_clear(dsn: str, asked: TaskTry) -> tuple[str, ...]:
    """Return the runs of the same DAG run before it was last cleared, if it ever succeeded; else none."""
    with transaction(dsn) as cursor:
        found = execute(cursor, "ledger", "runs_before_clear", dataclasses.asdict(asked)).fetchall()
    succeeded = any(outcome == DONE for _, outcome in found)
    return tuple(run_id for run_id, _ in found if run_id) if succeeded else ()


def replayed_before(dsn: str, asked: TaskTry) -> str | None:
    """Return the run by which an earlier try made the asked replay and died before it could say so.

    None where there is none.
    """
    with transaction(dsn) as cursor:
        found = execute(cursor, "ledger", "replayed_before", dataclasses.asdict(asked)).fetchone()
    return None if found is None else str(found[0])


def delivered_by(dsn: str, asked: TaskTry) -> set[int]:
    """Return the deliveries of all tries of the same task in the same DAG run."""
    with transaction(dsn) as cursor:
        return {
            number for (number,) in execute(cursor, "ledger", "delivered_by_run", dataclasses.asdict(asked))
        }


@dataclass(frozen=True, kw_only=True)
class Untold:
    """What no successful try has told of yet."""

    deliveries: list[int]  # in force, in the order of their commits
    rows: int  # that these delivered
    quarantined: int  # that these held
    replaced: list[int]  # whose place was taken
    snapshot_id: int | None  # the newest of the lake's table


def untold(dsn: str, pipeline: str, asked: TaskTry) -> Untold:
    """Return what this try is to tell of, its own deliveries included; note how far it tells.

    Once it ends well, no other try tells of them. A run that fails in the middle has delivered, and so has a
    replay from the command line, but neither makes an asset event: what they did is told by the next run that
    succeeds. Runs of the DAG for replays and releases tell of what such runs did, others of all else: two
    that end at once would both tell of the same.
    """
    values = {"pipeline": pipeline, "dag_id": asked.dag_id, "replays": replays_of(pipeline)}
    with transaction(dsn) as cursor:
        found = rows(execute(cursor, "ledger", "unreported", values))
        if found:
            told = {"told_to": found[-1]["commit_seq"]}
            execute(cursor, "ledger", "airflow_try_tells", dataclasses.asdict(asked) | told)
    live = [one for one in found if one["live"]]
    snapshots = [one["snapshot_id"] for one in live if one["snapshot_id"] is not None]
    return Untold(
        deliveries=[one["delivery_id"] for one in live],
        rows=sum(one["delivered"] for one in live),
        quarantined=sum(one["quarantined"] for one in live),
        replaced=sorted({old for one in found for old in one["replaced"]}),
        snapshot_id=snapshots[-1] if snapshots else None,
    )
