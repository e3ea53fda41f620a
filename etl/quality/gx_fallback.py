"""Lets GX judge on the staged rows the rules that compare rows or that no single pass can answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from etl.quality.gx import engine_over, resolve, runtime
from etl.quality.judge import unknown
from etl.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from etl.quality.compile import CompiledSuite


def evaluate_by_gx(suite: CompiledSuite, frame: DataFrame) -> Mapping[int, Any]:
    """Evaluate the rules that the pass left open; return GX's results by rule number.

    `frame` is the whole staged output. Raises VerdictUnknown when GX could not compute one of them: GX itself
    would report that as a failure.
    """
    if not suite.by_gx:
        return {}
    engine = engine_over(frame.sparkSession, _judged_columns(suite, frame))
    needed = {
        rule.declared.number: rule.declared.expectation.get_validation_dependencies(
            execution_engine=engine, runtime_configuration=runtime()
        ).get_metric_configurations()
        for rule in suite.by_gx
    }
    answer = resolve(engine, [metric for metrics in needed.values() for metric in metrics])
    results = {}
    for rule in suite.by_gx:
        missing = [
            metric.metric_name for metric in needed[rule.declared.number] if metric.id not in answer.values
        ]
        if missing:
            why = "; ".join(dict.fromkeys(answer.failures.values())) or "it gave no reason"
            raise unknown(suite.name, rule.declared, f"GX has no {', '.join(missing)}: {why}")
        try:
            results[rule.declared.number] = rule.declared.expectation.metrics_validate(
                metrics=answer.values, execution_engine=engine, runtime_configuration=runtime()
            )
        except Exception as wrong:
            raise unknown(suite.name, rule.declared, f"GX raised {wrong!r}") from wrong
    return results


def _judged_columns(suite: CompiledSuite, frame: DataFrame) -> DataFrame:
    return frame.select(*(quoted(name) for name in suite.schema.fieldNames()))
