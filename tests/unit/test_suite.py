"""What is said of a suite's mistakes: each expectation by its place from 1 and its name, in words of the suite's own."""

from __future__ import annotations

from typing import Any

import pytest

from etl.quality.mistakes.arguments import mistakes
from etl.quality.suite import read_suite
from etl.quality.trend_rules import VALUES

BETWEEN, NOT_NULL = "expect_column_values_to_be_between", "expect_column_values_to_not_be_null"
MAX = "expect_column_max_to_be_between"
NO_VALUE = "{0} is {1}, and that is no value: write one, or leave {0} out"


def suite(*entries: Any, **more: Any) -> dict[str, Any]:
    return {"name": "s", "expectations": list(entries), **more}


def problems(*entries: Any, **more: Any) -> tuple[str, ...]:
    return read_suite(suite(*entries, **more)).problems


@pytest.mark.parametrize(
    ("kind", "kwargs", "told"),
    [
        (NOT_NULL, {"colum": "a"}, "it has no argument 'colum'; did you mean column?"),
        (NOT_NULL, {"column": "a", "strange": 1}, "it has no argument 'strange'"),
        (NOT_NULL, {}, "it lacks column"),
        (NOT_NULL, {"column": 5}, "column is 5, and not a text"),
        (BETWEEN, {"column": "a", "min_value": 1, "mostly": 3}, "mostly is 3, and not at most 1"),
        (BETWEEN, {"column": "a", "min_value": 1, "mostly": "x"}, 'mostly is "x", and not a number'),
        (BETWEEN, {"column": "a"}, "min_value and max_value cannot both be None"),
        ("expect_table_row_count_to_equal", {"value": "x"}, 'value is "x", and not a whole number'),
        (
            "expect_column_values_to_be_in_set",
            {"column": "a", "value_set": 3},
            "value_set is 3, and not a list",
        ),
        ("expect_compound_columns_to_be_unique", {"column_list": "a"}, 'column_list is "a", and not a list'),
        (
            "expect_column_pair_values_a_to_be_greater_than_b",
            {"column_A": "a", "or_equal": "perhaps"},
            'it lacks column_B; or_equal is "perhaps", and not true or false',
        ),
        (BETWEEN, {"column": "a", "min_value": ""}, NO_VALUE.format("min_value", '""')),
        (MAX, {"column": "a", "min_value": "", "max_value": 5}, NO_VALUE.format("min_value", '""')),
        (MAX, {"column": "a", "max_value": []}, NO_VALUE.format("max_value", "[]")),
        (MAX, {"column": "a", "max_value": {}}, NO_VALUE.format("max_value", "{}")),
        (MAX, {"column": "a", "max_value": [["b", 1]]}, NO_VALUE.format("max_value", '[["b", 1]]')),
        (NOT_NULL, {"column": "a", "mostly": ""}, NO_VALUE.format("mostly", '""')),
        ("expect_table_row_count_to_be_between", {"min_value": ""}, NO_VALUE.format("min_value", '""')),
        (NOT_NULL, {"column": "a", "mostly": True}, "mostly is true, and not a number"),
        (BETWEEN, {"column": "a", "min_value": True}, "min_value is true, and not a number"),
        ("expect_table_row_count_to_equal", {"value": False}, "value is false, and not a whole number"),
        ("expect_table_row_count_to_equal", {"value": 1.5}, "value is 1.5, and not a whole number"),
        (
            "expect_column_values_to_match_regex",
            {"column": "a", "regex": True},
            "regex is true, and not a text",
        ),
    ],
)
def test_a_wrong_argument_is_told_in_words(kind: str, kwargs: dict[str, Any], told: str) -> None:
    [problem] = problems({"type": kind, "kwargs": kwargs})
    assert problem == f"expectation 1 ({kind}): {told}"


def test_an_expectation_is_called_by_its_place_from_1_and_its_name() -> None:
    told = problems(
        {"type": NOT_NULL, "kwargs": {"column": "a"}},
        {"type": NOT_NULL, "kwargs": {"colum": "a"}, "meta": {"name": "a is there"}},
        {"type": f"{NOT_NULL}s", "kwargs": {"column": "a"}},
        {"type": NOT_NULL, "kwargs": {"column": "a"}, "meta": {"name": "late"}},
        {"kwargs": {}},
        5,
        {"type": NOT_NULL, "kwargs": {"column": "a"}, "meta": {"name": "more", "across": {"times": [0, 2]}}},
    )
    assert told == (
        f"expectation 2 (a is there): {NOT_NULL}: it has no argument 'colum'; did you mean column?",
        f"expectation 3 ({NOT_NULL}s): there is no such type; did you mean {NOT_NULL}?",
        "expectation 5: it has no type",
        "expectation 6: it has no type",
        f"expectation 7 (more): {NOT_NULL}: it can't be judged across batches; {', '.join(VALUES)} can",
        "expectation 4 (late): the reason is Sluice's own, choose another meta.name",
    )


