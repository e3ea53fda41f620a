"""Finds the objects that may have a row with one of some keys: Iceberg's metadata has the least and greatest key of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.manifest import ManifestFile

from etl.sinks.lake.table import LakeTable

READERS = 8  # manifests read at a time


def candidates(table: LakeTable, pointer: str, uris: Sequence[str], keys: pa.Table) -> list[str]:
    """Return those of `uris` that may have a row with one of the keys; none is left out but by its bounds.

    Bounds are compared with the least and greatest of each key column.
    """
    at = table.at(pointer)
    snapshot = at.current_snapshot()
    if snapshot is None:
        return list(uris)
    may_have = _InclusiveMetricsEvaluator(at.schema(), _between(keys)).eval

    def lacking(manifest: ManifestFile) -> list[str]:
        entries = manifest.fetch_manifest_entry(at.io)
        return [one.data_file.file_path for one in entries if not may_have(one.data_file)]

    with ThreadPoolExecutor(READERS) as pool:
        without = {uri for uris_of in pool.map(lacking, snapshot.manifests(at.io)) for uri in uris_of}
    return [uri for uri in uris if uri not in without]


def _between(keys: pa.Table) -> BooleanExpression:
    expression: BooleanExpression = AlwaysTrue()
    for name in keys.column_names:
        for bound in _bounds(name, keys.column(name)):
            expression = And(expression, bound)
    return expression


def _bounds(name: str, values: pa.ChunkedArray) -> Iterator[BooleanExpression]:
    """Yield the bounds of a key column, where Iceberg and Python have its values in one order.

    So there are none of fractions, for NaN is in no bounds, and none of moments beyond Python's years.
    """
    # Their own __init__ takes a name and a value, which their base class hides.
    from_least: Any = GreaterThanOrEqual
    to_greatest: Any = LessThanOrEqual
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_temporal(kind)):
        return
    try:
        ends = pc.min_max(values).as_py()
    except (OverflowError, ValueError):  # Python's calendar ends at the year 9999
        return
    if None in ends.values():  # no key has a value that could be read
        return
    least, greatest = (one.isoformat() if pa.types.is_temporal(kind) else one for one in ends.values())
    yield from_least(name, least)
    yield to_greatest(name, greatest)
