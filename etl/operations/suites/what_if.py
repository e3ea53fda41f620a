"""`sluice whatif`: judges delivered batches by another suite, as a run would judge them.

It writes to no sink and not to the ledger. The code that runs use compiles, counts and judges the flags, over the
transform's stored output: the result is what a run of the same rows with that suite would say.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from etl.common.errors import VerdictUnknown
from etl.common.wording import malformed_or_late, pluralize
from etl.delivery.batch import Staged
from etl.delivery.row_filter import HoldPolicy, RowFilter, TaskReport
from etl.operations.suites.stored_batches import (
    LAST,
    SaidOfRule,
    StoredBatch,
    declared_kwargs,
    said_of,
    stored_batches,
    stored_rows,
)
from etl.operations.suites.suite_difference import SuiteDifference, cross
from etl.pipeline import Pipeline
from etl.quality.verdict import Counts, RuleResult, Verdict
from etl.sinks.columns import common_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from etl.quality.rules import Rules
    from etl.runs.workspace import Workspace

Status = Literal["new", "removed", "changed", "same"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an expectation came out."""

    success: bool
    element_count: int | None  # None: a rule about the table
    unexpected_count: int | None


@dataclass(frozen=True, kw_only=True)
class RuleChange:
    """One rule and one batch: what was said, and what would be."""

    reason: str
    expectation: str
    severity: str  # in the suite that is tried; of a removed rule, as it was
    status: Status
    then: Outcome | None  # when the batch was delivered; None: the suite had no such rule
    now: Outcome | None  # with the suite that is tried; None: it has no such rule
    newly_held: int  # delivered rows that would be held, this rule among the reasons
    newly_delivered: int  # held rows that would be delivered, this rule among their reasons

    @property
    def differs(self) -> bool:
        """Tell whether rows would change sides, or the rule would come out otherwise.

        A rule in one suite only differs if it fails.
        """
        if self.newly_held or self.newly_delivered:
            return True
        if self.then is not None and self.now is not None:
            return self.then != self.now
        return any(not one.success for one in (self.then, self.now) if one is not None)


@dataclass(frozen=True, kw_only=True)
class BatchChange:
    """What would become of one batch."""

    delivery_id: int
    stream: str
    batch_id: int
    suite_digest: str  # of the suite that judged it
    malformed: int  # records that never became rows, late ones among them: held in any case
    delivered: int  # rows that the suite would let through
    held: int  # rows that it would hold, malformed records not counted
    newly_held: int
    newly_delivered: int
    stops: Sequence[str]  # why a run would deliver nothing of it; none: it would be delivered
    rules: Sequence[RuleChange]

    @property
    def differs(self) -> bool:
        return bool(self.stops) or any(rule.differs for rule in self.rules)


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """What a suite would have made of the last batches."""

    pipeline: str
    suite: str  # its name
    suite_digest: str
    batches: Sequence[BatchChange]

    @property
    def totals(self) -> Mapping[str, int]:
        return {
            "batches": len(self.batches),
            "batches_that_differ": sum(batch.differs for batch in self.batches),
            "batches_that_stop": sum(bool(batch.stops) for batch in self.batches),
            "rows": sum(batch.delivered + batch.held for batch in self.batches),
            "malformed": sum(batch.malformed for batch in self.batches),
            "newly_held": sum(batch.newly_held for batch in self.batches),
            "newly_delivered": sum(batch.newly_delivered for batch in self.batches),
        }

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "totals": dict(self.totals)}

    def lines(self) -> list[str]:
        """Return the report in lines for people."""
        said = self.totals
        judged = ", ".join(dict.fromkeys(batch.suite_digest[:12] for batch in self.batches))
        tried = f"suite {self.suite!r} ({self.suite_digest[:12]})"
        extent = (
            f"the last {pluralize(said['batches'], 'batch', 'batches')}, {pluralize(said['rows'], 'row')}"
        )
        report = [f"{self.pipeline}: {tried} over {extent}, which were judged by {judged}"]
        if malformed := said["malformed"]:
            report.append(
                f"  {malformed_or_late(malformed)} besides, held by any suite and counted in the share that stops a batch"
            )
        report.append(
            f"  {pluralize(said['newly_held'], 'delivered row')} would be held,"
            f" {pluralize(said['newly_delivered'], 'held row')}"
            f" would be delivered, {pluralize(said['batches_that_stop'], 'batch', 'batches')} would stop"
        )
        for batch in self.batches:
            report += _batch_lines(batch)
        if same := said["batches"] - said["batches_that_differ"]:
            report.append(f"  {pluralize(same, 'batch would be as it is', 'batches would be as they are')}")
        return report


