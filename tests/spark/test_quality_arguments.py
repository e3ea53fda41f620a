"""A suite whose values can't be compared with their columns, or whose rules can't all hold, is refused before a batch."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from etl.common.errors import SetupError
from etl.quality.compile import compile_suite
from etl.quality.mistakes.arguments import Refused, require_patterns, require_values
from etl.quality.suite import DeclaredRule, read_suite
from tests.support.quality.gx_by_itself import in_one_pass

SCHEMA = (
    "n int, x double, price decimal(9, 2), t string, numeral string, ok boolean, day date, at timestamp,"
    " local timestamp_ntz, raw binary, iso string, `a.b` int, half float"
)
AT = dt.datetime(2013, 1, 5, 1, tzinfo=dt.UTC)
LOCAL = AT.replace(tzinfo=None)
ROW = (1, 1.5, Decimal("2.50"), "a", "7", True, AT.date(), AT, LOCAL, b"{}", "2013-01-05", 3, 0.5)

Rule = dict[str, Any]


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([ROW, (None,) * len(ROW)], SCHEMA).coalesce(1)


def rule(kind: str, severity: str = "critical", **kwargs: Any) -> Rule:
    return {"type": f"expect_column_{kind}", "kwargs": kwargs, "severity": severity}


def suite(*rules: Rule) -> dict[str, Any]:
    named = [{**one, "meta": {"name": f"rule {at}"}} for at, one in enumerate(rules)]
    return {"name": "tried", "expectations": named}


def in_set(column: str, *values: Any) -> Rule:
    return rule("values_to_be_in_set", column=column, value_set=list(values))


def all_columns(what: str, **kwargs: Any) -> Rule:
    return {"type": f"expect_table_columns_to_match_{what}", "kwargs": kwargs, "severity": "critical"}


INFO = {"severity": "info"}


def where(condition: str) -> dict[str, str]:
    return {"row_condition": condition, "condition_parser": "spark"}


def between(column: str, what: str = "values", **bounds: Any) -> Rule:
    return rule(f"{what}_to_be_between", column=column, **bounds)


def pair(what: str, one: str, other: str, **kwargs: Any) -> Rule:
    return rule(f"pair_values_{what}", column_A=one, column_B=other, **kwargs)


def several(what: str, *columns: str, **kwargs: Any) -> Rule:
    return {"type": f"expect_{what}", "kwargs": {"column_list": list(columns), **kwargs}, "severity": "info"}


def of_type(column: str, *types: str) -> Rule:
    return rule("values_to_be_in_type_list", column=column, type_list=list(types))


def query(sql: str) -> Rule:
    return {"type": "unexpected_rows_expectation", "kwargs": {"unexpected_rows_query": sql}}


QUANTILES = {"quantiles": [0.0, 0.5, 1.0], "value_ranges": [[0, 9], [None, 9], [None, None]]}
DIVERGENCE = {"threshold": 0.1, "partition_object": {"bins": [0, 1, 2], "weights": [0.5, 0.5]}}
NUMBERS = "and the rule takes numbers: cast it in the transform, or name another column"
DOT = (
    "a.b has a dot in its name, and GX can't compute the rule over such a column: rename it in the transform"
)
MISFITS = [
    (between("t", "sum", min_value=0), f"t is string, {NUMBERS}"),
    (between("ok", "sum", min_value=0), f"ok is boolean, {NUMBERS}"),
    (between("day", "mean", min_value=0), f"day is date, {NUMBERS}"),
    (between("t", "mean", min_value=0), f"t is string, {NUMBERS}"),
    (between("at", "stdev", max_value=9), f"at is timestamp, {NUMBERS}"),
    (between("numeral", "median", max_value=9), f"numeral is string, {NUMBERS}"),
    (
        rule("quantile_values_to_be_between", column="local", quantile_ranges=QUANTILES),
        "local is timestamp_ntz",
    ),
    (rule("value_z_scores_to_be_less_than", column="t", threshold=3, double_sided=True) | INFO, NUMBERS),
    (rule("values_to_not_be_outliers", column="raw", method="iqr", multiplier=1.5) | INFO, "raw is binary"),
    (rule("kl_divergence_to_be_less_than", column="day", **DIVERGENCE), f"day is date, {NUMBERS}"),
    (several("multicolumn_sum_to_equal", "n", "t", sum_total=3), f"t is string, {NUMBERS}"),
    (
        rule("values_to_be_increasing", column="t") | INFO,
        "t is string, and the rule takes numbers or days and",
    ),
    (between("t", min_value=1), "t is string, and the rule takes numbers or days and moments: cast it"),
    (rule("values_to_be_json_parseable", column="n"), "n is int, and the rule takes texts or bytes: cast it"),
    (
        rule("values_to_match_json_schema", column="day", json_schema={}),
        "day is date, and the rule takes texts",
    ),
    (between("raw", "max", min_value=1), "its min_value 1.0 is a number, and raw is binary: make a number"),
    (
        pair("a_to_be_greater_than_b", "n", "t"),
        "n is int and t is string, and numbers and texts are not compared: cast one of them in the transform",
    ),
    (pair("to_be_equal", "ok", "t"), "ok is boolean and t is string, and texts and truth values are not"),
    (pair("to_be_equal", "n", "day"), "n is int and day is date, and days and moments and numbers are not"),
    (several("multicolumn_values_to_be_equal", "n", "x", "t"), "n is int and t is string"),
    (several("select_column_values_to_be_unique_within_record", "day", "n"), "day is date and n is int"),
    (between("a.b", "median", min_value=0), DOT),
    (rule("most_common_value_to_be_in_set", column="a.b", value_set=[3]), DOT),
    (between("n", "median", min_value=0, **where("z > 1")), "Spark can't resolve it: [UNRESOLVED_COLUMN"),
    (between("n", "median", min_value=0, **where("n + 1")), "Spark can't resolve it: [DATATYPE_MISMATCH"),
    (query("SELECT * FROM {batch} WHERE z > 1"), "Spark can't resolve it: [UNRESOLVED_COLUMN"),
    (
        query("SELEC * FROM {batch}"),
        "Spark can't resolve it: [PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'",
    ),
    (
        query("SELECT * FROM {batch} WHERE t LIKE '{x}'"),
        "its query has braces around 'x', and takes {batch} alone",
    ),
    (query("SELECT * FROM {batch.x}"), "its query has braces around 'batch.x', and takes {batch} alone"),
    (query("SELECT * FROM nowhere_at_all"), "Spark can't resolve it: [TABLE_OR_VIEW_NOT_FOUND]"),
    (
        query("DROP TABLE {batch}"),
        "its query 'DROP TABLE {batch}' is a command, which would be carried out with",
    ),
    (query("SET spark.sql.ansi.enabled=false"), "is a command, which would be carried out with each batch"),
    (in_set("n", 2**63), "9223372036854775808, and n is int: write its values as the column has them"),
    (between("n", min_value=-(10**400)), "it has a number of 401 digits, and no double is so large: write a"),
    (in_set("n", "x"), "'x', and n is int: write its values as the column has them"),
    (in_set("n", "1", "1.5"), "'1.5', and n is int"),
    (in_set("n", True), "True, and n is int"),
    (in_set("n", {"a": 1}), "{'a': 1}, and n is int"),
    (in_set("price", "much"), "'much', and price is decimal(9,2)"),
    (in_set("ok", 1), "1, and ok is boolean"),
    (in_set("ok", "perhaps"), "'perhaps', and ok is boolean"),
    (in_set("day", "5.1.2013"), "'5.1.2013', and day is date: write it such as '2013-01-31'"),
    (in_set("day", 2013), "2013, and day is date: write"),
    (in_set("at", "noon"), "'noon', and at is timestamp: write it such as '2013-01-31T12:00:00'"),
    (in_set("day", "2013-01-05T01:00:00Z"), "has a zone, and day is date, which has none: write it without"),
    (in_set("local", "2013-01-05 01:00:00 Europe/Berlin"), "has a zone, and local is timestamp_ntz"),
    (in_set("local", "2013-01-05T01:00+02:00"), "has a zone, and local is timestamp_ntz"),
    (rule("values_to_not_be_in_set", column="n", value_set=["y"]), "'y', and n is int"),
    (
        in_set("half", 0.5, 0.1),
        "0.1, and half is float, which has 0.10000000149011612 instead: declare double",
    ),
    (in_set("half", 1e300), "1e+300, and half is float, which has inf instead"),
    (
        rule("distinct_values_to_be_in_set", column="n", value_set=["1", "a"]),
        "'a', and n is int: write its values as the column has them",
    ),
    (
        rule("distinct_values_to_contain_set", column="n", value_set=["a", "b"]),
        "'a', and n is int: write its values as the column has them",
    ),
    (
        rule("pair_values_to_be_in_set", column_A="n", column_B="day", value_pairs_set=[[1, "soon"]]),
        "its value_pairs_set has 'soon', and day is date",
    ),
    (
        rule("pair_values_to_be_in_set", column_A="n", column_B="t", value_pairs_set=[["x", "a"]]),
        "its value_pairs_set has 'x', and n is int",
    ),
    (between("n", min_value="2013-01-05"), "its min_value 2013-01-05 is a day, and n is int: write a number"),
    (between("day", max_value=7), "its max_value 7.0 is a number, and day is date: write it such as"),
    (between("local", min_value="2013-01-05T01:00:00Z"), "has a zone, and local is timestamp_ntz"),
    (between("day", min_value="2013-01-05T01:00:00Z"), "has a zone, and day is date, which has none"),
    (between("n", "max", min_value="2013-01-05T01:00:00"), "is a moment, and n is int: write a number"),
    (between("at", "max", min_value=1), "its min_value 1.0 is a number, and at is timestamp"),
    (between("at", "min", min_value="2013-01-05T01:00:00Z"), "has a zone, and the value of at"),
    (between("t", "max", min_value=1), "is a number, and t is string: make a number of it"),
    (between("day", "min", min_value="2013-01-05T01:00:00Z"), "has a zone, and day is date, which has none"),
    (between("ok", "max", min_value="2013-01-05"), "is a day, and ok is boolean: write its values as"),
    (between("n", "mean", min_value="2013-01-05"), "is no number, as what it is compared with is"),
    (between("n", "sum", max_value="2013-01-05"), "is no number, as what it is compared with is"),
    (
        {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": "2013-01-05T01:00:00"}},
        "is no number, as what it is compared with is",
    ),
    (between("x", "max", min_value=2, max_value=1), "its min_value 2.0 is greater than its max_value 1.0"),
    (
        between("t", "value_lengths", min_value=2, max_value=1),
        "its min_value 2 is greater than its max_value 1",
    ),
    (between("day", min_value="2013-02-01", max_value="2013-01-01"), "2013-02-01 is greater than"),
    (
        between("at", min_value="2013-02-01T01:00:00+02:00", max_value="2013-01-31T22:00:00Z"),
        "2013-02-01T01:00:00+02:00 is greater than its max_value 2013-01-31T22:00:00+00:00",
    ),
    (
        between("at", min_value="2013-01-01T01:00:00", max_value="2013-02-01T01:00:00Z"),
        "are a moment with a zone and one without, which can't be compared: write both with a zone, or both",
    ),
    (
        between("n", min_value=1, max_value=1, strict_min=True),
        "its min_value and its max_value are both 1.0, and by strict_min not even that is between them: take",
    ),
    (
        between("x", "mean", min_value=1, max_value=1, strict_min=True, strict_max=True),
        "by strict_min and strict_max not even that is between them: take strict_min and strict_max out",
    ),
    (in_set("t"), "its value_set is empty, and no value is in it"),
    (rule("to_exist", column="`a.b`"), "it names `a.b`, and the column is a.b: leave the backticks out"),
    (all_columns("set", column_set=["n", "`a.b`"]), "it names `a.b`, and the column is a.b"),
    (all_columns("ordered_list", column_list=[]), "its column_list is [], and no list of columns' names"),
    (rule("to_exist", column="t", column_index=0), "its column_index is 0, which GX takes for none"),
    (between("x", min_value=math.nan), "its min_value is nan, and no number is within that"),
    (between("x", min_value=math.inf), "its min_value is inf, and no number is within that"),
    (between("x", "mean", max_value=-math.inf), "its max_value is -inf, and no number is within that"),
    (
        between("at", "max", min_value="2013-01-01", max_value="2013-02-01T00:00:00"),
        "are a day and a moment, which can't be compared",
    ),
]
NAMES = ["n", "x", "price", "t", "numeral", "ok", "day", "at", "local", "raw", "iso", "a.b", "half"]
FITS = [
    between("price", "sum", min_value=2, max_value=3),
    between("price", "median", min_value=2, max_value=3),
    rule("quantile_values_to_be_between", column="price", quantile_ranges=QUANTILES),
    several("multicolumn_sum_to_equal", "n", "x", "price", sum_total=5),
    rule("values_to_be_json_parseable", column="numeral"),
    rule("values_to_match_json_schema", column="raw", json_schema={"type": "object"}),
    pair("a_to_be_greater_than_b", "x", "n"),
    pair("a_to_be_greater_than_b", "day", "iso", or_equal=True),
    pair("to_be_equal", "at", "local"),
    several("multicolumn_values_to_be_equal", "day", "iso"),
    several("select_column_values_to_be_unique_within_record", "n", "x", "price"),
    rule("values_to_be_of_type", column="a.b", type_="IntegerType"),
    of_type("a.b", "INTEGER", "IntegerType"),
    rule("type_to_be", column="a.b", type_="IntegerType"),
    rule("to_exist", column="a.b"),
    all_columns("set", column_set=NAMES, exact_match=True),
    all_columns("ordered_list", column_list=NAMES),
    between("a.b", max_value=3),
    in_set("half", 0.5, 0.10000000149011612, 7, math.nan),
    query("SELECT * FROM {batch} WHERE `a.b` > 5 OR t RLIKE '^b{{2}}$'"),
    in_set("n", "1", "2"),
    in_set("n", 1, 2.5, 2**63 - 1),
    in_set("x", 1, 1.5),
    in_set("price", "2.50"),
    in_set("numeral", 7),
    in_set("t", "a"),
    in_set("ok", True),
    in_set("ok", "true"),
    in_set("day", "2013-01-05"),
    in_set("at", "2013-01-04", "2013-01-05 01:00:00"),
    in_set("at", "2013-01-05T01:00:00"),
    in_set("at", "2013-01-05T03:00:00+02:00"),
    in_set("local", "2013-01-05 01:00:00"),
    rule(
        "pair_values_to_be_in_set",
        column_A="n",
        column_B="day",
        value_pairs_set=[[1, "2013-01-05"], [None, None]],
    ),
    between("n", min_value=1, max_value=1),
    between("n", min_value=0, max_value=1, strict_min=True),
    between("price", max_value="2.5"),
    between("day", min_value="2013-01-05", max_value="2013-01-05"),
    between("day", min_value="2013-01-05T00:00:00"),
    between("at", min_value="2013-01-05"),
    between("at", min_value="2013-01-05T01:00:00"),
    between("at", min_value="2013-01-05T03:00:00+02:00"),
    between("at", min_value="2013-01-05T03:00:00+02:00", max_value="2013-01-05T01:00:00Z"),
    between("local", min_value="2013-01-05T01:00:00"),
    between("day", "max", min_value="2013-01-05"),
    between("day", "max", min_value="2013-01-05T00:00:00"),
    between("at", "max", min_value="2013-01-05"),
    between("local", "min", max_value="2013-01-05"),
    between("at", "max", min_value="2013-01-05T01:00:00"),
    between("local", "min", max_value="2013-01-05T01:00:00"),
    between("x", "mean", min_value=1, max_value=2),
    between("x", min_value=-math.inf, max_value=math.inf),
]


def test_each_value_that_cannot_be_compared_is_told_with_its_rule_its_type_and_what_to_write(
    frame: DataFrame,
) -> None:
    with pytest.raises(SetupError) as refused:
        compile_suite(suite(*(one for one, _ in MISFITS)), frame.schema, frame.sparkSession)
    lines = refused.value.seen.splitlines()
    assert lines[0] == "suite 'tried' can't be used:"
    misfits = [line for line in lines[1:] if " contradict each other over " not in line]
    told = dict(line.removeprefix("  - ").split(": ", 1) for line in misfits)
    for at, (_, words) in enumerate(MISFITS):
        assert words in told[f"expectation {at + 1} (rule {at})"]
    assert len(told) == len(MISFITS)
    assert refused.value.exit_code == 2


def test_what_can_be_compared_is_taken_and_every_row_fits(frame: DataFrame) -> None:
    found = in_one_pass(suite(*FITS), frame)
    assert [one.reason for one in found.results if not one.success] == []
    assert len(found.results) == len(FITS)


def test_a_value_that_must_be_there_and_cannot_be_is_no_error_beside_others(frame: DataFrame) -> None:
    known = rule("distinct_values_to_contain_set", column="n", value_set=[1, "a"])
    assert len(compile_suite(suite(known), frame.schema, frame.sparkSession).rules) == 1


def test_values_are_asked_for_without_a_job(frame: DataFrame) -> None:
    context = frame.sparkSession.sparkContext
    some = read_suite(suite(in_set("n", "1", "2"), in_set("day", "2013-01-05"), in_set("at", "noon"))).rules
    context.setJobGroup("arguments", "asked for")
    try:
        require_values(some[0], frame.schema, frame.sparkSession)
        require_values(some[1], frame.schema, frame.sparkSession)
        with pytest.raises(Refused):
            require_values(some[2], frame.schema, frame.sparkSession)
        require_patterns(matching("^a+$"), frame.sparkSession)
        with pytest.raises(Refused, match="is no regular expression of Java"):
            require_patterns(matching("(a"), frame.sparkSession)
        assert list(context.statusTracker().getJobIdsForGroup("arguments")) == []
        frame.count()
        assert list(context.statusTracker().getJobIdsForGroup("arguments")) != []
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def matching(regex: str) -> DeclaredRule:
    [one] = read_suite(suite(rule("values_to_match_regex", column="t", regex=regex))).rules
    return one


def excluded(column: str, *values: Any, **more: Any) -> Rule:
    return rule("values_to_not_be_in_set", column=column, value_set=list(values), **more)


NOT_NULL = rule("values_to_not_be_null", column="t")
NULL = rule("values_to_be_null", column="t")
SOME = where("n > 0")


def changed(one: Rule, **kwargs: Any) -> Rule:
    return {**one, "kwargs": one["kwargs"] | kwargs}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (NOT_NULL, NULL),
        (changed(NULL, mostly=0.6), changed(NOT_NULL, mostly=0.5)),
        (changed(NULL, **SOME), changed(NOT_NULL, **SOME)),
        (NULL | {"severity": "warning"}, NOT_NULL),
        (in_set("t", "a", "b"), excluded("t", "b", "a")),
        (in_set("n", 1), excluded("n", 1.0, 2)),
        (in_set("n", 1, 2), in_set("n", 3)),
        (between("n", max_value=5), between("n", min_value=6)),
        (between("n", min_value=6, max_value=9), between("n", min_value=1, max_value=5)),
        (between("n", max_value=5, strict_max=True), between("n", min_value=5)),
        (between("day", max_value="2013-01-01"), between("day", min_value="2013-01-02")),
        (
            rule("value_lengths_to_be_between", column="t", max_value=2),
            rule("value_lengths_to_be_between", column="t", min_value=3),
        ),
        (between("n", "max", max_value=5), between("n", "max", min_value=6)),
    ],
)
def test_rules_that_contradict_each_other_refuse_the_suite(frame: DataFrame, one: Rule, other: Rule) -> None:
    with pytest.raises(
        SetupError,
        match=r"expectation 1 \(rule 0\) and expectation 2 \(rule 1\) contradict each other over \w+: .*; take",
    ):
        compile_suite(suite(one, other), frame.schema, frame.sparkSession)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (changed(NULL, mostly=0.5), changed(NOT_NULL, mostly=0.5)),
        (changed(NULL, **SOME), NOT_NULL),
        (NULL | {"severity": "info"}, NOT_NULL),
        (NULL, rule("values_to_not_be_null", column="n")),
        (in_set("t", "a", "b"), excluded("t", "b")),
        (in_set("t", "a"), excluded("numeral", "a")),
        (in_set("t", "a"), changed(excluded("t", "a"), **SOME)),
        (in_set("n", 1, 2), in_set("n", 2, 3)),
        (in_set("n", "1"), in_set("n", "01")),
        (changed(in_set("n", 1), mostly=0.5), changed(in_set("n", 2), mostly=0.5)),
        (between("n", max_value=5), between("n", min_value=5)),
        (between("n", max_value=5, mostly=0.4), between("n", min_value=6, mostly=0.6)),
        (between("n", max_value=5), between("x", min_value=6)),
        (between("n", max_value=5), between("n", max_value=1)),
        (between("n", "max", min_value=60), between("n", "min", max_value=50)),
    ],
)
def test_rules_that_can_both_hold_are_taken(frame: DataFrame, one: Rule, other: Rule) -> None:
    assert len(compile_suite(suite(one, other), frame.schema, frame.sparkSession).rules) == 2
