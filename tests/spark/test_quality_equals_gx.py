"""The one pass gives what Great Expectations gives by itself: whole results, to the last sampled value."""

from __future__ import annotations

import datetime as dt
import random
import re
import time
from decimal import Decimal
from typing import Any

import pytest
from great_expectations.expectations import core
from pyspark.sql import DataFrame, SparkSession

from etl.common.errors import SetupError
from etl.quality.compile import IN_PYTHON, compile_suite
from tests.support.environment import REPOSITORY
from tests.support.quality.drawn_suites import draw_frame, draw_suite
from tests.support.quality.gx_by_itself import by_gx, differences

SCHEMA = (
    "id string, name string, doc string, x double, f float, n int, m int, k int, big bigint,"
    " price decimal(10,2), day date, at timestamp, ok boolean, nothing string"
)
NAN, INF = float("nan"), float("inf")
UTC = dt.UTC


def _row(number: int) -> tuple[Any, ...]:
    pick = lambda values: values[number % len(values)]  # noqa: E731
    at = dt.datetime(2013, 1, 1, tzinfo=UTC) + dt.timedelta(hours=7 * number, microseconds=number)
    return (
        f"id-{number}",
        pick(["on", "off", None, "idle", "On", ""]),
        pick(['{"a": 1}', "{", None, "2013-01-02", "[1]"]),
        pick([0.5, None, NAN, -3.25, INF, 120.0, -INF]),
        pick([0.1, NAN, None, 2.5]),
        pick([1, 2, None, 4, 5]),
        pick([3, 2, 1, None]),
        pick([0, None, 0, 4, 1, 2]),
        pick([2**53 + 1, None, -(2**62)]),
        pick([Decimal("1.10"), Decimal("99.99"), None]),
        pick([dt.date(2013, 1, 1), dt.date(2013, 7, 1), None]),
        None if number % 5 == 0 else at,
        pick([True, False, None]),
        None,
    )


def _rule(kind: str, name: str, /, **kwargs: Any) -> dict[str, Any]:
    return {"type": kind, "kwargs": kwargs, "severity": "info", "meta": {"name": name}}


def _where(condition: str) -> dict[str, str]:
    return {"row_condition": condition, "condition_parser": "spark"}


