"""The metrics of a batch's column: figures, and sketches that can be merged, so that no span of batches is read again.

Both sketches are Apache DataSketches', which Spark writes and any of its libraries reads: HLL over the values'
hashes, with a relative standard error of 1.6 % (lg k = 12), and KLL over the numbers, with a rank error of
1.3 % (k = 200); see https://datasketches.apache.org. Imports them only when a sketch is looked into.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasketches import hll_sketch, kll_doubles_sketch

LG_K = 12  # of HLL
K = 200  # of KLL
SKETCHES = ("distinct", "quantiles")
RANKS = {"p05": 0.05, "p50": 0.5, "p95": 0.95}  # of the numbers, by the names that their quantiles have


@dataclass(frozen=True, kw_only=True)
class ColumnMetrics:
    """One column over the rows of one batch, or of several: held rows included, malformed records not."""

    column: str
    rows: int
    nulls: int
    nans: int = 0
    minimum: float | None = None  # of numbers that are neither null nor NaN, as are the next three
    maximum: float | None = None
    mean: float | None = None
    deviation: float | None = None  # of the population
    earliest: dt.datetime | None = None  # of moments and dates from the year 1 to 9999, in UTC
    latest: dt.datetime | None = None
    distinct: bytes | None = None  # HLL sketch of the values
    quantiles: bytes | None = None  # KLL sketch of the numbers

    @property
    def values(self) -> int:
        """Return the number of rows with a value that is no NaN."""
        return self.rows - self.nulls - self.nans

    @property
    def null_share(self) -> float | None:
        return self.nulls / self.rows if self.rows else None

    def distinct_estimate(self) -> float | None:
        """Estimate how many different values there are; None without a sketch."""
        return None if self.distinct is None else float(_hll(self.distinct).get_estimate())

    def quantile(self, rank: float) -> float | None:
        """Estimate the number below which a share of `rank` of the numbers lies; None without any number."""
        sketch = None if self.quantiles is None else _kll(self.quantiles)
        return None if sketch is None or sketch.is_empty() else float(sketch.get_quantile(rank))

    def json(self) -> dict[str, Any]:
        """Return the metrics as JSON values, the sketches in base64; what is None is left out."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        values |= {name: values[name].isoformat() for name in ("earliest", "latest") if name in values}
        return values | {name: base64.b64encode(values[name]).decode() for name in SKETCHES if name in values}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> ColumnMetrics:
        """Read metrics from what `json` made."""
        moments = {
            name: dt.datetime.fromisoformat(values[name]) for name in ("earliest", "latest") if name in values
        }
        sketches = {name: base64.b64decode(values[name]) for name in SKETCHES if name in values}
        return cls(**{**values, **moments, **sketches})


def merged(parts: Sequence[ColumnMetrics]) -> ColumnMetrics:
    """Merge `parts`, at least one, to one column over all their rows, as if they had been a single batch."""
    return ColumnMetrics(
        column=parts[0].column,
        rows=sum(one.rows for one in parts),
        nulls=sum(one.nulls for one in parts),
        nans=sum(one.nans for one in parts),
        minimum=min((one.minimum for one in parts if one.minimum is not None), default=None),
        maximum=max((one.maximum for one in parts if one.maximum is not None), default=None),
        earliest=min((one.earliest for one in parts if one.earliest is not None), default=None),
        latest=max((one.latest for one in parts if one.latest is not None), default=None),
        distinct=_merged_distinct(parts),
        quantiles=_merged_quantiles(parts),
        **_pooled(parts),
    )


def _pooled(parts: Sequence[ColumnMetrics]) -> dict[str, float | None]:
    """Return mean and deviation of the parts' numbers together (Chan, Golub and LeVeque, 1979)."""
    known = [(one.values, one.mean, one.deviation or 0.0) for one in parts if one.mean is not None]
    count = sum(values for values, _, _ in known)
    if not count:
        return {"mean": None, "deviation": None}
    mean = sum(values * mean for values, mean, _ in known) / count
    squares = sum(
        values * (deviation * deviation + (one - mean) * (one - mean)) for values, one, deviation in known
    )
    return {"mean": mean, "deviation": math.sqrt(squares / count)}


def _merged_distinct(parts: Sequence[ColumnMetrics]) -> bytes | None:
    """Merge the parts' HLL sketches; None unless every part has one, for one part's would speak for all."""
    from datasketches import hll_union, tgt_hll_type

    if any(one.distinct is None for one in parts):
        return None
    union = hll_union(LG_K)
    for one in parts:
        union.update(_hll(one.distinct or b""))
    return bytes(union.get_result(tgt_hll_type.HLL_8).serialize_updatable())


def _merged_quantiles(parts: Sequence[ColumnMetrics]) -> bytes | None:
    from datasketches import kll_doubles_sketch

    if any(one.quantiles is None for one in parts):
        return None
    union = kll_doubles_sketch(K)
    for one in parts:
        union.merge(_kll(one.quantiles or b""))
    return bytes(union.serialize())


def _hll(sketch: bytes) -> hll_sketch:
    from datasketches import hll_sketch

    return hll_sketch.deserialize(sketch)


def _kll(sketch: bytes) -> kll_doubles_sketch:
    from datasketches import kll_doubles_sketch

    return kll_doubles_sketch.deserialize(sketch)


@dataclass(frozen=True, kw_only=True)
class PastBatch:
    """A delivered batch, as rules across batches compare with it."""

    rows: int  # of the transform's output
    committed_at: dt.datetime  # in the pipeline's time zone
    columns: Mapping[str, ColumnMetrics]  # figures without sketches
    distinct: Mapping[str, float]  # estimates

    def is_of_weekday(self, moment: dt.datetime) -> bool:
        """Tell whether it was delivered on the same day of the week as `moment` is, in the pipeline's time zone."""
        return self.committed_at.weekday() == moment.astimezone(self.committed_at.tzinfo).weekday()
