"""The summary of a run, as the command prints it and Airflow reads it: light to import."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etl.delivery.batch import Receipt

Progress = Callable[["Receipt"], None]
COUNTERS = ("unknown", "missing", "reasons", "failed")  # fields of a summary
STOPPED = "stopped"  # the outcome of a run that was asked to, and ended after a whole batch


@dataclass(kw_only=True)
class Summary:
    """What a run did, as `sluice run --json` prints it."""

    pipeline: str
    stream: str
    run: str
    batches: int = 0
    deliveries: list[int] = field(default_factory=list)
    rows_in: int = 0
    records: int = 0  # that were read
    delivered: int = 0
    quarantined: int = 0
    malformed: int = 0
    late: int = 0  # records that came behind the watermark, or without a time: held, or left to the transform
    dropped: int = 0  # rows, or groups of them, that came behind the watermark and are in neither sink
    unknown: Counter[str] = field(default_factory=Counter)  # records by field that the schema does not name
    missing: Counter[str] = field(default_factory=Counter)  # records by column that their file does not have
    reasons: Counter[str] = field(default_factory=Counter)  # held rows by reason
    failed: Counter[str] = field(default_factory=Counter)  # batches by expectation that failed
    # a phrase for each that was added to the tables, or widened
    columns: list[str] = field(default_factory=list)
    seconds: float = 0.0
    outcome: str = "done"
    unreported: list[int | str] = field(default_factory=list)  # deliveries that no asset event has named yet
    unreported_batches: int = 0  # how many these are
    unreported_rows: int = 0  # that these delivered
    unreported_quarantined: int = 0  # that these held
    snapshot_id: int | None = None  # of the newest of them
    quality: dict[str, Any] | None = None  # how rules came out over them; None: no rule judged them
    # deliveries that were replaced, and that likewise
    replaced: list[int | str] = field(default_factory=list)
    # hours, days or months that both touched, by their beginnings as Airflow's partition mappers read them: the newest
    partitions: list[str] = field(default_factory=list)
    partitions_beyond: int = 0  # how many older ones there are
    partitions_without_key: list[str] = field(
        default_factory=list
    )  # their folders: of no time, or of a strange year
    told_to: int | None = None  # the commit up to which these are all that there is to tell
    told_delivery: int | None = None  # that this commit made
    told_run: str | None = None  # which made it
    drifted: list[str] = field(default_factory=list)  # names in `unknown` and `missing` that are new
    released: list[int] = field(default_factory=list)  # held rows that a release took, by their numbers

    def add(self, receipt: Receipt) -> None:
        if receipt.delivered_before:
            return
        self.batches += 1
        self.deliveries.append(receipt.delivery_id)
        self.rows_in += receipt.rows_in
        self.records += receipt.records
        self.delivered += receipt.delivered
        self.quarantined += receipt.quarantined
        self.malformed += receipt.malformed
        self.late += receipt.late
        self.dropped += receipt.dropped
        self.unknown.update(receipt.unknown)
        self.missing.update(receipt.missing)
        self.reasons.update(receipt.reasons)
        self.failed.update(receipt.failed)
        self.columns.extend(receipt.columns)

    def json(self) -> dict[str, Any]:
        return {**vars(self), **{name: dict(getattr(self, name)) for name in COUNTERS}}

    @classmethod
    def from_json(cls, content: Any) -> Summary | None:
        """Read what `json` returned, whatever stands beside it; None where a part is missing."""
        names = {one.name for one in fields(cls)}
        if not isinstance(content, dict) or not names <= content.keys():
            return None
        values = {name: content[name] for name in names}
        counted = {name: Counter(values[name]) for name in COUNTERS}
        return cls(**(values | counted))
