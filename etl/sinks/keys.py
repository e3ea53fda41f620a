"""Keys as PostgreSQL compares them: values that are one key to it and have other bits."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc


def without_negative_zeros(rows: pa.RecordBatch, keys: Iterable[str]) -> pa.RecordBatch:
    """Return `rows` with 0.0 for each -0.0 of their keys.

    PostgreSQL takes both for one key and keeps the first that came; a hash of the bits tells them apart.
    """
    for name in keys:
        place = rows.schema.get_field_index(name)
        field = rows.schema.field(place)
        if pa.types.is_floating(field.type):
            rows = rows.set_column(place, field, pc.add(rows.column(place), pa.scalar(0.0, field.type)))
    return rows
