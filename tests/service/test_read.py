"""The committed files, and nothing else, are what every reader of the lake sees."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from etl.common.errors import LedgerBehind, SetupError
from etl.common.settings import Settings
from etl.common.steps import Step
from etl.operations.audit.audit import audit
from etl.operations.serving.read import (
    CommittedState,
    Delivered,
    committed_files,
    delivered,
    moment,
    wanted_deliveries,
)
from etl.pipeline import Append, Replace, day, identity
from etl.services import Services
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.s3 import s3_client, stored
from tests.support.catalog import open_catalog
from tests.support.delivering import Delivering

pytestmark = pytest.mark.long

COLUMNS = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("text", pa.string())])
DAY = 86_400_000_000


def rows(count: int, start: int = 0) -> pa.Table:
    ids = range(start, start + count)
    moments = pa.array([n % 3 * DAY for n in ids], pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.table([pa.array(ids, pa.int64()), moments, pa.array([f"row {n}" for n in ids])], schema=COLUMNS)


class KilledError(BaseException):
    pass


@pytest.fixture
def events(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    """Two deliveries, and an attempt that left its objects beside theirs."""
    new = Delivering.start(services, dsn, lake, tmp_path, COLUMNS, Append(partition_by=day("at")))
    new.deliver(rows(60), bad=range(6))
    new.deliver(rows(30, start=60))

    def die(step: Step) -> None:
        if step is Step.STAGED:
            raise KilledError

    new.on_step = die
    with pytest.raises(KilledError):
        new.deliver(rows(50, start=1000))
    new.on_step = None
    return new


def test_the_files_are_those_of_live_deliveries(events: Delivering) -> None:
    found = committed_files(events.place, events.pipeline)
    assert sum(file.rows for file in found.files) == 84
    assert {(file.batch_id, file.delivery_id) for file in found.files} == {(0, 1), (1, 2)}
    client = s3_client(events.place.lake.store)
    listed = {one.uri for one in stored(client, f"{events.table.location}/data")}
    assert {file.path for file in found.files} < listed  # the killed attempt's are there, and are not named
    assert all(events.place.lake.size(file.path) == file.bytes for file in found.files)
    shape = json.loads(json.dumps(found.json()))
    assert {*shape} == {"pipeline", "snapshot_id", "files"}
    assert {*shape["files"][0]} == {"batch_id", "delivery_id", "stream", "path", "rows", "bytes"}
    snapshot = events.table.at(events.pointers()[0]).current_snapshot()
    assert snapshot is not None
    assert shape["snapshot_id"] == snapshot.snapshot_id


def test_what_is_asked_for_and_not_there_is_refused(events: Delivering) -> None:
    now = moment(events.place, events.pipeline)
    stream, other = events.session.stream_id, str(uuid.uuid4())
    for asked in (
        {"stream": other},
        {"stream": other, "batches": []},
        {"stream": other, "deliveries": [1]},
        {"stream": stream, "deliveries": [1, 3]},
        {"batches": [2]},
    ):
        with pytest.raises(SetupError, match="has no live"):
            chosen(now, **asked)
    assert chosen(now) == chosen(now, stream=stream) == {1, 2}
    assert chosen(now, stream=stream, deliveries=[2]) == {2}
    assert chosen(now, deliveries=["1..2"]) == {1, 2}
    assert chosen(now, batches=[0], deliveries=[2]) == set()
    added = replace(now.deliveries[0], delivery_id=7, stream_id=other, batch_id=0)
    later = replace(now, deliveries=[*now.deliveries, added])
    assert chosen(later, deliveries=[7]) == chosen(later, stream=other) == {7}
    for asked in ({"deliveries": [7], "stream": stream}, {"deliveries": [7], "batches": [0]}):
        with pytest.raises(SetupError, match="no live delivery 7"):
            chosen(later, **asked)


def chosen(now: CommittedState, **asked: Any) -> set[int]:
    return wanted_deliveries(now, "events", **asked)


def test_a_replaced_tables_files_are_its_last_deliverys(
    services: Services, dsn: str, lake: Lake, tmp_path: Path
) -> None:
    replaced = Delivering.start(services, dsn, lake, tmp_path, COLUMNS, Replace())
    replaced.deliver(rows(10))
    replaced.deliver(rows(4))
    assert [file.batch_id for file in committed_files(replaced.place, replaced.pipeline).files] == [1, 1]
    now = moment(replaced.place, replaced.pipeline)
    with pytest.raises(SetupError, match=r"no live delivery 1 \(replaced by 2\), 3"):
        chosen(now, deliveries=[1, 2, 3])
    assert chosen(now, deliveries=[1, 2], skip_replaced=True) == {2}
    assert chosen(now, deliveries=[1], skip_replaced=True) == set()
    with pytest.raises(SetupError, match="no live delivery 3"):
        chosen(now, deliveries=[1, 3], skip_replaced=True)


@pytest.fixture
def asked(
    events: Delivering, settings_for: Callable[..., Settings], tmp_path: Path
) -> Callable[..., Delivered]:
    """`delivered` of the pipeline's own place; its commits 1 and 2 are there."""
    settings = settings_for(tmp_path / "home", postgres=events.dsn)
    return lambda **span: delivered(events.pipeline, settings=settings, **span)


