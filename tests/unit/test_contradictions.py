"""Two rules of which not both can hold are told when their suite is loaded; two that can are not."""

from __future__ import annotations

from typing import Any

import pytest

from etl.quality.mistakes.arguments import mistakes
from etl.quality.suite import read_suite

Rule = dict[str, Any]


def rule(kind: str, severity: str = "warning", **kwargs: Any) -> Rule:
    return {"type": f"expect_{kind}", "kwargs": kwargs, "severity": severity}


def values(kind: str, **kwargs: Any) -> Rule:
    return rule(f"column_values_to_{kind}", **{"column": "x", **kwargs})


def figure(kind: str, **kwargs: Any) -> Rule:
    return rule(f"column_{kind}_to_be_between", "critical", column="x", **kwargs)


def told(one: Rule, other: Rule) -> list[str]:
    named = [{**each, "meta": {"name": name}} for each, name in ((one, "one"), (other, "other"))]
    return mistakes(read_suite({"name": "s", "expectations": named}))


PAID = {"row_condition": "paid", "condition_parser": "spark"}
APART = [
    (values("be_null"), values("not_be_null"), "no value is both null and not null"),
    (values("be_null", **PAID), values("not_be_null", **PAID), "no value is both null and not null"),
    (
        values("match_regex", regex="^a"),
        values("not_match_regex", regex="^a"),
        "no text both matches '^a' and",
    ),
    (values("be_in_set", value_set=["A", "B"]), values("be_in_set", value_set=["C"]), "no value is in both"),
    (values("be_in_set", value_set=[1, 2]), values("be_in_set", value_set=[3]), "no value is in both"),
    (
        values("be_in_set", value_set=[1, 2]),
        values("be_between", min_value=3),
        "no value of the set is within at least 3",
    ),
    (
        values("be_in_set", value_set=["2020-01-01"]),
        values("be_between", max_value="2019-12-31"),
        "no value of the set is within at most 2019-12-31",
    ),
    (
        values("be_in_set", value_set=[1, 2]),
        figure("max", min_value=3),
        "no value of the set is within at least 3",
    ),
    (values("be_between", max_value=5), values("be_between", min_value=6), "at most 5.0 and at least 6.0"),
    (
        values("be_between", max_value=5, mostly=0.6),
        values("be_between", min_value=6, mostly=0.5),
        "nothing is within",
    ),
    (
        values("be_between", max_value=5),
        figure("mean", min_value=6),
        "all values are at most 5.0, so no figure",
    ),
    (
        figure("max", max_value=5),
        figure("min", min_value=6),
        "what is at most 5.0 is below what is at least 6.0",
    ),
    (
        figure("max", max_value=5),
        figure("median", min_value=6),
        "what is at most 5.0 is below what is at least 6.0",
    ),
    (
        figure("mean", max_value=5, strict_max=True),
        figure("min", min_value=5),
        "what is less than 5.0 is below",
    ),
    (
        rule("column_value_lengths_to_equal", column="x", value=2),
        rule("column_value_lengths_to_be_between", column="x", min_value=3),
        "nothing is within the bounds of both",
    ),
    (
        rule("table_row_count_to_equal", value=2),
        rule("table_row_count_to_be_between", min_value=3),
        "nothing is within the bounds of both",
    ),
]
TOGETHER = [
    (values("be_null", mostly=0.5), values("not_be_null", mostly=0.5)),
    (values("be_null", **PAID), values("not_be_null")),
    (values("be_null"), values("not_be_null", column="y")),
    (values("be_null"), {**values("not_be_null"), "severity": "info"}),
    (values("be_in_set", value_set=["A", "B"]), values("be_in_set", value_set=["B", "C"])),
    (values("be_in_set", value_set=["1"]), values("be_in_set", value_set=["1.0"])),
    (values("be_in_set", value_set=["true"]), values("be_in_set", value_set=["yes"])),
    (values("be_in_set", value_set=["Café"]), values("be_in_set", value_set=["CAFE "])),
    (values("be_in_set", value_set=[1, 2]), values("be_between", min_value=2)),
    (values("be_in_set", value_set=["1"]), values("be_between", min_value=2)),
    (values("be_in_set", value_set=[1, 2], mostly=0.9), figure("max", min_value=3)),
    (values("be_between", max_value=5, mostly=0.9), figure("max", min_value=6)),
    (values("be_between", max_value=5), values("be_between", min_value=5)),
    (figure("max", min_value=6), figure("min", max_value=5)),
    (figure("mean", max_value=5), figure("median", min_value=6)),
    (values("match_regex", regex="^a"), values("not_match_regex", regex="^b")),
]


@pytest.mark.parametrize(("one", "other", "why"), APART)
def test_two_rules_of_which_not_both_can_hold_are_told_in_either_order(
    one: Rule, other: Rule, why: str
) -> None:
    for pair in ((one, other), (other, one)):
        [said] = told(*pair)
        assert "expectation 1 (one) and expectation 2 (other) contradict each other" in said
        assert ("over x: " in said) == ("column" in one["kwargs"])
        assert "; take " in said
    assert why in told(one, other)[0]


@pytest.mark.parametrize(("one", "other"), TOGETHER)
def test_two_rules_that_can_both_hold_are_no_mistake(one: Rule, other: Rule) -> None:
    assert told(one, other) == []
    assert told(other, one) == []
