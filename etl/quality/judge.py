"""Turns counts into GX's own results, and results into the decision to deliver the batch or to stop it."""

from __future__ import annotations

import copy
import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from etl.common.errors import VerdictUnknown
from etl.common.wording import NO_NUMBERS, of_json, pluralize
from etl.ledger.stops import SHARE_STOP
from etl.quality.gx import runtime
from etl.quality.verdict import Counts, RuleResult, Severity, Verdict

if TYPE_CHECKING:
    from etl.quality.compile import CompiledRule, CompiledSuite
    from etl.quality.metrics import PastBatch
    from etl.quality.planner import RulePlan
    from etl.quality.suite import DeclaredRule

MOST_NAMED = 5  # values in the reason of a stop
LONGEST_NAMED = 60  # characters of each
REASONS_TOLD = 5  # of those that most records are held for


def judge(
    suite: CompiledSuite,
    counts: Counts,
    by_gx: Mapping[int, Any] | None = None,
    *,
    max_quarantine_share: float,
    past: Sequence[PastBatch] = (),
) -> Verdict:
    """Return the verdict on one batch; raise VerdictUnknown when any expectation could not be evaluated.

    `by_gx` is what `evaluate_by_gx` returned, `past` are the batches before, newest first. The batch
    stops when a critical expectation fails, or when more than `max_quarantine_share` of its records are
    quarantined. Where state stands between records and rows, that is of whichever are more; a batch of no
    record has no share.
    """
    _require_whole(suite, counts)
    now = dt.datetime.now(dt.UTC)
    rules = [_with_bounds(rule, counts, past, now) for rule in suite.rules]
    results = tuple(_result(suite, rule, counts, by_gx or {}) for rule in rules)
    stops = [_stop(result) for result in results if result.stops]
    quarantined, records = counts.held + counts.malformed, counts.rows + counts.malformed
    if counts.records is not None:
        records = max(records, counts.records) if counts.records else 0
    if records and quarantined / records > max_quarantine_share:
        most = Counter(counts.reasons).most_common(REASONS_TOLD)
        why = ": " + ", ".join(f"{reason} ({count:,})" for reason, count in most) if most else ""
        stops.append(
            f"{quarantined:,} of {pluralize(records, 'record')} would be quarantined ({quarantined / records:.2%}), "
            f"{SHARE_STOP} ({max_quarantine_share:.2%}){why}"
        )
    return Verdict(
        success=all(result.success for result in results),
        stops=tuple(stops),
        results=results,
        quarantined=quarantined,
        suite_digest=suite.digest,
        share=quarantined / records if records else None,
    )


def unknown(suite: str, rule: DeclaredRule, why: str) -> VerdictUnknown:
    return VerdictUnknown(
        f"suite {suite!r}, {rule.named} could not be evaluated: {why}",
        remedy=f"correct expectation {rule.number + 1} of the suite (or the transform), then run again",
    )


def _require_whole(suite: CompiledSuite, counts: Counts) -> None:
    """Raise VerdictUnknown where the tasks' counts miss rows: the verdict would be on what nobody staged."""
    seen = [sum(histogram.values()) for histogram in counts.histograms]
    if counts.rows == 0:
        seen = seen or [0] * len(suite.flags)
    if len(seen) != len(suite.flags) or any(rows != counts.rows for rows in seen):
        raise VerdictUnknown(
            f"suite {suite.name!r}: the batch has {pluralize(counts.rows, 'row')} and {len(suite.flags)} flag words, "
            f"but the tasks counted in {len(seen)} words: {seen}",
            remedy="run again; if the error comes again, report it: the tasks' messages and the batch do not agree",
        )


def _with_bounds(
    rule: CompiledRule, counts: Counts, past: Sequence[PastBatch], now: dt.datetime
) -> CompiledRule:
    """Return the rule with the bounds that the batches before give it, if it is one across batches.

    Such a rule holds where it is given no bounds.
    """
    across = rule.declared.across
    if across is None or (across.column and not counts.rows):
        return rule
    limits = across.limits(past, now) or {}
    expectation = rule.declared.expectation.copy(update=limits)
    return replace(rule, declared=replace(rule.declared, expectation=expectation))


