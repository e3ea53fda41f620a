"""What `sluice quarantine export` writes can be given back as it is; what is corrected in it is read as landed JSON is."""

from __future__ import annotations

import datetime as dt
import json
import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from etl.common.errors import SetupError
from etl.ledger.quarantine import HeldRow
from etl.runs.replay.corrections import beside_of, corrected_rows, read_corrections
from etl.sinks.warehouse.staging import json_rows

ROW = {
    "quarantine_id": 7,
    "reasons": ["a"],
    "source_path": None,
    "raw": None,
    "detail": None,
    "row": {"n": 1},
}
NEVER_A_ROW = {**ROW, "quarantine_id": 8, "raw": "{broken", "row": None}


def test_a_line_of_a_record_that_never_became_a_row_corrects_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in (NEVER_A_ROW, ROW)), encoding="utf-8-sig")
    with caplog.at_level(logging.WARNING, "sluice"):
        assert read_corrections(file) == {7: {"n": "1"}}, "each number as it is written"
    assert caplog.messages == [f"{file}: 1 line left out, without a row to correct: number 8"]


def test_a_line_that_is_no_correction_is_still_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for line in ('{"quarantine_id": 7}', '{"quarantine_id": 7, "row": 3}', '{"row": null}', "\ufeff\ufeff{}"):
        file.write_text(f"{line}\n")
        with pytest.raises(SetupError, match="line 1 is not"):
            read_corrections(file)
    for line, seen in (
        ('{"quarantine_id": 7, "row": {"a": 1, "a": 2}}', "line 1: a found twice"),
        ("{broken", "line 1: no JSON: Expecting property name enclosed in double quotes at character 2"),
        (f'{{"quarantine_id": 7, "row": {"[" * 300}{"]" * 300}}}', "found 301 levels within each other"),
    ):
        file.write_text(f"{line}\n")
        with pytest.raises(SetupError, match=seen):
            read_corrections(file)


MOMENT, DECIMAL = pa.timestamp("us", tz="UTC"), pa.decimal128(20, 2)
ARRAY, STRUCT = pa.list_(pa.int32()), pa.struct([("x", pa.int32()), ("at", MOMENT)])
MAP, ODD = pa.map_(pa.string(), pa.int64()), pa.map_(pa.int32(), pa.int64())
NESTED = (ARRAY, STRUCT, MAP, ODD)


def held(row: str | None) -> HeldRow:
    nothing = dict.fromkeys(
        ("source_path", "raw", "detail", "released_by", "decided_by", "why", "decided_at")
    )
    where: dict[str, Any] = {
        "quarantine_id": 7,
        "delivery_id": 1,
        "stream_id": "s",
        "batch_id": 0,
        "superseded_by": None,
    }
    seen = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return HeldRow(**where, **nothing, reasons=["a"], status="held", row=row, held_at=seen)  # type: ignore[arg-type]


def correct(kind: pa.DataType, line: str, tmp_path: Path, *, was: str = "null") -> Any:
    """Correct column `v` of one row by a file, and return what it becomes."""
    file = tmp_path / "rows.jsonl"
    file.write_text(f'{{"quarantine_id": 7, "row": {{"v": {line}}}}}\n', encoding="utf-8")
    columns = pa.schema([("v", pa.string() if kind in NESTED else kind)])
    nested = {"v": kind} if kind in NESTED else {}
    table = corrected_rows([held(f'{{"v": {was}}}')], read_corrections(file), columns, nested=nested)
    [value] = table.column(beside_of("v") if beside_of("v") in table.column_names else "v").to_pylist()
    return value


