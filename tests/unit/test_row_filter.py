"""A task counts what is wrong with its malformed records in bounded memory, and forgets the rarest first."""

from __future__ import annotations

import pyarrow as pa

from etl.delivery.row_filter import (
    DETAILS_COUNTED,
    LONGEST_DETAIL,
    HoldPolicy,
    RowFilter,
    TaskReport,
    split_rows,
)
from etl.pipeline import Append

COLUMNS = pa.schema([("id", pa.int64())])
FILTER = RowFilter.of(Append(), COLUMNS, 0, (), HoldPolicy(rules=()))


def counted(*batches: list[tuple[str, str | None]]) -> TaskReport:
    """Split batches of records, each a reason and a detail."""
    report = TaskReport.of(FILTER, partition=0, number=0)
    for records in batches:
        reasons, details = zip(*records, strict=True)
        columns = {"_raw": ["{"] * len(records), "_source_path": ["file"] * len(records)}
        arrays = [pa.array(one, pa.string()) for one in (*columns.values(), reasons, details)]
        rows = pa.RecordBatch.from_arrays([pa.nulls(len(records), pa.int64())], schema=COLUMNS)
        batch = pa.RecordBatch.from_arrays(
            [*rows.columns, *arrays], names=["id", *columns, "_why", "_detail"]
        )
        split_rows(FILTER, batch, rows, report)
    return report


def test_what_many_records_have_in_common_is_counted_among_very_many_others() -> None:
    often = [("malformed", "often")] * 5
    others = [[("malformed", f"{batch} {number}") for number in range(DETAILS_COUNTED)] for batch in range(3)]
    report = counted(*(often + some for some in others))
    assert len(report.details) == DETAILS_COUNTED
    assert report.details.most_common(1) == [(("file", "often"), 15)]
    assert report.reasons == {"malformed": 3 * (5 + DETAILS_COUNTED)}


def test_a_late_record_has_no_detail_and_a_long_one_is_cut_and_can_be_printed() -> None:
    report = counted([("late", None), ("malformed", None), ("malformed", "\x1b\x00" + "x" * 300)])
    cut = (r"\x1b\x00" + "x" * 300)[:LONGEST_DETAIL]
    assert report.details == {("file", ""): 1, ("file", cut): 1}
