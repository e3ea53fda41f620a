"""Why a batch stops, in the words that a decision on it is compared by."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import great_expectations.expectations as gxe
import numpy as np
import pytest
from great_expectations.core import ExpectationValidationResult
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

from etl.quality.gx import runtime
from etl.quality.judge import _in_words, _stop
from etl.quality.verdict import RuleResult, Severity

NOT_IN_SET, MISSING = "column.distinct_values.not_in_set", "column.distinct_values.missing_from_column"


def stop_of(result: dict[str, Any]) -> str:
    return _stop(
        RuleResult(
            number=0,
            reason="the rule",
            expectation_type="expect_something",
            severity=Severity.CRITICAL,
            success=False,
            element_count=None,
            unexpected_count=None,
            where="gx",
            stops=True,
            result={"success": False, "result": result},
        )
    )


@pytest.mark.parametrize(
    ("kind", "unexpected", "missing", "said"),
    [
        ("InSet", ["c", "b"], None, "2 unexpected values ('b', 'c')"),
        ("ContainSet", None, [9], "1 missing value (9)"),
        ("EqualSet", ["b"], ["z", "y"], "1 unexpected value ('b'), 2 missing values ('y', 'z')"),
        ("EqualSet", [], [True], "1 missing value (True)"),
        ("InSet", [6, 5, 4, 3, 2, 1], None, "6 unexpected values (1, 2, 3, 4, 5, …)"),
        ("InSet", ["b" * 99], None, f"1 unexpected value ('{'b' * 59})"),
        ("InSet", list(range(30)), None, "30 unexpected values"),  # of which GX keeps any twenty
    ],
)
def test_a_rule_about_distinct_values_says_which(
    kind: str, unexpected: list[Any] | None, missing: list[Any] | None, said: str
) -> None:
    named = "Be" * (kind == "InSet") + kind
    expectation = getattr(gxe, f"ExpectColumnDistinctValuesTo{named}")(column="x", value_set=["a"])
    found = {NOT_IN_SET: unexpected, MISSING: missing}
    metrics = {name: values for name, values in found.items() if values is not None}
    metrics |= {f"{name}.count": len(values) for name, values in metrics.items()}
    outcome = expectation._validate(metrics, runtime_configuration=runtime())
    assert not outcome["success"]
    assert stop_of(outcome["result"]) == f"the rule failed: {said}"


def test_what_was_observed_is_said() -> None:
    assert stop_of({"observed_value": 3}) == "the rule failed: observed 3"
    assert stop_of({"observed_value": 3, "unexpected_count": 1}) == "the rule failed: observed 3"
    assert stop_of({"observed_value": None}) == "the rule failed: observed None"


NAN, INF = float("nan"), float("inf")


def test_a_report_has_nan_and_the_infinities_in_words_and_is_json() -> None:
    asked = {"column": "x", "value_set": [NAN, INF, 1.5, None], "mostly": 0.5}
    seen = {
        "observed_value": NAN,
        "partial_unexpected_list": [np.float32("nan"), np.float64("-inf"), None, "NaN", 2, 10**400],
        "details": {"value_counts": ({"value": NAN, "count": 1},), "quantiles": {0.5: -INF}},
        "exact": [Decimal("1.10"), np.float32(0.5)],
    }
    config = ExpectationConfiguration(type="expect_column_values_to_be_in_set", kwargs=asked)
    result = ExpectationValidationResult(success=False, expectation_config=config, result=seen)
    written = json.loads(json.dumps(_in_words(result).to_json_dict(), allow_nan=False))
    assert written["expectation_config"]["kwargs"]["value_set"] == ["NaN", "Infinity", 1.5, None]
    assert written["result"] == {
        "observed_value": "NaN",
        "partial_unexpected_list": ["NaN", "-Infinity", None, "NaN", 2, 10**400],
        "details": {"value_counts": [{"value": "NaN", "count": 1}], "quantiles": {"0.5": "-Infinity"}},
        "exact": [1.1, 0.5],
    }
    assert seen["observed_value"] is NAN, "GX's own result stays as it was"
    assert config.kwargs is asked


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_is_named_without_quotes(value: str) -> None:
    assert stop_of({"observed_value": value}) == f"the rule failed: observed {value}"
