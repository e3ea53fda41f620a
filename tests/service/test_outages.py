"""What a commit does when the network or PostgreSQL itself comes between."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from etl.common.database import transaction
from etl.common.errors import CommitUnknown, LedgerBehind, ServiceAway
from etl.common.migrations import migrate
from etl.common.steps import Step
from etl.delivery import commit
from etl.delivery.batch import DeliveryContext
from etl.delivery.deliver import deliver
from etl.ledger import pipelines
from etl.services import Services, postgres
from etl.sinks.lake.lake import Lake
from etl.sinks.warehouse import staging
from tests.support import oracle
from tests.support.arrow_driver import of, start
from tests.support.databases import clone, database_name, new_database
from tests.support.events_run import (
    EVENTS,
    assert_delivered,
    assert_nothing_visible,
    at,
    behind_proxy,
    rob,
    waits_for_a_lock,
)
from tests.support.waiting import until

# The connection breaks


@pytest.mark.usefixtures("kept")
def test_a_cut_before_the_server_has_the_commit_is_no_commit(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    with behind_proxy(run) as (far, cutter):
        with pytest.raises(ServiceAway):
            deliver(at(far, Step.POINTER_SWAPPED, lambda: setattr(cutter, "cut", "before")), of(made[0]))
        assert cutter.cuts == ["before"]
    assert_nothing_visible(run)
    deliver(run, of(made[0]))
    assert_delivered(run, made[:1])


@pytest.mark.usefixtures("kept")
def test_a_cut_that_swallows_the_answer_is_a_commit(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    with behind_proxy(run) as (far, cutter):
        receipt = deliver(at(far, Step.POINTER_SWAPPED, lambda: setattr(cutter, "cut", "after")), of(made[0]))
        assert cutter.cuts == ["after"]
    assert receipt.delivered == made[0].delivered.total()
    assert_delivered(run, made[:1])


# What another run had delivered under the number, in the ledger that PostgreSQL went back to meanwhile.
FOREIGN = """
INSERT INTO sluice.pipeline (name, table_schema, table_name) VALUES ('others', 's', 't');
INSERT INTO sluice.stream VALUES ('00000000-0000-4000-8000-000000000001', 'others', 'c', 0);
INSERT INTO sluice.run (run_id, pipeline, holder) VALUES ('00000000-0000-4000-8000-000000000002', 'others', 'h');
INSERT INTO sluice.delivery (delivery_id, pipeline, stream_id, batch_id, commit_seq, run_id, rows_in,
    delivered, quarantined, malformed, checksum, quarantine_checksum, suite_digest, lookups, manifest,
    metadata_location, quarantine_metadata_location)
SELECT max(delivery_id), 'others', '00000000-0000-4000-8000-000000000001', 0, 1,
    '00000000-0000-4000-8000-000000000002', 0, 0, 0, 0, 0, 0, '', '{}', '', '', '' FROM sluice.attempt
