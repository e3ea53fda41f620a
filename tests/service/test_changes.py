"""A consumer reads what a pipeline delivered once, in commit order, and its place moves with its own commit."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.errors
import pyarrow as pa
import pytest
from psycopg2.extensions import make_dsn
from pyiceberg.expressions import In

from etl.common.errors import LedgerBehind, PlaceMoved, SetupError
from etl.common.settings import Settings
from etl.operations.audit.audit import audit
from etl.operations.maintenance.sweep import sweep_lake
from etl.operations.serving import consumers, lake_place
from etl.operations.serving.changes import Changes, changes
from etl.operations.serving.lake_place import LakePlace
from etl.pipeline import Append, Replace, day
from etl.services import Services
from etl.sinks.lake import marker
from etl.sinks.lake.lake import Lake, TableLocation
from tests.support.catalog import open_catalog
from tests.support.delivering import Delivering

pytestmark = pytest.mark.long

COLUMNS = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("text", pa.string())])
Asked = Callable[..., Changes]


def rows(count: int, start: int = 0) -> pa.Table:
    ids = range(start, start + count)
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    made = [{"id": n, "at": moment + dt.timedelta(days=n % 3), "text": f"row {n}"} for n in ids]
    return pa.Table.from_pylist(made, COLUMNS)


@pytest.fixture
def events(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    """Two deliveries, and 6 rows that are held."""
    new = Delivering.start(services, dsn, lake, tmp_path, COLUMNS, Append(partition_by=day("at")))
    new.deliver(rows(60), bad=range(6))
    new.deliver(rows(30, start=60))
    return new


@pytest.fixture
def asked(events: Delivering, settings_for: Callable[..., Settings], tmp_path: Path) -> Asked:
    """`etl.changes` of the pipeline's own place, without Spark, for consumer `delays` unless told."""
    settings = settings_for(tmp_path / "home", postgres=events.dsn, lake=events.place.services.lake)

    def ask(**options: Any) -> Changes:
        return changes(None, events.pipeline, settings=settings, **{"consumer": "delays", **options})

    return ask


def ids(new: Changes) -> list[int]:
    return sorted(new.to_arrow().column("id").to_pylist())


def place_of(events: Delivering, consumer: str = "delays") -> int:
    [(place,)] = events.execute("SELECT commit_seq FROM sluice.consumer WHERE name = %s", consumer)
    return int(place)


def test_each_row_comes_once_with_its_change_delivery_and_commit(events: Delivering, asked: Asked) -> None:
    with asked() as new:
        found = new.to_arrow()
        assert new
        assert (new.after, new.to, new.deliveries, new.replaced) == (0, 2, [1, 2], [])
        assert place_of(events) == 0, "it moves after the success"
    assert place_of(events) == 2
    assert sorted(found.column("id").to_pylist()) == list(range(6, 90))
    assert found.schema.names == [
        *COLUMNS.names,
        *("_stream_id", "_batch_id", "_delivery_id", "_change", "_changed_by", "_commit_seq"),
    ]
    kinds = zip(*(found.column(name).to_pylist() for name in found.schema.names[-4:]), strict=True)
    assert Counter(kinds) == {(1, "insert", 1, 1): 54, (2, "insert", 2, 2): 30}
    again = asked()
    assert not again
    assert ids(again) == []
    events.deliver(rows(5, start=200))
    assert ids(asked()) == list(range(200, 205))
    assert ids(asked(consumer="other")) == [*range(6, 90), *range(200, 205)]


def test_a_place_stays_where_the_consumer_failed(events: Delivering, asked: Asked) -> None:
    def fail() -> None:
        with asked():
            raise ZeroDivisionError

    def fail_in_transaction() -> None:
        with asked() as new, new.transaction() as cursor:
            cursor.execute("CREATE TABLE made (id bigint)")
            raise ZeroDivisionError

    for failing in (fail, fail_in_transaction):
        with pytest.raises(ZeroDivisionError):
            failing()
        assert place_of(events) == 0
    assert events.execute("SELECT to_regclass('made')") == [(None,)]
    assert ids(asked()) == list(range(6, 90))


