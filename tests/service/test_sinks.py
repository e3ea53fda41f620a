"""One suite for both sinks: what goes in comes out equal in PostgreSQL and in Parquet, or is quarantined."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg2.extensions import make_dsn

from etl.common.database import transaction
from etl.common.errors import TableRefused
from etl.delivery.batch import DeliveryContext
from etl.delivery.deliver import deliver
from etl.pipeline import Append, Replace, Upsert
from etl.quality.verdict import StageRule
from etl.sinks.checksum import MODULUS, checksum
from etl.sinks.columns import common_schema
from etl.sinks.lake.lake import Lake
from etl.sinks.warehouse.staging import StagingTables
from tests.support import oracle
from tests.support.arrow_driver import ArrowBatch, batch_of, delivered, pipeline, reader, rows, start

I32, I64 = 2**31, 2**63
UTC = dt.UTC

# Per type: the edges of what both sinks hold. Moments in microseconds and days since 1970.
EDGES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int32(): [0, 1, -1, I32 - 1, -I32],
    pa.int64(): [0, 1, -1, I64 - 1, -I64],
    pa.float32(): [0.0, -0.0, math.nan, math.inf, -math.inf, 3.4028234663852886e38, 1.401298464324817e-45],
    pa.float64(): [0.0, -0.0, math.nan, math.inf, -math.inf, 1.7976931348623157e308, 5e-324, 0.1],
    pa.decimal128(1, 0): [decimal.Decimal(text) for text in ("0", "9", "-9")],
    pa.decimal128(12, 2): [
        decimal.Decimal(text) for text in ("0.00", "9999999999.99", "-9999999999.99", "0.01")
    ],
    pa.decimal128(38, 18): [
        decimal.Decimal(text).scaleb(-18, decimal.Context(prec=38))
        for text in ("0", "9" * 38, "-" + "9" * 38, "1")
    ],
    pa.string(): [
        "",
        "a",
        "Ω≈ç√",
        "日本語",
        "😀",
        "e\u0301",
        "'\"\\\t\r\n",
        "\\N",
        "x" * 5_000,
        "NULL",
        "\ufeff",
        "\x01\x7f",
    ],
    pa.binary(): [b"", b"\x00", b"\xff\xfe", bytes(range(256)), b"y" * 5_000],
    pa.date32(): [0, -1, -719_162, 2_932_896, -719_163, 2_932_897, -2_440_588, 2_145_031_948],
    pa.timestamp("us"): [
        0,
        -1,
        1_356_998_399_999_999,
        -210_866_803_200_000_000,
        I64 - 1,
        253_402_300_800_000_000,
    ],
    pa.timestamp("us", tz="UTC"): [
        0,
        -1,
        1_356_998_399_999_999,
        -210_866_803_200_000_000,
        I64 - 1,
        -62_135_596_800_000_001,
    ],
}
ALL = pa.schema([("id", pa.int64()), *((f"c{n}", kind) for n, kind in enumerate(EDGES))])


def everything() -> pa.RecordBatch:
    """Return every edge of every type, and nulls everywhere, in rows of their own."""
    longest = max(map(len, EDGES.values())) + 1
    columns = [
        list(itertools.islice(itertools.cycle([*edges, None]), place, place + longest))
        for place, edges in enumerate(EDGES.values())
    ]
    nulls = [[*column, None] for column in columns]
    return batch_of(ALL, list(range(longest + 1)), *nulls)


def checksums(run: DeliveryContext) -> tuple[int, int, int]:
    """Return the checksums of the ledger, and those computed from each sink."""
    [(recorded,)] = oracle.ask(run.sinks.dsn, "SELECT coalesce(sum(checksum), 0) FROM sluice.delivery")
    eyes, columns = reader(run), run.sinks.columns
    names = columns.names
    lake = 0
    for path in eyes.files(run.lease.pipeline):
        with eyes.store.open_input_file(path.removeprefix("s3://")) as source:
            for batch in pq.ParquetFile(source).iter_batches(columns=names):
                lake += checksum(batch, names)
    exact = list(eyes.in_postgres(system=()).elements())
    values = zip(zip(*exact, strict=True), columns.types, strict=True)
    table = batch_of(columns, *[[unplain(value, kind) for value in column] for column, kind in values])
    return int(recorded) % MODULUS, lake % MODULUS, checksum(table, names)


def unplain(value: Any, kind: pa.DataType) -> Any:
    """Back from the oracle's exact form."""
    if value is None or not (pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return value
    if pa.types.is_decimal(kind):
        return decimal.Decimal(value)
    width = ">f4" if kind == pa.float32() else ">f8"
    return math.nan if value == "nan" else float(np.frombuffer(bytes.fromhex(value), width)[0])


# Every type


@pytest.mark.parametrize(
    "sink", [Append(), Upsert(keys=("id",), newest="id"), Replace()], ids=["append", "upsert", "replace"]
)
def test_every_value_of_every_type_comes_out_as_it_went_in(dsn: str, lake: Lake, sink: Any) -> None:
    run = start(dsn, lake, pipeline("types", sink), columns=ALL)
    batch = everything()
    assert delivered(run, 0, batch).delivered == batch.num_rows
    assert oracle.difference(reader(run).in_postgres(system=()), rows(batch)) == ""
    assert oracle.difference(reader(run).on_lake(system=()), rows(batch)) == ""
    recorded, on_lake, in_postgres = checksums(run)
    assert recorded == on_lake == in_postgres


def test_narrow_and_large_types_are_widened_alike(dsn: str, lake: Lake) -> None:
    output = pa.schema(
        [
            ("a", pa.int8()),
            ("b", pa.int16()),
            ("c", pa.large_string()),
            ("d", pa.timestamp("us", "America/New_York")),
        ]
    )
    columns = common_schema(output, pipeline="types")
    run = start(dsn, lake, pipeline("types", Append()), columns=columns)
    delivered(run, 0, batch_of(output, [-128], [32_767], ["wide"], [0]))
    assert (
        reader(run).in_postgres(system=()) == reader(run).on_lake(system=()) == {(-128, 32_767, "wide", 0): 1}
    )


@pytest.mark.parametrize("of", ["environment", "dsn"])
def test_another_encoding_of_the_client_changes_no_text(
    dsn: str, lake: Lake, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    columns = pa.schema([("text", pa.string())])
    batch = batch_of(columns, ["ä Ω 日本語"])
    with monkeypatch.context() as patch:
        if of == "environment":
            patch.setenv("PGCLIENTENCODING", "LATIN1")
        run = start(
            make_dsn(dsn, client_encoding="LATIN1") if of == "dsn" else dsn,
            lake,
            pipeline("encoded", Append()),
            columns=columns,
        )
        delivered(run, 0, batch)
    run = replace(run, sinks=replace(run.sinks, dsn=dsn))
    assert reader(run).in_postgres(system=()) == reader(run).on_lake(system=()) == rows(batch)


def test_a_value_of_many_megabytes_is_delivered(dsn: str, lake: Lake) -> None:
    columns = pa.schema([("id", pa.int64()), ("text", pa.string())])
    run = start(dsn, lake, pipeline("long", Append()), columns=columns)
    batch = batch_of(columns, [1, 2], ["ä" * 3_000_000, "short"])
    delivered(run, 0, batch)
    assert reader(run).in_postgres(system=()) == reader(run).on_lake(system=()) == rows(batch)
    assert len(set(checksums(run))) == 1


def test_a_long_text_hides_no_file_from_a_reader_with_a_filter(dsn: str, lake: Lake) -> None:
    """Arrow writes no bounds for long values: those of the file's other rows must not stand for them."""
    columns = pa.schema([("text", pa.string())])
    run = start(dsn, lake, pipeline("long", Append()), columns=columns)
    delivered(run, 0, batch_of(columns, ["a", "b"]), batch_of(columns, ["z" * 10_000]))
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        table = run.sinks.table.at(run.sinks.table.pointer(cursor) or "")
    assert table.scan(row_filter="text > 'y'").count() == 1


# What a sink can't hold


def test_what_postgres_cannot_hold_is_quarantined_with_its_reason(dsn: str, lake: Lake) -> None:
    columns = pa.schema(
        [
            ("id", pa.int64()),
            ("text", pa.string()),
            ("at", pa.timestamp("us")),
            ("tz", pa.timestamp("us", "UTC")),
            ("on", pa.date32()),
        ]
    )
    run = start(dsn, lake, pipeline("limits", Append()), columns=columns)
    early, before = -210_866_803_200_000_001, -2_440_589
    wrong = pa.Array.from_buffers(
        pa.string(), 6, pa.array([b"a\x00b", b"\xff\xfe", b"good", b"", None, b"z"], pa.binary()).buffers()
    )
    batch = batch_of(
        columns,
        [1, 2, 3, 4, 5, 6],
        [""] * 6,
        [0, 0, early, 0, 0, None],
        [0, 0, 0, -I64, 0, None],
        [0, 0, 0, 0, before, None],
    )
    batch = batch.set_column(1, "text", wrong)
    receipt = delivered(run, 0, batch)
    assert (receipt.delivered, receipt.quarantined) == (1, 5)
    held = {row[0]: reasons for reasons, _, _, row, _ in reader(run).held_in_postgres()}
    assert held == {
        1: ("postgres_nul(text)",),
        2: ("postgres_encoding(text)",),
        3: ("postgres_range(at)",),
        4: ("postgres_range(tz)",),
        5: ("postgres_range(on)",),
    }
    assert {row[0] for row in reader(run).in_postgres()} == {row[0] for row in reader(run).on_lake()} == {6}
    on_lake = {row[0]: row[1] for row in reader(run).held_on_lake()}
    assert on_lake[2] == r"\xff\xfe"


def test_bytes_that_are_no_text_are_readable_in_the_raw_record(dsn: str, lake: Lake) -> None:
    run = start(dsn, lake, pipeline("raw", Append()))
    [malformed] = oracle.MadeBatch(
        batch_id=0, paths=(), rows=(), malformed=(("x", "path"),)
    ).malformed_arrow()
    raw = pa.Array.from_buffers(pa.string(), 1, pa.array([b"{\xff\x00"], pa.binary()).buffers())
    malformed = malformed.set_column(malformed.schema.get_field_index("_raw"), "_raw", raw)
    deliver(run, ArrowBatch(batch_id=0, parts=[], malformed=[malformed]))
    [(reasons, path, text, row, _)] = reader(run).held_in_postgres()
    assert (reasons, path, text, row) == (("malformed",), "path", r"{\xff\u0000", None)


def test_samples_of_far_moments_are_taken(dsn: str, lake: Lake) -> None:
    columns = pa.schema([("at", pa.timestamp("us", "UTC"))])
    rule = StageRule(number=0, reason="r", broken=0, columns=("at",), quarantines=True)
    run = start(dsn, lake, pipeline("far", Append()), columns=columns, rules=(rule,))
    assert delivered(run, 0, batch_of(columns, [I64 - 1, 0], flags=1)).quarantined == 2


def test_a_batch_that_is_wholly_bad_delivers_nothing(dsn: str, lake: Lake) -> None:
    columns = pa.schema([("id", pa.int64()), ("text", pa.string())])
    run = start(dsn, lake, pipeline("bad", Append()), columns=columns)
    receipt = delivered(run, 0, batch_of(columns, [1, 2], ["\x00", "\x00"]))
    assert (receipt.delivered, receipt.quarantined, receipt.files) == (0, 2, 0)
    assert reader(run).in_postgres() == reader(run).on_lake() == Counter()
    assert reader(run).held_in_postgres().total() == reader(run).held_on_lake().total() == 2
    assert delivered(run, 1, batch_of(columns, [3], ["ok"])).delivered == 1


@pytest.mark.parametrize(
    "sink", [Append(), Upsert(keys=("id",), newest="id"), Replace()], ids=["append", "upsert", "replace"]
)
def test_an_empty_batch_is_a_delivery_of_nothing(dsn: str, lake: Lake, sink: Any) -> None:
    columns = pa.schema([("id", pa.int64())])
    run = start(dsn, lake, pipeline("empty", sink), columns=columns)
    for number in range(2):
        assert delivered(run, number, batch_of(columns, [])).delivered == 0
    assert reader(run).in_postgres() == reader(run).on_lake() == Counter()
    delivered(run, 2, batch_of(columns, [1]))
    assert reader(run).in_postgres() == reader(run).on_lake() == {(1, 2): 1}


# Modes

KEYED = pa.schema([("key", pa.string()), ("part", pa.int32()), ("at", pa.int64()), ("value", pa.string())])


@pytest.fixture
def keyed(dsn: str, lake: Lake) -> DeliveryContext:
    return start(dsn, lake, pipeline("keyed", Upsert(keys=("key", "part"), newest="at")), columns=KEYED)


def keys(run: DeliveryContext) -> dict[Any, Any]:
    return {row[:2]: row[3] for row in reader(run).in_postgres()}


def test_the_newest_row_of_a_key_wins_and_the_later_of_equals(keyed: DeliveryContext) -> None:
    delivered(
        keyed, 0, batch_of(KEYED, ["a", "b", "c", "d"], [1] * 4, [5, 5, None, 5], ["a0", "b0", "c0", "d0"])
    )
    delivered(
        keyed, 1, batch_of(KEYED, ["a", "b", "c", "d"], [1] * 4, [4, 5, None, None], ["a1", "b1", "c1", "d1"])
    )
    assert keys(keyed) == {("a", 1): "a0", ("b", 1): "b1", ("c", 1): "c1", ("d", 1): "d0"}
    assert reader(keyed).on_lake().total() == 8, "the lake keeps every change"


def test_of_a_key_that_comes_twice_in_a_batch_the_newest_wins(keyed: DeliveryContext) -> None:
    delivered(
        keyed, 0, batch_of(KEYED, ["a"] * 4, [1, 1, 1, 2], [3, 9, None, 1], ["old", "new", "never", "other"])
    )
    assert keys(keyed) == {("a", 1): "new", ("a", 2): "other"}


def test_a_row_without_its_key_is_quarantined(keyed: DeliveryContext) -> None:
    receipt = delivered(keyed, 0, batch_of(KEYED, [None, "a", "k" * 1001], [1, None, 1], [1] * 3, ["x"] * 3))
    assert receipt.delivered == 0
    assert receipt.reasons == {"null_key(key)": 1, "null_key(part)": 1, "postgres_key_length(key)": 1}


def test_a_replace_sink_holds_the_last_batch_alone(dsn: str, lake: Lake) -> None:
    columns = pa.schema([("id", pa.int64())])
    run = start(dsn, lake, pipeline("whole", Replace()), columns=columns)
    for number, ids in enumerate(([1, 2, 3], [3, 4], [])):
        delivered(run, number, batch_of(columns, ids))
        wanted = Counter((one, number) for one in ids)
        assert reader(run).in_postgres() == wanted
        paths = reader(run).files("whole")
        assert len(paths) == (1 if ids else 0)


# Tables that can't have the key's index

KEYED_TABLE = (
    "key text, part int, at bigint, value text, _stream_id uuid, _batch_id bigint, _delivery_id bigint"
)


@pytest.mark.parametrize(
    ("more", "filled", "seen"),
    [
        ("", "SELECT 'a', 1 FROM generate_series(1, 2)", "could not create unique index"),
        (
            "PARTITION BY LIST (value); CREATE TABLE warehouse.all_of_it PARTITION OF warehouse.keyed DEFAULT",
            "",
            "must include all partitioning columns",
        ),
        ("", "SELECT string_agg(md5(n::text), ''), 1 FROM generate_series(1, 1000) n", "index row"),
    ],
    ids=["a key twice", "partitioned by no key", "a key too long"],
)
def test_a_table_that_can_not_be_keyed_is_refused(
    dsn: str, lake: Lake, more: str, filled: str, seen: str
) -> None:
    oracle.ask(dsn, "CREATE SCHEMA warehouse")
    oracle.ask(dsn, f"CREATE TABLE warehouse.keyed ({KEYED_TABLE}) {more}")
    if filled:
        oracle.ask(dsn, f"INSERT INTO warehouse.keyed (key, part) {filled}")
    with pytest.raises(TableRefused, match=f"a unique index of the keys key, part.*{seen}"):
        start(dsn, lake, pipeline("keyed", Upsert(keys=("key", "part"), newest="at")), columns=KEYED)


# Tables whose texts are compared by a collation of their own. The server of the tests has none that orders
# otherwise than by bytes, nor one to which different texts are the same: so the catalog is asked and edited.


def test_staged_rows_of_an_upsert_are_compared_by_the_tables_collations(dsn: str, lake: Lake) -> None:
    columns = pa.schema([("key", pa.string()), ("at", pa.string()), ("more", pa.string())])
    oracle.ask(dsn, 'CREATE SCHEMA warehouse; CREATE COLLATION warehouse."its own" FROM "C"')
    oracle.ask(
        dsn,
        'CREATE TABLE warehouse.keyed (key text COLLATE "POSIX", at text COLLATE warehouse."its own", more text,'
        " _stream_id uuid, _batch_id bigint, _delivery_id bigint)",
    )
    run = start(dsn, lake, pipeline("keyed", Upsert(keys=("key",), newest="at")), columns=columns)
    tables = StagingTables(dsn=dsn, delivery_id=9, run_id="x", merges=True, restores=True)
    with transaction(dsn) as cursor:
        run.sinks.warehouse.create_staging(cursor, tables)
    found = {
        table: oracle.ask(
            dsn,
            "SELECT attname, collname FROM pg_attribute JOIN pg_collation c ON c.oid = attcollation"
            " WHERE attrelid = %s::regclass AND attname IN ('key', 'at', 'more') ORDER BY attnum",
            (table,),
        )
        for table in ("warehouse.keyed", "sluice_stage.d9_x_rows", "sluice_stage.d9_x_log")
    }
    assert list(found.values()) == [[("key", "POSIX"), ("at", "its own"), ("more", "default")]] * 3


def test_a_key_whose_collation_takes_different_texts_for_the_same_is_refused(dsn: str, lake: Lake) -> None:
    oracle.ask(dsn, 'CREATE SCHEMA warehouse; CREATE COLLATION warehouse.any_case FROM "C"')
    superuser = make_dsn(dsn, user="postgres")
    oracle.ask(superuser, "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'any_case'")
    kinds = KEYED_TABLE.replace("key text", "key text COLLATE warehouse.any_case")
    oracle.ask(dsn, f"CREATE TABLE warehouse.keyed ({kinds})")
    with pytest.raises(TableRefused, match="different texts of key key are the same"):
        start(dsn, lake, pipeline("keyed", Upsert(keys=("key", "part"), newest="at")), columns=KEYED)


def test_a_collation_that_the_role_may_not_use_is_refused(dsn: str, lake: Lake) -> None:
    oracle.ask(dsn, 'CREATE SCHEMA warehouse; CREATE SCHEMA own; CREATE COLLATION own.words FROM "C"')
    kinds = KEYED_TABLE.replace("value text", "value text COLLATE own.words")
    oracle.ask(dsn, f"CREATE TABLE warehouse.keyed ({kinds})")
    oracle.ask(make_dsn(dsn, user="postgres"), "ALTER SCHEMA own OWNER TO postgres")
    with pytest.raises(
        TableRefused, match="a collation of column value in a schema that this role may not use"
    ):
        start(dsn, lake, pipeline("keyed", Upsert(keys=("key", "part"), newest="at")), columns=KEYED)