"""


def test_a_number_that_is_anothers_by_now_is_no_commit(
    run: DeliveryContext, dsn: str, made: list[oracle.MadeBatch]
) -> None:
    def other() -> None:
        """Wait behind the commit, and before the run that asks whether it took place."""
        with transaction(dsn) as cursor:
            pipelines.lock(cursor, "events")
            cursor.execute(FOREIGN)

    with behind_proxy(run) as (far, cutter), ThreadPoolExecutor(1) as beside:

        def lose() -> None:
            waiting.append(beside.submit(other))
            until(lambda: waits_for_a_lock(dsn), "the other run", patience=60)
            cutter.cut = "before"

        waiting: list[Future[None]] = []
        with pytest.raises(ServiceAway, match="the ledger shows that it was not committed"):
            deliver(at(far, Step.POINTER_SWAPPED, lose), of(made[0]))
        waiting[0].result()
    assert oracle.ask(dsn, "SELECT pipeline FROM sluice.delivery") == [("others",)]


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("cut", ["before", "after"])
def test_an_outcome_that_cannot_be_known_is_not_guessed(
    run: DeliveryContext, made: list[oracle.MadeBatch], cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "RECONNECT_SECONDS", 0)
    with behind_proxy(run) as (far, cutter):

        def go_away() -> None:
            cutter.cut, cutter.away = cut, True

        with pytest.raises(CommitUnknown):
            deliver(at(far, Step.POINTER_SWAPPED, go_away), of(made[0]))
        assert cutter.cuts == [cut]
    again = rob(run)
    assert deliver(again, of(made[0])).delivered_before == (cut == "after")
    assert_delivered(run, made[:1])


# S3 is away


def test_while_the_locks_are_held_s3_is_not_asked(
    run: DeliveryContext, services: Services, made: list[oracle.MadeBatch]
) -> None:
    server = s3_server(services)
    told: list[Step] = []

    def listener(step: Step) -> None:
        if step == Step.PIPELINE_LOCKED:
            while server.status() != psutil.STATUS_STOPPED:  # then whoever asks waits in vain
                server.suspend()
            told.append(step)
        elif step == Step.POINTER_SWAPPED:
            server.resume()
            told.append(step)

    try:
        deliver(replace(run, on_step=listener), of(made[0]))
    finally:
        server.resume()
    assert told == [Step.PIPELINE_LOCKED, Step.POINTER_SWAPPED]
    assert_delivered(run, made[:1])


def s3_server(services: Services) -> psutil.Process:
    """Return the process that listens where S3 is."""
    port = urlsplit(services.s3_endpoint or "").port
    listening = psutil.net_connections("tcp")
    [pid] = {one.pid for one in listening if one.laddr.port == port and one.status == psutil.CONN_LISTEN}
    return psutil.Process(pid)


# PostgreSQL loses something


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("held", [False, True], ids=["data", "quarantine"])
def test_a_batch_whose_staged_rows_were_lost_is_staged_again(
    run: DeliveryContext, made: list[oracle.MadeBatch], held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "REPORTED_BYTES", 0)
    batch = of(made[0])

    def empty() -> None:
        table = batch.staged[0].tables.packed
        oracle.ask(run.sinks.dsn, f"DELETE FROM sluice_stage.{table} WHERE held = %s", [held])

    deliver(at(run, Step.STAGED, empty), batch)
    assert len(batch.staged) == 2
    assert_delivered(run, made[:1])


@pytest.mark.long
@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("step", [Step.STAGED, Step.POINTER_SWAPPED])
def test_postgres_is_killed_and_restarted(
    short_home: Path,
    lake: Lake,
    made: list[oracle.MadeBatch],
    step: Step,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "REPORTED_BYTES", 0)
    home = short_home / f"own-{step}"
    home.mkdir(mode=0o711)
    server = postgres.cluster(home, 0)
    dsn = postgres.start(server)
    try:
        migrate(dsn)
        run = start(dsn, lake, EVENTS)
        deliver(run, of(made[0]))

        def crash() -> None:
            kill_server(server)
            assert postgres.start(server) == dsn

        batch = of(made[1])
        if step == Step.STAGED:  # the unlogged tables are empty then
            deliver(at(run, step, crash), batch)
            assert len(batch.staged) == 2
        else:
            with pytest.raises(ServiceAway):
                deliver(at(run, step, crash), batch)
            deliver(run, of(made[1]))
        assert_delivered(run, made[:2])
    finally:
        postgres.stop(server)


def kill_server(server: postgres.Postgres) -> None:
    """SIGKILL to the postmaster; its children see that and end by themselves."""
    postmaster = psutil.Process(int((server.data / "postmaster.pid").read_text().split()[0]))
    children = postmaster.children(recursive=True)
    postmaster.kill()
    _, alive = psutil.wait_procs([postmaster, *children], timeout=60)
    assert not alive


def test_a_restored_postgres_is_noticed_by_a_living_driver(
    run: DeliveryContext, dsn: str, services: Services, made: list[oracle.MadeBatch]
) -> None:
    deliver(run, of(made[0]))
    name = database_name(dsn)
    with new_database(services.postgres, template=name) as backup:
        deliver(run, of(made[1]))
        clone(services.postgres, database_name(backup), name)
        with pytest.raises(LedgerBehind) as behind:
            deliver(run, of(made[2]))
    assert behind.value.exit_code == 4
    assert_delivered(run, made[:1])
