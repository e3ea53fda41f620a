"""Where two runs meet, or one died beside another: commits wait, the fenced stop nothing, the dead leave nothing."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import psycopg2
import pyarrow as pa
import pytest

from etl.common import database, steps
from etl.common.database import connect, transaction
from etl.common.errors import Busy, CommitTooLong, Fenced, ServiceAway
from etl.common.outcome import RunOutcome
from etl.common.steps import Step
from etl.delivery import stage
from etl.delivery.batch import DeliveryContext
from etl.delivery.deliver import deliver, deliver_correction
from etl.ledger import leases, pipelines
from etl.operations.maintenance.sweep import sweep_lake
from etl.pipeline import Upsert
from etl.services import Services
from etl.sinks.lake.lake import Lake
from etl.sinks.open import open_sinks
from tests.support import oracle
from tests.support.arrow_driver import broken, of, pipeline, start
from tests.support.databases import administer, database_name
from tests.support.events_run import (
    EVENTS,
    assert_delivered,
    at,
    replay_of,
    rob_while_staging,
    silence,
    staged_left,
)
from tests.support.waiting import until

pytestmark = pytest.mark.long


class KilledError(Exception):
    pass


def test_each_delivery_names_the_one_before_it_though_that_moved_no_pointer(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    """A restore follows them one by one: two that name the same would hide one from it."""
    replay, empty = replay_of(run, made[0]), replace(made[1], rows=(), malformed=())
    beside = at(replay, Step.POINTER_DRAFTED, lambda: deliver(run, of(empty)))
    deliver_correction(beside, replace(of(made[0]), batch_id=0))
    query = "SELECT delivery_id, previous_delivery FROM sluice.delivery ORDER BY commit_seq"
    order = oracle.ask(run.sinks.dsn, query)
    assert len(order) == 3
    assert [before for _, before in order] == [None, *(number for number, _ in order[:-1])]


@pytest.mark.parametrize(
    ("limit", "said"),
    [("statement_timeout", "statement timeout"), ("transaction_timeout", "ended at transaction_timeout")],
)
def test_a_commit_that_takes_too_long_says_how_to_deliver_less_at_once(
    run: DeliveryContext, made: list[oracle.MadeBatch], monkeypatch: pytest.MonkeyPatch, limit: str, said: str
) -> None:
    deliver(run, of(made[0]))
    with monkeypatch.context() as patch, closing(connect(run.sinks.dsn)) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLE warehouse.events IN SHARE MODE")
        on_commit = at(run, Step.POINTER_DRAFTED, lambda: patch.setitem(database.TIMEOUTS, limit, "300ms"))
        with pytest.raises(CommitTooLong, match=rf"may take 300ms \(.*{said}") as stop:
            deliver(on_commit, of(made[1]))
    assert (
        "`max_files`, `max_bytes` or `max_offsets` of its sources, then `sluice recover events`"
        in stop.value.remedy
    )
    assert_delivered(run, made[:1])
    deliver(run, of(made[1]))
    assert_delivered(run, made[:2])


def test_a_commit_that_somebody_cancels_is_tried_again(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    """It says nothing of how large the batch is."""
    deliver(run, of(made[0]))
    dsn = run.sinks.dsn
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with closing(connect(dsn)) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLE warehouse.events IN SHARE MODE")
        watching = threading.Thread(target=lambda: until(lambda: oracle.ask(dsn, cancel), "it", patience=60))
        watching.start()
        with pytest.raises(
            ServiceAway, match=r"somebody cancelled a statement of its commit \(.*user request"
        ) as away:
            deliver(run, of(made[1]))
        watching.join()
    assert away.value.exit_code == 75
    assert_delivered(run, made[:1])
    deliver(run, of(made[1]))
    assert_delivered(run, made[:2])


def test_a_commit_whose_session_was_idle_for_too_long_is_tried_again(
    run: DeliveryContext, made: list[oracle.MadeBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, idle = (
        "idle_in_transaction_session_timeout",
        "SELECT 1 FROM pg_stat_activity WHERE state LIKE 'idle in %%'",
    )

    def hang() -> None:
        until(lambda: not oracle.ask(run.sinks.dsn, idle), "the session to be ended", patience=60)

    def listener(step: Step) -> None:
        if step is Step.POINTER_DRAFTED:
            monkeypatch.setitem(database.TIMEOUTS, limit, "500ms")
        if step is Step.POINTER_SWAPPED:
            hang()

    steps.listen(listener)
    with pytest.raises(ServiceAway, match="the ledger shows that it was not committed"):
        deliver(replace(run, on_step=listener), of(made[0]))
    steps.listen(None)
    monkeypatch.undo()
    deliver(run, of(made[0]))
    assert_delivered(run, made[:1])


def test_a_wait_for_the_commit_of_another_counts_for_no_limit(
    run: DeliveryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(database.TIMEOUTS, "statement_timeout", "1s")
    monkeypatch.setitem(database.TIMEOUTS, "transaction_timeout", "2s")
    dsn = run.sinks.dsn
    with closing(connect(dsn)) as other, other.cursor() as holding, transaction(dsn) as cursor:
        monkeypatch.setitem(database.TIMEOUTS, "transaction_timeout", "60min")
        pipelines.lock(holding, "events")
        watching = threading.Thread(target=lambda: (waited_for(dsn, "2500ms"), other.rollback()))
        watching.start()
        found = pipelines.lock_staged(cursor, "events")
        watching.join()
        assert found is not None and found.lease_token == run.lease.run_id
        cursor.execute("SELECT current_setting('statement_timeout'), current_setting('transaction_timeout')")
        assert cursor.fetchall() == [("1s", "1h")]


def test_a_wait_that_somebody_cancels_is_tried_again(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    dsn = run.sinks.dsn
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with closing(connect(dsn)) as other, other.cursor() as holding:
        pipelines.lock(holding, "events")
        watching = threading.Thread(target=lambda: until(lambda: oracle.ask(dsn, cancel), "it", patience=60))
        watching.start()
        with pytest.raises(Busy, match=r"under way, and the wait for it was ended \(.*user request\)"):
            deliver(run, of(made[0]))
        watching.join()
    deliver(run, of(made[0]))
    assert_delivered(run, made[:1])


@pytest.mark.parametrize("apart", [False, True])
def test_what_is_staged_waits_for_the_commit_of_another(
    run: DeliveryContext, made: list[oracle.MadeBatch], apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much longer than lock_timeout that takes."""
    monkeypatch.setitem(database.TIMEOUTS, "lock_timeout", "50ms")
    replay = replay_of(run, made[0]) if apart else None
    with closing(connect(run.sinks.dsn)) as other, other.cursor() as cursor:
        watching = threading.Thread(target=lambda: (waited_for(run.sinks.dsn), other.rollback()))

        def long_commit() -> None:
            pipelines.lock(cursor, "events")
            watching.start()

        if replay:
            deliver_correction(
                at(replay, Step.POINTER_DRAFTED, long_commit), replace(of(made[0]), batch_id=0)
            )
        else:
            deliver(at(run, Step.POINTER_DRAFTED, long_commit), of(made[0]))
        watching.join()
    assert_delivered(run, made[:1])


