"""A published name shows a pipeline's rows in both sinks, moves with every commit, and is given away whole or not at all."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from dataclasses import replace
from pathlib import Path

import psycopg2
import pyarrow as pa
import pytest
from psycopg2.extensions import make_dsn

from etl.common import database
from etl.common.database import transaction
from etl.common.errors import Busy, InputsChanged, SetupError, TableRefused
from etl.common.steps import Step
from etl.operations.maintenance.sweep import sweep_lake
from etl.operations.serving.publish import publish, withdraw
from etl.pipeline import Append
from etl.services import Services
from etl.sinks.lake.lake import Lake
from etl.sinks.warehouse.views import Name
from tests.support import oracle
from tests.support.catalog import open_catalog
from tests.support.delivering import Delivering

pytestmark = pytest.mark.long

NARROW = pa.schema([("a", pa.int32()), ("b", pa.string())])
OTHER = pa.schema([("b", pa.string()), ("a", pa.float64())])
NAME = Name(schema="reports", name="numbers")
Seen = list[tuple[object, ...]]


@pytest.fixture
def old(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    """Deliver the old pipeline, of three rows."""
    new = Delivering.start(services, dsn, lake, tmp_path / "old", NARROW, Append())
    new.deliver(pa.table([[1, 2, 3], ["x", "y", "z"]], schema=NARROW))
    return new


@pytest.fixture
def new(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    """Deliver the new pipeline beside it, of one row in columns of another order and type."""
    beside = Delivering.start(services, dsn, lake, tmp_path / "new", OTHER, Append(), name="events_2")
    beside.deliver(pa.table([["w"], [0.5]], schema=OTHER))
    return beside


def show(events: Delivering, name: Name = NAME, *, incomplete: bool = True) -> str | None:
    return publish(events.dsn, events.pipeline, events.table, name, who="tests", incomplete=incomplete)


def seen(events: Delivering, *columns: str) -> tuple[Seen, Seen]:
    """Return what readers of the name see: in PostgreSQL, and by the catalog."""
    listed = ", ".join(columns)
    view = sorted(oracle.ask(events.dsn, f"SELECT {listed} FROM reports.numbers"), key=repr)
    table = open_catalog(events.place).load_table("reports.numbers")
    rows = table.scan(selected_fields=columns).to_arrow().to_pylist()
    return view, sorted((tuple(row[column] for column in columns) for row in rows), key=repr)


def test_both_sinks_show_what_is_committed_and_nothing_else(old: Delivering) -> None:
    assert show(old) is None
    assert seen(old, "a", "b") == ([(1, "x"), (2, "y"), (3, "z")],) * 2
    with pytest.raises(InputsChanged):
        old.deliver(pa.table([[8], ["no"]], schema=NARROW), changes=["gone"])
    old.deliver(pa.table([[4], ["w"]], schema=NARROW))
    assert seen(old, "a") == ([(1,), (2,), (3,), (4,)],) * 2
    assert show(old) == "events", "once more is no harm"


def test_the_name_is_given_to_another_pipeline_and_back(old: Delivering, new: Delivering) -> None:
    show(old)
    assert show(new) == "events"
    assert seen(new, "a", "b") == ([(0.5, "w")],) * 2
    old.deliver(pa.table([[4], ["w"]], schema=NARROW))  # goes on, and is not seen
    assert seen(new, "a", "b") == ([(0.5, "w")],) * 2
    assert show(old) == "events_2"
    assert seen(old, "a") == ([(1,), (2,), (3,), (4,)],) * 2


def test_a_pipeline_that_has_not_read_all_that_the_other_has_gets_no_name_unasked(
    old: Delivering, new: Delivering
) -> None:
    show(old)
    old.deliver(pa.table([[4], ["w"]], schema=NARROW))
    with pytest.raises(
        SetupError, match=r"events_2 has not read 1 of the 2 inputs, files and partitions,.*events .*1\.jsonl"
    ) as refused:
        show(new, incomplete=False)
    assert "sluice run events_2" in refused.value.remedy
    assert seen(old, "a") == ([(1,), (2,), (3,), (4,)],) * 2
    old.execute(
        "INSERT INTO sluice.delivery_range"
        " (delivery_id, pipeline, source, topic, topic_id, partition, start_offset, end_offset)"
        " SELECT delivery_id, pipeline, 0, 'orders', 'id', 0, 0, CASE pipeline WHEN 'events' THEN 9 ELSE 8 END"
        " FROM sluice.delivery WHERE batch_id = 0"
    )
    new.deliver(pa.table([["v"], [0.7]], schema=OTHER))
    for start, end in ((0, 8), (1, 9)):  # not as far, and not from as early
        new.execute(
            "UPDATE sluice.delivery_range SET (start_offset, end_offset) = (%s, %s) WHERE pipeline = 'events_2'",
            start,
            end,
        )
        with pytest.raises(
            SetupError, match=r"1 of the 3 inputs, files and partitions.*kafka://orders/0/0-9"
        ):
            show(new, incomplete=False)
    assert show(new) == "events"
    assert seen(new, "b") == ([("v",), ("w",)],) * 2
    new.execute("UPDATE sluice.delivery_input SET path = 'else/' || path WHERE pipeline = 'events_2'")
    new.execute("DELETE FROM sluice.delivery_range")
    assert show(old, incomplete=False) == "events_2", "they read other sources: there is nothing to compare"


def test_a_commit_under_way_comes_before_or_after_and_never_between(old: Delivering, new: Delivering) -> None:
    show(old)
    giving = threading.Thread(target=show, args=(new,))

    def give(step: Step) -> None:
        if step == Step.POINTER_SWAPPED and not giving.ident:
            giving.start()
            waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%FOR NO KEY UPDATE%%'"
            while not oracle.ask(old.dsn, waits):
                threading.Event().wait(0.02)
            assert seen(old, "a") == ([(1,), (2,), (3,)],) * 2

    old.on_step = give
    old.deliver(pa.table([[4], ["w"]], schema=NARROW))
    giving.join()
    assert seen(new, "a", "b") == ([(0.5, "w")],) * 2
    assert len(oracle.ask(old.dsn, "SELECT 1 FROM warehouse.events")) == 4


GIVEN = """
SELECT 'options', array_to_string(reloptions, ' ') FROM pg_class WHERE oid = 'reports.numbers'::regclass
UNION ALL SELECT 'owner', pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'reports.numbers'::regclass
UNION ALL SELECT 'comment', description FROM pg_description WHERE objoid = 'reports.numbers'::regclass
UNION ALL SELECT coalesce(nullif(grantee, 0)::regrole::text, 'PUBLIC') || ' ' || is_grantable, privilege_type
          FROM pg_class, aclexplode(relacl) WHERE oid = 'reports.numbers'::regclass AND grantee <> relowner
