"""Draws rules by batches: a cell shows the share of a batch's rows that break a rule, by shade and by text.

However many rules and batches there are, a map has at most MOST_CELLS cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etl.airflow.pages.formatting import number, share
from etl.airflow.pages.records import BatchRow, RuleRow, new_streams

COLUMNS = 40
FEWEST_COLUMNS = 10
MOST_CELLS = 1400
SHADES = (0.001, 0.01, 0.05, 0.2, 0.5)  # upper bounds of the shares of shades 1 to 5; 6 is beyond
SEVERITIES = ("critical", "warning", "info")
TABLE_FAILED = "hx"  # class of style.css: a rule about the table failed


@dataclass(frozen=True, kw_only=True)
class Cell:
    shade: str  # class of style.css
    text: str  # at most three characters
    title: str
    delivery_id: int
    number: int  # the rule's place in the suite of that batch
    tolerated: bool


@dataclass(frozen=True, kw_only=True)
class Line:
    """One rule."""

    known_by: str  # over its names
    reason: str  # its name in the newest batch of the map
    severity: str
    broken: int  # batches of the map in which rows broke it, or it failed
    failed: int  # of them, those in which it failed: `mostly` is considered
    cells: tuple[Cell | None, ...]  # None: the batch's suite had no such rule


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    batches: tuple[BatchRow, ...]  # oldest first, as in the cells of a line
    lines: tuple[Line, ...]
    begun: frozenset[int]  # deliveries with which a new stream begins
    left_out: int  # rules that did not fit; none of them is broken more often than one that is shown


def width(rules: int) -> int:
    """Return how many batches fit beside so many rules."""
    return max(FEWEST_COLUMNS, min(COLUMNS, MOST_CELLS // max(rules, 1)))


def heatmap(batches: Sequence[BatchRow], rules: Sequence[RuleRow]) -> Heatmap:
    """Make the map of rules by batches; `batches` come newest first.

    Rules that failed most come first, then those broken most, then by severity and in the order of the suite.
    """
    newest = list(batches)[: width(len({rule.known_by for rule in rules}))]
    columns = {batch.delivery_id: index for index, batch in enumerate(reversed(newest))}
    by_id: dict[str, list[RuleRow]] = {}
    for rule in rules:
        if rule.delivery_id in columns:
            by_id.setdefault(rule.known_by, []).append(rule)
    lines = sorted(
        (_line(verdicts, columns) for verdicts in by_id.values()),
        key=_importance,
    )
    most = max(1, MOST_CELLS // max(len(columns), 1))
    return Heatmap(
        batches=tuple(reversed(newest)),
        lines=tuple(lines[:most]),
        begun=new_streams(newest[::-1]),
        left_out=max(0, len(lines) - most),
    )


def _importance(line: Line) -> tuple[int, int, int]:
    severity = SEVERITIES.index(line.severity) if line.severity in SEVERITIES else len(SEVERITIES)
    return (-line.failed, -line.broken, severity)


def _line(verdicts: Sequence[RuleRow], columns: dict[int, int]) -> Line:
    cells: list[Cell | None] = [None] * len(columns)
    for verdict in verdicts:
        cells[columns[verdict.delivery_id]] = cell(verdict)
    newest = max(verdicts, key=lambda verdict: columns[verdict.delivery_id])
    return Line(
        known_by=newest.known_by,
        reason=newest.reason,
        severity=newest.severity,
        broken=sum(verdict.broken for verdict in verdicts),
        failed=sum(not verdict.success for verdict in verdicts),
        cells=tuple(cells),
    )


def cell(rule: RuleRow) -> Cell:
    return Cell(
        shade=shade(rule),
        text=_text(rule),
        title=_title(rule),
        delivery_id=rule.delivery_id,
        number=rule.number,
        tolerated=rule.tolerated,
    )


def shade(rule: RuleRow) -> str:
    """Return a cell's shade: h0, nobody broke it; h1 to h6, by the share; hx, a rule about the table failed."""
    part = rule.share
    if not part:
        return "h0" if rule.success else TABLE_FAILED
    return f"h{1 + sum(part > bound for bound in SHADES)}"


def _text(rule: RuleRow) -> str:
    part = rule.share
    if not part:
        return "" if rule.success else "✗"
    return "<1" if part < 0.01 else "100" if part == 1 else str(min(99, round(part * 100)))


def _title(rule: RuleRow) -> str:
    if rule.unexpected_count is None:
        return "holds" if rule.success else "failed"
    if not rule.unexpected_count:
        return f"none of {number(rule.element_count)}"
    return f"{share(rule.share)}: {number(rule.unexpected_count)} of {number(rule.element_count)}" + (
        ", tolerated" if rule.success else ""
    )
