"""Compiles a suite into columns of the batch frame, once per run, from GX's own conditions on an empty frame.

Every flag and aggregate is GX's own expression, narrowed to the domain that GX itself would filter to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etl.common.errors import SetupError
from etl.quality.gx import engine_over, quiet_analysis
from etl.quality.mistakes.arguments import (
    Refused,
    require_arguments,
    require_patterns,
    require_values,
)
from etl.quality.mistakes.contradictions import contradictions
from etl.quality.planner import NotInThePass, Planner, RulePlan
from etl.quality.suite import DeclaredRule, read_suite
from etl.quality.verdict import FLAGS_PER_WORD, Severity, StageRule, Where, flag_column

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType

# The types whose condition is a Python function of GX's, which Spark's Python workers evaluate in the pass.
IN_PYTHON = frozenset(
    {
        "expect_column_values_to_be_json_parseable",
        "expect_column_values_to_match_json_schema",
        "expect_column_values_to_match_strftime_format",
    }
)


@dataclass(frozen=True, kw_only=True)
class CompiledRule:
    declared: DeclaredRule
    plan: RulePlan | None  # None: GX itself evaluates it on the staged rows
    # What no rule before it needed, each as one column: to try this rule alone.
    flags: tuple[Column, ...] = field(default=(), compare=False, repr=False)
    aggregates: tuple[Column, ...] = field(default=(), compare=False, repr=False)

    @property
    def where(self) -> Where:
        if self.plan is None:
            return "gx"
        return "pass" if self.plan.looks_at_rows else "reader"

    @property
    def outside_spark(self) -> bool:
        """Tell whether more than Spark's own expressions evaluate the rule: Python, or GX in jobs of its own."""
        return self.where == "gx" or self.declared.kind in IN_PYTHON


@dataclass(frozen=True, kw_only=True)
class CompiledSuite:
    """A suite ready to judge batches of one schema."""

    name: str
    digest: str  # SHA-256 of the suite's canonical JSON
    schema: StructType  # of the transform's output
    rules: tuple[CompiledRule, ...]
    stage_rules: tuple[StageRule, ...]  # the rules about rows
    flags: tuple[Column, ...]  # `_flags0`…, to be selected beside the output's columns
    aggregates: tuple[Column, ...]  # named, for `frame.observe`; empty: nothing to observe
    engine: Any = field(repr=False)  # GX's engine over the empty frame; some expectations ask for its type

    @property
    def by_gx(self) -> tuple[CompiledRule, ...]:
        """Return the rules that need GX itself on the whole staged output."""
        return tuple(rule for rule in self.rules if rule.plan is None)

    @property
    def looks_back(self) -> int:
        """Return how many batches before this one the suite's rules compare with, at most; 0: none."""
        return self._farthest(same_weekday=False)

    @property
    def looks_back_on_weekday(self) -> int:
        """Return how many batches of their own day of the week the suite's rules compare with, at most; 0: none."""
        return self._farthest(same_weekday=True)

    def _farthest(self, *, same_weekday: bool) -> int:
        found = (rule.declared.across for rule in self.rules if rule.declared.across)
        return max((one.last for one in found if one.same_weekday is same_weekday), default=0)


def compile_suite(
    suite: Path | Mapping[str, Any],
    schema: StructType,
    spark: SparkSession,
    *,
    measured: Sequence[str] = (),
) -> CompiledSuite:
    """Compile the suite to columns over `schema`; raise SetupError with every mistake of the suite at once.

    `measured` are the columns whose metrics are kept, which rules across batches may speak of.
    """
    with quiet_analysis():
        declared = read_suite(suite)
    empty = spark.createDataFrame([], schema)
    engine = engine_over(spark, empty)
    planner = Planner.over(spark, empty, engine, measured)
    problems = [*declared.problems, *contradictions(declared.rules)]
    rules: list[CompiledRule] = []
    for rule in declared.rules:
        try:
            with quiet_analysis():
                rules.append(_compiled(rule, planner))
        except Refused as wrong:
            problems.append(f"{rule.named}: {wrong}")
    if problems:
        raise SetupError(
            f"suite {declared.name!r} can't be used:\n" + "\n".join(f"  - {problem}" for problem in problems),
            remedy=f"correct {suite if isinstance(suite, Path) else 'the suite'} and start again",
        )
    return CompiledSuite(
        name=declared.name,
        digest=declared.digest,
        schema=schema,
        rules=tuple(rules),
        stage_rules=_stage_rules(rules),
        flags=_flag_words(planner.flags),
        aggregates=tuple(planner.aggregates),
        engine=engine,
    )


def _compiled(rule: DeclaredRule, planner: Planner) -> CompiledRule:
    require_arguments(rule)
    planner.require_columns(rule)
    spark = planner.frame.sparkSession
    require_patterns(rule, spark)
    require_values(rule, planner.frame.schema, spark)
    flags, aggregates = len(planner.flags), len(planner.aggregates)
    try:
        return CompiledRule(
            declared=rule,
            plan=planner.plan(rule),
            flags=tuple(planner.flags[flags:]),
            aggregates=tuple(planner.aggregates[aggregates:]),
        )
    except NotInThePass as why:
        if rule.across:
            raise Refused(f"it can't be compared with other batches, for {why}") from why
        _refuse_rows_held_too_late(rule, str(why))
        return CompiledRule(declared=rule, plan=None)


def _refuse_rows_held_too_late(rule: DeclaredRule, why: str) -> None:
    """Raise Refused where a rule that the pass can't evaluate would quarantine rows.

    Only the pass that writes a row can quarantine it.
    """
    from great_expectations.expectations.expectation import (
        ColumnMapExpectation,
        ColumnPairMapExpectation,
        MulticolumnMapExpectation,
    )

    kinds = (ColumnMapExpectation, ColumnPairMapExpectation, MulticolumnMapExpectation)
    if not isinstance(rule.expectation, kinds):
        return
    mostly: Any = rule.expectation.mostly
    ways = "make it info, or critical with mostly 1"
    if rule.severity is Severity.WARNING:
        raise Refused(f"a warning quarantines rows, but {why}: {ways}")
    if rule.severity is Severity.CRITICAL and mostly < 1:
        raise Refused(f"critical with mostly below 1 quarantines rows, but {why}: {ways}")


def _stage_rules(rules: Sequence[CompiledRule]) -> tuple[StageRule, ...]:
    return tuple(
        StageRule(
            number=rule.declared.number,
            reason=rule.declared.reason,
            broken=rule.plan.broken,
            columns=rule.declared.columns,
            quarantines=rule.declared.severity is not Severity.INFO,
        )
        for rule in rules
        if rule.plan is not None and rule.plan.broken is not None
    )


def _flag_words(flags: Sequence[Column]) -> tuple[Column, ...]:
    """Pack flags into `_flags<w>`: bit i of word w is flag 63*w+i; a null flag is false, as GX counts it."""
    from pyspark.sql import functions as F

    flag_words = []
    for start in range(0, len(flags), FLAGS_PER_WORD):
        bits = [
            F.when(flag, F.lit(1 << bit).cast("bigint")).otherwise(F.lit(0).cast("bigint"))
            for bit, flag in enumerate(flags[start : start + FLAGS_PER_WORD])
        ]
        flag_words.append(
            reduce(lambda left, right: left.bitwiseOR(right), bits).alias(
                flag_column(start // FLAGS_PER_WORD)
            )
        )
    return tuple(flag_words)
