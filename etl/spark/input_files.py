"""Finds in a plan what it asks Spark of the file that a task is reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from etl.spark.state_plan import listed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def takes_input_file_name(frame: DataFrame) -> bool:
    """Tell whether a frame's plan takes `input_file_name()`."""
    plans = [frame._jdf.queryExecution().analyzed()]
    while plans:
        plan = plans.pop()
        if plan.deterministic():  # which the function is not, nor what it is a part of
            continue
        if any(_takes_it(one) for one in listed(plan.expressions())):
            return True
        plans += listed(plan.children()) + listed(plan.subqueries())
    return False


def _takes_it(expression: Any) -> bool:
    if expression.deterministic():
        return False
    return bool(expression.nodeName() == "InputFileName") or any(
        _takes_it(one) for one in listed(expression.children())
    )
