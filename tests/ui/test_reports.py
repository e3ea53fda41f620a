"""What a batch's report says of a rule is shown as it was meant: conditions as text, and what is no number by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from etl.airflow.pages.report import Observed, read_report


def seen(kwargs: dict[str, Any], result: dict[str, Any] | None = None) -> Observed:
    entry = {
        "success": False,
        "expectation_config": {"type": "expect", "kwargs": kwargs},
        "result": result or {},
    }
    return read_report(json.dumps({"results": [entry]})).of(0)


def compared(column: str, operator: str, parameter: object) -> dict[str, Any]:
    return {"type": "comparison", "column": {"name": column}, "operator": operator, "parameter": parameter}


NOTHING = {"type": "nullity", "column": {"name": "b"}, "is_null": True}


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        ("n <> 2", "n <> 2"),
        ({"type": "pass_through", "pass_through_filter": "n <> 2 and b = 'x'"}, "n <> 2 and b = 'x'"),
        (compared("a", "<", 5), "a < 5"),
        (compared("a", "IN", ["x", "y"]), 'a IN ["x", "y"]'),
        (NOTHING, "b IS NULL"),
        (NOTHING | {"is_null": False}, "b IS NOT NULL"),
        ({"type": "and", "conditions": [compared("a", ">=", 1), NOTHING]}, "(a >= 1) AND (b IS NULL)"),
        (
            {"type": "or", "conditions": [NOTHING, {"type": "and", "conditions": [NOTHING, NOTHING]}]},
            "(b IS NULL) OR ((b IS NULL) AND (b IS NULL))",
        ),
        ({"of": "a later version"}, '{"of": "a later version"}'),
        (7, "7"),
    ],
)
def test_a_row_condition_is_shown_as_its_text(condition: object, text: str) -> None:
    kwargs = {"column": "x", "min_value": 1, "row_condition": condition, "condition_parser": "spark"}
    assert seen(kwargs).arguments == f"min_value: 1, row_condition: {text}"
    assert "condition" not in seen({"column": "x", "min_value": 1}).arguments


def test_what_is_no_number_is_shown_by_its_name() -> None:
    shown = seen(
        {"value_set": ["NaN", "Infinity"]}, {"observed_value": "NaN", "partial_unexpected_list": ["NaN", 1]}
    )
    assert shown.arguments == 'value_set: ["NaN", "Infinity"]'
    assert ("observed_value", "NaN") in shown.figures
    assert shown.samples == ("NaN", "1")
