"""What records have beyond the schema, and what files lack of it, is told with the delivery, kept or held."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etl.common.errors import InputsUnreadable, SetupError
from etl.operations.control.status import states
from etl.operations.suites.wider_schema import wider_schema
from tests.support.home import Home

DECLARATION = """
from etl.pipeline import Append, Files, Pipeline

PIPELINE = Pipeline(
    name="taps", sources=(Files("taps/*.jsonl"), Files("taps/*.csv")), schema="id int, s string",
    transform=lambda df: df.select({columns}), sink=Append(), max_quarantine_share=1.0, {more}
)
"""
LINES = (
    '{"id": 1, "s": "a"}\n{"id": 2, "s": "b", "shop": "X", "note": {"by": "me"}}\n{"id": "x", "shop": "Y"}\n'
)
TABLE = "shop,id,s\nZ,3,c\n,4,d\n"


def land(home: Home, more: str = "", columns: str = '"id", "s"') -> None:
    home.declare("taps", text=DECLARATION.format(more=more, columns=columns))
    home.write("taps/a.jsonl", LINES)
    home.write("taps/b.csv", TABLE)
    home.write("taps/c.csv", "id\n5\n6\n")


def test_what_the_schema_does_not_name_is_told_with_each_delivery(home: Home) -> None:
    land(home)
    summary = home.run("taps")
    assert (summary.delivered, summary.malformed) == (6, 1)
    assert (summary.unknown, summary.missing) == ({"shop": 2, "note": 1}, {"s": 2})
    ledger = "SELECT unknown, missing FROM sluice.quality_batch"
    assert home.ask(ledger) == [({"shop": 2, "note": 1}, {"s": 2})]
    [state] = states(home.place, "taps")
    assert (state.unknown, state.missing) == ({"shop": 2, "note": 1}, {"s": 2})
    told = "fields that the schema does not name: shop (2 records); note (1 record)"
    assert told in home.sluice("status", "taps").stdout
    wider = wider_schema(home.place, home.pipeline("taps"), last=20)
    assert (wider.schema, told in wider.notes) == ("id int, s string, shop string, note string", True)

    replayed = home.sluice_here("replay", "taps", "--batches", "0", "--why", "once more")
    assert replayed.returncode == 0, replayed.stderr
    assert home.ask(f"{ledger} WHERE kind = 'replay'") == [({"shop": 2, "note": 1}, {"s": 2})]
    home.write("taps/d.jsonl", '{"id": 7, "s": "e"}\n')
    assert (home.run("taps").unknown, states(home.place, "taps")[0].unknown) == ({}, {})
    home.assert_clean("taps")


def test_what_the_schema_does_not_name_is_kept_in_both_sinks(home: Home) -> None:
    land(home, more='unknown="keep"', columns='"id", "s", "_unknown"')
    assert home.run("taps").unknown == {"shop": 2, "note": 1}
    rows = {2: '{"shop":"X","note":{"by":"me"}}', 3: '{"shop":"Z"}', 1: None, 4: None, 5: None, 6: None}
    assert dict(home.ask("SELECT id, _unknown FROM warehouse.taps")) == rows
    home.columns = pa.schema([("id", pa.int32()), ("s", pa.string()), ("_unknown", pa.string())])
    home.assert_one_history("taps")
    home.assert_clean("taps")
    with pytest.raises(SetupError, match="had no field that the schema does not name"):
        wider_schema(home.place, home.pipeline("taps"), last=0)


def test_what_the_schema_does_not_name_is_held_with_its_name(home: Home) -> None:
    land(home, more='unknown="hold"')
    summary = home.run("taps")
    assert (summary.delivered, summary.malformed, summary.unknown) == (4, 3, {})
    details = [detail for (detail,) in home.ask("SELECT detail FROM sluice.quarantine ORDER BY raw")]
    assert details.count('shop: not in the schema, and unknown is "hold"') == 3
    home.assert_clean("taps")


PARQUET = DECLARATION.replace('Files("taps/*.jsonl"), Files("taps/*.csv")', 'Files("taps/*.parquet"),')


def parquet(**columns: list[object]) -> bytes:
    written = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), written, row_group_size=2)
    return bytes(written.getvalue().to_pybytes())


def land_parquet(home: Home, more: str = "") -> None:
    home.declare("taps", text=PARQUET.format(more=more, columns='"id", "s"'))
    ids = pa.array([1, 2, 3], pa.int32())
    home.write(
        "taps/a.parquet",
        parquet(ID=ids, s=["a", "b", "c"], shop=["X", None, "Z"], no=pa.nulls(3, pa.int64())),
    )
    home.write("taps/b.parquet", parquet(id=ids, note=[{"by": "me"}, None, None]))
    home.write("taps/c.parquet", parquet(id=ids, s=["a", "b", "c"]))


def test_columns_of_parquet_are_told_by_the_footers(home: Home) -> None:
    land_parquet(home)
    summary = home.run("taps")
    assert (summary.delivered, summary.unknown, summary.missing) == (9, {"note": 3, "shop": 2}, {"s": 3})
    home.write("taps/d.parquet", parquet(id=pa.array([4], pa.int32()), s=["d"]))
    assert home.run("taps").unknown == {}
    home.assert_clean("taps")


def test_columns_of_parquet_are_kept_as_json(home: Home) -> None:
    """Keep each type as Spark writes it; tell alone what it does not read as it is, and names that differ in case."""
    home.declare("taps", text=PARQUET.format(more='unknown="keep"', columns='"id", "s", "_unknown"'))
    at = pa.array([1_704_110_400_123_456_789, None], pa.timestamp("ns", "UTC"))
    home.write(
        "taps/a.parquet",
        parquet(
            ID=pa.array([1, 2], pa.int32()),
            shop=["X", None],
            at=at,
            tags=[[{"n": 1}], None],
            amount=pa.array([Decimal("12.50"), None]),
            size=pa.array([2**32 - 1, None], pa.uint32()),
            took=pa.array([dt.time(1), None], pa.time64("us")),
            **{"a.b": [1.5, None], "x": [1, None], "X": [2, None], "_detail": ["y", None]},
        ),
    )
    home.write("taps/b.parquet", parquet(id=pa.array([3], pa.int32()), note=["n"]))
    home.write("taps/c.parquet", parquet(id=pa.array([4], pa.int32()), s=["s"]))
    summary = home.run("taps")
    told = ("shop", "at", "tags", "amount", "size", "took", "a.b", "x", "X", "_detail", "note")
    assert summary.unknown == dict.fromkeys(told, 1) | {"tags": 2}
    kept = {
        "shop": "X",
        "at": "2024-01-01T12:00:00.123456Z",
        "tags": [{"n": 1}],
        "amount": 12.50,
        "size": 2**32 - 1,
        "a.b": 1.5,
    }
    rows = dict(home.ask("SELECT id, _unknown FROM warehouse.taps"))
    assert {row: text and json.loads(text) for row, text in rows.items()} == {
        1: kept,
        2: None,
        3: {"note": "n"},
        4: None,
    }
    home.assert_clean("taps")


def test_a_transform_with_state_is_told_of_columns_of_parquet_and_keeps_none(home: Home) -> None:
    text = PARQUET.format(more='unknown="keep"', columns='"id", "s", "_unknown"')
    home.declare("taps", text=text.replace('"_unknown")', '"_unknown").dropDuplicates(["id"])'))
    home.write("taps/a.parquet", parquet(id=pa.array([1, 2], pa.int32()), s=["a", "b"], shop=["X", None]))
    assert home.run("taps").unknown == {"shop": 1}
    assert dict(home.ask("SELECT id, _unknown FROM warehouse.taps")) == {1: None, 2: None}


def test_a_parquet_file_with_a_column_that_is_held_stops_its_batch(home: Home) -> None:
    land_parquet(home, 'unknown="hold"')
    with pytest.raises(InputsUnreadable) as stop:
        home.run("taps")
    [(stops,)] = home.ask("SELECT stops FROM sluice.stopped_batch")
    assert {one.partition("taps/")[2].partition(" ")[0] for one in stops} == {"a.parquet", "b.parquet"}
    assert 'shop: not in the schema, and unknown is "hold"' in stop.value.seen
    land_parquet(home, 'unknown="hold", unreadable="hold"')
    home.recover("taps")
    assert home.run("taps").delivered == 3
    home.assert_clean("taps")