def _result(suite: CompiledSuite, rule: CompiledRule, counts: Counts, by_gx: Mapping[int, Any]) -> RuleResult:
    declared = rule.declared
    outcome = _outcome(suite, rule, counts, by_gx)
    if (outcome.exception_info or {}).get("raised_exception"):
        raise unknown(suite.name, declared, str(outcome.exception_info.get("exception_message")))
    figures = outcome.result or {}
    of_rows = "element_count" in figures and "unexpected_count" in figures
    return RuleResult(
        number=declared.number,
        reason=declared.reason,
        expectation_type=declared.kind,
        severity=declared.severity,
        success=bool(outcome.success),
        element_count=figures["element_count"] if of_rows else None,
        unexpected_count=(figures["unexpected_count"] or 0) if of_rows else None,
        where=rule.where,
        stops=declared.severity is Severity.CRITICAL and not outcome.success,
        result=_as_json(suite, declared, outcome),
        rule_id=declared.rule_id,
        dimension=declared.dimension,
        owner=declared.owner,
    )


def _outcome(suite: CompiledSuite, rule: CompiledRule, counts: Counts, by_gx: Mapping[int, Any]) -> Any:
    """Return GX's ExpectationValidationResult, from GX's own `_validate`."""
    declared = rule.declared
    if rule.plan is None:
        if declared.number not in by_gx:
            raise unknown(suite.name, declared, "it was not evaluated on the staged rows")
        return by_gx[declared.number]
    try:
        outcome = _validated(suite, declared.expectation, rule.plan, counts)
    except Exception as wrong:
        raise unknown(suite.name, declared, f"GX raised {wrong!r}") from wrong
    if declared.across and declared.expectation.min_value is declared.expectation.max_value is None:
        outcome.success = True  # GX fails a value that is null, bounds or not
    return outcome


def _validated(suite: CompiledSuite, expectation: Any, plan: RulePlan, counts: Counts) -> Any:
    """Have GX validate the expectation.

    Its `metrics_validate` does the same, and asks the expectation each time which metrics it needs: 98 % of its time.
    """
    values = {metric: source.value(counts) for metric, source in plan.sources.items()}
    metrics = {name: values[metric.id] for name, metric in plan.asked.metric_configurations.items()}
    settings = runtime() | {"result_format": dict(plan.asked.result_format)}
    found = expectation._validate(
        metrics=metrics, runtime_configuration=settings, execution_engine=suite.engine
    )
    return expectation._build_evr(found)


def _as_json(suite: CompiledSuite, declared: DeclaredRule, outcome: Any) -> Mapping[str, Any]:
    try:
        written: Mapping[str, Any] = _in_words(outcome).to_json_dict()
    except TypeError as wrong:
        raise unknown(suite.name, declared, f"GX can't write its result: {wrong}") from wrong
    return written


def _in_words(outcome: Any) -> Any:
    """Return GX's result with NaN and the infinities as text, in what it saw and in what the rule asks for.

    GX itself would write NaN as null, which is another thing.
    """
    said = copy.copy(outcome)
    said.result = of_json(outcome.result)
    if outcome.expectation_config is not None:
        said.expectation_config = copy.copy(outcome.expectation_config)
        said.expectation_config.kwargs = of_json(outcome.expectation_config.kwargs)
    return said


def _stop(result: RuleResult) -> str:
    if result.element_count is None:
        return f"{result.reason} failed: {_observed(result.result.get('result') or {})}"
    return f"{result.reason} failed: {result.unexpected_count:,} of {pluralize(result.element_count, 'row')} break it"


def _observed(figures: Mapping[str, Any]) -> str:
    """Say what a rule about the table saw: its observed value, or its counts.

    GX's rules about distinct values have no observed value, but counts.
    """
    observed = figures.get("observed_value")
    counted = [_values(figures, kind) for kind in ("unexpected", "missing") if figures.get(f"{kind}_count")]
    if observed in NO_NUMBERS:
        return f"observed {observed}"
    return f"observed {observed!r}" if observed is not None or not counted else ", ".join(counted)


def _values(figures: Mapping[str, Any], kind: str) -> str:
    """Say how many values are unexpected or missing, and name the first of them.

    Of too many GX keeps any: then none is named, for a decision compares this text.
    """
    count, sample = figures[f"{kind}_count"], figures.get(f"partial_{kind}_list") or []
    said = pluralize(count, f"{kind} value")
    if not sample or len(sample) < count:
        return said
    named = sorted(repr(value)[:LONGEST_NAMED] for value in sample)[:MOST_NAMED]
    return f"{said} ({', '.join(named)}{', …' if count > len(named) else ''})"