def test_a_key_that_is_written_otherwise_is_meant_as_one_that_is_known() -> None:
    assert problems(note="x") == ("unknown key 'note' in the suite; did you mean notes?",)
    [problem] = problems({"type": NOT_NULL, "kwargs": {"column": "a"}, "severty": "info"})
    assert problem.endswith(f"({NOT_NULL}): it has unknown keys 'severty'; did you mean severity?")


@pytest.mark.parametrize(
    "entry",
    [
        {"type": NOT_NULL, "kwargs": {"column": "a"}, "meta": {"name": "a\0b"}},
        {"type": NOT_NULL, "kwargs": {"column": "a"}, "meta": {"name": "a\ud800b"}},
        {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "a", "value_set": ["x", "\0"]}},
    ],
)
def test_a_text_that_no_report_could_hold_is_told_when_the_suite_is_loaded(entry: dict[str, Any]) -> None:
    [problem] = problems(entry)
    assert problem.startswith("expectation 1: it has '")
    assert problem.endswith("and PostgreSQL holds no text with NUL or half a surrogate")
    assert problem.isprintable()


def quantiles(*given: Any, ranges: Any = ((0, 1),), **more: Any) -> dict[str, Any]:
    return {
        "quantile_ranges": {"quantiles": list(given), "value_ranges": [list(one) for one in ranges]},
        **more,
    }


def partition(weights: Any, **more: Any) -> dict[str, Any]:
    return {"partition_object": {"values": ["x", "y"], "weights": weights}, **more}


NO_QUANTILE = "its quantile {} is no number from 0.0 to 1.0, written with a point"
NO_TYPE = "{} is no type of Spark: write one such as 'IntegerType'"
BELOW_0 = "is -1, and nothing that it judges is below 0: write 0 or more"


@pytest.mark.parametrize(
    ("kind", "kwargs", "told"),
    [
        ("column_quantile_values_to_be_between", quantiles(1.5), NO_QUANTILE.format(1.5)),
        ("column_quantile_values_to_be_between", quantiles(1), NO_QUANTILE.format(1)),
        ("column_quantile_values_to_be_between", quantiles(True), NO_QUANTILE.format(True)),
        ("column_quantile_values_to_be_between", quantiles(0.5, 0.9), "a list of as many value_ranges"),
        (
            "column_quantile_values_to_be_between",
            quantiles(0.5, ranges=[(2, 1)]),
            "[2, 1] has nothing within",
        ),
        (
            "column_quantile_values_to_be_between",
            quantiles(0.5, ranges=[(0, True)]),
            "[0, True] is no pair of",
        ),
        (
            "column_quantile_values_to_be_between",
            quantiles(0.5, allow_relative_error="0.1"),
            "its allow_relative_error is '0.1', and GX has none for Spark: leave it out",
        ),
        (
            "column_values_to_match_json_schema",
            {"json_schema": {"type": "objekt"}},
            "is no JSON Schema, at $.type: 'objekt'",
        ),
        (
            "column_values_to_match_json_schema",
            {"json_schema": {"$schema": 5}},
            "its json_schema is no JSON Schema: its $schema is 5, and no text",
        ),
        (
            "column_values_to_match_json_schema",
            {"json_schema": {"pattern": "("}},
            "is no JSON Schema, at $.pattern: '('",
        ),
        (
            "column_values_to_match_json_schema",
            {"json_schema": {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"$ref": "#c"}}}},
            "its json_schema has $ref '#c', and no schema of that name is in it: define it there",
        ),
        (
            "column_values_to_match_json_schema",
            {"json_schema": {"items": {"$ref": "http://127.0.0.1:1/elsewhere.json"}}},
            "its json_schema has $ref 'http://127.0.0.1:1/elsewhere.json', and no schema of that name",
        ),
        (
            "column_values_to_match_json_schema",
            {"json_schema": {"$dynamicRef": "http://127.0.0.1:1/elsewhere.json"}},
            "its json_schema has $dynamicRef 'http://127.0.0.1:1/elsewhere.json', and no schema of that name",
        ),
        (
            "column_values_to_match_json_schema",
            {"json_schema": {"$ref": "#/u/0", "u": [5]}},
            "its json_schema has $ref '#/u/0', and no schema of that name",
        ),
        (
            "column_values_to_match_json_schema",
            {"json_schema": {"$schema": "http://json-schema.org/draft-04/schema#", "$ref": 5}},
            "its json_schema has $ref 5, and no schema of that name",
        ),
        (
            "column_values_to_match_json_schema",
            {"json_schema": {"allOf": [{"$ref": "#"}]}},
            "its json_schema has a $ref that leads back to itself without end",
        ),
        (
            "column_kl_divergence_to_be_less_than",
            partition([0.5, 0.6], threshold=1),
            "weights of them whose sum is 1",
        ),
        (
            "column_kl_divergence_to_be_less_than",
            partition("half", threshold=1),
            "its partition_object is no partition",
        ),
        ("column_kl_divergence_to_be_less_than", partition([0.5, 0.5], threshold=-1), "its threshold is -1"),
        ("column_values_to_be_of_type", {"type_": "Integer"}, NO_TYPE.format("'Integer'")),
        ("column_values_to_be_of_type", {"type_": "json"}, NO_TYPE.format("'json'")),
        ("column_type_to_be", {"type_": "int"}, NO_TYPE.format("'int'")),
        ("column_values_to_be_in_type_list", {"type_list": ["INT", "int"]}, NO_TYPE.format("'INT', 'int'")),
        ("column_values_to_be_in_type_list", {"type_list": []}, NO_TYPE.format("an empty list")),
        ("table_row_count_to_equal", {"value": -1}, f"its value {BELOW_0}"),
        ("column_value_lengths_to_be_between", {"max_value": -1}, f"its max_value {BELOW_0}"),
        ("column_stdev_to_be_between", {"max_value": -1}, f"its max_value {BELOW_0}"),
        ("column_proportion_of_unique_values_to_be_between", {"min_value": 2}, "and no share is above 1"),
        (
            "column_pair_values_to_be_in_set",
            {"column_A": "a", "column_B": "b", "value_pairs_set": []},
            "its value_pairs_set is empty, and no pair is in it",
        ),
    ],
)
def test_an_argument_that_no_batch_could_be_judged_by_is_told(
    kind: str, kwargs: dict[str, Any], told: str
) -> None:
    column = {"column": "a"} if kind.startswith("column_") and "column_A" not in kwargs else {}
    [wrong] = mistakes(read_suite(suite({"type": f"expect_{kind}", "kwargs": column | kwargs})))
    assert told in wrong


