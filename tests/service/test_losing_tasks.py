"""What a task stages whose report does not count is in no sink, and holds up no commit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from etl.common.database import transaction
from etl.common.steps import Step
from etl.delivery.batch import DeliveryContext
from etl.delivery.deliver import deliver
from etl.runs.heartbeat import drop_leftover_staging
from etl.sinks.warehouse import staging
from tests.support import oracle
from tests.support.arrow_driver import here, of, reader
from tests.support.events_run import assert_delivered, at, staged_left


@pytest.mark.parametrize("reported", [staging.REPORTED_BYTES, 0], ids=["reported", "sent"])
def test_speculative_duplicates_count_nowhere_and_stage_at_once(
    run: DeliveryContext, made: list[oracle.MadeBatch], reported: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "REPORTED_BYTES", reported)
    batch = of(made[0])

    def at_once(*task: object) -> object:
        """Stage fully several times; the report of one arrives."""
        with ThreadPoolExecutor(4) as tasks:
            return next(tasks.map(lambda _: here(*task), range(4)))  # type: ignore[arg-type]

    batch.run_task = at_once  # type: ignore[assignment]
    there: list[str] = []
    receipt = deliver(at(run, Step.STAGED, lambda: there.extend(staged_left(run))), batch)
    assert there == ([] if reported else [batch.staged[0].tables.packed])
    assert receipt.delivered == made[0].delivered.total()
    assert_delivered(run, made[:1])


def test_a_task_that_outlives_its_attempt_makes_no_staging_table(
    run: DeliveryContext, made: list[oracle.MadeBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = of(made[0])
    deliver(run, batch)
    monkeypatch.setattr(staging, "REPORTED_BYTES", 0)
    with pytest.raises(psycopg2.errors.UndefinedTable):
        here(batch.staged[0], batch.parts[0], 0)
    assert_delivered(run, made[:1])


def test_a_losing_task_that_still_copies_does_not_hold_up_the_commit(
    run: DeliveryContext, made: list[oracle.MadeBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "REPORTED_BYTES", 0)
    batch = of(made[0])
    losing: list[psycopg2.extensions.connection] = []

    def open_copy() -> None:
        """Begin a zombie's transaction, with rows in the staging table and no end."""
        losing.append(psycopg2.connect(run.sinks.dsn))
        losing[0].cursor().execute(
            f"INSERT INTO sluice_stage.{batch.staged[0].tables.packed}"
            " (held, rows, size, packed, part, _task) VALUES (false, 1, 0, '', 0, 1)"
        )

    try:
        deliver(at(run, Step.STAGED, open_copy), batch)
        assert reader(run).difference(oracle.expected(made[:1])) == ""
        left = [batch.staged[0].tables.packed]
        assert staged_left(run) == left
        drop_leftover_staging(run.sinks.dsn, "events")  # as the next run does
        assert staged_left(run) == left
    finally:
        for connection in losing:
            connection.close()
    # Waits for the closed connection, which ends a moment later.
    oracle.ask(run.sinks.dsn, f"LOCK TABLE sluice_stage.{left[0]}")
    drop_leftover_staging(run.sinks.dsn, "events")
    assert staged_left(run) == []


def test_what_another_role_left_in_staging_stops_no_run(
    run: DeliveryContext, made: list[oracle.MadeBatch], caplog: pytest.LogCaptureFixture
) -> None:
    batch = of(made[0])
    deliver(run, batch)
    left = batch.staged[0].tables.packed
    with transaction(make_dsn(run.sinks.dsn, user="postgres")) as superuser:
        superuser.execute(f"ALTER SCHEMA sluice_stage OWNER TO postgres; CREATE TABLE sluice_stage.{left} ()")
        superuser.execute("GRANT USAGE, CREATE ON SCHEMA sluice_stage TO PUBLIC")
    drop_leftover_staging(run.sinks.dsn, "events")
    assert staged_left(run) == [left]
    assert any("could not be dropped" in message for message in caplog.messages)
