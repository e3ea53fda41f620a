"""Of which keys a replay into an upsert sink needs the change log, and which of its objects may have them."""

from __future__ import annotations

import decimal
import math
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

from etl.common.database import transaction
from etl.delivery.batch import DeliveryContext
from etl.delivery.deliver import deliver
from etl.pipeline import Upsert
from etl.sinks.lake.key_pruning import candidates
from etl.sinks.lake.lake import Lake
from etl.sinks.warehouse.staging import StagingTables, StagingWriter
from tests.support.arrow_driver import ArrowBatch, pipeline, start

pytestmark = pytest.mark.long

TASK = 7


def keyed(dsn: str, lake: Lake, columns: pa.Schema) -> DeliveryContext:
    return start(dsn, lake, pipeline("keyed", Upsert(keys=("key",), newest="at")), columns=columns)


def rows(columns: pa.Schema, keys: list[Any], at: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": keys, "at": at}, columns)


def delivered(run: DeliveryContext, number: int, batch: pa.RecordBatch) -> int:
    flagged = batch.append_column("_flags0", pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows))
    return deliver(run, ArrowBatch(batch_id=number, parts=[[flagged]])).delivery_id


@pytest.mark.parametrize(
    ("kind", "least_first"),
    [
        (pa.int64(), [-5, 0, 7]),
        (pa.float64(), [-math.inf, -0.5, 3.0, math.inf, math.nan]),
        (pa.decimal128(12, 2), [decimal.Decimal("-1.50"), decimal.Decimal("0.00"), decimal.Decimal("1.50")]),
        (pa.bool_(), [False, True]),
        (pa.string(), ["", "a", "b"]),
        (pa.timestamp("us", tz="UTC"), [-(2**52), 0, 2**62]),  # the last is of a year that Python has not
    ],
    ids=str,
)
def test_a_staged_row_that_is_as_new_as_the_tables_leaves_nothing_to_ask_for(
    dsn: str, lake: Lake, kind: pa.DataType, least_first: list[Any]
) -> None:
    columns = pa.schema([("key", pa.string()), ("at", kind)])
    values = [None, *least_first]
    pairs = [(t, s) for t in range(len(values)) for s in range(len(values))]
    names = [f"{t} {s}" for t, s in pairs]
    run = keyed(dsn, lake, columns)
    number = delivered(run, 0, rows(columns, [*names, "gone"], [*(values[t] for t, _ in pairs), values[-1]]))
    staged = rows(columns, names, [values[s] for _, s in pairs])
    tables = StagingTables(dsn=dsn, delivery_id=9, run_id="x", merges=True, restores=True)
    warehouse = run.sinks.warehouse
    with transaction(dsn) as cursor:
        warehouse.create_staging(cursor, tables)
    with StagingWriter(tables, TASK) as staging:
        staging.copy("d9_x_rows", staged)
        staging.commit()
    with transaction(dsn) as cursor:
        asked = warehouse.note_keys_to_restore(cursor, tables, [TASK], [number])
        cursor.execute("SELECT key FROM sluice_stage.d9_x_log")
        found = {key for (key,) in cursor.fetchall()}
        assert warehouse.note_keys_to_restore(cursor, tables, [TASK], [number]) == 0
        assert warehouse.note_keys_to_restore(cursor, tables, [TASK], [number + 1]) == 0
        assert warehouse.note_keys_to_restore(cursor, tables, [TASK + 1], [number]) == len(pairs) + 1 - asked
    # A row without a version is no bound of what it covers.
    assert found == {f"{t} {s}" for t, s in pairs if t == 0 or s < t} | {"gone"}
    assert asked == len(found)


