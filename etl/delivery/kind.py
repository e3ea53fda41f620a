"""The kinds of a delivery: the next batch of its stream, or a correction beside it; and what the commit of each does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from etl.common.database import Cursor
from etl.common.errors import ContractBroken, Fenced, InputsChanged, InputsUnreadable
from etl.common.wording import WHY, first_few
from etl.delivery.ledger_entry import Entry
from etl.ledger import leases
from etl.ledger.leases import Lease
from etl.ledger.offsets import Range, next_ranges
from etl.ledger.stops import LATE_TOLD, SHARE_STOP, Behind
from etl.quality.verdict import Verdict
from etl.sinks.warehouse.table import Warehouse


class DeliveryKind(ABC):
    """What a delivery does and says by its kind. The steps that take a cursor are those of its one transaction."""

    name: str  # as the ledger has it
    stops_stream: bool  # a stop of it is on record, and nothing comes after it before somebody acts
    is_judged: bool = True  # a verdict of it is on record
    supersedes: tuple[int, ...] = ()  # live deliveries whose place it takes
    as_found: bool = False  # whatever is left of those is taken out
    released_from: int | None = None  # the delivery that had held its rows

    @abstractmethod
    def leaving(self, table: str) -> frozenset[str]:
        """Return the objects that leave a table: that of data or of quarantine."""

    @abstractmethod
    def lock(self, cursor: Cursor, lease: Lease, entry: Entry) -> None:
        """Lock the pipeline's row and make sure that this very delivery may be committed now, or raise Fenced."""

    @abstractmethod
    def supersede(self, cursor: Cursor, entry: Entry, *, only_newest: bool) -> None:
        """Take out of force what the delivery replaces or releases; raise NeedsPerson unless all can be.

        The replaced rows are still in the warehouse. `only_newest`: of a table in which no other delivery is in force.
        """

    @abstractmethod
    def ranges(self, cursor: Cursor, entry: Entry, read: Sequence[Range]) -> Sequence[Range]:
        """Return those of the ranges `read` that go on record."""

    @abstractmethod
    def delete_superseded_rows(self, cursor: Cursor, entry: Entry, warehouse: Warehouse) -> None:
        """Remove the rows of what was replaced from the warehouse; raise NeedsPerson unless as many as planned."""

    @abstractmethod
    def keep_releases(self, cursor: Cursor, entry: Entry) -> None:
        """Keep released, and held no second time, what stays released of what was replaced, or raise NeedsPerson."""

    @abstractmethod
    def retry(self, pipeline: str) -> str:
        """Say what a person does to have the delivery made once more."""

    @abstractmethod
    def smaller(self, pipeline: str) -> str:
        """Say what a person does to have less in one delivery."""

    @abstractmethod
    def delivered_before(self, pipeline: str) -> str:
        """Say what a person does where an input of the delivery is in another live one."""

    @abstractmethod
    def fenced(self, pipeline: str, delivery_id: int) -> Fenced:
        """Make the error of a delivery that may no longer be committed."""

    @abstractmethod
    def contract_broken(
        self, pipeline: str, batch_id: int, verdict: Verdict, lapsed: str, *, replayable: bool
    ) -> ContractBroken:
        """Make the error of a batch that the suite stops; `lapsed` says why a decision no longer holds, if one did."""

    @abstractmethod
    def unreadable(self, pipeline: str, batch_id: int, stops: Sequence[str], lapsed: str) -> InputsUnreadable:
        """Make the error of a batch of which not all can be read."""

    @abstractmethod
    def inputs_changed(self, pipeline: str, batch_id: int, changes: Sequence[str]) -> InputsChanged:
        """Make the error of a batch whose inputs are no longer as they were listed."""