def _batch_lines(batch: BatchChange) -> list[str]:
    if not batch.differs:
        return []
    name = f"batch {batch.batch_id} (delivery {batch.delivery_id})"
    lines = [f"  {name}: {batch.newly_held:,} newly held, {batch.newly_delivered:,} newly delivered"]
    if batch.malformed:
        lines[0] += f", {malformed_or_late(batch.malformed)}"
    lines += [f"    would stop: {stop}" for stop in batch.stops]
    return lines + [
        f"    {rule.reason} ({rule.status}, {rule.severity}): {_said(rule.then)} -> {_said(rule.now)};"
        f" {rule.newly_held:,} newly held, {rule.newly_delivered:,} newly delivered"
        for rule in batch.rules
        if rule.differs
    ]


def _said(outcome: Outcome | None) -> str:
    if outcome is None:
        return "no rule"
    verdict = "passes" if outcome.success else "fails"
    if outcome.element_count is None:
        return verdict
    return f"{verdict}, {outcome.unexpected_count:,} of {outcome.element_count:,}"


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """A stored batch and what a suite says of it."""

    batch: StoredBatch
    counts: Counts
    verdict: Verdict
    differences: Sequence[SuiteDifference]

    @property
    def held_by(self) -> Counter[str]:
        """Count by reason the delivered rows that it would hold."""
        return sum((difference.held_by for difference in self.differences), Counter())

    @property
    def freed_of(self) -> Counter[str]:
        """Count by stored reason the held rows that would be delivered."""
        return sum((difference.freed_of for difference in self.differences), Counter())


def what_if(
    workspace: Workspace,
    pipeline: Pipeline,
    suite: Path,
    *,
    last: int = LAST,
    spark: SparkSession | None = None,
) -> WhatIf:
    """Judge the last batches by the suite in the file; raise SetupError, which names every mistake of it at once."""
    from etl.quality.rules import compile_rules
    from etl.quality.suite import read_suite
    from etl.runs.spark_session import a_session

    batches = stored_batches(workspace.services.postgres, pipeline, last)
    read_suite(suite)  # a file that is no suite at all is refused before Spark starts
    with a_session(workspace, spark) as session:
        rules = compile_rules(
            pipeline, put_out(workspace, pipeline, session), workspace.settings, instead=suite
        )
        return WhatIf(
            pipeline=pipeline.name,
            suite=rules.suite.name,
            suite_digest=rules.suite.digest,
            batches=[
                _change(one, said_of(workspace.services.postgres, one.batch))
                for one in weigh(session, batches, rules)
            ],
        )


def put_out(workspace: Workspace, pipeline: Pipeline, spark: SparkSession) -> DataFrame:
    """Return what the transform puts out today, opened as by a run; no input is read."""
    from etl.sources.open import open_source

    return open_source(spark, pipeline, workspace.settings, models=workspace.models, stream=False).shape()


def weigh(spark: SparkSession, batches: Iterable[StoredBatch], rules: Rules) -> Iterator[Weighed]:
    """Judge the stored batches one by one, each by one job, and by one more where GX itself is asked."""
    from etl.runs.slow_tasks import name_patterns

    name_patterns(rules)
    row_filter = row_filter_of(rules)
    return (_weighed(spark, batch, rules, row_filter) for batch in batches)


