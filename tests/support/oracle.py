"""A seeded generator that knows what must become of each row, and the readers of what did.

It shares no code with `etl`: fates are decided while the rows are made, and the sinks are read with psycopg2,
pyiceberg's static tables and pyarrow alone. Rows are compared as multisets: a set can't see a duplicate.
"""

from __future__ import annotations

import decimal
import json
import math
import random
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg2 import sql
from pyarrow import fs
from pyiceberg.table import StaticTable

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("name", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("x", pa.float64()),
        ("day", pa.date32()),
        ("ok", pa.bool_()),
    ]
)
NEGATIVE, UNNAMED, ODD = "x is negative", "name is missing", "id is odd"
REASONS = (NEGATIVE, UNNAMED, ODD)  # in the order of their flags; the last one holds nothing back
RULE_COLUMNS = {NEGATIVE: "x", UNNAMED: "name", ODD: "id"}
HOLDING = frozenset({NEGATIVE, UNNAMED})
NUL, TOO_EARLY, TOO_FAR = "postgres_nul(name)", "postgres_range(at)", "lake_partition(at)"
MALFORMED = "malformed"
MENDED = "mended"  # the name that a nameless row is given

_EPOCH_2013 = 1_356_998_400_000_000  # microseconds
_HOUR = 3_600_000_000
_BEFORE_POSTGRES = -250_000_000_000_000_000  # microseconds since 1970: 5,953 BC
_FAR = (-100_000_000_000_000_000, 900_000_000_000_000_000)  # 1200 BC and the year 30,489
_NAMES = ("", "ähre", "日本語", "line\nbreak", 'tab\tquote"back\\slash', "😀", "plain", "x" * 500)

Row = tuple[Any, ...]
Rows = Counter[Row]


@dataclass(frozen=True, kw_only=True)
class Made:
    """One row and its fate."""

    values: Row  # in the order of COLUMNS; moments as microseconds, dates as days
    flags: int
    reasons: tuple[str, ...]  # empty: it is delivered


@dataclass(frozen=True, kw_only=True)
class MadeBatch:
    """One micro-batch, with the fate of everything in it."""

    batch_id: int
    paths: tuple[str, ...]  # of its input files
    rows: tuple[Made, ...]
    malformed: tuple[tuple[str, str], ...]  # (raw record, source path)

    def arrow(self, partition: int, partitions: int) -> list[pa.RecordBatch]:
        """Return one task's share of the transform's output, flags included, in several small batches."""
        share = self.rows[partition::partitions]
        return [_arrow(share[start : start + 40]) for start in range(0, len(share), 40)]

    def malformed_arrow(self) -> list[pa.RecordBatch]:
        """Return the malformed records in the shape of the output: null columns, no flag, the raw record."""
        if not self.malformed:
            return []
        count = len(self.malformed)
        arrays = [pa.nulls(count, kind) for kind in COLUMNS.types]
        arrays += [pa.array([0] * count, pa.int64())]
        arrays += [pa.array(texts, pa.string()) for texts in zip(*self.malformed, strict=True)]
        arrays.append(pa.array([MALFORMED] * count, pa.string()))
        arrays.append(pa.array([detail_of(raw) for raw, _ in self.malformed], pa.string()))
        names = [*COLUMNS.names, "_flags0", "_raw", "_source_path", "_why", "_detail"]
        return [pa.RecordBatch.from_arrays(arrays, names=names)]

    @property
    def delivered(self) -> Rows:
        return Counter((*_plain(made.values), self.batch_id) for made in self.rows if not made.reasons)

    @property
    def held_in_postgres(self) -> Rows:
        """(reasons, source path, raw, row as JSON), and the batch."""
        typed = Counter(
            (made.reasons, None, None, _as_json(made.values), self.batch_id)
            for made in self.rows
            if made.reasons
        )
        return typed + Counter(
            ((MALFORMED,), path, raw.replace("\x00", "\\u0000"), None, self.batch_id)
            for raw, path in self.malformed
        )

    @property
    def held_on_lake(self) -> Rows:
        """Return typed columns, reasons, raw record, source path and batch of what is held."""
        typed = Counter(
            (*_plain(made.values), made.reasons, None, None, self.batch_id)
            for made in self.rows
            if made.reasons
        )
        nothing = (None,) * len(COLUMNS)
        return typed + Counter(
            (*nothing, (MALFORMED,), raw, path, self.batch_id) for raw, path in self.malformed
        )

    @property
    def details(self) -> Rows:
        """Return raw record, detail and batch of what never became a row, as the lake has them."""
        return Counter((raw, detail_of(raw), self.batch_id) for raw, _ in self.malformed)


