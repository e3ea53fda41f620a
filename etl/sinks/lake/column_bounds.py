"""Chooses the bounds of a Parquet file that may go into Iceberg's metadata: readers skip files by them.

A missing bound costs a look into the file; a wrong bound costs its rows. So a column whose bounds are not known for
every row group, or which pyiceberg can't hold, has only its counts recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode, StatisticsCollector

Plan = dict[int, StatisticsCollector]


def provable(plan: Plan, footer: pq.FileMetaData, ids: Mapping[str, int]) -> Plan:
    """Return `plan`, with counts alone for the columns whose bounds `footer` can't prove."""
    unbounded = set()
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for index in range(footer.num_columns):
            column = group.column(index)
            if not _has_bounds(column):
                unbounded.add(ids[column.path_in_schema])
    counts = MetricsMode(MetricModeTypes.COUNTS)
    return {field: replace(how, mode=counts) if field in unbounded else how for field, how in plan.items()}


def _has_bounds(column: pq.ColumnChunkMetaData) -> bool:
    statistics = column.statistics
    if statistics is None:
        return False
    if not statistics.has_min_max:
        # Arrow writes no bounds of values above 4 kB; of nulls and of NaN there are none, and none are needed
        return statistics.physical_type in ("FLOAT", "DOUBLE") or statistics.null_count == column.num_values
    try:
        _ = statistics.min, statistics.max
    except (OverflowError, ValueError):  # moments beyond the years 1 to 9999, where Python's calendar ends
        return False
    return True