def test_the_place_and_what_was_made_are_one_commit(events: Delivering, asked: Asked) -> None:
    events.execute("CREATE TABLE made (id bigint)")
    with asked() as new, new.transaction() as cursor:
        cursor.execute("INSERT INTO made SELECT unnest(%s)", (ids(new),))
    assert place_of(events) == 2
    events.deliver(rows(5, start=200))
    with closing(psycopg2.connect(events.dsn)) as own:
        with asked() as new, own.cursor() as cursor:
            cursor.execute("INSERT INTO made SELECT unnest(%s)", (ids(new),))
            new.advance(own)
            assert place_of(events) == 2, "its commit is the consumer's own"
        assert place_of(events) == 2
        own.commit()
    assert place_of(events) == 3
    assert events.execute("SELECT count(*), count(DISTINCT id) FROM made") == [(89, 89)]


def test_of_two_runs_of_one_consumer_one_moves_its_place(events: Delivering, asked: Asked) -> None:
    events.execute("CREATE TABLE made (run text)")
    first, second = asked(), asked()
    with second.transaction() as cursor:
        cursor.execute("INSERT INTO made VALUES ('second')")

    def lose() -> None:
        with first.transaction() as cursor:
            cursor.execute("INSERT INTO made VALUES ('first')")

    with pytest.raises(PlaceMoved, match="Consumer delays of events is no longer at commit 0"):
        lose()
    assert events.execute("SELECT run FROM made") == [("second",)]
    assert place_of(events) == 2


def test_a_connection_that_can_not_keep_both_is_refused(events: Delivering, asked: Asked) -> None:
    new = asked()
    with closing(psycopg2.connect(events.dsn)) as own:
        own.autocommit = True
        with pytest.raises(SetupError, match="in autocommit and has no transaction open"):
            new.advance(own)
        with own.cursor() as cursor:
            cursor.execute("BEGIN")
            new.advance(own)
            cursor.execute("COMMIT")
    assert place_of(events) == 2
    events.deliver(rows(1, start=200))
    new = asked()
    with (
        closing(psycopg2.connect(events.dsn, dbname="postgres")) as other,
        pytest.raises(SetupError, match="leads to database postgres, which has no ledger of Sluice"),
    ):
        new.advance(other)
    assert place_of(events) == 2


def test_after_a_commit_all_is_read_anew_and_the_place_goes_on_from_where_it_is(
    events: Delivering, asked: Asked
) -> None:
    with asked():
        pass
    events.deliver(rows(5, start=200))
    with asked(after=1) as new:
        assert ids(new) == [*range(60, 90), *range(200, 205)]
    assert place_of(events) == 3
    with pytest.raises(
        LedgerBehind, match="Commit 4 of events was asked after, and the ledger has no such commit"
    ):
        asked(after=4)


def test_all_that_is_read_anew_counts_only_where_the_place_is_still_where_it_was(
    events: Delivering, asked: Asked
) -> None:
    """The place is the newest commit and does not move: that another run moves it, or somebody puts it back, is seen."""
    with asked():
        pass
    assert place_of(events) == 2
    anew = asked(after=0)
    events.deliver(rows(5, start=200))
    with asked() as other:
        assert ids(other) == list(range(200, 205))
    with pytest.raises(PlaceMoved), anew.transaction():
        raise AssertionError
    again = asked(after=0)
    consumers.put(events.place, "events", "delays", "start")
    with pytest.raises(PlaceMoved):
        again.advance()


def test_what_was_read_before_a_table_is_replaced_whole_is_all_taken_back(
    events: Delivering, asked: Asked
) -> None:
    with asked():
        pass
    asked(consumer="later")
    events.pipeline = replace(events.pipeline, sink=Replace(partition_by=day("at")))
    events.restart()
    events.deliver(rows(4, start=300))
    with asked() as new:
        assert (new.deliveries, new.replaced) == ([3], [1, 2])
    with asked(consumer="later") as new:
        assert (new.deliveries, new.replaced) == ([3], [])
    events.deliver(rows(3, start=400))
    assert (asked().deliveries, asked().replaced) == ([4], [3])