def detail_of(raw: str) -> str | None:
    """Return what a reader says of this malformed record; of some it says nothing."""
    return None if len(raw) % 2 else f"{raw} is no object"


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What both sinks must hold after a number of batches."""

    delivered: Rows
    held_in_postgres: Rows
    held_on_lake: Rows
    details: Rows  # of malformed records, on the lake
    current: Rows | None = None  # of an upsert sink: the table, while the lake has all that was delivered


def make(seed: int, *, batches: int, rows: int = 120) -> list[MadeBatch]:
    """Make batches by the seed: the same seed gives the same batches, anywhere."""
    return [_make_batch(random.Random(f"{seed}/{number}"), number, rows) for number in range(batches)]


def merged(batches: Sequence[MadeBatch]) -> MadeBatch:
    """Merge rows and files into one batch, as a replay delivers them."""
    return MadeBatch(
        batch_id=0,
        paths=tuple(path for batch in batches for path in batch.paths),
        rows=tuple(row for batch in batches for row in batch.rows),
        malformed=tuple(one for batch in batches for one in batch.malformed),
    )


def keyed(batches: Sequence[MadeBatch]) -> list[MadeBatch]:
    """Give the rows ids that every batch has again, as an upsert sink takes them."""

    def again(made: Made) -> Made:
        return replace(made, values=(made.values[0] % 1_000_000, *made.values[1:]))

    return [replace(batch, rows=tuple(again(made) for made in batch.rows)) for batch in batches]


def newest(batches: Sequence[MadeBatch]) -> Rows:
    """Return for each id the row with the newest `at`, of equally new ones the later; a time is newer than none."""
    found: dict[int, tuple[int | None, Row]] = {}
    for batch in batches:
        for made in batch.rows:
            number, at, *_ = made.values
            before = found.get(number, (None, ()))[0]
            if not made.reasons and (before is None or (at is not None and before <= at)):
                found[number] = at, (*_plain(made.values), batch.batch_id)
    return Counter(row for _, row in found.values())


def mended(batch: MadeBatch) -> Rows:
    """Return the rows that only lacked a name, with one, as a release delivers them."""
    nameless = [row.values for row in batch.rows if row.reasons == (UNNAMED,)]
    place = COLUMNS.get_field_index("name")
    return Counter((*_plain((*row[:place], MENDED, *row[place + 1 :])), 0) for row in nameless)


def expected(batches: Sequence[MadeBatch]) -> Expected:
    return Expected(
        delivered=sum((batch.delivered for batch in batches), Counter()),
        held_in_postgres=sum((batch.held_in_postgres for batch in batches), Counter()),
        held_on_lake=sum((batch.held_on_lake for batch in batches), Counter()),
        details=sum((batch.details for batch in batches), Counter()),
    )


def _make_batch(chance: random.Random, number: int, rows: int) -> MadeBatch:
    made = [_make_row(chance, number * 1_000_000 + position) for position in range(rows)]
    made += chance.sample(made, 3)  # whole rows that come twice are two rows
    paths = tuple(f"events/{number}-{part}.jsonl" for part in range(2))
    malformed = tuple((f'{{"id": {n}, broken\x00', chance.choice(paths)) for n in range(chance.randrange(3)))
    return MadeBatch(batch_id=number, paths=paths, rows=tuple(made), malformed=malformed)


def _make_row(chance: random.Random, number: int) -> Made:
    """Decide the fate first, then make a row that deserves it."""
    reasons = [reason for reason in (NEGATIVE, UNNAMED) if chance.random() < 0.1]
    limits = [NUL] if UNNAMED not in reasons and chance.random() < 0.04 else []
    at: int | None = _EPOCH_2013 + chance.randrange(4 * 24) * _HOUR + chance.randrange(_HOUR)
    chosen = chance.random()
    if chosen < 0.03:
        at = None
    elif chosen < 0.06:  # the tables are partitioned by its day
        limits, at = [*limits, TOO_FAR], chance.choice(_FAR)
    elif chosen < 0.09:
        limits, at = [TOO_EARLY, *limits, TOO_FAR], _BEFORE_POSTGRES - chance.randrange(1000)
    name = chance.choice(_NAMES) + str(chance.randrange(5))
    if NUL in limits:
        name = "nul\x00" + name
    good = (0.0, -0.0, math.inf, math.nan, 1e-300, chance.random(), None)
    bad = (-1.5, -math.inf, -1e-300)
    values = (
        number,
        at,
        None if UNNAMED in reasons else name,
        chance.choice((None, decimal.Decimal(chance.randrange(-(10**12) + 1, 10**12)).scaleb(-2))),
        chance.choice(bad if NEGATIVE in reasons else good),
        chance.choice((None, 15_706 + chance.randrange(9), -700_000, 2_932_897)),
        chance.choice((True, False, None)),
    )
    broken = {*reasons, ODD} if number % 2 else set(reasons)
    flags = sum(1 << bit for bit, reason in enumerate(REASONS) if reason in broken)
    return Made(values=values, flags=flags, reasons=(*reasons, *limits))


def _arrow(made: Sequence[Made]) -> pa.RecordBatch:
    columns = list(zip(*(one.values for one in made), strict=True))
    arrays = [_array(values, kind) for values, kind in zip(columns, COLUMNS.types, strict=True)]
    flags = pa.array([one.flags for one in made], pa.int64())
    return pa.RecordBatch.from_arrays([*arrays, flags], names=[*COLUMNS.names, "_flags0"])


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(kind)
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).view(kind)
    return pa.array(values, kind)


def _plain(values: Row) -> Row:
    return tuple(plain(value) for value in values)


def plain(value: Any, kind: str = "d") -> Any:
    """Return the value as one that is equal exactly to itself: floats by their bits, every NaN alike."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack(f">{kind}", value).hex()
    return str(value) if isinstance(value, decimal.Decimal) else value


