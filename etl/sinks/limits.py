"""Finds values that a sink can't hold, before they make a whole COPY or a commit fail.

Source: PostgreSQL 18 manual, 8.3 (character types: no NUL, valid in the server's encoding) and table 8.9
(date/time types: ranges).
"""

from __future__ import annotations

import urllib.parse

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.common.wording import is_utf8_text

# 4713-11-24 BC (proleptic Gregorian), Julian day 0, in days since 1970
_FIRST_DAY = -2_440_588
_LAST_DATE = 2_145_031_948  # 5874897-12-31, in days since 1970
_LAST_TIMESTAMP = (
    2**63 - 1
)  # PostgreSQL's last, in the year 294276, is beyond what 64 bits of microseconds reach
_LONGEST_KEY = 1_000  # bytes of one column
_LONGEST_KEYS = 2_500  # of all together: a btree entry has about 2,700
_LONGEST_FOLDER = 255  # bytes of a part of an object's path, in stores that keep objects as files
_DAY = 86_400_000_000  # microseconds
_FIRST_TIMESTAMP = _FIRST_DAY * _DAY
# The years 1 to 9999, in days since 1970: Iceberg's writer names partitions with Python's calendar
_FIRST_PARTITION, _LAST_PARTITION = -719_162, 2_932_896


def breaches(
    rows: pa.RecordBatch, *, keys: tuple[str, ...] = (), partitioned_by: str | None = None
) -> list[tuple[str, pa.Array]]:
    """Return (reason, rows that break it) for each column with values that a sink can't hold.

    That is what PostgreSQL can't hold, or can't key, or by which the lake can't be partitioned.
    """
    breached = []
    for name in keys:
        breached += _key(name, rows.column(name), min(_LONGEST_KEY, _LONGEST_KEYS // len(keys)))
    for name, values in zip(rows.schema.names, rows.columns, strict=True):
        kind = values.type
        if pa.types.is_string(kind):
            breached += _texts(name, values)
        elif pa.types.is_timestamp(kind):
            breached += _range(name, values.view(pa.int64()), _FIRST_TIMESTAMP, _LAST_TIMESTAMP)
        elif pa.types.is_date32(kind):
            breached += _range(name, values.view(pa.int32()), _FIRST_DAY, _LAST_DATE)
    if partitioned_by is not None:
        breached += _partition(partitioned_by, rows.column(partitioned_by))
    return breached


def _partition(name: str, values: pa.Array) -> list[tuple[str, pa.Array]]:
    first, last, reason = _FIRST_PARTITION, _LAST_PARTITION, f"lake_partition({name})"
    if pa.types.is_timestamp(values.type):
        return _range(name, values.view(pa.int64()), first * _DAY, (last + 1) * _DAY - 1, reason)
    if pa.types.is_date32(values.type):
        return _range(name, values.view(pa.int32()), first, last, reason)
    if pa.types.is_string(values.type):
        return _folders(name, values, reason)
    return []


def _folders(name: str, values: pa.Array, reason: str) -> list[tuple[str, pa.Array]]:
    """Find texts that, as objects' paths have them, are longer than a folder's name may be."""
    most = _LONGEST_FOLDER - len(urllib.parse.quote(name, safe="") + "=")
    if 3 * (pc.max(pc.binary_length(values)).as_py() or 0) <= most:  # each byte becomes three at most
        return []
    different = [text for text in pc.unique(values.cast(pa.binary())).to_pylist() if text is not None]
    long = [text for text in different if len(urllib.parse.quote(text, safe="")) > most]
    return [(reason, pc.is_in(values.cast(pa.binary()), pa.array(long, pa.binary())))] if long else []


def _key(name: str, values: pa.Array, longest: int) -> list[tuple[str, pa.Array]]:
    breached = [(f"null_key({name})", values.is_null())] if values.null_count else []
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        long = pc.greater(pc.binary_length(values), longest).fill_null(False)
        if long.true_count:
            breached.append((f"postgres_key_length({name})", long))
    return breached


def _range(
    name: str, values: pa.Array, first: int, last: int, reason: str | None = None
) -> list[tuple[str, pa.Array]]:
    ends = pc.min_max(values).as_py()
    if ends["min"] is None or (ends["min"] >= first and ends["max"] <= last):
        return []
    wide = values.cast(pa.int64())
    beyond = pc.or_(pc.less(wide, first), pc.greater(wide, last))
    return [(reason or f"postgres_range({name})", beyond.fill_null(False))]


def _texts(name: str, values: pa.Array) -> list[tuple[str, pa.Array]]:
    _, offsets, data = values.buffers()
    if data is None or len(values) == 0:
        return []
    ends = np.frombuffer(offsets, np.int32)[values.offset :][: len(values) + 1]
    content = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    breached = []
    if len(content) and content.min() == 0:
        nul = pc.match_substring(values.cast(pa.binary()), b"\x00")
        breached.append((f"postgres_nul({name})", nul.fill_null(False)))
    if not _valid_utf8(values):
        invalid = [
            value is not None and not is_utf8_text(value) for value in values.cast(pa.binary()).to_pylist()
        ]
        breached.append((f"postgres_encoding({name})", pa.array(invalid)))
    return breached


def repaired(values: pa.Array) -> pa.Array:
    """Return `values` with each byte that is not UTF-8 written as \\xNN, so that any reader can read them."""
    if not pa.types.is_string(values.type) or _valid_utf8(values):
        return values
    texts = values.cast(pa.binary()).to_pylist()
    return pa.array(
        [None if text is None else text.decode(errors="backslashreplace") for text in texts], pa.string()
    )


def _valid_utf8(values: pa.Array) -> bool:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
