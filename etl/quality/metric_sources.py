"""The sources of a GX metric's value when nobody looks at the data again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from etl.quality.verdict import SAMPLES_PER_RULE, Counts

Shape = Literal["value", "tuple", "dict"]


class MetricSource(Protocol):
    def value(self, counts: Counts) -> Any:
        """Return the metric's value, as GX itself would have computed it.

        Raises KeyError when the counts lack it.
        """


@dataclass(frozen=True, kw_only=True)
class Known:
    """A value fixed when the suite is compiled: what the schema says."""

    fixed: Any

    def value(self, counts: Counts) -> Any:  # noqa: ARG002 - one of several sources
        return self.fixed


@dataclass(frozen=True, kw_only=True)
class Rows:
    """How many rows a rule's domain has."""

    domain: int | None  # flag; None: every row

    def value(self, counts: Counts) -> int:
        return counts.rows if self.domain is None else counts.count(self.domain)


@dataclass(frozen=True, kw_only=True)
class Flagged:
    """How many rows of the domain have a flag that is true."""

    flag: int
    domain: Rows
    summed: bool  # GX sums ones here, and a sum over no rows is null, not 0

    def value(self, counts: Counts) -> int | None:
        if self.summed and self.domain.value(counts) == 0:
            return None
        return counts.count(self.flag)


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """Some of the rows that break a rule, in the shape in which its expectation wants them."""

    rule: int
    columns: tuple[str, ...]
    shape: Shape

    def value(self, counts: Counts) -> list[Any]:
        # Each task brings up to its limit; GX's counts of the sampled values are over the first ones only.
        samples = counts.samples.get(self.rule, ())[:SAMPLES_PER_RULE]
        rows = [tuple(_collected(value) for value in row) for row in samples]
        if self.shape == "value":
            return [row[0] for row in rows]
        if self.shape == "tuple":
            return list(rows)
        return [dict(zip(self.columns, row, strict=True)) for row in rows]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """An aggregate that Spark computed beside the pass."""

    name: str

    def value(self, counts: Counts) -> Any:
        from great_expectations.util import convert_to_json_serializable

        return convert_to_json_serializable(counts.aggregates[self.name])


@dataclass(frozen=True, kw_only=True)
class Derived:
    """A metric that GX computes from other metrics alone."""

    provider: Callable[..., Any]
    inputs: Mapping[str, MetricSource]

    def value(self, counts: Counts) -> Any:
        return self.provider(metrics={name: source.value(counts) for name, source in self.inputs.items()})


@dataclass(frozen=True, kw_only=True)
class Estimated:
    """How many different values a column has, by its sketch."""

    column: str

    def value(self, counts: Counts) -> int:
        return round(counts.columns[self.column].distinct_estimate() or 0)


@dataclass(frozen=True, kw_only=True)
class Latest:
    """A column's latest moment, in UTC without a zone, as GX compares moments."""

    column: str

    def value(self, counts: Counts) -> datetime | None:
        latest = counts.columns[self.column].latest
        return latest and latest.replace(tzinfo=None)


def _collected(value: Any) -> Any:
    # Arrow hands a timestamp over with its time zone; Spark's collect(), which GX uses, without, in the
    # process's own zone. Comparing or sorting the two kinds together fails.
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone().replace(tzinfo=None)
    # GX's results have no JSON for an interval, and fail over one sampled value.
    return str(value) if isinstance(value, timedelta) else value