def _as_json(values: Row) -> Row:
    number, at, name, amount, x, day, ok = values
    moment = None if at is None else str(np.datetime64(at, "us")).replace("T", " ") + "Z"
    date = None if day is None else str(np.datetime64(day, "D"))
    return (number, moment, name, None if amount is None else str(amount), plain(x), date, ok)


# What the sinks hold


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads one pipeline's sinks as anyone could, without Sluice."""

    dsn: str
    endpoint: str | None
    region: str
    pipeline: str
    columns: pa.Schema = COLUMNS

    @property
    def store(self) -> fs.S3FileSystem:
        return fs.S3FileSystem(
            endpoint_override=self.endpoint,
            region=self.region,
            force_virtual_addressing=False,
            allow_delayed_open=True,
        )

    def in_postgres(self, *, system: Sequence[str] = ("_batch_id",), where: str = "WHERE true") -> Rows:
        """Return the rows of the table, exactly: floats and moments by their binary form."""
        chosen = [_exact(field) for field in self.columns] + [sql.Identifier(name) for name in system]
        query = sql.SQL("SELECT {} FROM {} {}").format(
            sql.SQL(", ").join(chosen), sql.Identifier("warehouse", self.pipeline), sql.SQL(where)
        )
        return Counter(
            tuple(self._exactly(v, place) for place, v in enumerate(row)) for row in ask(self.dsn, query)
        )

    def held_in_postgres(self) -> Rows:
        query = (
            "SELECT reasons, source_path, raw, row, batch_id FROM sluice.quarantine"
            " WHERE pipeline = %s AND status <> 'superseded'"
        )
        found: Rows = Counter()
        for reasons, path, raw, row, batch in ask(self.dsn, query, (self.pipeline,)):
            values = None if row is None else tuple(plain(value) for value in json.loads(row).values())
            found[tuple(reasons), path, raw, values, batch] += 1
        return found

    def on_lake(self, *, system: Sequence[str] = ("_batch_id",)) -> Rows:
        """Return the rows that the table's pointer leads to; its files must be those that the ledger lists."""
        return self._lake_rows("data", self.pipeline, [*self.columns.names, *system])

    def held_on_lake(self) -> Rows:
        extra = ["_reasons", "_raw", "_source_path", "_batch_id"]
        return self._lake_rows("quarantine", f"{self.pipeline}_quarantine", [*self.columns.names, *extra])

    def details_in_postgres(self) -> Rows:
        """Return raw record, detail and batch of what never became a row."""
        query = (
            "SELECT raw, detail, batch_id FROM sluice.quarantine"
            " WHERE pipeline = %s AND status <> 'superseded' AND row IS NULL"
        )
        return Counter(ask(self.dsn, query, (self.pipeline,)))

    def details_on_lake(self) -> Rows:
        """Return the same of the lake."""
        names = ["_raw", "_detail", "_batch_id"]
        found = self._lake_rows("quarantine", f"{self.pipeline}_quarantine", names)
        return Counter({row: count for row, count in found.items() if row[0] is not None})

    def files(self, table: str) -> list[str]:
        """Return the data files of an Iceberg table as of its pointer in PostgreSQL."""
        query = "SELECT metadata_location FROM sluice.iceberg_tables WHERE table_name = %s"
        [(pointer,)] = ask(self.dsn, query, (table,))
        properties = {"s3.region": self.region, "s3.force-virtual-addressing": "false"}
        if self.endpoint:
            properties["s3.endpoint"] = self.endpoint
        static = StaticTable.from_metadata(pointer, properties=properties)
        return [task.file.file_path for task in static.scan().plan_files()]

    def difference(self, wanted: Expected) -> str:
        """Return every way in which the sinks are not as `wanted`; empty when both are."""
        found = {
            "PostgreSQL": (
                self.in_postgres(),
                wanted.delivered if wanted.current is None else wanted.current,
            ),
            "Parquet": (self.on_lake(), wanted.delivered),
            "quarantine in PostgreSQL": (self.held_in_postgres(), wanted.held_in_postgres),
            "quarantine on the lake": (self.held_on_lake(), wanted.held_on_lake),
            "details in PostgreSQL": (self.details_in_postgres(), _without_nul(wanted.details)),
            "details on the lake": (self.details_on_lake(), wanted.details),
        }
        wrong = {name: difference(*both) for name, both in found.items()}
        return "\n".join(f"{name}: {words}" for name, words in wrong.items() if words)

    def _lake_rows(self, kind: str, table: str, names: list[str]) -> Rows:
        paths = self.files(table)
        query = "SELECT path FROM sluice.delivered_file WHERE pipeline = %s AND kind = %s"
        listed = [path for (path,) in ask(self.dsn, query, (self.pipeline, kind))]
        assert sorted(paths) == sorted(listed), "the ledger's files are not the snapshot's"
        return self.rows_in(paths, names)

    def rows_in(self, paths: Sequence[str], names: list[str]) -> Rows:
        """Return the rows of some Parquet files."""
        found: Rows = Counter()
        store = self.store
        for path in paths:
            with store.open_input_file(path.removeprefix("s3://")) as source:
                found.update(rows_of(pq.ParquetFile(source).read(columns=names).select(names)))
        return found

    def _exactly(self, value: Any, place: int) -> Any:
        if isinstance(value, memoryview):
            return bytes(value)
        single = place < len(self.columns) and self.columns.field(place).type == pa.float32()
        return plain(value, "f" if single else "d")


