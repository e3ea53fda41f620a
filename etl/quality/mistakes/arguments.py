"""Checks the arguments of a suite's rules, by themselves, against columns' types and against one another, before a batch.

What is refused here would fail, or judge nothing, in each batch: Spark compares a value with a column in a type of both,
and under ANSI rules a value that has no place in that type ends the job.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from etl.common.outcome import in_short
from etl.quality.mistakes.bounds import BOUNDS, bounds_of, has_zone, is_plain, word
from etl.quality.mistakes.contradictions import (
    BETWEEN,
    GREATEST,
    IN_SET,
    LEAST,
    MEDIAN,
    NOT_IN_SET,
    contradictions,
)
from etl.quality.suite import DeclaredRule, DeclaredSuite, wrong_json_schema
from etl.spark.jvm import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

DISTINCT_IN_SET = "expect_column_distinct_values_to_be_in_set"
OF_A_COLUMN = (GREATEST, LEAST)  # a value, of its type; by GX, in Python
QUANTILES = "expect_column_quantile_values_to_be_between"
Z_SCORES = "expect_column_value_z_scores_to_be_less_than"
DIVERGENCE = "expect_column_kl_divergence_to_be_less_than"
ORDERED = ("expect_column_values_to_be_increasing", "expect_column_values_to_be_decreasing")
JSON_SCHEMA = "expect_column_values_to_match_json_schema"
# The families of types that a rule's columns are of: GX or Spark fails over others, or no value of them can fit.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "expect_column_mean_to_be_between",
            "expect_column_sum_to_be_between",
            "expect_column_stdev_to_be_between",
            "expect_column_values_to_not_be_outliers",
            "expect_multicolumn_sum_to_equal",
            *(MEDIAN, QUANTILES, Z_SCORES),
        ),
        ("numbers",),
    ),
    **dict.fromkeys((BETWEEN, *ORDERED), ("numbers", "days and moments")),
    **dict.fromkeys(("expect_column_values_to_be_json_parseable", JSON_SCHEMA), ("texts", "bytes")),
    "expect_column_values_to_match_strftime_format": ("texts",),
}
COMPARED = (  # values of a row with one another
    "expect_column_pair_values_a_to_be_greater_than_b",
    "expect_column_pair_values_to_be_equal",
    "expect_multicolumn_values_to_be_equal",
    "expect_select_column_values_to_be_unique_within_record",
)
# Of texts that are days, which are compared well, Spark makes days; bytes it compares with texts as they are.
_ALIKE = ({"texts", "days and moments"}, {"texts", "bytes"})
# GX asks Spark for the column by its bare name, which one with a dot or a backtick is not found by.
BARE = (
    *(MEDIAN, QUANTILES, Z_SCORES, DIVERGENCE, *ORDERED, DISTINCT_IN_SET),
    "expect_column_distinct_values_to_contain_set",
    "expect_column_distinct_values_to_equal_set",
    "expect_column_most_common_value_to_be_in_set",
)
STRICT = ("strict_min", "strict_max")
_BEYOND = dict(zip(BOUNDS, (math.inf, -math.inf), strict=True))  # as a bound, nothing is within it
_FROM_0 = re.compile(r"_count_|_lengths_|_stdev_|_proportion_")  # in a rule's name: of a figure of 0 or more
# A zone behind a time of day.
_ZONE = re.compile(r"[T ]\d{1,2}(?::\d{1,2}){0,2}(?:\.\d+)?\s*(?:[zZ]|[+-]\d|[A-Za-z])")
_EXAMPLES = {"date": "2013-01-31", "timestamp": "2013-01-31T12:00:00", "timestamp_ntz": "2013-01-31T12:00:00"}


class Refused(Exception):
    """The rule can't be used at all; the text says why."""


def require_patterns(rule: DeclaredRule, spark: SparkSession) -> None:
    """Raise Refused when Java does not accept a regular expression: Spark would say so in mid-batch."""
    from pyspark.errors import PySparkException

    for regex in patterns_of(rule):
        try:
            java_class(spark, "java.util.regex.Pattern").compile(regex)
        except PySparkException as wrong:
            raise Refused(f"{regex!r} is no regular expression of Java: {in_short(wrong)}") from wrong


def patterns_of(rule: DeclaredRule) -> Sequence[str]:
    """Return the regular expressions that the rule tries on each text."""
    one, several = getattr(rule.expectation, "regex", None), getattr(rule.expectation, "regex_list", None)
    return [one] if isinstance(one, str) else several or []


def mistakes(suite: DeclaredSuite) -> list[str]:
    """Return what is wrong with a suite whatever columns it judges."""
    found = [*suite.problems, *contradictions(suite.rules)]
    for rule in suite.rules:
        try:
            require_arguments(rule)
        except Refused as wrong:
            found.append(f"{rule.named}: {wrong}")
    return found


