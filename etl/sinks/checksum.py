"""Order-independent checksums of rows: the sum of one 64-bit hash per row, modulo 2^64.

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
PIECE_BYTES = 1 << 16  # of a column at a time: what fits a core's cache
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_INVERSE = pow(_BASE, -1, MODULUS)


def checksum(batch: pa.RecordBatch, names: list[str]) -> int:
    """Return the checksum of the columns `names` of `batch`, in [0, 2^64)."""
    return int(row_hashes(batch, names).sum(dtype=np.uint64)) if batch.num_rows else 0


def row_hashes(batch: pa.RecordBatch, names: list[str]) -> Hashes:
    """Return one 64-bit hash a row, of the columns `names`."""
    rows = np.zeros(batch.num_rows, np.uint64)
    for name in names:
        rows += _column(batch.column(name), name)
    return mix(rows)


def _column(values: pa.Array, name: str) -> Hashes:
    hashes = mix(_values(values) + _seed(name))
    if values.null_count:
        hashes[values.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


@cache
def _seed(name: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))


def mix(x: Hashes) -> Hashes:
    """Apply the finalizer of splitmix64: every bit of the input changes half of the output's bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = x ^ (x >> np.uint64(31))
    return mixed


def _values(values: pa.Array) -> Hashes:
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _texts(values)
    if pa.types.is_decimal128(kind):
        halves = np.frombuffer(values.buffers()[1], np.uint64)[2 * values.offset :][: 2 * len(values)]
        return mix(halves[0::2]) + halves[1::2]
    if pa.types.is_floating(kind):
        return _floats(values)
    if pa.types.is_timestamp(kind):
        values = values.view(pa.int64())
    elif pa.types.is_date32(kind):
        values = values.view(pa.int32())
    if values.null_count:
        values = values.fill_null(False if pa.types.is_boolean(kind) else 0)
    hashes: Hashes = values.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    return hashes


def _floats(values: pa.Array) -> Hashes:
    numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False).astype(np.float64)
    numbers[np.isnan(numbers)] = np.nan  # NaN has many bit patterns; PostgreSQL keeps one
    hashes: Hashes = numbers.view(np.uint64)
    return hashes


def _texts(values: pa.Array) -> Hashes:
    """Return polynomial hashes of the texts' bytes, a piece of the column at a time.

    So memory does not grow with the texts.
    """
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[values.offset :][: len(values) + 1].astype(np.int64)
    hashes = np.zeros(len(values), np.uint64)
    if offsets[0] == offsets[-1]:
        return hashes
    data = np.frombuffer(data_buffer, np.uint8)
    first = 0
    while first < len(values):
        end = int(np.searchsorted(offsets, offsets[first] + PIECE_BYTES, side="right")) - 1
        if end > first:
            hashes[first:end] = _short(data, offsets[first : end + 1])
        else:
            end = first + 1
            hashes[first] = _long(data[offsets[first] : offsets[end]])
        first = end
    return hashes


def _short(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Hashes:
    """Return the hashes of all texts between `offsets` at once, as differences of one running sum."""
    powers, inverses = _powers()
    content = data[offsets[0] : offsets[-1]].astype(np.uint64) + np.uint64(1)
    sums = np.zeros(len(content) + 1, np.uint64)
    np.cumsum(content * powers[: len(content)], out=sums[1:])
    starts, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
    hashes: Hashes = (sums[ends] - sums[starts]) * inverses[starts] + (ends - starts).astype(np.uint64)
    return hashes


def _long(data: npt.NDArray[np.uint8]) -> int:
    """Return the hash of one text that is longer than a piece."""
    powers, _ = _powers()
    total, power = len(data), 1
    for start in range(0, len(data), PIECE_BYTES):
        content = data[start : start + PIECE_BYTES].astype(np.uint64) + np.uint64(1)
        total += power * int((content * powers[: len(content)]).sum(dtype=np.uint64))
        power = power * pow(_BASE, PIECE_BYTES, MODULUS) % MODULUS
    return total % MODULUS


@cache
def _powers() -> tuple[Hashes, Hashes]:
    def of(base: int) -> Hashes:
        factors = np.full(PIECE_BYTES + 1, base, np.uint64)
        factors[0] = 1
        return np.cumprod(factors, dtype=np.uint64)

    return of(_BASE), of(_INVERSE)