COLUMN_RULES = [
    _rule("expect_column_values_to_not_be_null", "nulls", column="name", mostly=0.5),
    _rule("expect_column_values_to_not_be_null", "NaN is no null", column="x"),
    _rule("expect_column_values_to_not_be_null", "nulls among some", column="name", **_where("n > 2")),
    _rule("expect_column_values_to_not_be_null", "all null", column="nothing"),
    _rule("expect_column_values_to_be_null", "should be null", column="x", mostly=0.1),
    _rule("expect_column_values_to_be_between", "x between", column="x", min_value=0, max_value=100),
    _rule(
        "expect_column_values_to_be_between", "x above", column="x", min_value=0, strict_min=True, mostly=0.4
    ),
    _rule("expect_column_values_to_be_between", "float below", column="f", max_value=1),
    _rule("expect_column_values_to_be_between", "big", column="big", min_value=0, **_where("k is not null")),
    _rule("expect_column_values_to_be_between", "price", column="price", min_value=2, max_value=99.99),
    _rule("expect_column_values_to_be_between", "day", column="day", min_value="2013-02-01"),
    _rule("expect_column_values_to_be_between", "at", column="at", max_value="2013-01-03 00:00:00"),
    _rule("expect_column_values_to_be_between", "nobody", column="n", min_value=3, **_where("n > 1000")),
    _rule("expect_column_values_to_be_in_set", "in set", column="name", value_set=["on", "off"], mostly=0.6),
    _rule("expect_column_values_to_be_in_set", "all null in set", column="nothing", value_set=["on"]),
    _rule("expect_column_values_to_not_be_in_set", "not in set", column="n", value_set=[4, 5]),
    _rule("expect_column_values_to_match_regex", "regex", column="name", regex="^o[nf]+$"),
    _rule("expect_column_values_to_not_match_regex", "no regex", column="name", regex="^i"),
    _rule("expect_column_values_to_match_regex_list", "regexes", column="name", regex_list=["^on$", "^id"]),
    _rule(
        "expect_column_values_to_not_match_regex_list",
        "no regexes",
        column="name",
        regex_list=["^on$", "^id"],
    ),
    _rule("expect_column_value_lengths_to_be_between", "lengths", column="name", min_value=1, max_value=3),
    _rule("expect_column_value_lengths_to_equal", "length", column="name", value=2),
    _rule("expect_column_values_to_be_json_parseable", "json", column="doc"),
    _rule(
        "expect_column_values_to_match_strftime_format", "date text", column="doc", strftime_format="%Y-%m-%d"
    ),
]
ANY_MISSING, ALL_MISSING = "any_value_is_missing", "all_values_are_missing"
SEVERAL_COLUMN_RULES = [
    _rule("expect_column_pair_values_a_to_be_greater_than_b", "a > b", column_A="n", column_B="m"),
    _rule(
        "expect_column_pair_values_a_to_be_greater_than_b",
        "a >= b",
        column_A="n",
        column_B="m",
        or_equal=True,
        ignore_row_if="either_value_is_missing",
        mostly=0.3,
    ),
    _rule(
        "expect_column_pair_values_to_be_equal",
        "equal",
        column_A="n",
        column_B="m",
        ignore_row_if="both_values_are_missing",
        **_where("ok"),
    ),
    _rule(
        "expect_column_pair_values_to_be_equal",
        "equal or missing",
        column_A="n",
        column_B="m",
        ignore_row_if="neither",
    ),
    _rule(
        "expect_column_pair_values_to_be_in_set",
        "pair in set",
        column_A="n",
        column_B="k",
        value_pairs_set=[[1, 0], [4, 4]],
        ignore_row_if="both_values_are_missing",
    ),
    _rule("expect_multicolumn_sum_to_equal", "sum", column_list=["n", "m", "k"], sum_total=4),
    _rule(
        "expect_multicolumn_sum_to_equal",
        "sum of some",
        column_list=["n", "m"],
        sum_total=4,
        ignore_row_if=ANY_MISSING,
        mostly=0.2,
        **_where("k >= 0"),
    ),
    _rule(
        "expect_select_column_values_to_be_unique_within_record",
        "distinct",
        column_list=["n", "m", "k"],
        ignore_row_if=ALL_MISSING,
    ),
    _rule(
        "expect_multicolumn_values_to_be_equal",
        "all equal",
        column_list=["n", "m"],
        ignore_row_if=ANY_MISSING,
    ),
]
AGGREGATE_RULES = [
    _rule("expect_column_mean_to_be_between", "mean", column="n", min_value=0, max_value=3),
    _rule("expect_column_mean_to_be_between", "mean of decimals", column="price", min_value=0, max_value=3),
    _rule("expect_column_mean_to_be_between", "mean with NaN", column="x", min_value=0, max_value=3),
    _rule("expect_column_min_to_be_between", "min", column="x", min_value=-5, max_value=0),
    _rule("expect_column_min_to_be_between", "first", column="at", min_value="2013-01-01"),
    _rule("expect_column_max_to_be_between", "max", column="x", max_value=1000),
    _rule("expect_column_max_to_be_between", "last day", column="day", min_value="2013-06-01"),
    _rule("expect_column_max_to_be_between", "max of some", column="n", max_value=4, **_where("ok")),
    _rule("expect_column_sum_to_be_between", "total", column="n", min_value=1),
    _rule(
        "expect_column_sum_to_be_between", "total of nulls", column="k", min_value=1, **_where("k is null")
    ),
    _rule("expect_column_stdev_to_be_between", "stdev", column="n", min_value=0, max_value=10),
    _rule(
        "expect_column_proportion_of_non_null_values_to_be_between", "filled", column="name", min_value=0.9
    ),
]
TABLE_RULES = [
    _rule("expect_table_row_count_to_be_between", "rows between", min_value=1, max_value=50),
    _rule("expect_table_row_count_to_equal", "rows", value=60),
    _rule("expect_table_column_count_to_equal", "columns", value=14),
    _rule("expect_table_column_count_to_be_between", "columns between", min_value=1, max_value=3),
    _rule("expect_table_columns_to_match_set", "set", column_set=["id", "x"], exact_match=False),
    _rule("expect_table_columns_to_match_ordered_list", "list", column_list=["id", "name"]),
    _rule("expect_column_to_exist", "exists", column="id"),
    _rule("expect_column_to_exist", "does not exist", column="of no frame"),
    _rule("expect_column_values_to_be_of_type", "type", column="x", type_="DoubleType"),
    _rule(
        "expect_column_values_to_be_in_type_list", "types", column="at", type_list=["StringType", "DateType"]
    ),
]
STAGED_RULES = [
    _rule("expect_column_values_to_be_unique", "unique", column="n"),
    _rule("expect_compound_columns_to_be_unique", "unique together", column_list=["n", "m"]),
    _rule("expect_column_distinct_values_to_be_in_set", "distinct set", column="name", value_set=["on"]),
    _rule("expect_column_unique_value_count_to_be_between", "how many", column="n", min_value=1, max_value=9),
]
# The types that the suite above does not have, over a frame that suits them.
REST_SCHEMA = "n int, name string, doc string"
REST_ROWS = [(n % 5 if n else None, ("on", "off", None, "on")[n % 4], f'{{"a": {n}}}') for n in range(12)]
REST_RULES = [
    _rule("expect_column_distinct_values_to_contain_set", "contain", column="name", value_set=["on"]),
    _rule("expect_column_distinct_values_to_equal_set", "equal set", column="name", value_set=["on"]),
    _rule(
        "expect_column_kl_divergence_to_be_less_than",
        "divergence",
        column="name",
        partition_object={"values": ["on", "off"], "weights": [0.5, 0.5]},
        threshold=0.1,
    ),
    _rule("expect_column_median_to_be_between", "median", column="n", min_value=1, max_value=3),
    _rule("expect_column_most_common_value_to_be_in_set", "most", column="name", value_set=["off"]),
    _rule("expect_column_proportion_of_unique_values_to_be_between", "share", column="n", min_value=0.9),
    _rule(
        "expect_column_quantile_values_to_be_between",
        "quantiles",
        column="n",
        quantile_ranges={"quantiles": [0.1, 0.5], "value_ranges": [[0, 2], [3, None]]},
    ),
    _rule("expect_column_value_z_scores_to_be_less_than", "z", column="n", threshold=1, double_sided=True),
    _rule("expect_column_values_to_be_decreasing", "falls", column="n"),
    _rule("expect_column_values_to_be_increasing", "rises", column="n"),
    _rule("expect_column_values_to_not_be_outliers", "outliers", column="n", method="iqr", multiplier=0.1),
    _rule("expect_column_type_to_be", "type", column="n", type_="StringType"),
    _rule(
        "expect_column_values_to_match_json_schema",
        "json schema",
        column="doc",
        json_schema={"properties": {"a": {"maximum": 5}}},
    ),
    _rule("unexpected_rows_expectation", "query", unexpected_rows_query="SELECT * FROM {batch} WHERE n > 3"),
]
NOT_FOR_SPARK = [
    _rule("expect_column_values_to_be_dateutil_parseable", "parseable", column="doc"),
    _rule("expect_column_values_to_match_like_pattern", "like", column="name", like_pattern="o%"),
    _rule(
        "expect_column_values_to_match_like_pattern_list", "likes", column="name", like_pattern_list=["o%"]
    ),
    _rule("expect_column_values_to_not_match_like_pattern", "unlike", column="name", like_pattern="o%"),
    _rule(
        "expect_column_values_to_not_match_like_pattern_list",
        "none like",
        column="name",
        like_pattern_list=["o%"],
    ),
    _rule(
        "expect_query_results_to_match_comparison",
        "comparison",
        base_query="SELECT 1",
        comparison_data_source_name="other",
        comparison_query="SELECT 1",
    ),
    _rule("expect_table_row_count_to_equal_other_table", "other table", other_table_name="other"),
]
FIXED = {
    "name": "fixed",
    "expectations": [*COLUMN_RULES, *SEVERAL_COLUMN_RULES, *AGGREGATE_RULES, *TABLE_RULES, *STAGED_RULES],
}