def between(after: int, to: int, deliveries: list[int], replaced: Sequence[int] = ()) -> Delivered:
    return Delivered(after=after, to=to, deliveries=deliveries, replaced=[*replaced])


def replay(events: Delivering, old: int) -> int:
    """Put a delivery in the place of an old one in the ledger; return it."""
    new = events.deliver(rows(5, start=1000 * old)).delivery_id
    replaced = "UPDATE sluice.delivery SET live = false, superseded_by = %s WHERE delivery_id = %s"
    events.execute(replaced, new, old)
    return new


def test_what_came_after_a_commit_leaves_nothing_out_and_reads_nothing_twice(
    events: Delivering, asked: Callable[..., Delivered]
) -> None:
    events.restart()  # the run that was killed holds the lease
    assert asked(after=0) == between(0, 2, [1, 2])
    assert asked(after=2) == between(2, 2, [])
    third = events.deliver(rows(5, start=200)).delivery_id
    assert asked(after=2) == between(2, 3, [third])
    assert asked(after=0, to=2) == between(0, 2, [1, 2])


def test_what_is_replaced_is_named_where_it_was_read_and_only_its_last_successor_is_new(
    events: Delivering, asked: Callable[..., Delivered]
) -> None:
    events.restart()
    once = replay(events, 1)
    twice = replay(events, once)
    assert asked(after=2) == between(2, 4, [twice], replaced=[1])
    assert asked(after=3) == between(3, 4, [twice], replaced=[once])
    assert asked(after=0) == between(0, 4, [2, twice])
    assert asked(after=1, to=2) == between(1, 2, [2])
    assert asked(after=2, to=3) == between(2, 3, [], replaced=[1])


def test_a_place_that_the_ledger_has_not_come_to_is_told_and_not_waited_for(
    asked: Callable[..., Delivered],
) -> None:
    with pytest.raises(LedgerBehind, match=r"Commit 3 .* its newest is 2: PostgreSQL went back in time"):
        asked(after=3)
    with pytest.raises(SetupError, match="events has no commit 3; its newest is 2"):
        asked(after=1, to=3)


def test_of_a_table_that_each_batch_replaces_nothing_is_new_beside_the_rest(
    events: Delivering, asked: Callable[..., Delivered]
) -> None:
    events.pipeline = replace(events.pipeline, sink=Replace())
    with pytest.raises(SetupError, match="Each batch of events replaces the whole table"):
        asked(after=0)


def test_pyiceberg_reads_the_table_by_the_catalog(events: Delivering) -> None:
    catalog = open_catalog(events.place)
    table = catalog.load_table("warehouse.events")
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == list(range(6, 90))
    assert table.scan("_batch_id = 1").to_arrow().num_rows == 30
    held = catalog.load_table("warehouse.events_quarantine").scan().to_arrow()
    assert sorted(held.column("id").to_pylist()) == list(range(6))
    assert catalog.list_tables("warehouse") == [("warehouse", "events"), ("warehouse", "events_quarantine")]


def test_duckdb_reads_a_scan_and_the_committed_files(events: Delivering) -> None:
    catalog = open_catalog(events.place)
    connection = catalog.load_table("warehouse.events").scan().to_duckdb("events")
    assert connection.sql("SELECT count(*), sum(id) FROM events").fetchall() == [(84, sum(range(6, 90)))]
    files = [file.path.removeprefix("s3://") for file in committed_files(events.place, events.pipeline).files]
    events_files = ds.dataset(files, filesystem=events.place.lake.store.open(), format="parquet")
    by_file = duckdb.from_arrow(events_files).aggregate("count(*), sum(id)")
    assert by_file.fetchall() == [(84, sum(range(6, 90)))]


@pytest.mark.parametrize("by", [day("at"), identity("text"), None])
def test_folders_make_no_column_that_clashes(
    services: Services, dsn: str, lake: Lake, tmp_path: Path, by: object
) -> None:
    """Readers that take `name=value` folders for columns find the table's own columns as they are."""
    events = Delivering.start(services, dsn, lake, tmp_path, COLUMNS, Append(partition_by=by))  # type: ignore[arg-type]
    texts = ["a b/c=d%e", "ü", "7"]
    events.deliver(rows(3).set_column(2, COLUMNS.field("text"), pa.array(texts)))
    for file in committed_files(events.place, events.pipeline).files:
        local = tmp_path / "copied" / file.path.removeprefix(f"{events.table.location}/data/")
        local.parent.mkdir(parents=True, exist_ok=True)
        with events.place.lake.open(file.path) as source:
            local.write_bytes(source.read())
    found = duckdb.read_parquet(f"{tmp_path}/copied/**/*.parquet", hive_partitioning=True)
    own = [*COLUMNS.names, "_stream_id", "_batch_id", "_delivery_id"]
    invented = {name for name in found.columns if name not in own}
    assert invented == {"stream", "batch", *(["at_day"] if by == day("at") else [])}
    assert found.order("id").project("id, text").fetchall() == [*enumerate(texts)]
    assert audit(events.place, events.pipeline).clean


def test_importing_etl_imports_neither_pyspark_nor_pyiceberg() -> None:
    code = "import etl, sys; print(*(n for n in ('pyspark', 'pyiceberg', 'boto3') if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""
    names = ("read", "changes", "delivered", "session", "try_out")
    code = f"import etl; print(*(callable(getattr(etl, name)) for name in {names}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * 5
