"""Suites and data drawn at random: whatever the draw, both ways of evaluation must agree."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from random import Random
from typing import Any

from pyspark.sql import DataFrame, SparkSession

SCHEMA = "t string, u string, x double, y double, n int, m bigint, day date, at timestamp, ok boolean"
WORDS = ["on", "off", "idle", "ON", "", " ", "a'b", "ö", '"q"', "0"]
CONDITIONS = ["n > 2", "t is not null", "x < 10 or ok", "length(u) > 1", "isnan(x)", "n is null", "n > 99"]


def draw_frame(draw: Random, spark: SparkSession) -> DataFrame:
    nulls = draw.choice([0.0, 0.1, 0.5, 0.95])
    rows = [_row(draw, nulls) for _ in range(draw.choice([0, 1, 7, 40, 120]))]
    return spark.createDataFrame(rows, SCHEMA)


def _row(draw: Random, nulls: float) -> tuple[Any, ...]:
    values = (
        draw.choice(WORDS),
        draw.choice(WORDS),
        draw.choice([0.0, -0.0, 1.5, 99.0, -7.25, float("nan"), float("inf"), 1e300]),
        draw.choice([0.0, 1.5, 2.5, float("nan")]),
        draw.randrange(-2, 6),
        draw.choice([1, 2, 3, 2**60]),
        dt.date(2013, 1, 1) + dt.timedelta(days=draw.randrange(400)),
        dt.datetime(2013, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=draw.randrange(600_000)),
        draw.random() < 0.5,
    )
    return tuple(None if draw.random() < nulls else value for value in values)


def draw_suite(draw: Random) -> dict[str, Any]:
    rules = []
    for number in range(14):
        kind, kwargs = draw.choice(DRAWS)(draw)
        if "to_exist" not in kind and draw.random() < 0.4:
            kwargs |= {"row_condition": draw.choice(CONDITIONS), "condition_parser": "spark"}
        if "_values_" in kind and "proportion" not in kind and draw.random() < 0.5:
            kwargs["mostly"] = draw.choice([0.0, 0.25, 0.5, 0.9, 1.0])
        rules.append(
            {"type": kind, "kwargs": kwargs, "severity": "info", "meta": {"name": f"{number} {kind}"}}
        )
    return {"name": "drawn", "expectations": rules}


Drawn = tuple[str, dict[str, Any]]


def _null(draw: Random) -> Drawn:
    kind = draw.choice(["expect_column_values_to_not_be_null", "expect_column_values_to_be_null"])
    return kind, {"column": draw.choice(["t", "x", "n", "at", "ok"])}


def _between(draw: Random) -> Drawn:
    low, high = sorted(draw.sample(range(-3, 8), 2))
    bounds = draw.choice([{"min_value": low}, {"max_value": high}, {"min_value": low, "max_value": high}])
    strict = {"strict_min": draw.random() < 0.5} if "min_value" in bounds else {}
    return "expect_column_values_to_be_between", {
        "column": draw.choice(["x", "y", "n", "m"]),
        **bounds,
        **strict,
    }


def _when(draw: Random) -> Drawn:
    limit = dt.date(2013, 1, 1) + dt.timedelta(days=draw.randrange(400))
    return "expect_column_values_to_be_between", {
        "column": draw.choice(["day", "at"]),
        "min_value": str(limit),
    }


def _set(draw: Random) -> Drawn:
    kind = draw.choice(["expect_column_values_to_be_in_set", "expect_column_values_to_not_be_in_set"])
    return kind, {"column": draw.choice(["t", "u"]), "value_set": draw.sample(WORDS, draw.randrange(1, 5))}


def _regex(draw: Random) -> Drawn:
    kind = draw.choice(["expect_column_values_to_match_regex", "expect_column_values_to_not_match_regex"])
    return kind, {"column": draw.choice(["t", "u"]), "regex": draw.choice(["^o", "[a-z]+$", "'", "^$", "."])}


def _length(draw: Random) -> Drawn:
    return "expect_column_value_lengths_to_be_between", {"column": "t", "max_value": draw.randrange(4)}


def _pair(draw: Random) -> Drawn:
    one, other = draw.choice([("x", "y"), ("n", "m"), ("day", "at")])
    ignoring = draw.choice(["both_values_are_missing", "either_value_is_missing", "neither"])
    kwargs: dict[str, Any] = {"column_A": one, "column_B": other, "ignore_row_if": ignoring}
    if draw.random() < 0.5:
        return "expect_column_pair_values_to_be_equal", kwargs
    return "expect_column_pair_values_a_to_be_greater_than_b", {**kwargs, "or_equal": draw.random() < 0.5}


def _several(draw: Random) -> Drawn:
    ignoring = draw.choice(["all_values_are_missing", "any_value_is_missing", "never"])
    kwargs: dict[str, Any] = {"column_list": ["n", "m"], "ignore_row_if": ignoring}
    if draw.random() < 0.5:
        return "expect_multicolumn_sum_to_equal", {**kwargs, "sum_total": draw.randrange(6)}
    return "expect_select_column_values_to_be_unique_within_record", kwargs


def _aggregate(draw: Random) -> Drawn:
    what = draw.choice(["mean", "min", "max", "sum", "stdev", "proportion_of_non_null_values"])
    return f"expect_column_{what}_to_be_between", {"column": draw.choice(["x", "n"]), "min_value": 0}


def _table(draw: Random) -> Drawn:
    return "expect_table_row_count_to_be_between", {"min_value": draw.randrange(50)}


def _staged(draw: Random) -> Drawn:
    return "expect_column_values_to_be_unique", {"column": draw.choice(["t", "n", "at"])}


DRAWS: list[Callable[[Random], Drawn]] = [
    _null,
    _between,
    _between,
    _when,
    _set,
    _regex,
    _length,
    _pair,
    _several,
    _aggregate,
    _aggregate,
    _table,
    _staged,
]
