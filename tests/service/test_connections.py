"""Connections that a run keeps: few, none of them carries anything on, and one that broke meanwhile is no error."""

from __future__ import annotations

import os
from contextlib import closing

import psycopg2
import pytest

from etl.common.database import Cursor, Pool, is_lost, kept_connections, transaction
from etl.delivery.batch import DeliveryContext
from etl.delivery.deliver import deliver
from tests.support import oracle
from tests.support.arrow_driver import of
from tests.support.databases import sessions
from tests.support.events_run import assert_delivered, behind_proxy
from tests.support.waiting import until

PID = "SELECT pg_backend_pid()"
OURS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def one(cursor: Cursor, query: str) -> object:
    cursor.execute(query)
    [(found,)] = cursor.fetchall()
    return found


def pid(dsn: str) -> object:
    with transaction(dsn) as cursor:
        return one(cursor, PID)


def test_ten_batches_open_one_connection_and_their_tasks_none(run: DeliveryContext) -> None:
    made, dsn = oracle.make(seed=7, batches=11, rows=40), run.sinks.dsn

    def opened(batches: list[oracle.MadeBatch]) -> int:
        """Count what they open; the rows of so small ones travel with the reports of their tasks."""
        before = sessions(dsn)
        with kept_connections():
            for batch in batches:
                deliver(run, of(batch))
        return sessions(dsn) - before

    assert opened(made[:1]) == 1
    assert opened(made[1:]) == 1
    assert_delivered(run, made)


def test_a_pool_opens_its_connections_with_its_options(dsn: str) -> None:
    with closing(Pool(dsn, tcp_user_timeout=7_000)) as pool, pool.transaction() as cursor:
        assert cursor.connection.info.dsn_parameters["tcp_user_timeout"] == "7000"


@pytest.mark.usefixtures("kept")
def test_transactions_one_after_the_other_have_one_connection_and_those_within_another_their_own(
    dsn: str,
) -> None:
    first = pid(dsn)
    assert pid(dsn) == first
    with transaction(dsn) as cursor:
        assert one(cursor, PID) == first
        assert pid(dsn) != first


def test_behind_the_last_that_keeps_them_all_are_closed(dsn: str) -> None:
    with kept_connections():
        with kept_connections():
            first = pid(dsn)
        assert pid(dsn) == first
        with transaction(dsn):
            pid(dsn)
    until(lambda: oracle.ask(dsn, OURS) == [], "both connections to be closed", patience=60)
    assert pid(dsn) != first


@pytest.mark.usefixtures("kept")
def test_a_forked_process_opens_its_own_and_leaves_its_parents_open(dsn: str) -> None:
    first = pid(dsn)
    child = os.fork()
    if child == 0:
        taken = True
        try:
            taken = pid(dsn) == first
        finally:
            os._exit(taken)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert pid(dsn) == first


@pytest.mark.usefixtures("kept")
def test_what_a_transaction_sets_and_locks_ends_with_it(dsn: str) -> None:
    def sets_and_locks() -> None:
        with transaction(dsn, one_snapshot=True) as cursor:
            assert one(cursor, "SHOW transaction_isolation") == "repeatable read"
            assert one(cursor, "SHOW transaction_read_only") == "on"
            cursor.execute("SET LOCAL statement_timeout = 0; SET LOCAL timezone = 'Europe/Berlin'")
            cursor.execute("SELECT pg_advisory_xact_lock(5)")
            raise ZeroDivisionError

    first = pid(dsn)
    with pytest.raises(ZeroDivisionError):
        sets_and_locks()
    with transaction(dsn) as cursor:
        assert one(cursor, PID) == first
        assert one(cursor, "SHOW transaction_isolation") == "read committed"
        assert one(cursor, "SHOW transaction_read_only") == "off"
        assert one(cursor, "SHOW statement_timeout") == "30min"
        assert one(cursor, "SHOW timezone") == "UTC"
        assert one(cursor, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


@pytest.mark.usefixtures("kept")
def test_a_delivery_leaves_nothing_on_its_connection(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    deliver(run, of(made[0]))
    with transaction(run.sinks.dsn) as cursor:
        connection = cursor.connection
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT name, setting FROM pg_settings WHERE source = 'session' ORDER BY name")
        assert cursor.fetchall() == [("transaction_isolation", "read committed")]  # each transaction's own
        assert one(cursor, "SELECT pg_my_temp_schema()") == 0
        assert one(cursor, "SELECT count(*) FROM pg_prepared_statements") == 0
        assert one(cursor, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


@pytest.mark.usefixtures("kept")
def test_a_connection_that_the_server_ended_between_two_batches(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    deliver(run, of(made[0]))
    assert oracle.ask(run.sinks.dsn, f"SELECT pg_terminate_backend(pid, 60000) FROM ({OURS}) ours") == [
        (True,)
    ]
    deliver(run, of(made[1]))
    assert_delivered(run, made[:2])


@pytest.mark.usefixtures("kept")
def test_a_connection_that_was_idle_for_too_long(run: DeliveryContext, made: list[oracle.MadeBatch]) -> None:
    deliver(run, of(made[0]))
    with transaction(run.sinks.dsn) as cursor:
        connection = cursor.connection
    with connection.cursor() as cursor:
        cursor.execute("SET idle_session_timeout = '10ms'")
    connection.commit()
    until(lambda: oracle.ask(run.sinks.dsn, OURS) == [], "the server to end what is idle", patience=60)
    deliver(run, of(made[1]))
    assert_delivered(run, made[:2])


@pytest.mark.usefixtures("kept")
def test_a_connection_that_a_proxy_ended_without_a_word(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    with behind_proxy(run) as (far, between):
        deliver(far, of(made[0]))
        between.end_all()
        deliver(far, of(made[1]))
    assert_delivered(run, made[:2])


@pytest.mark.usefixtures("kept")
def test_what_a_lost_connection_had_begun_is_not_done_twice(dsn: str) -> None:
    with transaction(dsn) as cursor:
        cursor.execute("CREATE TABLE one (id int)")

    def cut_within() -> None:
        with transaction(dsn) as cursor:
            cursor.execute("INSERT INTO one VALUES (1)")
            oracle.ask(dsn, "SELECT pg_terminate_backend(%s, 60000)", (cursor.connection.info.backend_pid,))
            cursor.execute("INSERT INTO one VALUES (2)")

    with pytest.raises(psycopg2.Error) as lost:
        cut_within()
    assert is_lost(lost.value)
    with transaction(dsn) as cursor:
        assert one(cursor, "SELECT count(*) FROM one") == 0