def _frame(spark: SparkSession, rows: list[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(rows, SCHEMA)


@pytest.mark.parametrize(
    "rows",
    ["sixty", pytest.param("none", marks=pytest.mark.slow), pytest.param("nulls", marks=pytest.mark.slow)],
)
def test_one_pass_equals_gx(spark: SparkSession, rows: str) -> None:
    frame = _frame(
        spark,
        {
            "sixty": [_row(number) for number in range(60)],
            "none": [],
            "nulls": [(None,) * 14 for _ in range(5)],
        }[rows],
    )
    assert differences(FIXED, frame) == []


def test_one_pass_equals_gx_in_another_time_zone(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark hands timestamps to Python in the process's zone, Arrow in UTC; so in autumn's doubled hour."""
    hours = [(dt.datetime(2013, 11, 3, hour, 30, tzinfo=dt.UTC),) for hour in range(12)]
    late = _rule("expect_column_values_to_be_between", "at", column="at", min_value="2014-01-01")
    last = _rule("expect_column_max_to_be_between", "last", column="at", max_value="2013-11-03 04:00:00")
    suite = {"name": "zone", "expectations": [late, last]}
    try:
        monkeypatch.setenv("TZ", "America/New_York")
        time.tzset()
        assert differences(suite, spark.createDataFrame(hours, "at timestamp").coalesce(1)) == []
    finally:
        monkeypatch.undo()
        time.tzset()


def test_one_pass_equals_gx_for_the_rest_of_its_types(spark: SparkSession) -> None:
    frame = spark.createDataFrame(REST_ROWS, REST_SCHEMA).coalesce(1)
    assert differences({"name": "rest", "expectations": REST_RULES}, frame) == []


def test_the_docs_say_of_every_type_of_gx_where_it_is_evaluated(spark: SparkSession) -> None:
    kinds, in_python = {"refused": set[str]()}, set[str]()
    for rules, schema in ((FIXED["expectations"], SCHEMA), (REST_RULES, REST_SCHEMA)):
        frame = spark.createDataFrame([], schema)
        plain = [rule for rule in rules if "row_condition" not in rule["kwargs"]]
        for rule in compile_suite({"name": "types", "expectations": plain}, frame.schema, spark).rules:
            kinds.setdefault(rule.where, set()).add(rule.declared.kind)
            if calls_python(frame.select(*rule.flags)):
                in_python.add(rule.declared.kind)
    for refused in NOT_FOR_SPARK:
        with pytest.raises(SetupError, match=r"No provider|does not currently support"):
            compile_suite({"name": "types", "expectations": [refused]}, frame.schema, spark)
        kinds["refused"].add(refused["type"])
    assert set.union(*kinds.values()) == types_of_gx()
    assert sum(map(len, kinds.values())) == len(set.union(*kinds.values())), "each type in one place"
    assert len(kinds["pass"]) >= 25
    assert documented() == kinds
    assert in_python == IN_PYTHON


def calls_python(frame: DataFrame) -> bool:
    """Tell whether Spark's plan has a Python function."""
    jvm: Any = frame.sparkSession._jvm
    pattern = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
    return bool(frame._jdf.queryExecution().analyzed().containsPattern(pattern))


def types_of_gx() -> set[str]:
    """GX's own; a test elsewhere may have registered more."""
    found = (getattr(core, name) for name in dir(core))
    return {kind for one in found if (kind := getattr(one, "expectation_type", ""))}


def documented() -> dict[str, set[str]]:
    """Return the types in the table of docs/quality.md, by where."""
    text = (REPOSITORY / "docs" / "quality.md").read_text()
    rows = re.findall(r"^\| `(pass|reader|gx|refused)` \|[^|]*\|(.*)\|$", text, re.MULTILINE)
    return {where: set(re.findall(r"`(\w+)`", types)) for where, types in rows}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_one_pass_equals_gx_on_a_drawn_suite(spark: SparkSession, number: int) -> None:
    seed = random.randrange(2**32)
    print(f"drawn with seed {seed}")
    drawn = random.Random(seed)
    frame, suite = draw_frame(drawn, spark), draw_suite(drawn)
    assert differences(suite, frame) == [], f"seed {seed}"


def test_the_comparison_sees_a_difference_of_one_sample(spark: SparkSession) -> None:
    frame = _frame(spark, [_row(number) for number in range(60)])
    suite = {"name": "one", "expectations": [COLUMN_RULES[13]]}
    changed = {
        "name": "one",
        "expectations": [
            {**COLUMN_RULES[13], "kwargs": {**COLUMN_RULES[13]["kwargs"], "value_set": ["on", "off", "idle"]}}
        ],
    }
    assert by_gx(suite, frame)["in set"]["result"] != by_gx(changed, frame)["in set"]["result"]
