"""Order-independent checksums of rows: the sum of one 64-bit hash a row, modulo 2^64.

Equal multisets of rows have equal checksums, however they are ordered, split into batches or stored. A
null adds nothing, so a column that was added later leaves the checksums of earlier rows as they are.
"""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]

MODULUS = 2**64
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_INVERSE = pow(_BASE, -1, MODULUS)


def checksum(batch: pa.RecordBatch, names: list[str]) -> int:
    """The checksum of the columns `names` of `batch`, in [0, 2^64)."""
    if batch.num_rows == 0:
        return 0
    rows = np.zeros(batch.num_rows, np.uint64)
    for name in names:
        rows += _column(batch.column(name), name)
    return int(_mix(rows).sum(dtype=np.uint64))


def _column(values: pa.Array, name: str) -> Hashes:
    hashes = _mix(_values(values) + _seed(name))
    if values.null_count:
        hashes[values.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


@cache
def _seed(name: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))


def _mix(x: Hashes) -> Hashes:
    """The finalizer of splitmix64: every bit of the input changes half of the output's bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = x ^ (x >> np.uint64(31))
    return mixed


def _values(values: pa.Array) -> Hashes:
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _texts(values)
    if pa.types.is_decimal128(kind):
        words = np.frombuffer(values.buffers()[1], np.uint64)[2 * values.offset :][: 2 * len(values)]
        return _mix(words[0::2]) + words[1::2]
    if pa.types.is_floating(kind):
        return _floats(values)
    if pa.types.is_timestamp(kind):
        values = values.view(pa.int64())
    elif pa.types.is_date32(kind):
        values = values.view(pa.int32())
    if values.null_count:
        values = values.fill_null(False if pa.types.is_boolean(kind) else 0)
    return values.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)


def _floats(values: pa.Array) -> Hashes:
    numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False).astype(np.float64)
    numbers[np.isnan(numbers)] = np.nan  # NaN has many bit patterns; PostgreSQL keeps one
    return numbers.view(np.uint64)


def _texts(values: pa.Array) -> Hashes:
    """Polynomial hashes of the bytes, for all values at once: differences of one running sum."""
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[values.offset :][: len(values) + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    offsets -= first
    if first == last:
        return np.zeros(len(values), np.uint64)
    data = np.frombuffer(data_buffer, np.uint8)[first:last].astype(np.uint64) + np.uint64(1)
    powers, inverses = _powers(1 << (last - first).bit_length())
    sums = np.zeros(len(data) + 1, np.uint64)
    np.cumsum(data * powers[: len(data)], out=sums[1:])
    starts, ends = offsets[:-1], offsets[1:]
    return (sums[ends] - sums[starts]) * inverses[starts] + (ends - starts).astype(np.uint64)


@cache
def _powers(count: int) -> tuple[Hashes, Hashes]:
    def of(base: int) -> Hashes:
        factors = np.full(count + 1, base, np.uint64)
        factors[0] = 1
        return np.cumprod(factors, dtype=np.uint64)

    return of(_BASE), of(_INVERSE)