def require_arguments(rule: DeclaredRule) -> None:
    """Raise Refused when the rule's arguments don't fit one another, whatever column it is about."""
    _require_bounds(rule)
    _require_reachable(rule)
    if rule.kind in _MISTAKES and (why := _MISTAKES[rule.kind](rule.expectation)):
        raise Refused(why)
    if getattr(rule.expectation, "value_pairs_set", None) == []:
        raise Refused(
            "its value_pairs_set is empty, and no pair is in it: write the pairs, or take the rule out"
        )
    values = getattr(rule.expectation, "value_set", None)
    if not isinstance(values, list | tuple):
        return
    if not values and rule.kind in (IN_SET, DISTINCT_IN_SET):
        raise Refused("its value_set is empty, and no value is in it: write the values, or take the rule out")
    if None in values:
        # Spark's IN is null where no value is found and one is null: such a rule would hold for every row.
        raise Refused("its value_set has null, and nulls are judged by no set: leave it out")
    if rule.kind in (IN_SET, NOT_IN_SET) and len({isinstance(one, str) for one in values}) > 1:
        raise Refused(
            "its value_set has texts and others, which Spark makes numbers of: write all of them as the"
            " column has them"
        )


def _require_reachable(rule: DeclaredRule) -> None:
    """Raise Refused for a count, a length, a deviation or a share that none can have."""
    if _FROM_0.search(rule.kind):
        for name in ("value", "max_value"):
            if isinstance(given := getattr(rule.expectation, name, None), int | float) and given < 0:
                raise Refused(
                    f"its {name} is {given:g}, and nothing that it judges is below 0: write 0 or more"
                )
    if "_proportion_" in rule.kind and (rule.expectation.min_value or 0) > 1:
        raise Refused(
            f"its min_value is {rule.expectation.min_value:g}, and no share is above 1: write a number up to 1"
        )


def _wrong_quantiles(expectation: Any) -> str | None:
    quantiles, ranges = (expectation.quantile_ranges.get(name) for name in ("quantiles", "value_ranges"))
    if not (isinstance(quantiles, list) and isinstance(ranges, list) and 0 < len(quantiles) == len(ranges)):
        return "its quantile_ranges need a list of quantiles, and a list of as many value_ranges"
    for quantile in quantiles:
        if not (isinstance(quantile, float) and 0 <= quantile <= 1):  # Spark fails at 1, and takes 1.0
            return f"its quantile {quantile!r} is no number from 0.0 to 1.0, written with a point: write 1 as 1.0"
    for one in ranges:
        if not (isinstance(one, list) and len(one) == 2 and all(end is None or is_plain(end) for end in one)):
            return f"its value_range {one!r} is no pair of numbers such as [0, 5]; null is no bound"
        if None not in one and one[0] > one[1]:
            return f"its value_range {one!r} has nothing within: exchange its numbers"
    if expectation.allow_relative_error:
        return f"its allow_relative_error is {expectation.allow_relative_error!r}, and GX has none for Spark: leave it out"
    return None


def _wrong_partition(expectation: Any) -> str | None:
    from great_expectations.execution_engine.util import is_valid_partition_object

    try:
        valid = is_valid_partition_object(expectation.partition_object)  # type: ignore[no-untyped-call]
    except (TypeError, ValueError, LookupError):  # GX's own, of parts that are no lists of numbers
        valid = False
    if not valid:
        return "its partition_object is no partition: write values, or bins in order, and weights of them whose sum is 1"
    if (expectation.threshold or 0) < 0:
        return f"its threshold is {expectation.threshold:g}, and no divergence is below 0: write 0 or more"
    return None


def _wrong_types(expectation: Any) -> str | None:
    """Say which names are no type of Spark; in a list that has one, GX passes over those that it does not know."""
    from pyspark.sql import types

    given = getattr(expectation, "type_list", [getattr(expectation, "type_", None)])
    named = {name: getattr(types, name, None) for name in given or ()}
    known = [isinstance(one, type) and issubclass(one, types.DataType) for one in named.values()]
    others = [name for name, one in named.items() if one is not None and not isinstance(one, type)]
    if given is None or (any(known) and not others):
        return None
    told = ", ".join(repr(name) for name in others or named) or "an empty list"
    return f"{told} is no type of Spark: write one such as 'IntegerType' or 'StringType'"


_MISTAKES: Mapping[str, Callable[[Any], str | None]] = {
    QUANTILES: _wrong_quantiles,
    DIVERGENCE: _wrong_partition,
    JSON_SCHEMA: lambda expectation: wrong_json_schema(expectation.json_schema),
    "expect_column_type_to_be": _wrong_types,
    "expect_column_values_to_be_of_type": _wrong_types,
    "expect_column_values_to_be_in_type_list": _wrong_types,
}


