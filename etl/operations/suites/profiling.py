"""Profiles stored rows column by column, in one aggregation with bounded memory.

Values and shapes are counted by sketches that are exact while there are few of them; they were exact where their counts
add up to the rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from etl.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

QUANTILES = (0.001, 0.5, 0.999)
MOST_VALUES = 30  # beyond it a column is not of low cardinality
MOST_SHAPES = 6
RUN = "\x01"  # after a class that comes several times in a row
_TRACKED = 512  # items of a sketch
_TRACKED_TEXT = 200  # characters; longer texts are neither values of a set nor shapes


@dataclass(frozen=True, kw_only=True)
class NumberProfile:
    """The numbers of a column, NaN left out."""

    low: float  # the 0.1 % quantile, approximately
    median: float
    high: float  # the 99.9 % quantile, approximately
    smallest: float
    largest: float


@dataclass(frozen=True, kw_only=True)
class TextProfile:
    """The texts of a column."""

    shortest: int  # characters
    longest: int
    shapes: Mapping[str, int] | None  # `shape` -> rows; None: more than MOST_SHAPES
    runs: Mapping[str, int] | None  # the same with each run of one class as one


@dataclass(frozen=True, kw_only=True)
class ColumnProfile:
    """One column of the rows."""

    name: str
    kind: str  # the name of Spark's type class, such as StringType
    rows: int
    nulls: int
    distinct: int  # approximately
    values: Mapping[Any, int] | None  # value -> rows; None: more than MOST_VALUES
    numbers: NumberProfile | None
    texts: TextProfile | None

    @property
    def given(self) -> int:
        """Return how many rows have a value."""
        return self.rows - self.nulls


def profile(frame: DataFrame) -> list[ColumnProfile]:
    """Profile each column, in one job over the frame."""
    from pyspark.sql import functions as F

    fields = frame.schema.fields
    wanted = [F.count(F.lit(1)).alias("rows")]
    for number, field in enumerate(fields):
        wanted += [column.alias(f"{number} {name}") for name, column in _measures(field).items()]
    (row,) = frame.agg(*wanted).collect()
    figures = row.asDict()
    return [
        _profile(
            field, figures["rows"], {k.split(" ", 1)[1]: v for k, v in figures.items() if _is_of(k, number)}
        )
        for number, field in enumerate(fields)
    ]


def _is_of(name: str, number: int) -> bool:
    return name.startswith(f"{number} ")


def is_number(kind: DataType) -> bool:
    from pyspark.sql.types import NumericType

    return isinstance(kind, NumericType)


def _is_whole(kind: DataType) -> bool:
    from pyspark.sql.types import IntegralType

    return isinstance(kind, IntegralType)


def _is_text(kind: DataType) -> bool:
    from pyspark.sql.types import StringType

    return isinstance(kind, StringType)


def _measures(field: StructField) -> dict[str, Column]:
    from pyspark.sql import functions as F

    column, kind = F.col(quoted(field.name)), field.dataType
    measures = {"given": F.count(column), "distinct": F.approx_count_distinct(column)}
    if is_number(kind):
        number = column.cast("double")
        number = F.when(~F.isnan(number), number)
        measures |= {
            "quantiles": F.percentile_approx(number, list(QUANTILES)),
            "smallest": F.min(number),
            "largest": F.max(number),
        }
    if _is_whole(kind):
        measures["values"] = _counted(column, MOST_VALUES)
    if _is_text(kind):
        short = F.substring(column, 1, _TRACKED_TEXT)
        measures |= {
            "values": _counted(short, MOST_VALUES),
            "shortest": F.min(F.length(column)),
            "longest": F.max(F.length(column)),
            "shapes": _counted(_shape(short), MOST_SHAPES),
            "runs": _counted(F.regexp_replace(_shape(short), "([Aa9])\\1+", f"$1{RUN}"), MOST_SHAPES),
        }
    return measures


def _counted(column: Column, most: int) -> Column:
    """Count the `most` frequent values and nulls, and one value more, which tells that there are more."""
    from pyspark.sql import functions as F

    return F.call_function("approx_top_k", column, F.lit(most + 2), F.lit(_TRACKED))


def _shape(text: Column) -> Column:
    """Write each digit as 9, each capital as A and each small letter as a; all else stays as it is."""
    from pyspark.sql import functions as F

    for characters, instead in (("[0-9]", "9"), ("[A-Z]", "A"), ("[a-z]", "a")):
        text = F.regexp_replace(text, characters, instead)
    return text


def _profile(field: StructField, rows: int, figures: Mapping[str, Any]) -> ColumnProfile:
    numbers = texts = None
    if figures.get("quantiles"):
        low, median, high = (float(value) for value in figures["quantiles"])
        numbers = NumberProfile(
            low=low, median=median, high=high, smallest=figures["smallest"], largest=figures["largest"]
        )
        if not all(math.isfinite(value) for value in (low, high)):
            numbers = None
    if figures.get("longest") is not None:
        whole = figures["longest"] <= _TRACKED_TEXT
        texts = TextProfile(
            shortest=figures["shortest"],
            longest=figures["longest"],
            shapes=_all_of(figures["shapes"], rows, MOST_SHAPES) if whole else None,
            runs=_all_of(figures["runs"], rows, MOST_SHAPES) if whole else None,
        )
    values = _all_of(figures["values"], rows, MOST_VALUES) if "values" in figures else None
    if _is_text(field.dataType) and (texts is None or texts.longest > _TRACKED_TEXT):
        values = None
    return ColumnProfile(
        name=field.name,
        kind=type(field.dataType).__name__,
        rows=rows,
        nulls=rows - figures["given"],
        distinct=figures["distinct"],
        values=values,
        numbers=numbers,
        texts=texts,
    )


def _all_of(items: Any, rows: int, most: int) -> dict[Any, int] | None:
    """Return the values that were counted, null left out, if they are all there are; else None."""
    counts = {item["item"]: item["count"] for item in items or ()}
    if sum(counts.values()) != rows:
        return None
    counts.pop(None, None)
    return counts if 0 < len(counts) <= most else None


_CLASSES = {"A": "[A-Z]", "a": "[a-z]", "9": "[0-9]"}


def shape_regex(shape: str) -> str:
    """Return a regular expression, for Java as for Python, of the texts that have this shape."""
    parts = []
    for character, run in groupby(shape):
        length = len(list(run))
        part = _CLASSES.get(character) or re.escape(character)
        parts.append(part if length == 1 else f"{part}{{{length}}}")
    return "".join(parts)


def runs_regex(runs: str) -> str:
    """Return a regular expression, for Java as for Python, of texts in whose shape each run is written as one."""
    return "".join(
        (_CLASSES.get(one[0]) or re.escape(one[0])) + ("+" if one.endswith(RUN) else "")
        for one in re.findall(f"[Aa9]{RUN}?|.", runs, re.DOTALL)
    )
