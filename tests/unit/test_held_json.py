"""A held row's JSON, which audit makes again of its object and compares, is what Python's own encoder writes of it."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from etl.sinks.warehouse.staging import json_rows

AT = dt.datetime(2026, 3, 29, 1, 59, 59, 999999, tzinfo=dt.UTC)
TEXTS = [
    "",
    ", ",
    '", "',
    '", ',
    "a\\",
    "\\",
    '"',
    "[1, 2]",
    "null",
    "%s %",
    "\n\t\x00\x1f\x7f",
    "ä€𝄞\u2028",
    None,
]
ODD_NAME = 'share in %, "all"'


@pytest.mark.parametrize(
    ("kind", "values", "written"),
    [
        (pa.string(), TEXTS, TEXTS),
        (pa.int64(), [0, -1, 2**63 - 1, -(2**63), None], None),
        (pa.int32(), [None, None], None),
        (pa.float64(), [0.0, -0.0, 0.1, 1e22, 5e-324, float("nan"), float("inf"), float("-inf"), None], None),
        (pa.float32(), [0.1, 16777216.0, None], [0.10000000149011612, 16777216.0, None]),
        (pa.bool_(), [True, None, False], None),
        (pa.decimal128(38, 10), [Decimal("1E-10"), Decimal(-5), None], ["1E-10", "-5.0000000000", None]),
        (pa.binary(), [b"", b"\x00\xff, ", None], ["", "00ff2c20", None]),
        (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None], ["0001-01-01", "9999-12-31", None]),
        (pa.timestamp("us", tz="UTC"), [AT, None], ["2026-03-29 01:59:59.999999Z", None]),
        (pa.timestamp("us"), [AT, None], ["2026-03-29 01:59:59.999999", None]),
        (
            pa.timestamp("us", tz="UTC"),
            [1 - 2**63, 2**63 - 1],
            ["-290308-12-21 19:59:05.224193Z", "294247-01-10 04:00:54.775807Z"],
        ),
    ],
    ids=str,
)
def test_each_row_is_written_as_the_encoder_writes_it(
    kind: pa.DataType, values: list[Any], written: list[Any] | None
) -> None:
    texts = json_rows(pa.RecordBatch.from_arrays([pa.array(values, kind)] * 2, names=["v", ODD_NAME]))
    assert texts == [json.dumps({"v": one, ODD_NAME: one}) for one in written or values]


def test_no_row_is_no_text() -> None:
    assert json_rows(pa.RecordBatch.from_arrays([pa.array([], pa.int32())], names=["v"])) == []