def require_values(rule: DeclaredRule, schema: StructType, spark: SparkSession) -> None:
    """Raise Refused when the rule's arguments don't fit its columns: Spark would fail in mid-batch, or judge no row."""
    _require_families(rule, schema)
    if rule.kind in (BETWEEN, *OF_A_COLUMN):
        _require_bounds_of(rule, schema[rule.columns[0]].dataType)
    values = getattr(rule.expectation, "value_set", None)
    if isinstance(values, list | tuple):
        _require_set(rule, values, schema, spark)
    for at, column in enumerate(rule.columns):
        if pairs := getattr(rule.expectation, "value_pairs_set", None):
            given = [pair[at] for pair in pairs if pair[at] is not None]
            for value in _misfits(given, schema[column].dataType, spark):
                raise Refused(
                    f"its value_pairs_set has {_no_value_of(value, column, schema[column].dataType)}"
                )


def _require_families(rule: DeclaredRule, schema: StructType) -> None:
    """Raise Refused for a column of a type that the rule can't be computed of, or whose values don't compare."""
    found = {name: _family(schema[name].dataType) for name in rule.columns if name in schema.names}
    told = {name: schema[name].dataType.simpleString() for name in found}
    takes = FAMILIES.get(rule.kind, ())
    if rule.kind == DIVERGENCE and "bins" in (rule.expectation.partition_object or {}):
        takes = ("numbers",)
    for name, family in found.items():
        if takes and family and family not in takes:
            raise Refused(
                f"{name} is {told[name]}, and the rule takes {' or '.join(takes)}: cast it in the transform, or"
                " name another column"
            )
        for sign, noun in ((".", "dot"), ("`", "backtick")) if rule.kind in BARE else ():
            if sign in name:
                raise Refused(
                    f"{name} has a {noun} in its name, and GX can't compute the rule over such a column: rename it"
                    " in the transform"
                )
    for one, other in combinations(found if rule.kind in COMPARED else (), 2):
        both = {family for name in (one, other) if (family := found[name])}
        if len(both) == 2 and both not in _ALIKE:
            raise Refused(
                f"{one} is {told[one]} and {other} is {told[other]}, and {' and '.join(sorted(both))} are not"
                " compared: cast one of them in the transform"
            )


def _family(kind: DataType) -> str | None:
    """Return what the values of a type are for rules; None for types whose rules Spark judges alone."""
    from pyspark.sql import types

    families: Mapping[str, Any] = {
        "numbers": types.NumericType,
        "texts": (types.StringType, types.CharType, types.VarcharType),
        "truth values": types.BooleanType,
        "days and moments": (types.DateType, types.TimestampType, types.TimestampNTZType),
        "bytes": types.BinaryType,
    }
    return next((name for name, family in families.items() if isinstance(kind, family)), None)


def _require_bounds(rule: DeclaredRule) -> None:
    """Raise Refused for bounds that can't be compared, or with nothing between them."""
    bounds = bounds_of(rule)
    for name, value in bounds.items():
        if isinstance(value, float) and (math.isnan(value) or value == _BEYOND[name]):
            raise Refused(
                f"its {name} is {value}, and no number is within that: write a number, or leave it out"
            )
        if isinstance(value, dt.date) and rule.kind not in (BETWEEN, *OF_A_COLUMN):
            raise Refused(
                f"its {name} {_shown(value)} is no number, as what it is compared with is: write a number"
            )
    if len(bounds) < len(BOUNDS):
        return
    low, high = bounds.values()
    told = f"its bounds {_shown(low)} and {_shown(high)} are"
    if word(low) != word(high):
        raise Refused(
            f"{told} a {word(low)} and a {word(high)}, which can't be compared: write both in the same way"
        )
    if has_zone(low) != has_zone(high):
        raise Refused(
            f"{told} a moment with a zone and one without, which can't be compared: write both with a zone, or both"
            " without"
        )
    if low > high:
        raise Refused(
            f"its min_value {_shown(low)} is greater than its max_value {_shown(high)}, and nothing is between"
            " them: exchange them, or correct one"
        )
    strict = [name for name in STRICT if getattr(rule.expectation, name, False)]
    if strict and low == high:
        asked = " and ".join(strict)
        raise Refused(
            f"its min_value and its max_value are both {_shown(low)}, and by {asked} not even that is between"
            f" them: take {asked} out, or correct one bound"
        )


def _require_bounds_of(rule: DeclaredRule, kind: DataType) -> None:
    """Raise Refused for a bound of another type than the column that it is compared with."""
    for name, value in bounds_of(rule).items():
        column = rule.columns[0]
        why = _misfit_in_python(value, column, kind) if rule.kind in OF_A_COLUMN else None
        if why := why or _misfit_of_bound(value, column, kind):
            raise Refused(f"its {name} {_shown(value)} {why}")


