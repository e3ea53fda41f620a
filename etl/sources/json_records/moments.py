"""Makes dates and moments of columns of texts by Arrow, where that is sure to give what `values` gives."""

from __future__ import annotations

import datetime as dt

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Flags = npt.NDArray[np.bool_]  # of records, within one batch

_LONGEST = 40  # characters of moments, and more
_FEW = 20  # texts of a length are few if all are so many times as many
# Of the years 2 to 9998, so that no offset leads out of those that a sink has; days that each month has.
_YEAR = "(?:000[2-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-8][0-9]{3}|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8])"
_LEAP_DAY = "[0-9]{2}(?:0[48]|[2468][048]|[13579][26])-02-29"  # but for those of whole centuries
_DAY = (
    f"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    f"|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)|{_LEAP_DAY})"
)
_CLOCK = r"(?:[01][0-9]|2[0-3])(?::[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,6})?)?)?"
_OFFSET = "(?:Z|[-+](?:0[0-9]|1[0-7])(?::?[0-5][0-9])?)"
_ZONED = rf"[T ][0-9:.]+{_OFFSET}\z"  # the end of a day alone looks like an offset


def flags(mask: pa.Array) -> Flags:
    """Return a mask for numpy, null being false."""
    flags: Flags = mask.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def is_moment(kind: pa.DataType) -> bool:
    """Tell whether values of a type are dates or moments."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date32(kind))


def moments(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Flags | None]:
    """Make dates or moments of texts, those without a zone in UTC; tell which are none, or none for sure, and null."""
    values, odd = _cast(texts, kind)
    # An offset may bring a moment of the year 0 into the year 1.
    beyond = pc.or_(beyond_years(values), pc.starts_with(texts, "0000"))
    if beyond.true_count:
        values = pc.if_else(beyond, None, values)
        odd = flags(beyond) if odd is None else odd | flags(beyond)
    return values, odd


def beyond_years(values: pa.Array) -> pa.Array:
    """Tell which moments are not of the years 1 to 9999: Arrow knows a year 0, and in UTC a year 10000."""
    year = pc.year(values)
    return pc.or_(pc.less(year, dt.MINYEAR), pc.greater(year, dt.MAXYEAR))


def _sure(kind: pa.DataType) -> str:
    """Return the pattern of texts that Arrow makes the same value of as `values`."""
    if pa.types.is_date32(kind):
        return rf"\A{_DAY}\z"
    return rf"\A{_DAY}(?:[T ]{_CLOCK}{f'{_OFFSET}?' if kind.tz else ''})?\z"


def _cast(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Flags | None]:
    """Cast texts, if Arrow takes not all then those of a usual length, or else those of a form that it takes for sure."""
    try:
        return _alike(texts, kind), None
    except pa.ArrowInvalid:
        usual = _of_usual_length(texts)
    try:
        return _alike(pc.if_else(usual, texts, None), kind), flags(pc.invert(usual))
    except pa.ArrowInvalid:
        sure = pc.match_substring_regex(texts, _sure(kind))
    return _with_and_without_zone(pc.if_else(sure, texts, None), kind), flags(pc.invert(sure))


def _alike(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast texts that all have a zone as the first one has, or none; raise ArrowInvalid where they are not alike.

    Arrow makes a message of each text that has none where all should: that takes longer than to cast them.
    """
    first = pc.index(texts.is_valid(), True).as_py()
    if pa.types.is_date32(kind) or kind.tz is None or first < 0:
        return texts.cast(kind)
    if pc.match_substring_regex(texts.slice(first, 1), _ZONED)[0].as_py():
        return texts.cast(kind)
    return texts.cast(pa.timestamp(kind.unit)).cast(kind)


def _of_usual_length(texts: pa.Array) -> pa.Array:
    """Tell which texts are as long as many others: most that are no moments are not."""
    lengths = np.minimum(pc.binary_length(texts).fill_null(0).to_numpy(), _LONGEST)
    usual = np.bincount(lengths, minlength=_LONGEST + 1) * _FEW > len(texts)
    return pc.if_else(texts.is_valid(), pa.array(usual[lengths]), None)


def _with_and_without_zone(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast texts each of which is one; Arrow wants a zone in all, or in none."""
    if pa.types.is_date32(kind) or kind.tz is None:
        return texts.cast(kind)
    zoned = pc.match_substring_regex(texts, _ZONED)
    in_utc = pc.if_else(zoned, None, texts).cast(pa.timestamp(kind.unit)).cast(kind)
    return pc.coalesce(pc.if_else(zoned, texts, None).cast(kind), in_utc)
