"""A run of pipeline `events`: what may come between its steps, and what must be seen of it then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from etl.common import steps
from etl.common.steps import Step
from etl.delivery.batch import DeliveryContext
from etl.delivery.correction import Correction
from etl.delivery.deliver import deliver
from etl.runs.heartbeat import drop_leftover_staging
from tests.support import oracle
from tests.support.arrow_driver import ArrowBatch, here, of, pipeline, reader, start, start_correction
from tests.support.postgres_proxy import Proxy, before

EVENTS = pipeline("events")


def at(run: DeliveryContext, step: Step, action: Callable[[], None]) -> DeliveryContext:
    """Return the run, doing `action` when it first comes to `step`."""
    todo = [action]

    def listener(reached: Step) -> None:
        if reached == step and todo:
            todo.pop()()

    steps.listen(listener)
    return replace(run, on_step=listener)


@contextmanager
def behind_proxy(run: DeliveryContext) -> Iterator[tuple[DeliveryContext, Proxy]]:
    """Yield the same run, whose driver reaches PostgreSQL by way of a proxy, and that proxy."""
    with before(run.sinks.dsn) as proxy:
        yield replace(run, sinks=replace(run.sinks, dsn=proxy.dsn(run.sinks.dsn))), proxy


def replay_of(run: DeliveryContext, made: oracle.MadeBatch) -> DeliveryContext:
    """Deliver a batch and return a replay of it."""
    done = deliver(run, of(made))
    found = oracle.ask(
        run.sinks.dsn,
        "SELECT kind, array_agg(path) FROM sluice.delivery_file WHERE delivery_id = %s GROUP BY kind",
        (done.delivery_id,),
    )
    change = Correction(
        name="replay",
        supersedes=(done.delivery_id,),
        removed=done.delivered,
        files={kind: frozenset(paths) for kind, paths in found},
        who="tests",
        why="again",
    )
    return start_correction(run.sinks.dsn, run.sinks.lake, EVENTS, change)


def silence(run: DeliveryContext) -> None:
    """Make the lease look as if its holder, on another host, had not been seen for an hour."""
    oracle.ask(
        run.sinks.dsn, "UPDATE sluice.run SET holder = 'elsewhere/1', seen_at = now() - interval '1 hour'"
    )


def waits_for_a_lock(dsn: str) -> bool:
    """Tell whether a session of this database waits for a lock of another."""
    query = (
        "SELECT 1 FROM pg_stat_activity a JOIN pg_locks l USING (pid)"
        " WHERE a.datname = current_database() AND a.wait_event_type = 'Lock' AND NOT l.granted"
    )
    return bool(oracle.ask(dsn, query))


def rob(run: DeliveryContext, *, clean_up: bool = True) -> DeliveryContext:
    """Another run takes the lease, as after a long silence, and drops what the fenced attempts staged."""
    silence(run)
    other = start(run.sinks.dsn, run.sinks.lake, run.sinks.pipeline, stream_id=run.stream_id)
    if clean_up:
        drop_leftover_staging(run.sinks.dsn, run.sinks.pipeline.name)
    return other


def rob_while_staging(run: DeliveryContext, batch: ArrowBatch) -> list[DeliveryContext]:
    """Rob the run once the first task of the batch is through; who did it is in the list then."""
    robbers: list[DeliveryContext] = []

    def first_task_then_robbed(*task: object) -> object:
        report = here(*task)  # type: ignore[arg-type]
        if not robbers:
            robbers.append(rob(run))
        return report

    batch.run_task = first_task_then_robbed  # type: ignore[assignment]
    return robbers


def staged_left(run: DeliveryContext) -> list[str]:
    query = "SELECT relname FROM pg_class WHERE relnamespace = 'sluice_stage'::regnamespace AND relkind = 'r' ORDER BY 1"
    return [str(name) for (name,) in oracle.ask(run.sinks.dsn, query)]


def assert_nothing_visible(run: DeliveryContext) -> None:
    assert reader(run).difference(oracle.expected([])) == ""
    assert oracle.ask(run.sinks.dsn, "SELECT 1 FROM sluice.delivery") == []
    assert oracle.ask(run.sinks.dsn, "SELECT 1 FROM sluice.attempt WHERE closed_at IS NULL") == []
    assert staged_left(run) == []


def assert_delivered(run: DeliveryContext, made: list[oracle.MadeBatch]) -> None:
    assert reader(run).difference(oracle.expected(made)) == ""
    assert oracle.ask(run.sinks.dsn, "SELECT 1 FROM sluice.attempt WHERE closed_at IS NULL") == []
    assert staged_left(run) == []
