"""The types shared by a batch's rules, its stage and its verdict; free of Spark and of Great Expectations.

A rule about rows is one flag: a bit of the `_flags<w>` columns that `quality` adds to the frame. The stage
counts rows per value of each word, so any flag's count follows without another look at the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from etl.ledger.stops import Behind
from etl.quality.metrics import ColumnMetrics

FLAGS_PER_WORD = 63
SAMPLES_PER_RULE = 20

Where = Literal["pass", "gx", "reader"]


def flag_column(word: int) -> str:
    """Return the name of the column that has a word of flags."""
    return f"_flags{word}"


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, kw_only=True)
class StageRule:
    """What the stage must know of a rule about rows: whose samples to keep, and whom to hold back."""

    number: int  # position among the suite's expectations
    reason: str  # unique in the suite, written beside every quarantined row
    broken: int  # index of the flag that is true for the rows that break the rule
    columns: tuple[str, ...]  # the columns whose values are kept as samples, in this order
    quarantines: bool  # False: broken rows are delivered, but counted and sampled


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What the winning tasks saw of one batch: the whole transform output, delivered and held alike."""

    rows: int  # of the transform's output
    held: int  # of them quarantined, whether by the suite or by what PostgreSQL can't hold
    histograms: tuple[Mapping[int, int], ...]  # per word: mask value -> rows
    samples: Mapping[int, Sequence[tuple[Any, ...]]] = field(default_factory=dict)  # rule number -> rows
    aggregates: Mapping[str, Any] = field(default_factory=dict)  # observed name -> value
    malformed: int = 0  # records that never became rows: quarantined as well, counted in the share
    reasons: Mapping[str, int] = field(
        default_factory=dict
    )  # reason -> of all that is quarantined, what carries it
    records: int | None = None  # that were read, where the rows are not of them alone
    columns: Mapping[str, ColumnMetrics] = field(
        default_factory=dict
    )  # of the columns that the pipeline names

    def count(self, flag: int) -> int:
        """Count the rows for which `flag` is true."""
        word, bit = divmod(flag, FLAGS_PER_WORD)
        if word >= len(self.histograms):
            return 0
        return sum(rows for mask, rows in self.histograms[word].items() if mask >> bit & 1)


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """How one expectation came out for one batch."""

    number: int
    reason: str
    expectation_type: str  # GX's snake case name
    severity: Severity
    success: bool
    element_count: int | None  # rows in the rule's domain; None: a rule about the table
    unexpected_count: int | None
    where: Where  # evaluated in the pass, by GX on the staged rows, or from schema and row count
    stops: bool  # this expectation's failure keeps the batch from being delivered
    result: Mapping[str, Any]  # GX's ExpectationValidationResult as JSON
    rule_id: str | None = None  # what it is known by over its names; None: its reason
    dimension: str | None = None  # what of quality it is about
    owner: str | None = None  # who is asked about it; None: whoever is about the pipeline

    @property
    def known_by(self) -> str:
        """Return the name by which the rule's history is kept."""
        return self.rule_id or self.reason


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A suite's judgement of one batch: delivered exactly when `stops` is empty."""

    success: bool  # GX's own: every expectation passed
    stops: tuple[str, ...]  # why nothing of the batch may be delivered, one sentence each
    results: tuple[RuleResult, ...]
    quarantined: int  # rows held back, malformed records included
    suite_digest: str
    columns: tuple[ColumnMetrics, ...] = ()  # what the columns looked like that the pipeline names
    share: float | None = None  # of the records that is held back; None: there is none
    malformed: tuple[str, ...] = ()  # where most of the malformed ones are, and by what; one sentence each
    behind: Behind | None = None  # where more records are late than may be held
