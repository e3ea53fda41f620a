"""What a pipeline puts out may change its columns; both sinks follow together, or refuse before a row is written."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from etl.common.database import transaction
from etl.common.errors import InputsChanged, ServiceAway, TableRefused
from etl.common.outcome import RunOutcome
from etl.common.steps import Step
from etl.delivery.correction import Correction
from etl.delivery.deliver import deliver_correction
from etl.ledger import leases
from etl.operations.audit.audit import audit
from etl.pipeline import Append
from etl.services import Services
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.snapshots import DraftedDelivery
from tests.support import oracle
from tests.support.arrow_driver import start_correction
from tests.support.delivering import Delivering, without_detail

pytestmark = pytest.mark.long

TWO = pa.schema([("a", pa.int64()), ("b", pa.int64())])


@pytest.fixture
def events(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    """Ten rows of two columns are delivered."""
    new = Delivering.start(services, dsn, lake, tmp_path, TWO, Append())
    new.deliver(made(TWO, 10, 0), bad=[1])
    return new


def made(columns: pa.Schema, count: int, start: int) -> pa.Table:
    """Make rows whose values name their column: a has 1000 and more, b 2000 and more, …"""
    arrays = []
    for column in columns:
        values = [1000 * (ord(column.name) - ord("a") + 1) + start + row for row in range(count)]
        words = {pa.string(): str, pa.decimal128(6, 2): Decimal}
        arrays.append(pa.array(map(words.get(column.type, int), values), column.type))
    return pa.table(arrays, schema=columns)


def next_run(events: Delivering, columns: pa.Schema) -> None:
    """Run as a new process would, with a pipeline that puts these columns out."""
    events.columns = columns
    events.restart()


def in_postgres(events: Delivering, *names: str) -> list[tuple[object, ...]]:
    listed = ", ".join(f'"{name}"' for name in names)
    return sorted(oracle.ask(events.dsn, f"SELECT {listed} FROM warehouse.events"), key=repr)


def pointed(events: Delivering) -> Table:
    query = "SELECT metadata_location FROM sluice.iceberg_tables WHERE table_name = 'events'"
    return events.table.at(oracle.ask(events.dsn, query)[0][0])


def on_lake(events: Delivering, *names: str) -> list[tuple[object, ...]]:
    rows = pointed(events).scan().to_arrow().to_pylist()
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


def test_columns_in_another_order_stay_what_they_are(events: Delivering) -> None:
    next_run(events, pa.schema([TWO.field("b"), TWO.field("a")]))
    events.deliver(made(events.columns, 10, 10), bad=[1])
    wanted = sorted([(1000 + n, 2000 + n) for n in range(20) if n not in (1, 11)], key=repr)
    assert in_postgres(events, "a", "b") == on_lake(events, "a", "b") == wanted
    assert audit(events.place, events.pipeline).clean


def test_an_added_column_is_in_both_sinks_with_the_first_batch_that_has_it(events: Delivering) -> None:
    """In the middle; a batch before that fails leaves both tables as they were."""
    next_run(events, pa.schema([TWO.field("a"), ("c", pa.string()), TWO.field("b")]))
    before = in_postgres(events, "a", "b")
    with pytest.raises(InputsChanged):
        events.deliver(made(events.columns, 10, 10), changes=["gone"])
    assert columns_of(events) == (["a", "b"], ["a", "b"])
    assert in_postgres(events, "a", "b") == on_lake(events, "a", "b") == before
    told = events.deliver(made(events.columns, 10, 10), bad=[1]).columns
    assert told == ("column c added (text)",)
    assert columns_of(events) == (["a", "b", "c"], ["a", "b", "c"])
    wanted = [(1000 + n, None if n < 10 else str(3000 + n), 2000 + n) for n in range(20) if n not in (1, 11)]
    assert in_postgres(events, "a", "c", "b") == on_lake(events, "a", "c", "b") == sorted(wanted, key=repr)
    assert audit(events.place, events.pipeline).clean
    assert events.deliver(made(events.columns, 10, 20)).columns == ()
    assert len(in_postgres(events, "c")) == len(on_lake(events, "c")) == 28
    assert audit(events.place, events.pipeline).clean


def test_a_column_that_one_table_has_already_is_told_of_the_other_alone(events: Delivering) -> None:
    events.execute("ALTER TABLE {t} ADD COLUMN c text")
    next_run(events, pa.schema([*TWO, ("c", pa.string()), ("d", pa.int32())]))
    told = events.deliver(made(events.columns, 10, 10)).columns
    assert sorted(told) == ["column c added (string), in the lake alone", "column d added (integer)"]


def quarantine_of(events: Delivering) -> Table:
    return events.quarantine.at(events.pointers()[1])


def columns_of(events: Delivering) -> tuple[list[str], list[str]]:
    """Return the columns of the table in PostgreSQL and on the lake, without Sluice's own."""
    query = """SELECT attname FROM pg_attribute WHERE attrelid = 'warehouse.events'::regclass
               AND attnum > 0 AND NOT attisdropped AND attname NOT LIKE '\\_%%' ORDER BY attnum"""
    warehouse = [name for (name,) in oracle.ask(events.dsn, query)]
    return warehouse, [name for name in pointed(events).schema().column_names if not name.startswith("_")]