def waited_for(dsn: str, time: str = "200ms") -> None:
    """Wait until a session has waited for a lock for four times the limit, or for `time`."""
    waits = (
        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND now() - query_start > %s::interval"
    )
    while not oracle.ask(dsn, waits, (time,)):
        threading.Event().wait(0.02)


def test_how_a_run_ended_is_on_record_while_another_commits(run: DeliveryContext) -> None:
    with transaction(run.sinks.dsn) as cursor:
        pipelines.lock(cursor, "events")
        with transaction(run.sinks.dsn) as ending:
            leases.end_run(ending, run.lease, RunOutcome(outcome="InputsChanged"))
        assert oracle.ask(run.sinks.dsn, "SELECT outcome FROM sluice.run") == [("InputsChanged",)]


def test_a_fenced_run_stops_nothing(run: DeliveryContext, made: list[oracle.MadeBatch]) -> None:
    """Its stream may be one that nobody can decide about any more."""
    later: list[DeliveryContext] = []

    def taken() -> None:
        silence(run)
        stream = str(uuid.uuid4())
        later.append(start(run.sinks.dsn, run.sinks.lake, EVENTS, stream_id=stream, first_batch=1))

    with pytest.raises(Fenced):
        deliver(at(run, Step.STAGED, taken), replace(of(made[0]), judged=broken("negative", table_rule=True)))
    assert oracle.ask(run.sinks.dsn, "SELECT count(*) FROM sluice.stopped_batch") == [(0,)]
    deliver(later[0], replace(of(made[1]), batch_id=1))
    assert sweep_lake(run.sinks.dsn, run.sinks.lake, EVENTS, horizon=dt.timedelta(0)).kept == {}