class StreamDelivery(DeliveryKind):
    """The next batch of its stream, which only adds."""

    name = "stream"
    stops_stream = True

    def leaving(self, table: str) -> frozenset[str]:  # noqa: ARG002 - of neither
        return frozenset()

    def lock(self, cursor: Cursor, lease: Lease, entry: Entry) -> None:
        leases.lock_for_commit(cursor, lease, entry.stream_id, entry.batch_id)

    def supersede(self, cursor: Cursor, entry: Entry, *, only_newest: bool) -> None:
        """Take nothing out of force."""

    def ranges(self, cursor: Cursor, entry: Entry, read: Sequence[Range]) -> Sequence[Range]:
        return next_ranges(cursor, entry.pipeline, entry.batch_id, read)

    def delete_superseded_rows(self, cursor: Cursor, entry: Entry, warehouse: Warehouse) -> None:
        """Remove no row."""

    def keep_releases(self, cursor: Cursor, entry: Entry) -> None:
        """Keep nothing: what was released from other deliveries stays as it is."""

    def retry(self, pipeline: str) -> str:
        return f"`sluice run {pipeline}`"

    def smaller(self, pipeline: str) -> str:
        return (
            "lower `max_files`, `max_bytes` or `max_offsets` of its sources, then"
            f" `sluice recover {pipeline}`, which plans new batches"
        )

    def delivered_before(self, pipeline: str) -> str:
        return f"`sluice recover {pipeline}`, which seeds a checkpoint with what was delivered"

    def fenced(self, pipeline: str, delivery_id: int) -> Fenced:  # noqa: ARG002 - its run is, whatever it delivers
        return Fenced.of(pipeline)

    def contract_broken(
        self, pipeline: str, batch_id: int, verdict: Verdict, lapsed: str, *, replayable: bool
    ) -> ContractBroken:
        alternative = (
            f", or `sluice decide {pipeline} --batch {batch_id} --quarantine-all {WHY}` (or --accept)"
        )
        if not replayable:
            alternative = ", or raise max_quarantine_share; what this batch had read can't be read again"
        return ContractBroken(
            f"Batch {batch_id} of {pipeline} broke its contract, and nothing of it was delivered: "
            + "; ".join([*verdict.stops, *([lapsed] if lapsed else [])])
            + malformed_line(verdict)
            + "\n  evidence: the whole report is in sluice.stopped_batch",
            remedy=f"{_correction(pipeline, verdict)}{alternative}",
        )

    def unreadable(self, pipeline: str, batch_id: int, stops: Sequence[str], lapsed: str) -> InputsUnreadable:
        reasons = [first_few(stops), *([lapsed] if lapsed else [])]
        return InputsUnreadable(
            f"Batch {batch_id} of {pipeline}, not delivered, because some of it can't be read: {'; '.join(reasons)}"
            "\n  evidence: the whole report is in sluice.stopped_batch",
            remedy=f"put whole files in their place, then `sluice recover {pipeline}` and `sluice run {pipeline}`. Or"
            " deliver what can be read and hold the rest, one row for each file: of this batch by"
            f" `sluice decide {pipeline} --batch {batch_id} --quarantine-all {WHY}`, of every batch by"
            ' unreadable="hold" in the declaration; then run again',
            stops=stops,
        )

    def inputs_changed(self, pipeline: str, batch_id: int, changes: Sequence[str]) -> InputsChanged:
        return InputsChanged(
            f"Batch {batch_id} of {pipeline}, not delivered: its inputs are not as they were"
            f" listed: {first_few(changes)}",
            remedy="restore the old files and land new content under new names; then run again."
            f" To take the files as they are now: `sluice recover {pipeline}`",
        )


def _correction(pipeline: str, verdict: Verdict) -> str:
    """Say what to correct before a batch that broke its contract is run again."""
    if verdict.behind is not None:
        return _about_late(pipeline, verdict.behind)
    of_share = any(SHARE_STOP in stop for stop in verdict.stops)  # else no held record stopped it
    if not of_share or not verdict.malformed or verdict.malformed[0].startswith(LATE_TOLD):
        return "fix the suite and run again"
    if not verdict.malformed[0].startswith(("file:", "s3a:")):
        return "correct the declaration and run again"
    return f"correct the declaration and run again, or put mended files in their place and `sluice recover {pipeline}` first"


def _about_late(pipeline: str, behind: Behind) -> str:
    """Say what to correct where records came too late: the batch keeps the watermark that it was planned with."""
    back = behind.way_back(pipeline)
    if back is None:
        return f"{behind.correction}; the rows so far have to be built anew (docs/state.md)"
    read = f" ({behind.read})" if behind.read else ""
    return (
        f"{behind.correction}; then go back before delivery {behind.set_by}, which set the watermark{read}, and run again:"
        f" `{back}` (--plan says what leaves; docs/state.md)"
    )


def malformed_line(verdict: Verdict) -> str:
    """Return the line of an error that says where most of the malformed records are; nothing where there are none."""
    return f"\n  malformed, most often: {'; '.join(verdict.malformed)}" if verdict.malformed else ""