def test_sql_reads_the_same_and_moves_the_place(events: Delivering) -> None:
    events.execute("INSERT INTO sluice.consumer (pipeline, name) VALUES ('events', 'by sql')")
    query = """
        SELECT e.id FROM sluice.change c JOIN warehouse.events e ON e._delivery_id = c.delivery_id
        WHERE (c.pipeline, c.consumer) = ('events', 'by sql') AND c.change <> 'delete' ORDER BY e.id
    """
    with closing(psycopg2.connect(events.dsn)) as own, own.cursor() as cursor:
        with pytest.raises(psycopg2.errors.RaiseException, match="In READ COMMITTED"):
            cursor.execute("SELECT sluice.advance('events', 'by sql')")
        own.rollback()
        own.set_session(isolation_level="REPEATABLE READ")
        cursor.execute(query)
        found = [number for (number,) in cursor.fetchall()]
        events.deliver(rows(5, start=200))
        cursor.execute("SELECT sluice.advance('events', 'by sql')")
        assert cursor.fetchone() == (2,)
        own.commit()
        assert found == list(range(6, 90))
        cursor.execute(query)
        assert [number for (number,) in cursor.fetchall()] == list(range(200, 205))
        consumers.put(events.place, "events", "by sql", "start")
        with pytest.raises(psycopg2.errors.SerializationFailure):
            cursor.execute("SELECT sluice.advance('events', 'by sql')")
        own.rollback()
        with pytest.raises(psycopg2.errors.NoDataFound, match="has no consumer nobody"):
            cursor.execute("SELECT sluice.advance('events', 'nobody')")
    assert place_of(events, "by sql") == 0


def test_a_role_of_its_own_needs_few_rights(events: Delivering, asked: Asked) -> None:
    new = asked()
    rights = """
        CREATE ROLE reader; GRANT USAGE ON SCHEMA sluice TO reader;
        GRANT SELECT ON sluice.change, sluice.consumer, sluice.delivery, sluice.pipeline TO reader;
        GRANT INSERT, UPDATE ON sluice.consumer TO reader; SET ROLE reader;
        INSERT INTO sluice.consumer (pipeline, name) VALUES ('events', 'of a reader')
    """
    with closing(psycopg2.connect(make_dsn(events.dsn, user="postgres"))) as own, own.cursor() as cursor:
        own.set_session(isolation_level="REPEATABLE READ")
        cursor.execute(rights)
        cursor.execute(
            "SELECT delivery_id, change FROM sluice.change WHERE consumer = 'of a reader' ORDER BY 1"
        )
        assert cursor.fetchall() == [(1, "insert"), (2, "insert")]
        cursor.execute("SELECT sluice.advance('events', 'of a reader')")
        assert cursor.fetchone() == (2,)
        new.advance(own)
        own.rollback()  # the role with it
    assert place_of(events) == 0


def test_pyiceberg_reads_what_came_as_of_then(events: Delivering, asked: Asked) -> None:
    table = open_catalog(events.place).load_table("warehouse.events")
    with asked():
        pass
    events.deliver(rows(5, start=200))
    new = asked()
    events.deliver(rows(5, start=300))
    found = (
        table.refresh()
        .scan(In("_delivery_id", literals=new.deliveries), snapshot_id=new.snapshot_id)
        .to_arrow()
    )
    assert sorted(found.column("id").to_pylist()) == ids(new) == list(range(200, 205))


def test_what_is_older_than_a_column_has_none_of_it(events: Delivering, asked: Asked) -> None:
    with asked(consumer="other"):
        pass
    wider = COLUMNS.append(pa.field("more", pa.string()))
    events.columns = wider
    events.restart()
    events.deliver(rows(2, start=200).append_column("more", pa.array(["a", "b"])))
    found = asked().to_arrow()
    assert found.schema.names[:5] == [*wider.names, "_stream_id"]
    assert Counter(found.column("more").to_pylist()) == {None: 84, "a": 1, "b": 1}
    with asked(consumer="other") as new:
        assert {*new.to_arrow().column("more").to_pylist()} == {"a", "b"}


def test_a_run_whose_consumer_is_forgotten_keeps_nothing(events: Delivering, asked: Asked) -> None:
    new = asked()
    consumers.forget(events.place, "events", "delays")
    with pytest.raises(PlaceMoved, match="or forgotten it"):
        new.advance()


def test_a_database_that_went_back_in_time_is_told(events: Delivering, asked: Asked) -> None:
    with asked():
        pass
    lost = "UPDATE sluice.consumer SET delivery_id = 1"  # as of a table that was restored by itself
    events.execute(lost)
    with pytest.raises(
        LedgerBehind, match="has read commit 2, which was delivery 1; that commit is another one, delivery 2"
    ):
        asked()
    consumers.put(events.place, "events", "delays", "start")
    assert asked().deliveries == [1, 2]
    marked = marker.Newest(delivery_id=7, run_id=events.session.lease.run_id)
    marker.keep_telling(events.dsn, events.table, "events", marked)
    with pytest.raises(LedgerBehind, match="Delivery 7 of events was committed"):
        asked()


