"""A published name shows a pipeline's rows in both sinks, moves with every commit, and is given away whole or not at all."""

from __future__ import annotations

import datetime as dt
import threading
from pathlib import Path

import psycopg2
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from etl import database
from etl.database import session
from etl.errors import Busy, InputsChanged, SetupError, TableRefused
from etl.lake import Lake
from etl.pipeline import Append
from etl.published import Name, publish, withdraw
from etl.read import catalog_properties
from etl.services import Services
from etl.steps import Step
from etl.sweep import sweep_lake
from tests import oracle
from tests.service.delivering import Delivering

NARROW = pa.schema([("a", pa.int32()), ("b", pa.string())])
OTHER = pa.schema([("b", pa.string()), ("a", pa.float64())])
NAME = Name(schema="reports", name="numbers")
Seen = list[tuple[object, ...]]


@pytest.fixture
def old(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    """Of three rows."""
    new = Delivering.start(services, dsn, lake, tmp_path / "old", NARROW, Append())
    new.deliver(pa.table([[1, 2, 3], ["x", "y", "z"]], schema=NARROW))
    return new


@pytest.fixture
def new(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    """Beside it, of one row in columns of another order and type."""
    beside = Delivering.start(services, dsn, lake, tmp_path / "new", OTHER, Append(), name="events_2")
    beside.deliver(pa.table([["w"], [0.5]], schema=OTHER))
    return beside


def show(events: Delivering, name: Name = NAME) -> str | None:
    return publish(events.dsn, events.pipeline, events.table, name, who="tests")


def seen(events: Delivering, *columns: str) -> tuple[Seen, Seen]:
    """What readers of the name see: in PostgreSQL, and by the catalog."""
    listed = ", ".join(columns)
    view = sorted(oracle.ask(events.dsn, f"SELECT {listed} FROM reports.numbers"), key=repr)
    table = SqlCatalog("sluice", **catalog_properties(events.place)).load_table("reports.numbers")
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


def test_columns_that_are_added_or_widened_are_seen_by_whoever_might_read(old: Delivering) -> None:
    show(old)
    old.execute("GRANT SELECT ON reports.numbers TO PUBLIC")
    old.execute("GRANT SELECT ON reports.numbers TO pg_monitor WITH GRANT OPTION")
    rights = (
        "SELECT grantee, is_grantable FROM information_schema.role_table_grants WHERE table_name = 'numbers'"
    )
    before = sorted(oracle.ask(old.dsn, rights))
    old.columns = pa.schema([("a", pa.int64()), NARROW.field("b"), ("c", pa.string())])
    old.restart()
    old.deliver(pa.table([[2**40], ["w"], ["new"]], schema=old.columns))
    assert seen(old, "a", "c") == (sorted([(1, None), (2, None), (3, None), (2**40, "new")], key=repr),) * 2
    assert sorted(oracle.ask(old.dsn, rights)) == before


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
    with session(old.dsn) as reader:
        reader.execute("SELECT a FROM reports.numbers")
        with pytest.raises(Busy, match=r"View reports.numbers was read, .*\(50ms\)\. Nothing was changed"):
            show(new)
    assert seen(old, "a") == ([(1,), (2,), (3,)],) * 2


def test_a_name_that_is_somebody_elses_is_refused(old: Delivering, new: Delivering) -> None:
    with pytest.raises(SetupError, match="a table of PostgreSQL and a table of the catalog and the table of"):
        show(new, Name.of("warehouse.events"))
    old.execute("CREATE SCHEMA reports; CREATE TABLE reports.numbers (a int)")
    with pytest.raises(
        SetupError, match=r"reports.numbers is a table of PostgreSQL already, and was not published"
    ):
        show(old)
    for wrong in ("numbers", "sluice.numbers", "reports.a b", "a.b.c"):
        with pytest.raises(SetupError, match="can't be published"):
            Name.of(wrong)
    assert oracle.ask(old.dsn, "SELECT 1 FROM sluice.published") == []


def test_before_its_first_run_a_pipeline_has_nothing_to_show(old: Delivering) -> None:
    later = old.place.lake.table("warehouse.later")
    with pytest.raises(SetupError, match="Pipeline events has no table yet"):
        publish(old.dsn, old.pipeline, later, NAME, who="tests")


def test_withdrawn_it_is_gone_from_both_sinks_and_no_row_is(old: Delivering, new: Delivering) -> None:
    show(old)
    with pytest.raises(SetupError, match=r"reports.numbers shows the rows of events"):
        withdraw(new.dsn, "events_2", NAME)
    withdraw(old.dsn, "events", NAME)
    with pytest.raises(psycopg2.errors.UndefinedTable):
        seen(old, "a")
    assert not SqlCatalog("sluice", **catalog_properties(old.place)).table_exists("reports.numbers")
    assert len(oracle.ask(old.dsn, "SELECT 1 FROM warehouse.events")) == 3
    with pytest.raises(SetupError, match=r"reports.numbers is not published"):
        withdraw(old.dsn, "events", NAME)


def test_a_published_table_is_swept_like_any_other(old: Delivering) -> None:
    show(old)
    sweep_lake(old.dsn, old.place.lake, old.pipeline, horizon=dt.timedelta(0))
    assert seen(old, "a") == ([(1,), (2,), (3,)],) * 2
    with session(old.dsn) as cursor:
        assert old.table.pointer(cursor) is not None
