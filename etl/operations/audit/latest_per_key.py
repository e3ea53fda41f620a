"""Checks that the table of an upsert sink has exactly the latest row per key of the lake's change log.

Both sides are reduced to 56 bytes a row and spread over files on disk by key, so that memory is bounded by
one such file, however many rows and keys there are.
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from etl.sinks.checksum import Hashes, mix, row_hashes
from etl.sinks.columns import DELIVERY, SYSTEM_COLUMNS
from etl.sinks.keys import without_negative_zeros

ROWS_A_FILE = 500_000
MOST_FILES = 200
_WORDS = ("key", "row", "has", "high", "low")
_RECORD = np.dtype([*((name, "u8") for name in _WORDS), ("seq", "i8"), ("delivery", "i8")])
_RANK = ("has", "high", "low", "seq")  # what makes a row of a key the latest, most telling first
_SIGN = np.uint64(1 << 63)

Records = npt.NDArray[np.void]


@dataclass(frozen=True, kw_only=True)
class Latest:
    """What was compared; a delivery is the one that the row in question names."""

    keys: int
    missing: Counter[int]  # latest rows of the log whose key the table has not
    unknown: Counter[int]  # rows of the table whose key the log has not
    other: Counter[int]  # rows of the table that are not the latest of their key
    doubled: Counter[int]  # rows of the table whose key it has more than once


class LatestPerKey:
    """A comparison that takes rows of both sides in any order and from any thread, then compares them."""

    def __init__(
        self, columns: pa.Schema, *, keys: tuple[str, ...], newest: str, order: Mapping[int, int], rows: int
    ) -> None:
        self._names = [*columns.names, *SYSTEM_COLUMNS]
        self._keys = list(keys)
        self._newest = newest
        self._order = order  # delivery -> commit_seq
        self._files = min(MOST_FILES, 1 + rows // ROWS_A_FILE)
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-audit-")
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def log(self, batch: pa.RecordBatch) -> None:
        """Take rows of the lake's change log."""
        self._spread("log", batch)

    def table(self, batch: pa.RecordBatch) -> None:
        """Take rows of the table."""
        self._spread("table", batch)

    def _spread(self, side: str, batch: pa.RecordBatch) -> None:
        batch = without_negative_zeros(batch, self._keys)  # which deliveries of older versions may have
        extra = [name for name in batch.schema.names if name not in self._names]
        records = np.zeros(batch.num_rows, _RECORD)
        records["key"] = row_hashes(batch, self._keys)
        records["row"] = row_hashes(batch, [*self._names, *extra])
        records["has"], records["high"], records["low"] = _rank(batch.column(self._newest))
        deliveries = batch.column(DELIVERY).fill_null(0).to_numpy(zero_copy_only=False)
        records["delivery"] = deliveries
        known, codes = np.unique(deliveries, return_inverse=True)
        records["seq"] = np.array([self._order.get(int(one), 0) for one in known], np.int64)[codes]
        if _is_unranked(batch.schema.field(self._newest).type):
            records["seq"] = 0  # any row of the key will do
        part = records["key"] % np.uint64(self._files)
        with self._lock:
            for number in np.unique(part).tolist():
                with self._file(side, number).open("ab") as file:
                    file.write(records[part == number].tobytes())

    def _file(self, side: str, number: int) -> Path:
        return Path(self._folder.name, f"{side}-{number}")

    def _read(self, side: str, number: int) -> Records:
        file = self._file(side, number)
        records: Records = np.fromfile(file, _RECORD) if file.exists() else np.zeros(0, _RECORD)
        return records[np.lexsort([records[name] for name in (*reversed(_RANK), "key")])]

    def compare(self) -> Latest:
        """Compare what was taken of both sides."""
        total = Latest(keys=0, missing=Counter(), unknown=Counter(), other=Counter(), doubled=Counter())
        keys = 0
        for number in range(self._files):
            keys += _compare(self._read("log", number), self._read("table", number), total)
        return Latest(
            keys=keys, missing=total.missing, unknown=total.unknown, other=total.other, doubled=total.doubled
        )


def _compare(log: Records, table: Records, into: Latest) -> int:
    """Compare one file of each side, both sorted by key and rank; returns how many keys the log has."""
    last = np.append(log["key"][1:] != log["key"][:-1], True)[: len(log)]
    latest = log[last]
    tied = log[_equal(log, latest[np.searchsorted(latest["key"], log["key"])], ("key", *_RANK))]
    repeated = np.append(False, table["key"][1:] == table["key"][:-1])[: len(table)]
    into.doubled.update(table["delivery"][repeated].tolist())
    known = np.isin(table["key"], latest["key"])
    into.unknown.update(table["delivery"][~known].tolist())
    into.missing.update(latest["delivery"][~np.isin(latest["key"], table["key"])].tolist())
    right = np.isin(_pairs(table), _pairs(tied))
    into.other.update(table["delivery"][known & ~right].tolist())
    return len(latest)


def _equal(left: Records, right: Records, names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    same = np.ones(len(left), bool)
    for name in names:
        same &= left[name] == right[name]
    return same


def _pairs(records: Records) -> Hashes:
    """Return one number for each key and its row."""
    pairs: Hashes = mix(records["key"]) + records["row"]
    return pairs


def _is_unranked(kind: pa.DataType) -> bool:
    """Tell whether values of this type have no rank.

    Texts are ordered by the column's collation, and bytes don't fit a rank's words.
    """
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _rank(values: pa.Array) -> tuple[Hashes, Hashes, Hashes]:
    """Return (is not null, high word, low word), ordered as PostgreSQL orders the values; nulls come first.

    All are 0 for a type that has no rank here.
    """
    has = values.is_valid().to_numpy(zero_copy_only=False).astype(np.uint64)
    kind, none = values.type, np.zeros(len(values), np.uint64)
    if _is_unranked(kind):
        return none, none, none
    if pa.types.is_decimal128(kind):
        halves = np.frombuffer(values.buffers()[1], np.uint64)[2 * values.offset :][: 2 * len(values)]
        return has, (halves[1::2] ^ _SIGN) * has, halves[0::2] * has
    if pa.types.is_floating(kind):
        numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False).astype(np.float64)
        numbers = numbers + 0.0  # -0.0 equals 0.0
        bits = np.where(np.isnan(numbers), np.float64("nan"), numbers).view(np.uint64)
        ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN)
        ordered[np.isnan(numbers)] = np.uint64(2**64 - 1)  # NaN is PostgreSQL's greatest number
        return has, ordered * has, none
    if pa.types.is_timestamp(kind):
        values = values.view(pa.int64())
    elif pa.types.is_date(kind):
        values = values.view(pa.int32())
    filled = values.fill_null(False if pa.types.is_boolean(kind) else 0)
    whole = filled.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    return has, (whole ^ _SIGN) * has, none