@pytest.mark.parametrize("by", ["the next run", "sweep"])
def test_what_a_killed_replay_left_is_swept(
    run: DeliveryContext, made: list[oracle.MadeBatch], by: str
) -> None:
    replay, dsn, lake = replay_of(run, made[0]), run.sinks.dsn, run.sinks.lake

    def die() -> None:
        raise KilledError

    with pytest.raises(KilledError):
        deliver_correction(at(replay, Step.STAGED, die), replace(of(made[0]), batch_id=0))
    silence(run)
    if by == "the next run":
        start(dsn, lake, EVENTS, stream_id=run.stream_id)
        assert oracle.ask(dsn, "SELECT outcome FROM sluice.run WHERE kind = 'replay'") == [("died",)]
    looked = sweep_lake(dsn, lake, EVENTS, horizon=dt.timedelta(0), dry_run=True)
    report = sweep_lake(dsn, lake, EVENTS, horizon=dt.timedelta(0))
    assert looked.objects == report.objects != []
    assert report.kept == {}
    assert staged_left(run) == []


def test_a_replay_that_was_given_up_while_it_stages_says_to_run_it_again(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    """What it sees is that its staging tables are gone; nobody took a lease from it."""
    replay, batch = replay_of(run, made[0]), replace(of(made[0]), batch_id=0)
    rob_while_staging(run, batch)
    with pytest.raises(Fenced, match="its run was given up") as fenced:
        deliver_correction(replay, batch)
    assert fenced.value.remedy == "run the same command again"
    assert_delivered(run, made[:1])


def test_two_that_open_a_new_pipeline_at_once_both_do(dsn: str, lake: Lake) -> None:
    for number in range(8):
        declared = pipeline(f"p{number}", Upsert(keys=("id",), newest="at") if number % 2 else None)
        both = threading.Barrier(2)

        def opened(declared=declared, both=both) -> None:  # type: ignore[no-untyped-def]
            both.wait()
            open_sinks(declared, oracle.COLUMNS, dsn=dsn, lake=Lake(lake.root, lake.store))

        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(opened), pool.submit(opened)]:
                done.result()


def test_two_tables_whose_long_names_begin_alike_have_an_index_each(
    dsn: str, lake: Lake, made: list[oracle.MadeBatch]
) -> None:
    for last in ("one", "two"):
        name = f"a_very_long_name_of_a_table_of_somebody_who_says_all_{last}"
        upserts = start(dsn, lake, pipeline(name, Upsert(keys=("id",), newest="at")))
        assert deliver(upserts, of(made[0])).delivered
    found = (
        "SELECT count(*) FROM pg_indexes WHERE tablename LIKE 'a_very_long%%' AND indexdef LIKE '%%UNIQUE%%'"
    )
    assert oracle.ask(dsn, found) == [(2,)]


def test_a_roles_time_limit_does_not_end_a_task(
    services: Services, dsn: str, lake: Lake, made: list[oracle.MadeBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "PIECE_BYTES", 0)
    run = start(dsn, lake, pipeline("events", Upsert(keys=("id",), newest="at")))
    name = database_name(dsn)
    limit = "idle_in_transaction_session_timeout = '100ms'"
    administer(services.postgres, f'ALTER DATABASE "{name}" SET {limit}')
    batch = of(made[0])

    def slowly(part: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in part:
            yield rows.slice(0, 2)
            waited = (
                "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'COPY%%' AND state = 'idle in transaction'"
                " AND now() - state_change > interval '300ms'"
            )
            while not oracle.ask(services.postgres, waited):
                threading.Event().wait(0.02)
            yield rows.slice(2)

    batch.parts = [slowly(list(part)) for part in batch.parts]
    assert deliver(run, batch).rows_in == len(made[0].rows) + len(made[0].malformed)


def test_a_database_of_another_isolation_is_used_by_ours(
    services: Services, run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    name = database_name(run.sinks.dsn)
    administer(
        services.postgres, f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'repeatable read'"
    )
    with closing(psycopg2.connect(run.sinks.dsn)) as other, other.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone() == ("repeatable read",)
    with transaction(run.sinks.dsn) as cursor:
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone() == ("read committed",)
