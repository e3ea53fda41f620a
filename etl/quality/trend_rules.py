"""Rules that compare a batch with earlier batches: Great Expectations' own, with bounds from the history.

Such an expectation names no bounds. Its `meta.across` says how far the batch may be from the last ones:

    {"type": "expect_table_row_count_to_be_between", "severity": "warning",
     "meta": {"name": "volume", "across": {"last": 20, "at_least": 5, "times": [0.5, 2]}}}

`times` bounds the value by multiples of the median of the last batches, `within` by a distance from that median, and
`deviations` by so many standard deviations around their mean. The latest moment of a column is judged by its age when
the batch is judged: `times` and `within` then bound how old it may be. With fewer than `at_least` batches before it,
and where a batch has no rows, nothing is known that it could be compared with, and the rule holds. With `"same": "weekday"`
the last batches are those that were delivered on the batch's own day of the week, in the pipeline's time zone.
"""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etl.quality.metrics import PastBatch

LAST, AT_LEAST = 20, 5
WAYS = ("times", "within", "deviations")
ROW_COUNT = "expect_table_row_count_to_be_between"
LATEST = "expect_column_max_to_be_between"
MEAN = "expect_column_mean_to_be_between"


def _null_free(past: PastBatch, column: str) -> float | None:
    share = past.columns[column].null_share
    return None if share is None else 1 - share


def _age(past: PastBatch, column: str) -> float | None:
    latest = past.columns[column].latest
    return None if latest is None else (past.committed_at - latest).total_seconds()


VALUES: Mapping[str, Callable[[PastBatch, str], float | None]] = {
    ROW_COUNT: lambda past, _: float(past.rows),
    "expect_column_proportion_of_non_null_values_to_be_between": _null_free,
    "expect_column_unique_value_count_to_be_between": lambda past, column: past.distinct.get(column),
    MEAN: lambda past, column: past.columns[column].mean,
    LATEST: _age,
}


@dataclass(frozen=True, kw_only=True)
class Across:
    """How far from the last batches a batch may be."""

    kind: str  # GX's snake case type
    column: str  # "" for the number of rows
    last: int
    at_least: int
    way: str
    bounds: tuple[float, float]  # of `within` and `deviations` both are the same number
    same_weekday: bool = False  # batches of other days of the week do not count

    @classmethod
    def of(cls, kind: str, column: str, kwargs: Mapping[str, Any], declared: Any) -> Across:
        """Read `meta.across` as it is declared; raise ValueError that says what is wrong with it."""
        if kind not in VALUES:
            raise ValueError(f"it can't be judged across batches; {', '.join(VALUES)} can")
        if taken := [
            name for name in ("min_value", "max_value", "row_condition") if kwargs.get(name) is not None
        ]:
            raise ValueError(f"it can't have both {', '.join(taken)} and meta.across")
        if not isinstance(declared, Mapping) or set(declared) - {"last", "at_least", "same", *WAYS}:
            raise ValueError(f"meta.across takes last, at_least, same and one of {', '.join(WAYS)}")
        if declared.get("same") not in (None, "weekday"):
            raise ValueError(f"meta.across: same is {declared['same']!r}, and can be 'weekday' alone")
        ways = [way for way in WAYS if way in declared]
        if len(ways) != 1 or (kind == LATEST and ways == ["deviations"]):
            one_of = WAYS[:2] if kind == LATEST else WAYS
            raise ValueError(f"its meta.across takes exactly one of {', '.join(one_of)}")
        last, at_least = declared.get("last", LAST), declared.get("at_least", AT_LEAST)
        if not (_is_whole(last) and _is_whole(at_least) and 1 <= at_least <= last <= 1000):
            raise ValueError("meta.across: 1 <= at_least <= last <= 1000, whole numbers, must hold")
        bounds = _bounds(ways[0], declared[ways[0]])
        return cls(
            kind=kind,
            column=column,
            last=last,
            at_least=at_least,
            way=ways[0],
            bounds=bounds,
            same_weekday="same" in declared and declared["same"] is not None,
        )

    def limits(self, past: Sequence[PastBatch], now: dt.datetime) -> dict[str, Any] | None:
        """Return min_value and max_value for the next batch; None where too few of those before have a value.

        `past` are the batches before it, newest first.
        """
        value = VALUES[self.kind]
        alike = [one for one in past if one.is_of_weekday(now)] if self.same_weekday else past
        known = [value(one, self.column) for one in alike[: self.last] if self._is_known(one)]
        values = [one for one in known if one is not None and math.isfinite(one)]
        if len(values) < self.at_least:
            return None
        low, high = self._around(values)
        if self.kind == LATEST:
            return {"min_value": _before(now, high), "max_value": None}
        return {"min_value": low, "max_value": high}

    def _is_known(self, past: PastBatch) -> bool:
        return not self.column or self.column in past.columns

    def _around(self, values: Sequence[float]) -> tuple[float, float]:
        low, high = self.bounds
        if self.way == "deviations":
            middle, unit = statistics.fmean(values), statistics.pstdev(values)
            return middle - low * unit, middle + high * unit
        middle = statistics.median(values)
        if self.way == "within":
            return middle - low, middle + high
        return min(middle * low, middle * high), max(middle * low, middle * high)


def _before(now: dt.datetime, age: float) -> dt.datetime:
    """Return the moment `age` seconds before `now`, in UTC without a zone.

    It is the first moment that Python has where it would be earlier.
    """
    try:
        return (now - dt.timedelta(seconds=max(age, 0))).astimezone(dt.UTC).replace(tzinfo=None)
    except OverflowError:
        return dt.datetime.min  # noqa: DTZ901 - compared with moments that have none


def _bounds(way: str, given: Any) -> tuple[float, float]:
    if way == "times":
        if not (
            isinstance(given, list | tuple) and len(given) == 2 and all(_is_number(one) for one in given)
        ):
            raise ValueError(f"meta.across: times is {given!r}, and must be two numbers such as [0.5, 2]")
        low, high = float(given[0]), float(given[1])
        if not 0 <= low <= high:
            raise ValueError(f"meta.across: times is {given!r}; the first must not be above the second")
        return low, high
    if not _is_number(given):
        raise ValueError(f"meta.across: {way} is {given!r}, and must be a number of 0 or more")
    return float(given), float(given)


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given < float("inf")


def _is_whole(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)