def _without_nul(rows: Rows) -> Rows:
    """Return the rows as PostgreSQL has them, whose text can't hold a NUL."""

    def text(value: Any) -> Any:
        return value.replace("\x00", "\\u0000") if isinstance(value, str) else value

    return Counter({tuple(map(text, row)): count for row, count in rows.items()})


def _exact(field: pa.Field) -> sql.Composable:
    name, kind = sql.Identifier(field.name), field.type
    if pa.types.is_timestamp(kind):
        form = "('x' || encode({}({}), 'hex'))::bit(64)::bigint + 946684800000000"
        return sql.SQL(form).format(sql.SQL("timestamptz_send" if kind.tz else "timestamp_send"), name)
    if pa.types.is_date(kind):
        return sql.SQL("('x' || encode(date_send({}), 'hex'))::bit(32)::int::bigint + 10957").format(name)
    return name


def rows_of(content: pa.Table | pa.RecordBatch) -> list[Row]:
    """Arrow's rows in the same exact form."""
    return list(zip(*(_values(column) for column in content.columns), strict=True))


def _values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    if pa.types.is_list(kind):
        return [None if value is None else tuple(value) for value in column.to_pylist()]
    return [plain(value, "f" if kind == pa.float32() else "d") for value in column.to_pylist()]


def ask(dsn: str, query: Any, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Return the rows of one query on a connection of its own; commit what it changes."""
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(query, values)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def difference(found: Rows, wanted: Rows) -> str:
    """Return what differs in words; empty when the multisets are equal."""
    surplus, missing = found - wanted, wanted - found
    if not surplus and not missing:
        return ""
    some = [f"+{count} {row}" for row, count in list(surplus.items())[:3]]
    some += [f"-{count} {row}" for row, count in list(missing.items())[:3]]
    return f"{surplus.total()} too many, {missing.total()} missing: " + "; ".join(some)