def test_a_wider_column_keeps_every_value_in_both_sinks(
    services: Services, dsn: str, lake: Lake, tmp_path: Path
) -> None:
    narrow = pa.schema([("a", pa.int32()), ("b", pa.float32()), ("c", pa.decimal128(6, 2))])
    wide = pa.schema([("a", pa.int64()), ("b", pa.float64()), ("c", pa.decimal128(20, 2))])
    events = Delivering.start(services, dsn, lake, tmp_path, narrow, Append())
    events.deliver(made(narrow, 10, 0), bad=[1])
    next_run(events, wide)
    big = pa.table([[2**40], [0.1], [Decimal("123456789012.34")]], schema=wide)
    assert sorted(events.deliver(big).columns) == [
        "column a widened (integer to bigint)",
        "column b widened (real to double precision)",
        "column c widened (numeric(6,2) to numeric(20,2))",
    ]
    old = [(1000 + n, 2000.0 + n, Decimal(3000 + n)) for n in range(10) if n != 1]
    wanted = sorted([*old, (2**40, 0.1, Decimal("123456789012.34"))], key=repr)
    assert sorted(map(plain, in_postgres(events, "a", "b", "c")), key=repr) == sorted(
        map(plain, wanted), key=repr
    )
    assert sorted(map(plain, on_lake(events, "a", "b", "c")), key=repr) == sorted(
        map(plain, wanted), key=repr
    )
    assert audit(events.place, events.pipeline).clean


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*row[:2], str(row[2].quantize(Decimal("0.01"))))


@pytest.mark.parametrize(
    ("columns", "seen"),
    [
        (pa.schema([TWO.field("a"), ("b", pa.string())]), "b is bigint, the pipeline delivers text"),
        (pa.schema([TWO.field("a"), ("b", pa.int32())]), "b is bigint, the pipeline delivers integer"),
        (pa.schema([TWO.field("a")]), "b is not delivered by the pipeline"),
        (pa.schema([TWO.field("a"), ("c", pa.int64())]), "b is not delivered by the pipeline"),
    ],
)
def test_any_other_change_is_refused_with_both_sides_and_changes_nothing(
    events: Delivering, columns: pa.Schema, seen: str
) -> None:
    with pytest.raises(TableRefused, match=seen):
        next_run(events, columns)
    assert columns_of(events) == (["a", "b"], ["a", "b"])


@pytest.mark.parametrize("step", [Step.STAGED, Step.POINTER_DRAFTED, Step.ROWS_MERGED, Step.POINTER_SWAPPED])
def test_a_death_before_the_commit_changes_no_table(events: Delivering, step: Step) -> None:
    three = pa.schema([*TWO, ("c", pa.string())])
    next_run(events, three)

    def die(reached: Step) -> None:
        if reached is step:
            raise KilledError

    events.on_step = die
    with pytest.raises(KilledError):
        events.deliver(made(three, 10, 10))
    assert columns_of(events) == (["a", "b"], ["a", "b"])
    events.on_step = None
    events.restart()
    events.deliver(made(three, 10, 10))
    assert columns_of(events) == (["a", "b", "c"], ["a", "b", "c"])
    assert audit(events.place, events.pipeline).clean


class KilledError(BaseException):
    """The process ends here: not an Exception, so the delivery does not close its attempt."""


def test_files_whose_columns_have_other_ids_than_the_table_gave_since_are_not_added(
    events: Delivering,
) -> None:
    """Another run adds another column between the files and the commit."""
    three = pa.schema([*TWO, ("c", pa.string())])
    next_run(events, three)
    other = pa.schema([*TWO, ("d", pa.string())])

    def meanwhile(reached: Step) -> None:
        if reached is Step.STAGED:
            base = pointed(events).metadata_location
            written = events.table.files(base, other, stream_id="x", batch_id=0).schema
            run_id = events.session.lease.run_id
            other_delivery = DraftedDelivery(
                delivery_id=99, stream_id="x", batch_id=0, run_id=run_id, manifest=""
            )
            draft = events.table.draft(base, [], written=written, delivery=other_delivery)
            with transaction(events.dsn) as cursor:
                assert events.table.swap(cursor, draft)

    events.on_step = meanwhile
    with pytest.raises(ServiceAway, match="was given the columns c by another run"):
        events.deliver(made(three, 10, 10))
    assert columns_of(events) == (["a", "b"], ["a", "b", "d"])