def test_a_place_that_went_back_without_what_the_consumer_made_is_told(
    events: Delivering, asked: Asked
) -> None:
    with asked(consumer="in postgres") as new, new.transaction():
        pass
    with asked(consumer="in postgres") as new:
        assert not new, "and nothing is made elsewhere"
    with asked(consumer="else / where"):
        pass
    events.execute(
        "UPDATE sluice.consumer SET commit_seq = 1, delivery_id = 1"
    )  # as a backup from between has it
    assert asked(consumer="in postgres").deliveries == [2], "what it made went back along"
    behind = "has read up to commit 2, which was delivery 2, says the lake, and its place in the ledger is commit 1"
    with pytest.raises(LedgerBehind, match=behind) as told:
        asked(consumer="else / where")
    assert "--after 2`: all that it has read was put back" in told.value.remedy
    table = TableLocation.of(events.place.lake, "warehouse.events")
    gone = LakePlace(commit_seq=2, delivery_id=9)
    lake_place.write(table, "another", gone)
    with pytest.raises(LedgerBehind, match="which was delivery 9, says the lake") as told:
        asked(consumer="another")
    assert (
        told.value.remedy == "rebuild what it made, from `sluice consumers events another --after start` on"
    )
    consumers.put(events.place, "events", "another", "newest")
    assert consumers.put(events.place, "events", "else / where", "2") == 2
    events.deliver(rows(5, start=200))
    with asked(consumer="else / where") as new:
        assert ids(new) == list(range(200, 205))
    consumers.put(events.place, "events", "else / where", "start")
    assert asked(consumer="else / where").deliveries == [1, 2, 3]
    report = sweep_lake(events.dsn, events.place.lake, events.pipeline, horizon=dt.timedelta(0))
    assert report.objects == []
    assert audit(events.place, events.pipeline).orphans == []


def test_numbers_of_commits_that_were_skipped_after_a_restore_are_no_lag(
    events: Delivering, asked: Asked
) -> None:
    with asked():
        pass
    events.execute("UPDATE sluice.pipeline SET commit_seq = 7")
    assert not asked()
    assert [one.deliveries for one in consumers.lags(events.dsn)] == [0]
    assert consumers.put(events.place, "events", "other", "newest") == 2
    events.deliver(rows(5, start=200))
    assert [(one.deliveries, one.rows, one.newest_seq) for one in consumers.lags(events.dsn)] == [
        (1, 5, 8)
    ] * 2
    with asked() as new:
        assert (new.after, new.to, ids(new)) == (2, 8, list(range(200, 205)))
    assert place_of(events) == 8


def test_the_lag_is_told_in_deliveries_rows_and_time(events: Delivering, asked: Asked) -> None:
    with asked():
        pass
    asked(consumer="other")
    events.deliver(rows(5, start=200))
    [delays, other] = consumers.lags(events.dsn)
    assert (delays.consumer, delays.pipeline, delays.delivery_id, delays.newest_delivery) == (
        "delays",
        "events",
        2,
        3,
    )
    assert (delays.deliveries, delays.rows) == (1, 5)
    assert (other.consumer, other.delivery_id, other.deliveries, other.rows) == ("other", None, 3, 89)
    assert other.seconds is not None
    assert delays.seconds is not None
    assert other.seconds > delays.seconds > 0
    assert delays.moved_at is not None
    assert other.moved_at is None
    with asked():
        pass
    [delays, _] = consumers.lags(events.dsn, "events")
    assert (delays.deliveries, delays.rows, delays.behind_since, delays.seconds) == (0, 0, None, None)


def test_a_place_is_put_behind_a_delivery_and_a_consumer_forgotten(events: Delivering, asked: Asked) -> None:
    under_way = asked()
    assert consumers.put(events.place, "events", "delays", "1") == 1
    with pytest.raises(PlaceMoved):
        under_way.advance()
    assert asked().deliveries == [2]
    assert consumers.put(events.place, "events", "delays", "newest") == 2
    assert not asked()
    assert consumers.put(events.place, "events", "delays", "start") == 0
    assert asked().deliveries == [1, 2]
    assert consumers.put(events.place, "events", "new one", "newest") == 2
    for after, told in {
        "7": "has no delivery 7",
        "-1": "no delivery's number",
        "first": "no delivery's number",
    }.items():
        with pytest.raises(SetupError, match=told):
            consumers.put(events.place, "events", "delays", after)
    with pytest.raises(SetupError, match="has no consumer delay; did you mean delays"):
        consumers.forget(events.place, "events", "delay")
    consumers.forget(events.place, "events", "delays")
    assert [one.consumer for one in consumers.lags(events.dsn)] == ["new one"]
