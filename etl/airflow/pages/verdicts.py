"""Shows expectations on a batch's page: the ledger's verdict beside what Great Expectations saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etl.airflow.pages.records import Judged, RuleRow
from etl.airflow.pages.report import Observed, Report


@dataclass(frozen=True, kw_only=True)
class Verdict(Judged):
    """One expectation as a batch's page shows it."""

    number: int
    reason: str
    known_by: str
    dimension: str | None
    owner: str | None
    kind: str
    severity: str
    observed: Observed


def verdicts_of(rules: Sequence[RuleRow], report: Report) -> list[Verdict]:
    return [
        Verdict(
            number=one.number,
            reason=one.reason,
            known_by=one.known_by,
            dimension=one.dimension,
            owner=one.owner,
            kind=one.expectation,
            severity=one.severity,
            success=one.success,
            element_count=one.element_count,
            unexpected_count=one.unexpected_count,
            observed=report.of(one.number),
        )
        for one in rules
    ]


def of_report(report: Report) -> list[Verdict]:
    """Return the verdicts of a batch that was not delivered: its report is all there is."""
    return [
        Verdict(
            number=number,
            reason=observed.reason,
            known_by=observed.known_by,
            dimension=observed.dimension,
            owner=observed.owner,
            kind=observed.kind,
            severity=observed.severity,
            success=bool(observed.success),
            element_count=observed.element_count,
            unexpected_count=observed.unexpected_count,
            observed=observed,
        )
        for number, observed in report.by_number.items()
    ]


def broken_first(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return sorted(verdicts, key=lambda one: (one.success, not one.broken, one.number))