@pytest.mark.parametrize(
    ("kind", "line", "value"),
    [
        (ARRAY, "[1, null]", [1, None]),
        (ARRAY, '"[1, null]"', [1, None]),
        (ARRAY, "null", None),
        (ARRAY, '"null"', None),
        (STRUCT, '"{\\"x\\": 1, \\"y\\": 2}"', {"x": 1, "at": None}),
        (STRUCT, '{"at": "2026-01-02"}', {"x": None, "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)}),
        (MAP, '{"a": 1}', [("a", 1)]),
        (ODD, "null", None),
        (pa.string(), "[1, 2.50]", "[1,2.50]"),
        (pa.string(), "5", "5"),
        (DECIMAL, "123456789012345678.12", Decimal("123456789012345678.12")),
        (pa.float64(), "3", 3.0),
        (pa.binary(), '"00ff"', b"\x00\xff"),
        (MOMENT, '"2026-01-02 03:04:05.000000Z"', dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_correction_is_read_as_landed_json_is(
    kind: pa.DataType, line: str, value: Any, tmp_path: Path
) -> None:
    assert correct(kind, line, tmp_path) == value


@pytest.mark.parametrize(
    ("kind", "line", "seen"),
    [
        (ARRAY, '"a, b"', 'v: found "a, b", wanted JSON text: no JSON: Expecting value at character 1'),
        (ARRAY, "5", "v: found 5, wanted an array"),
        (ARRAY, '"[1, 1.5]"', "v[1]: found 1.5, wanted int, from -2147483648 to 2147483647"),
        (STRUCT, "[1]", "v: found [1], wanted an object"),
        (STRUCT, '"{\\"at\\": 5}"', "v.at: found 5, wanted a timestamp, such as 2026-01-31T23:59:59.123456Z"),
        (MAP, '{"a": "1"}', 'v.a: found "1", wanted bigint'),
        (ODD, '"{}"', 'v: found "{}", wanted null: JSON has no values of its type'),
        (pa.int32(), '"1"', 'v: found "1", wanted int, from -2147483648 to 2147483647'),
        (DECIMAL, "1.005", "v: found 1.005, wanted decimal(20,2)"),
        (pa.string(), '"\\ud83d"', "v: found half of a surrogate pair"),
        (pa.binary(), '"aGk="', 'v: found "aGk=", wanted binary, as hexadecimal digits'),
        (MOMENT, '"300000-01-01 00:00:00Z"', 'v: found "300000-01-01 00:00:00Z", wanted a timestamp'),
        (MOMENT, '"9223372036854775807-01-01"', 'v: found "9223372036854775807-01-01", wanted a timestamp'),
        (pa.date32(), '"30000-01-01"', 'v: found "30000-01-01", wanted a date'),
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_correction_that_does_not_fit_is_refused(
    kind: pa.DataType, line: str, seen: str, tmp_path: Path
) -> None:
    with pytest.raises(SetupError) as refused:
        correct(kind, line, tmp_path)
    assert f"Row 7, column {seen}" in refused.value.seen


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (MOMENT, -(2**62)),
        (MOMENT, 2**63 - 1),
        (MOMENT, 2_146_819_420_800_000_000),
        (MOMENT, -62_167_219_200_000_000),
        (pa.timestamp("us"), -(2**61)),
        (pa.date32(), 2**31 - 1),
        (pa.date32(), -719_529),
        (pa.binary(), b"\x00\xff"),
        (pa.float32(), 0.1),
        (pa.float64(), float("nan")),
        (DECIMAL, 5),
    ],
    ids=str,
)
def test_what_is_not_corrected_stays_as_it_was_held(kind: pa.DataType, kept: Any) -> None:
    """Of every year that the types hold, whatever a text may name."""
    was = pa.array([kept], kind)
    row = json_rows(pa.RecordBatch.from_arrays([was], names=["v"]))[0]
    for change in ({}, {7: json.loads(row)}):
        table = corrected_rows([held(row)], change, pa.schema([("v", kind)]))
        assert table.column("v").combine_chunks().equals(was) or kept != kept


def test_a_held_text_whose_column_has_become_a_moment_does_not_wrap() -> None:
    with pytest.raises(SetupError, match=r"Row 7, column v: found .*, wanted a timestamp"):
        corrected_rows([held('{"v": "300000-01-01 00:00:00.000000Z"}')], {}, pa.schema([("v", MOMENT)]))
