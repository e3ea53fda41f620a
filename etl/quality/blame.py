"""Names the rule that can't be evaluated, after a job failed, by trying each rule of the suite alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.quality.gx import quiet_analysis
from etl.quality.judge import unknown
from etl.spark.java_errors import Cause, classify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from etl.quality.compile import CompiledRule, CompiledSuite


def require_evaluable(suite: CompiledSuite, frame: DataFrame) -> Exception | None:
    """Raise VerdictUnknown for the first rule that fails over the rows of `frame`.

    It is no rule's fault when the rows can't be had even without them: returns that error; or when all rules
    together can be evaluated: returns None. Each look is a pass over the batch that writes nothing.
    """
    if (without_rules := failure(frame)) is not None:
        return without_rules
    together = frame.observe("alone", *suite.aggregates) if suite.aggregates else frame
    if failure(together.select("*", *suite.flags)) is None:
        return None
    for rule in suite.rules:
        if (wrong := failure(_observed_alone(rule, frame))) is not None:
            raise unknown(suite.name, rule.declared, _why(wrong)) from wrong
    return None


def _observed_alone(rule: CompiledRule, frame: DataFrame) -> DataFrame | None:
    if not (rule.flags or rule.aggregates):
        return None
    observed = frame.observe("alone", *rule.aggregates) if rule.aggregates else frame
    return observed.select("*", *(flag.alias(f"_alone{at}") for at, flag in enumerate(rule.flags)))


def failure(frame: DataFrame | None) -> Exception | None:
    """Return the error with which a pass over all of a frame ends; None where it does not fail, or there is no frame."""
    if frame is None:
        return None
    try:
        with quiet_analysis():
            frame.write.format("noop").mode("overwrite").save()
    except Exception as wrong:  # noqa: BLE001 - it is told, or the job's own error is
        return wrong
    return None


def _why(wrong: Exception) -> str:
    """Say in a line what Spark says of the error; for an error in GX's own Python, what that error says."""
    # Within foreachBatch it may come as py4j's own error, which has Spark's behind a line of its own.
    text = str(getattr(wrong, "java_exception", None) or wrong)
    if overflow := classify(wrong).get(Cause.STACK_OVERFLOW):
        thrown = overflow.rpartition(": ")[2]  # the last words, where the job tells of its task
        return f"a text is too long for a group that repeats in a regular expression: {thrown}"
    said = [line for line in text.splitlines() if line.strip()]
    traceback = next(
        (at for at, line in enumerate(said) if "Traceback (most recent call last)" in line), None
    )
    if traceback is not None:
        said = [line for line in said[traceback + 1 :] if not line[0].isspace()]
    return said[0] if said else type(wrong).__name__
