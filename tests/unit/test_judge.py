"""Why a batch stops, in the words that a decision on it is compared by."""

from __future__ import annotations

from typing import Any

import great_expectations.expectations as gxe
import pytest

from etl.quality.gx import runtime
from etl.quality.judge import _stop
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
