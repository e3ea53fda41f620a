"""What is said of a suite's mistakes: each expectation by its place from 1 and its name, in words of the suite's own."""

from __future__ import annotations

from typing import Any

import pytest

from etl.quality.suite import read_suite
from etl.quality.trend_rules import VALUES

BETWEEN, NOT_NULL = "expect_column_values_to_be_between", "expect_column_values_to_not_be_null"
MAX = "expect_column_max_to_be_between"
NO_VALUE = "{0} is {1}, and that is no value: write one, or leave {0} out"


def problems(*entries: Any, **more: Any) -> tuple[str, ...]:
    return read_suite({"name": "s", "expectations": list(entries), **more}).problems


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