TREE = {
    "$defs": {"tree": {"properties": {"kids": {"items": {"$ref": "#/$defs/tree"}}}}},
    "properties": {
        "of": {"$ref": "#/$defs/tree"},
        "schema": {"$ref": "http://json-schema.org/draft-07/schema#"},
    },
}


def test_arguments_that_gx_judges_by_are_taken() -> None:
    taken = {
        "column_quantile_values_to_be_between": quantiles(0.9, 0.0, ranges=[(None, None), (0, 0.5)]),
        "column_values_to_match_json_schema": {"json_schema": TREE},
        "column_kl_divergence_to_be_less_than": partition([0.5, 0.5], threshold=0),
        "column_values_to_be_in_type_list": {"type_list": ["INTEGER", "IntegerType"]},
        "column_unique_value_count_to_be_between": {"min_value": -1, "max_value": 2.0, "strict_min": "true"},
        "column_values_to_not_be_null": {"mostly": 1},
        "column_proportion_of_unique_values_to_be_between": {"min_value": 1, "max_value": "1"},
    }
    rules = [{"type": f"expect_{kind}", "kwargs": {"column": "a"} | kwargs} for kind, kwargs in taken.items()]
    assert mistakes(read_suite(suite(*rules))) == []


def test_a_rule_says_what_it_is_known_by_what_it_is_about_and_who_is_asked() -> None:
    meta = {"name": "new name", "id": "old name", "dimension": "accuracy", "owner": "ann"}
    first, second = read_suite(
        suite(
            {"type": NOT_NULL, "kwargs": {"column": "a"}, "meta": meta},
            {"type": NOT_NULL, "kwargs": {"column": "b"}},
        )
    ).rules
    assert (first.reason, first.known_by, first.dimension, first.owner) == (
        "new name",
        "old name",
        "accuracy",
        "ann",
    )
    assert (second.known_by, second.dimension, second.owner) == (f"{NOT_NULL}(b)", None, None)


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        ({"id": ""}, "its meta.id is '', and no text of 1 to 300 characters"),
        ({"id": 7}, "its meta.id is 7, and no text of 1 to 300 characters"),
        ({"owner": ["a"]}, "its meta.owner is ['a'], and no text of 1 to 100 characters"),
        (
            {"dimension": "acuracy"},
            "its meta.dimension is 'acuracy'; did you mean accuracy?, and none of accuracy, ",
        ),
        ({"dimension": ["accuracy"]}, "its meta.dimension is ['accuracy']"),
        (
            {"id": "taken"},
            "its meta.id 'taken' is what another rule is known by, by its id or its name: take another",
        ),
    ],
)
def test_what_is_wrong_with_a_rules_id_dimension_or_owner_is_told(meta: dict[str, Any], told: str) -> None:
    other = {"type": NOT_NULL, "kwargs": {"column": "b"}, "meta": {"name": "taken"}}
    [problem] = problems({"type": NOT_NULL, "kwargs": {"column": "a"}, "meta": meta}, other)
    assert told in problem