def _misfit_of_bound(value: Any, column: str, kind: DataType) -> str | None:
    """Say why a bound can't be compared with a column; None where it can be, or GX or Spark tells it."""
    told = kind.simpleString()
    if isinstance(value, dt.date) and _is_number(kind):
        return f"is a {word(value)}, and {column} is {told}: write a number"
    if isinstance(value, float) and told in _EXAMPLES:
        return f"is a number, and {column} is {told}: write it such as {_EXAMPLES[told]!r}"
    if has_zone(value) and told in ("date", "timestamp_ntz"):
        return f"has a zone, and {column} is {told}, which has none: write it without"
    return None


def _misfit_in_python(value: Any, column: str, kind: DataType) -> str | None:
    """Say why GX, in Python, can't compare a bound with a column's least or greatest value.

    A day is compared with the day of a moment, and a moment with the beginning of a day.
    """
    told = kind.simpleString()
    if isinstance(value, float) and _family(kind) in ("texts", "bytes"):
        return f"is a number, and {column} is {told}: make a number of it in the transform"
    if not isinstance(value, dt.date) or told == "string" or _is_number(kind):
        return None
    if told not in _EXAMPLES:
        return f"is a {word(value)}, and {column} is {told}: write its values as the column has them"
    if has_zone(value) and told == "timestamp":
        return f"has a zone, and the value of {column} that it is compared with has none: write it in UTC, without"
    return None


def _is_number(kind: DataType) -> bool:
    from pyspark.sql.types import NumericType

    return isinstance(kind, NumericType)


def _shown(value: Any) -> str:
    return value.isoformat() if isinstance(value, dt.date) else repr(value)


def _require_set(rule: DeclaredRule, values: Sequence[Any], schema: StructType, spark: SparkSession) -> None:
    [column] = rule.columns
    kind = schema[column].dataType
    misfits = _misfits(values, kind, spark)
    if rule.kind in (IN_SET, NOT_IN_SET, DISTINCT_IN_SET):  # by Spark
        for value in misfits:
            raise Refused(f"its value_set has {_no_value_of(value, column, kind)}")
        return
    found = list(misfits)  # GX looks for these among the column's, and one that can't be there spoils nothing
    if found and len(found) == len(values):
        raise Refused(f"its value_set has {_no_value_of(found[0], column, kind)}")


def _misfits(values: Sequence[Any], kind: DataType, spark: SparkSession) -> Iterator[Any]:
    """Yield the values that can't be compared with the column: all are asked at once, and singly if some can't."""
    if kind.simpleString() == "float":
        numbers = (value for value in values if isinstance(value, float) and not math.isnan(value))
        yield from (value for value in numbers if value != _nearest(value))
    asked = [value for value in values if not _fits(value, kind)]
    if kind.simpleString() in ("date", "timestamp_ntz"):
        yield from (value for value in asked if isinstance(value, str) and _ZONE.search(value))
    if not _are_comparable(asked, kind, spark):
        yield from (value for value in asked if not _are_comparable([value], kind, spark))


def _nearest(value: float) -> float:
    """Return what a float column has in the place of a number: that of 32 bits which is nearest to it."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _fits(value: Any, kind: DataType) -> bool:
    """Tell whether a value is plainly one of the type, or of one that Spark widens to."""
    from pyspark.sql.types import BooleanType, StringType

    if isinstance(value, bool):
        return isinstance(kind, BooleanType)
    if isinstance(value, int | float):
        return _is_number(kind) and (isinstance(value, float) or -(2**63) <= value < 2**63)
    return isinstance(value, str) and isinstance(kind, StringType)


def _are_comparable(values: Sequence[Any], kind: DataType, spark: SparkSession) -> bool:
    """Tell whether Spark finds a type for a null of the column's type and each value, and casts the value to it.

    It is asked without a job: Spark's optimizer computes what is of no table.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    if not values:
        return True
    null = F.lit(None).cast(kind)
    try:
        compared = [F.array(null, F.lit(value)).alias(f"_{at}") for at, value in enumerate(values)]
        spark.sql("VALUES (1)").select(*compared).collect()
    except (PySparkException, Py4JError):
        return False
    return True


def _no_value_of(value: Any, column: str, kind: DataType) -> str:
    told = kind.simpleString()
    if isinstance(value, str) and told in _EXAMPLES:
        if told != "timestamp" and _ZONE.search(value):
            return f"{value!r}, which has a zone, and {column} is {told}, which has none: write it without"
        return f"{value!r}, and {column} is {told}: write it such as {_EXAMPLES[told]!r}"
    if told == "float" and isinstance(value, float):
        return f"{value!r}, and {column} is float, which has {_nearest(value)!r} instead: declare double, or write that"
    return f"{value!r}, and {column} is {told}: write its values as the column has them"