def test_a_column_that_a_view_reads_is_not_widened_and_said(
    services: Services, dsn: str, lake: Lake, tmp_path: Path
) -> None:
    narrow, wide = pa.schema([("a", pa.int32())]), pa.schema([("a", pa.int64())])
    events = Delivering.start(services, dsn, lake, tmp_path, narrow, Append())
    events.deliver(made(narrow, 10, 0))
    oracle.ask(events.dsn, "CREATE VIEW warehouse.seen AS SELECT a FROM warehouse.events")
    next_run(events, wide)
    with pytest.raises(TableRefused, match="cannot alter type of a column used by a view"):
        events.deliver(made(wide, 10, 10))
    oracle.ask(events.dsn, "DROP VIEW warehouse.seen")
    events.deliver(made(wide, 10, 10))
    assert len(in_postgres(events, "a")) == len(on_lake(events, "a")) == 20


def test_a_quarantine_of_an_earlier_version_gains_the_detail_with_its_next_delivery(
    services: Services, dsn: str, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its objects, which lack the column, stay as they are, and an audit reads both."""
    without_detail(monkeypatch)
    events = Delivering.start(services, dsn, lake, tmp_path, TWO, Append())
    events.deliver(made(TWO, 10, 0), bad=[1], malformed=[events.malformed(("{", None))])
    monkeypatch.undo()
    assert "_detail" not in quarantine_of(events).schema().column_names
    assert audit(events.place, events.pipeline).clean

    events.restart()
    last = events.deliver(
        made(TWO, 10, 10), bad=[1], malformed=[events.malformed(('{"b": "x"}', "b: no bigint"))]
    )
    wanted = [(None, None), (None, None), ('{"b": "x"}', "b: no bigint"), ("{", None)]
    in_both = [
        oracle.ask(events.dsn, "SELECT raw, detail FROM sluice.quarantine"),
        [(row["_raw"], row["_detail"]) for row in quarantine_of(events).scan().to_arrow().to_pylist()],
    ]
    assert [sorted(held, key=repr) for held in in_both] == [sorted(wanted, key=repr)] * 2
    assert audit(events.place, events.pipeline).clean
    oracle.ask(events.dsn, "UPDATE sluice.quarantine SET detail = detail || '!'")
    [difference] = audit(events.place, events.pipeline).differences
    assert (difference.kind, difference.delivery_id) == ("quarantine", last.delivery_id)


def test_what_an_earlier_version_held_is_replayed_and_released(
    services: Services, dsn: str, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_detail(monkeypatch)
    events = Delivering.start(services, dsn, lake, tmp_path, oracle.COLUMNS, Append())
    first, second = (events.deliver(numbered(start), bad=[3]).delivery_id for start in (0, 10))
    monkeypatch.undo()
    files = oracle.ask(dsn, "SELECT kind, path FROM sluice.delivery_file WHERE delivery_id = %s", [first])
    replay = Correction(
        name="replay",
        supersedes=(first,),
        removed=9,
        files={kind: frozenset([path for of, path in files if of == kind]) for kind, _ in files},
        who="tests",
        why="again",
    )
    correct(events, replay, numbered(0), bad=[3], malformed=[events.malformed(("[", "no object"))])
    held = oracle.ask(dsn, "SELECT quarantine_id FROM sluice.quarantine WHERE delivery_id = %s", [second])
    release = Correction(
        name="release",
        files={},
        released_from=second,
        rows=tuple(number for (number,) in held),
        who="tests",
        why="",
    )
    correct(events, release, numbered(13).slice(0, 1))
    assert sorted(oracle.ask(dsn, "SELECT status, detail FROM sluice.quarantine"), key=repr) == [
        ("held", "no object"),
        ("held", None),
        ("released", None),
        ("superseded", None),
    ]
    assert audit(events.place, events.pipeline).differences == []


def numbered(start: int) -> pa.Table:
    """Return ten rows that have a number and nothing else."""
    columns = [pa.nulls(10, column.type) for column in oracle.COLUMNS]
    columns[0] = pa.array(range(start, start + 10), pa.int64())
    return pa.table(columns, schema=oracle.COLUMNS)


def correct(events: Delivering, change: Correction, rows: pa.Table, **more: Any) -> None:
    beside = start_correction(events.dsn, events.place.lake, events.pipeline, change)
    deliver_correction(beside, replace(events.batch(rows, **more), batch_id=0, landed=()))
    with transaction(events.dsn) as cursor:
        leases.end_run(cursor, beside.lease, RunOutcome(outcome="done"))
        leases.give_lease_back(cursor, beside.lease)