def test_a_key_that_somebody_emptied_by_hand_is_asked_for_by_nobody(dsn: str, lake: Lake) -> None:
    columns = pa.schema([("key", pa.string()), ("at", pa.int64())])
    run = keyed(dsn, lake, columns)
    number = delivered(run, 0, rows(columns, ["a", "b"], [1, 1]))
    tables = StagingTables(dsn=dsn, delivery_id=9, run_id="x", merges=True, restores=True)
    with transaction(dsn) as cursor:
        run.sinks.warehouse.create_staging(cursor, tables)
        cursor.execute("UPDATE warehouse.keyed SET key = NULL WHERE key = 'a'")
        assert run.sinks.warehouse.note_keys_to_restore(cursor, tables, [TASK], [number]) == 1
        assert run.sinks.warehouse.note_keys_to_restore(cursor, tables, [TASK], [number]) == 0
        cursor.execute("SELECT key FROM sluice_stage.d9_x_log")
        assert cursor.fetchall() == [("b",)]
        pointer = run.sinks.table.pointer(cursor) or ""
    nothing = pa.table({"key": pa.array([None], pa.string())})
    assert candidates(run.sinks.table, pointer, ["s3://one"], nothing) == ["s3://one"]


def test_versions_are_compared_by_the_tables_collation_as_the_merge_does(dsn: str, lake: Lake) -> None:
    columns = pa.schema([("key", pa.string()), ("at", pa.string())])
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(
            'CREATE SCHEMA IF NOT EXISTS warehouse; CREATE TABLE warehouse.keyed (key text, at text COLLATE "C",'
            " _stream_id uuid NOT NULL, _batch_id bigint NOT NULL, _delivery_id bigint NOT NULL)"
        )
    run = keyed(dsn, lake, columns)
    number = delivered(run, 0, rows(columns, ["up", "down"], ["B", "a"]))
    tables = StagingTables(dsn=dsn, delivery_id=9, run_id="x", merges=True, restores=True)
    with transaction(dsn) as cursor:
        run.sinks.warehouse.create_staging(cursor, tables)
        cursor.execute("INSERT INTO sluice_stage.d9_x_rows VALUES ('up', 'a', 7), ('down', 'B', 7)")
        assert run.sinks.warehouse.note_keys_to_restore(cursor, tables, [TASK], [number]) == 1
        cursor.execute("SELECT key FROM sluice_stage.d9_x_log")
        assert cursor.fetchall() == [("down",)]


@pytest.mark.parametrize(
    ("kind", "values", "prunes"),
    [
        (pa.int64(), [1, 2, 3], True),
        (pa.string(), ["a" * 40, "b" * 40, "ü" * 40], True),
        (pa.date32(), [0, 400, 800], True),
        (pa.timestamp("us", tz="UTC"), [0, 10**15, 2 * 10**15], True),
        (pa.timestamp("us"), [0, 10**15, 2**62], False),  # in a year that Python has not
        (pa.float64(), [0.5, 1.5, math.nan], False),
        (pa.binary(), [b"a", b"b", b"\xff"], False),
        (pa.bool_(), [True, False], False),
    ],
    ids=str,
)
def test_no_object_that_has_a_key_is_left_out(
    dsn: str, lake: Lake, kind: pa.DataType, values: list[Any], prunes: bool
) -> None:
    columns = pa.schema([("key", kind), ("at", pa.int64())])
    run = keyed(dsn, lake, columns)
    for number, value in enumerate(values):
        delivered(run, number, rows(columns, [value], [number]))
    with transaction(dsn) as cursor:
        cursor.execute("SELECT path FROM sluice.delivery_file WHERE kind = 'data' ORDER BY delivery_id")
        paths = [path for (path,) in cursor.fetchall()]
        pointer = run.sinks.table.pointer(cursor) or ""
    assert len(paths) == len(values)
    others = ["s3://not/in/the/table"]
    for value, path in zip(values, paths, strict=True):
        keys = pa.table({"key": pa.array([value], kind)})
        found = candidates(run.sinks.table, pointer, [*paths, *others], keys)
        assert {path, *others} <= set(found)
        if prunes:
            assert found == [path, *others]