def row_filter_of(rules: Rules) -> RowFilter:
    """Return what a run of the pipeline would tell its rows apart by."""
    columns = common_schema(rules.arrow_schema, pipeline=rules.pipeline.name)
    judged = rules.stage_rules
    return RowFilter.of(rules.pipeline.sink, columns, rules.flag_words, judged, HoldPolicy.by(judged))


def _weighed(spark: SparkSession, batch: StoredBatch, rules: Rules, row_filter: RowFilter) -> Weighed:
    from etl.spark.tasks import collect, in_tasks

    frame = stored_rows(spark, batch, rules.schema)
    job = in_tasks(rules.judged(frame), partial(cross, row_filter))
    differences: list[SuiteDifference] = collect(job)
    staged = Staged(
        reports=[difference.report for difference in differences],
        malformed=[TaskReport(partition=0, task=0, quarantined=batch.malformed)],
        aggregates=rules.aggregates(job),
        records=batch.records,
    )
    counts = staged.counts(rules.flag_words)
    try:
        verdict = rules.judge(counts, lambda: frame)
    except VerdictUnknown as error:
        error.add_note(f"It was asked of {batch.name}; batches before it could be judged.")
        raise
    return Weighed(batch=batch, counts=counts, verdict=verdict, differences=differences)


def _change(weighed: Weighed, said: Sequence[SaidOfRule]) -> BatchChange:
    batch, counts, differences = weighed.batch, weighed.counts, weighed.differences
    return BatchChange(
        delivery_id=batch.delivery_id,
        stream=batch.stream_id,
        batch_id=batch.batch_id,
        suite_digest=batch.suite_digest,
        malformed=batch.malformed,
        delivered=counts.rows - counts.held,
        held=counts.held,
        newly_held=sum(difference.newly_held for difference in differences),
        newly_delivered=sum(difference.newly_delivered for difference in differences),
        stops=weighed.verdict.stops,
        rules=_rules(said, weighed),
    )


def _rules(said: Sequence[SaidOfRule], weighed: Weighed) -> Sequence[RuleChange]:
    """Compare the rules of both suites by what they are known by; those of the suite that is tried come first."""
    held_by, freed_of = weighed.held_by, weighed.freed_of
    rules_before = {rule.known_by: rule for rule in said}
    changes = []
    for result in weighed.verdict.results:
        old = rules_before.pop(result.known_by, None)
        changes.append(
            RuleChange(
                reason=result.reason,
                expectation=result.expectation_type,
                severity=result.severity,
                status=_status(old, result),
                then=_outcome(old) if old else None,
                now=_outcome(result),
                newly_held=held_by[result.reason],
                newly_delivered=freed_of[old.reason if old else result.reason],
            )
        )
    return changes + [
        RuleChange(
            reason=old.reason,
            expectation=old.expectation,
            severity=old.severity,
            status="removed",
            then=_outcome(old),
            now=None,
            newly_held=0,
            newly_delivered=freed_of[old.reason],
        )
        for old in rules_before.values()
    ]


def _outcome(rule: SaidOfRule | RuleResult) -> Outcome:
    return Outcome(
        success=rule.success, element_count=rule.element_count, unexpected_count=rule.unexpected_count
    )


def _status(old: SaidOfRule | None, new: RuleResult) -> Status:
    if old is None:
        return "new"
    configuration = new.result["expectation_config"]
    same_question = old.kwargs is None or _canonical(old.kwargs) == _canonical(declared_kwargs(configuration))
    same = (old.expectation, old.severity) == (new.expectation_type, new.severity)
    return "same" if same and same_question else "changed"


def _canonical(kwargs: Mapping[str, Any]) -> str:
    return json.dumps(kwargs, sort_keys=True, default=str)
