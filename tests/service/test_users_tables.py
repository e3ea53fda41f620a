"""A table that users made is taken as it is, or refused with all that is wrong with it; a table belongs to one pipeline."""

from __future__ import annotations

import pytest

from etl.common.database import transaction
from etl.common.errors import TableRefused
from etl.common.outcome import RunOutcome
from etl.delivery.batch import DeliveryContext
from etl.delivery.deliver import deliver
from etl.ledger import leases
from etl.pipeline import Append
from etl.sinks.lake.lake import Lake
from tests.support import oracle
from tests.support.arrow_driver import of, pipeline, start
from tests.support.events_run import EVENTS

USERS_TABLE = """
CREATE SCHEMA warehouse;
CREATE TABLE warehouse.other (id int PRIMARY KEY);
CREATE TABLE warehouse.events (
    id smallint REFERENCES warehouse.other, at timestamptz, name text UNIQUE,
    amount numeric(12,2) CHECK (amount > 0), x float8 NOT NULL, day date, extra int,
    twice int GENERATED ALWAYS AS (id * 2) STORED, _stream_id uuid, _batch_id bigint, _delivery_id bigint
);
CREATE UNIQUE INDEX only_one ON warehouse.events (day);
CREATE TRIGGER changes BEFORE UPDATE ON warehouse.events
    FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
CREATE RULE nothing AS ON DELETE TO warehouse.events DO INSTEAD NOTHING;
ALTER TABLE warehouse.events ENABLE ROW LEVEL SECURITY;
"""


def test_a_table_is_refused_with_all_that_is_wrong_with_it(dsn: str, lake: Lake) -> None:
    oracle.ask(dsn, USERS_TABLE)
    with pytest.raises(TableRefused) as refused:
        start(dsn, lake, EVENTS)
    assert refused.value.exit_code == 2
    for seen in (
        "id is smallint, the pipeline delivers bigint",
        "extra is not delivered",
        "twice is not delivered",
        "FOREIGN KEY constraint",
        "UNIQUE constraint events_name_key",
        "CHECK constraint events_amount_check",
        "NOT NULL on column x",
        "UNIQUE index warehouse.only_one",
        "trigger changes",
        "a value of its own for column twice",
        "rule nothing",
        "row level security",
    ):
        assert seen in str(refused.value)


@pytest.mark.parametrize("unlogged", ["warehouse.events", "warehouse.events_all"])
def test_a_table_that_a_crash_empties_is_refused(
    run: DeliveryContext, made: list[oracle.MadeBatch], unlogged: str
) -> None:
    dsn = run.sinks.dsn
    with transaction(dsn) as cursor:
        leases.end_run(cursor, run.lease, RunOutcome(outcome="done"))
        leases.give_lease_back(cursor, run.lease)
        cursor.execute("CREATE UNLOGGED TABLE warehouse.events_all (LIKE warehouse.events)")
        if unlogged == "warehouse.events":
            cursor.execute("ALTER TABLE warehouse.events SET UNLOGGED")
        else:
            cursor.execute("ALTER TABLE warehouse.events RENAME TO events_before")
            cursor.execute(
                "CREATE TABLE warehouse.events (LIKE warehouse.events_all) PARTITION BY LIST (name);"
                "ALTER TABLE warehouse.events ATTACH PARTITION warehouse.events_all DEFAULT"
            )
    with pytest.raises(TableRefused, match=rf"no write-ahead log \({unlogged} is UNLOGGED\)"):
        start(dsn, run.sinks.lake, EVENTS)


def test_a_view_is_refused(dsn: str, lake: Lake) -> None:
    for statement in ("CREATE SCHEMA warehouse", "CREATE VIEW warehouse.events AS SELECT 1::bigint AS id"):
        oracle.ask(dsn, statement)
    with pytest.raises(TableRefused, match="another kind than"):
        start(dsn, lake, EVENTS)


def test_a_table_belongs_to_one_pipeline(run: DeliveryContext) -> None:
    with pytest.raises(TableRefused, match="belongs to pipeline events"):
        start(run.sinks.dsn, run.sinks.lake, pipeline("others", Append(table="warehouse.events")))


def test_a_pipeline_keeps_the_table_that_it_delivered_to(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    deliver(run, of(made[0]))
    with pytest.raises(TableRefused, match=r"has delivered to warehouse\.events"):
        start(run.sinks.dsn, run.sinks.lake, pipeline("events", Append(table="warehouse.others")))
