"""Measures the metrics of a pipeline's columns, as aggregates that Spark observes in the pass without a job of their own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etl.common.errors import SetupError
from etl.quality.metrics import LG_K, ColumnMetrics, K
from etl.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIRST = "timestamp'0001-01-02 00:00:00Z'"  # a day within Python's own calendar, in every time zone
_LAST = "timestamp'9999-12-30 00:00:00Z'"


def require_columns(columns: Sequence[str], schema: StructType, pipeline: str) -> None:
    """Raise SetupError for a column that the transform's output lacks."""
    if missing := [name for name in columns if name not in schema.fieldNames()]:
        raise SetupError(
            f"Pipeline {pipeline} keeps metrics of {', '.join(missing)}, and its output has the columns"
            f" {', '.join(schema.fieldNames())}",
            remedy="correct `metrics` in the declaration",
        )


def terms(columns: Sequence[str], schema: StructType) -> list[Column]:
    """Return the columns that `aggregates` are of.

    Spark computes a column by generated code, and interprets what a sketch is of for each row.
    """
    from pyspark.sql import functions as F

    return [
        term.alias(f"_metrics{number}_of_{what}")
        for number, name in enumerate(columns)
        for what, term in _terms(F.col(quoted(name)), schema[name].dataType).items()
    ]


def aggregates(columns: Sequence[str], schema: StructType) -> list[Column]:
    """Return the aggregates for Spark to observe of these columns' `terms`, named as `read_metrics` reads them."""
    from pyspark.sql import functions as F

    observed = []
    for number, name in enumerate(columns):
        column, kind = F.col(quoted(name)), schema[name].dataType
        of = {what: F.col(f"_metrics{number}_of_{what}") for what in _terms(column, kind)}
        figures = _figures(column, of, kind)
        observed += [figure.alias(f"_metrics{number}_{what}") for what, figure in figures.items()]
    return observed


def _terms(column: Column, kind: DataType) -> dict[str, Column]:
    from pyspark.sql import functions as F
    from pyspark.sql.types import (
        DateType,
        DoubleType,
        FloatType,
        NumericType,
        TimestampNTZType,
        TimestampType,
    )

    # Null has a hash as well; and a column that becomes wider has the same values as before.
    found = {"hash": F.when(column.isNotNull(), F.xxhash64(column.cast(_widest(kind))))}
    if isinstance(kind, DateType | TimestampType | TimestampNTZType):
        moment = column.cast("timestamp")
        found["moment"] = F.when(moment.between(F.expr(_FIRST), F.expr(_LAST)), F.unix_micros(moment))
    if isinstance(kind, NumericType):
        number = column.cast("double")
        found["number"] = (
            F.when(~F.isnan(number), number) if isinstance(kind, FloatType | DoubleType) else number
        )
    return found


def _figures(column: Column, of: Mapping[str, Column], kind: DataType) -> dict[str, Column]:
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, FloatType

    figures = {"present": F.count(column), "distinct": F.hll_sketch_agg(of["hash"], F.lit(LG_K))}
    if (moment := of.get("moment")) is not None:
        figures |= {"earliest": F.min(moment), "latest": F.max(moment)}
    if (number := of.get("number")) is not None:
        if isinstance(kind, FloatType | DoubleType):
            figures["nans"] = F.count_if(F.isnan(column))
        figures |= {"minimum": F.min(number), "maximum": F.max(number), "mean": F.avg(number)}
        figures |= {
            "deviation": F.stddev_pop(number),
            "quantiles": F.kll_sketch_agg_double(number, F.lit(K)),
        }
    return figures


def _widest(kind: DataType) -> DataType:
    """Return the type in which a value is hashed: the same one before and after the column was made wider."""
    from pyspark.sql.types import DecimalType, DoubleType, FloatType, IntegralType, LongType

    if isinstance(kind, IntegralType):
        return LongType()
    if isinstance(kind, FloatType):
        return DoubleType()
    return DecimalType(38, kind.scale) if isinstance(kind, DecimalType) else kind


def read_metrics(columns: Sequence[str], rows: int, observed: Mapping[str, Any]) -> tuple[ColumnMetrics, ...]:
    """Return each column's metrics, in order, from what was observed of a batch of so many rows."""
    return tuple(_metrics(name, f"_metrics{number}_", rows, observed) for number, name in enumerate(columns))


def _metrics(name: str, prefix: str, rows: int, observed: Mapping[str, Any]) -> ColumnMetrics:
    figures = {key.removeprefix(prefix): value for key, value in observed.items() if key.startswith(prefix)}
    figures["nulls"] = rows - figures.pop("present")
    figures |= {key: _moment(figures[key]) for key in ("earliest", "latest") if key in figures}
    figures |= {key: bytes(figures[key]) for key in ("distinct", "quantiles") if key in figures}
    return ColumnMetrics(column=name, rows=rows, **figures)


def _moment(micros: int | None) -> dt.datetime | None:
    return None if micros is None else EPOCH + dt.timedelta(microseconds=micros)
