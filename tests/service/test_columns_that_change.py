"""What a pipeline puts out may change its columns; both sinks follow together, or refuse before a row is written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from etl.audit import audit
from etl.lake import Lake
from etl.pipeline import Append
from etl.services import Services
from tests import oracle
from tests.service.delivering import Delivering

TWO = pa.schema([("a", pa.int64()), ("b", pa.int64())])


@pytest.fixture
def events(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    """Ten rows of two columns are delivered."""
    new = Delivering.start(services, dsn, lake, tmp_path, TWO, Append())
    new.deliver(made(TWO, 10, 0), bad=[1])
    return new


def made(columns: pa.Schema, count: int, start: int) -> pa.Table:
    """Each value says its column: a has 1000 and more, b 2000 and more, …"""
    arrays = []
    for column in columns:
        values = [1000 * (ord(column.name) - ord("a") + 1) + start + row for row in range(count)]
        plain = pa.array(values, pa.int64())
        arrays.append(plain.cast(column.type) if column.type != pa.string() else pa.array(map(str, values)))
    return pa.table(arrays, schema=columns)


def next_run(events: Delivering, columns: pa.Schema) -> None:
    """A new process, whose pipeline puts these columns out."""
    events.columns = columns
    events.restart()


def in_postgres(events: Delivering, *names: str) -> list[tuple[object, ...]]:
    listed = ", ".join(f'"{name}"' for name in names)
    return sorted(oracle.ask(events.dsn, f"SELECT {listed} FROM warehouse.events"), key=repr)


def on_lake(events: Delivering, *names: str) -> list[tuple[object, ...]]:
    [(pointer,)] = events.execute(
        "SELECT metadata_location FROM sluice.iceberg_tables WHERE table_name = 'events'"
    )
    rows = events.table.at(pointer).scan().to_arrow().to_pylist()
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


def test_columns_in_another_order_stay_what_they_are(events: Delivering) -> None:
    next_run(events, pa.schema([TWO.field("b"), TWO.field("a")]))
    events.deliver(made(events.columns, 10, 10), bad=[1])
    wanted = sorted([(1000 + n, 2000 + n) for n in range(20) if n not in (1, 11)], key=repr)
    assert in_postgres(events, "a", "b") == on_lake(events, "a", "b") == wanted
    assert audit(events.place, events.pipeline).clean