UNION ALL SELECT 'column of ' || grantee || ': ' || column_name, privilege_type FROM information_schema.column_privileges
          WHERE (table_schema, table_name) = ('reports', 'numbers') AND grantee = 'pg_read_all_stats'
"""


def by_superuser(events: Delivering, *statements: str) -> None:
    with transaction(make_dsn(events.dsn, user="postgres")) as cursor:
        for one in statements:
            cursor.execute(one)


def give(events: Delivering) -> Seen:
    """Give the view what a person may give it; by default everybody may read a new one, and not this one."""
    owner = f"bi_{uuid.uuid4().hex[:8]}"
    by_superuser(
        events,
        "ALTER DEFAULT PRIVILEGES FOR ROLE sluice IN SCHEMA reports GRANT SELECT ON TABLES TO PUBLIC",
        f"CREATE ROLE {owner}",
        f"GRANT {owner} TO sluice",
        f"GRANT USAGE, CREATE ON SCHEMA reports TO {owner}, pg_monitor",
        f"ALTER VIEW reports.numbers OWNER TO {owner}",
        "GRANT SELECT, INSERT ON reports.numbers TO pg_monitor WITH GRANT OPTION",
        "SET LOCAL ROLE pg_monitor",
        "GRANT SELECT ON reports.numbers TO pg_read_all_settings",
        "RESET ROLE",
        "GRANT SELECT (b) ON reports.numbers TO pg_read_all_stats",
        "ALTER VIEW reports.numbers SET (security_invoker = true, security_barrier)",
        "COMMENT ON VIEW reports.numbers IS 'it''s 100 % ours'",
        "COMMENT ON COLUMN reports.numbers.b IS 'a letter'",
    )
    given = sorted(oracle.ask(events.dsn, GIVEN))
    assert {
        ("options", "security_invoker=true security_barrier=true"),
        ("owner", owner),
        ("comment", "it's 100 % ours"),
        ("comment", "a letter"),
        ("pg_monitor true", "INSERT"),
        ("pg_read_all_settings false", "SELECT"),
        ("column of pg_read_all_stats: b", "SELECT"),
    } <= {*given}, given
    assert not any("PUBLIC" in what for what, _ in given)
    return given


def test_columns_that_are_added_are_seen_by_whoever_might_read(old: Delivering) -> None:
    show(old)
    before = give(old)
    old.columns = pa.schema([*NARROW, ("c", pa.string())])
    old.restart()
    old.deliver(pa.table([[4], ["w"], ["new"]], schema=old.columns))
    assert seen(old, "a", "c") == ([(1, None), (2, None), (3, None), (4, "new")],) * 2
    assert sorted(oracle.ask(old.dsn, GIVEN)) == before


def test_columns_that_are_widened_or_anothers_are_seen_by_whoever_might_read(
    old: Delivering, new: Delivering
) -> None:
    show(old)
    before = give(old)
    old.columns = pa.schema([("a", pa.int64()), NARROW.field("b"), ("c", pa.string())])
    old.restart()
    old.deliver(pa.table([[2**40], ["w"], ["new"]], schema=old.columns))
    assert seen(old, "a", "c") == (sorted([(1, None), (2, None), (3, None), (2**40, "new")], key=repr),) * 2
    assert sorted(oracle.ask(old.dsn, GIVEN)) == before
    show(new)
    assert sorted(oracle.ask(old.dsn, GIVEN)) == before
    show(new)
    assert sorted(oracle.ask(old.dsn, GIVEN)) == before


def test_the_first_of_a_name_is_given_what_postgresql_gives_by_default(old: Delivering) -> None:
    old.execute("CREATE SCHEMA reports")
    old.execute("ALTER DEFAULT PRIVILEGES IN SCHEMA reports GRANT SELECT ON TABLES TO PUBLIC")
    show(old)
    assert ("PUBLIC false", "SELECT") in oracle.ask(old.dsn, GIVEN)


def test_a_commit_that_adds_a_column_waits_for_readers_in_the_order_that_they_lock(old: Delivering) -> None:
    """A reader holds a view and goes on to its table: a commit that had the table would wait for it, and it for that."""
    second = Name.of("reports.others")
    show(old)
    show(old, second)
    old.columns = pa.schema([*NARROW, ("c", pa.string())])
    old.restart()
    row = pa.table([[4], ["w"], ["new"]], schema=old.columns)
    delivering = threading.Thread(target=old.deliver, args=(row,))
    with transaction(old.dsn) as reader:
        reader.execute(f"COMMENT ON VIEW {second} IS 'read'")  # locks the view alone, as a SELECT does first
        delivering.start()
        waits = f"SELECT 1 FROM pg_locks WHERE NOT granted AND relation = '{second}'::regclass"
        while not oracle.ask(old.dsn, waits):
            threading.Event().wait(0.02)
        reader.execute(f"SELECT a FROM {second}")
        assert len(reader.fetchall()) == 3
    delivering.join()
    assert seen(old, "a", "c") == ([(1, None), (2, None), (3, None), (4, "new")],) * 2
    assert oracle.ask(old.dsn, f"SELECT count(c) FROM {second}") == [(1,)]


@pytest.mark.parametrize(
    ("done", "why"),
    [
        ("DROP VIEW reports.numbers; CREATE TABLE reports.numbers (a int)", "is not a view"),
        ("DROP SCHEMA reports CASCADE", 'schema "reports" does not exist'),
    ],
)
def test_what_was_done_to_a_published_view_stops_a_change_of_columns_and_says_the_way_out(
    old: Delivering, done: str, why: str
) -> None:
    show(old)
    old.execute(done)
    old.deliver(pa.table([[4], ["w"]], schema=NARROW))  # goes on: the view has no part in it
    old.columns = pa.schema([*NARROW, ("c", pa.string())])
    old.restart()
    row = pa.table([[5], ["v"], ["new"]], schema=old.columns)
    with pytest.raises(TableRefused, match=why) as told:
        old.deliver(row)
    assert "--as reports.numbers --withdraw" in told.value.remedy
    withdraw(old.dsn, "events", NAME)
    old.restart()
    old.deliver(row)
    assert len(oracle.ask(old.dsn, "SELECT c FROM warehouse.events")) == 5
    if "CREATE TABLE" in done:
        assert oracle.ask(old.dsn, "SELECT count(*) FROM reports.numbers") == [(0,)], (
            "what is no view is left"
        )


def test_a_view_that_was_given_to_another_owner_is_told_with_the_way_out(old: Delivering) -> None:
    show(old)
    by_superuser(old, "ALTER VIEW reports.numbers OWNER TO postgres")
    old.columns = pa.schema([*NARROW, ("c", pa.string())])
    old.restart()
    row = pa.table([[4], ["w"], ["new"]], schema=old.columns)
    with pytest.raises(TableRefused, match="must be owner of view numbers") as told:
        old.deliver(row)
    assert "drop the view as its owner" in told.value.remedy
    by_superuser(old, "DROP VIEW reports.numbers")
    old.restart()
    old.deliver(row)
    assert seen(old, "c") == (sorted([("new",), *[(None,)] * 3], key=repr),) * 2


def test_what_depends_on_the_view_is_never_dropped_with_it(old: Delivering, new: Delivering) -> None:
    show(old)
    old.execute("CREATE VIEW reports.sums AS SELECT sum(a) FROM reports.numbers")
    with pytest.raises(
        TableRefused, match=r"reports.numbers can't be given other columns: view reports.sums dep"
    ):
        show(new)
    assert seen(old, "a") == ([(1,), (2,), (3,)],) * 2
    old.execute("DROP VIEW reports.sums")
    show(new)
    assert seen(new, "a") == ([(0.5,)],) * 2


def test_a_long_reader_of_the_view_is_told_and_keeps_what_it_reads(
    old: Delivering, new: Delivering, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(old)
    monkeypatch.setitem(database.TIMEOUTS, "lock_timeout", "50ms")
    with transaction(old.dsn) as reader:
        reader.execute("SELECT a FROM reports.numbers")
        with pytest.raises(Busy, match=r"View reports.numbers was read, .*\(50ms\)\. Nothing was changed"):
            show(new)
    assert seen(old, "a") == ([(1,), (2,), (3,)],) * 2


def test_a_name_that_is_somebody_elses_is_refused(old: Delivering, new: Delivering) -> None:
    with pytest.raises(SetupError, match="a table of PostgreSQL and a table of the catalog and the table of"):
        show(new, Name.of("warehouse.events"))
    old.execute("CREATE SCHEMA reports; CREATE TABLE reports.numbers (a int)")
    with pytest.raises(
        SetupError, match=r"reports.numbers is a table of PostgreSQL already, and Sluice did not publish it"
    ):
        show(old)
    for wrong in ("numbers", "sluice.numbers", "reports.a b", "a.b.c"):
        with pytest.raises(SetupError, match="can't be published"):
            Name.of(wrong)
    assert oracle.ask(old.dsn, "SELECT 1 FROM sluice.published") == []


def test_before_its_first_delivery_and_under_another_sink_a_pipeline_has_nothing_to_show(
    old: Delivering, services: Services, lake: Lake, tmp_path: Path
) -> None:
    first = Delivering.start(services, old.dsn, lake, tmp_path / "first", NARROW, Append(), name="first")
    with pytest.raises(SetupError, match="Pipeline first has delivered nothing yet"):
        show(first)
    never = replace(old.pipeline, name="never")
    with pytest.raises(SetupError, match="Pipeline never has delivered nothing yet"):
        publish(old.dsn, never, old.table, NAME, who="tests")
    elsewhere = replace(old.pipeline, sink=Append(table="warehouse.elsewhere"))
    with pytest.raises(TableRefused, match=r"has delivered to warehouse.events; its sink now names"):
        publish(old.dsn, elsewhere, old.table, NAME, who="tests")


def test_withdrawn_it_is_gone_from_both_sinks_and_no_row_is(old: Delivering, new: Delivering) -> None:
    show(old)
    with pytest.raises(SetupError, match=r"reports.numbers shows the rows of events"):
        withdraw(new.dsn, "events_2", NAME)
    withdraw(old.dsn, "events", NAME)
    with pytest.raises(psycopg2.errors.UndefinedTable):
        seen(old, "a")
    assert not open_catalog(old.place).table_exists("reports.numbers")
    assert len(oracle.ask(old.dsn, "SELECT 1 FROM warehouse.events")) == 3
    with pytest.raises(SetupError, match=r"reports.numbers is not published"):
        withdraw(old.dsn, "events", NAME)


def test_a_published_table_is_swept_like_any_other(old: Delivering) -> None:
    show(old)
    sweep_lake(old.dsn, old.place.lake, old.pipeline, horizon=dt.timedelta(0))
    assert seen(old, "a") == ([(1,), (2,), (3,)],) * 2
    with transaction(old.dsn) as cursor:
        assert old.table.pointer(cursor) is not None
