"""Plans to go back before a delivery: what leaves both sinks, and what is read again. Planning changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etl.common.database import Cursor, row, rows_as, transaction
from etl.common.errors import InputsChanged, SetupError
from etl.common.migrations import migrate
from etl.common.number_ranges import format_ranges
from etl.common.statements import Statements
from etl.common.wording import first_few, pluralize
from etl.delivery.withdrawal import Withdrawal
from etl.ledger import streams
from etl.ledger.stops import Stop, open_stops
from etl.pipeline import Pipeline
from etl.runs.kinds.open import continued_stream_of
from etl.runs.recovery.base import ReadAgain, RecordedBatch
from etl.runs.recovery.state_rebuild import in_force
from etl.runs.replay.plan import (
    KINDS,
    SHOWN,
    DeliveryFile,
    PlannedDelivery,
    PlannedRelease,
    files_of,
    releases_of,
)
from etl.sinks.modes import mode_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from etl.runs.workspace import Workspace

STATEMENTS = Statements(__name__)


@dataclass(frozen=True, kw_only=True)
class WithdrawalPlan:
    """What going back before a delivery takes out, what stays, and what is read again."""

    pipeline: str
    before: int  # the first delivery that leaves
    deliveries: Sequence[PlannedDelivery]  # that leave, in the order of their commits
    releases: Sequence[PlannedRelease]  # of rows that these had held; they leave, too
    files: Sequence[DeliveryFile]  # of all of these
    leaving: Mapping[int, RecordedBatch]  # the batches among them, by the numbers of their deliveries
    kept: Mapping[int, RecordedBatch]  # the batches in force before it, of which the state is made again
    stops: Sequence[Stop]  # of batches that wait for a decision, or for a run after one: they are formed anew
    found: ReadAgain

    @property
    def _all(self) -> list[PlannedDelivery | PlannedRelease]:
        return [*self.deliveries, *self.releases]

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of all that leaves."""
        return [one.delivery_id for one in self._all]

    @property
    def rows(self) -> int:
        """Return how many rows were delivered by what leaves."""
        return sum(one.delivered for one in self._all)

    @property
    def held(self) -> int:
        """Return how many rows what leaves had held, whatever became of them since."""
        return sum(one.quarantined for one in self._all)

    @property
    def inputs(self) -> str:
        """Say how much is read again."""
        files = sum(len(one.files) for one in self.leaving.values())
        ranges = [part for one in self.leaving.values() for part in one.ranges]
        if ranges:
            return pluralize(sum(part.end - part.start for part in ranges), "offset")
        return pluralize(files, "file")

    def refuse(self) -> None:
        """Raise InputsChanged where what is needed can't be read again."""
        name, found = self.pipeline, self.found
        if found.gone:
            raise InputsChanged(
                f"{name} can't go back before delivery {self.before}: of what would be read again,"
                f" {pluralize(len(found.gone), 'input')} can't be: {first_few(found.gone)}. Nothing was changed",
                remedy="land them again under their old names, or declare their source or start as it was; then the same"
                " command again",
            )
        if found.lost_to_state:
            raise InputsChanged(
                f"{name} can't go back before delivery {self.before}: the state was computed from inputs that are not as"
                f" they were: {first_few(found.lost_to_state)}. Nothing was changed",
                remedy="restore the old ones, then the same command again; or go back before the first delivery that"
                " read one of them",
            )

    def change(self, go_on: Callable[[Cursor], None]) -> Withdrawal:
        """Return what the withdrawal's transaction does to what was delivered."""
        return Withdrawal(
            supersedes=tuple(self.numbers),
            removed=self.rows,
            files={kind: frozenset(one.uri for one in self.files if one.kind == kind) for kind in KINDS},
            go_on=go_on,
        )

    def json(self) -> dict[str, Any]:
        """Return the plan as it is kept with its run."""
        return {
            "pipeline": self.pipeline,
            "before": self.before,
            "deliveries": [one.delivery_id for one in self.deliveries],
            "releases": [one.delivery_id for one in self.releases],
            "rows": self.rows,
            "held": self.held,
            "files": len(self.files),
            "kept": list(self.kept),
            "stops": [one.json() for one in self.stops],
            "gone": list(self.found.gone),
            "changed": list(self.found.changed),
            "lost_to_state": list(self.found.lost_to_state),
        }

    def lines(self) -> Iterator[str]:
        """Yield the plan in lines for people."""
        many = pluralize(len(self.deliveries), "delivery", "deliveries")
        numbers = format_ranges([one.delivery_id for one in self.deliveries])
        leave = "leaves" if len(self.deliveries) == 1 else "leave"
        yield f"{self.pipeline}: back to before delivery {self.before}: {many} ({numbers}) {leave} both sinks"
        if self.releases:
            released = format_ranges([one.delivery_id for one in self.releases])
            which = "delivery" if len(self.releases) == 1 else "deliveries"
            yield f"  released   what was let out of their quarantine leaves as well: {which} {released}"
        data, quarantine = (sum(one.kind == kind for one in self.files) for kind in KINDS)
        yield (
            f"  leaving    {pluralize(self.rows, 'row')} and {pluralize(data, 'Parquet file')};"
            f" {pluralize(self.held, 'row')} of quarantine and {quarantine:,} of its files"
        )
        for stop in self.stops:
            decided = "nobody has decided on it" if stop.decision is None else f"decided: {stop.decision}"
            yield f"  forgotten  that batch {stop.batch_id} stopped ({decided}): its inputs come in batches of the next run"
        yield f"  state      is made again of {pluralize(len(self.kept), 'batch', 'batches')} before, which stay as they are"
        yield (
            f"  read again {self.inputs}, by the next run;"
            f" {len(self.found.changed):,} changed since, {len(self.found.gone):,} can't be"
        )
        yield from (f"    {one}" for one in [*self.found.gone, *self.found.changed][:SHOWN])
        if self.found.lost_to_state:
            yield "  refused    the state can't be made again: some of what it was computed from is not as it was"
            yield from (f"    {one}" for one in self.found.lost_to_state[:SHOWN])


def plan_withdrawal(
    workspace: Workspace, pipeline: Pipeline, before: int, *, spark: SparkSession | None = None
) -> WithdrawalPlan:
    """Say what going back before a delivery would do; nothing is changed.

    Raises SetupError for a pipeline that can't go back, or a delivery that is not in force. Kafka is asked, by Spark's
    JVM, for what it still has.
    """
    stream = continued_stream_of(workspace, pipeline, "going back")
    mode_of(pipeline.sink).refuse_withdrawal(pipeline.name)
    migrate(stream.dsn)
    with transaction(stream.dsn) as cursor:
        commit_seq = commit_seq_of(cursor, pipeline.name, before)
        known = streams.current_stream(cursor, pipeline.name)
        if known is None or not known.state:
            raise stateless(pipeline.name, before)
        from_on = STATEMENTS.execute(cursor, "from_on", pipeline=pipeline.name, commit_seq=commit_seq)
        deliveries = rows_as(from_on, PlannedDelivery)
        numbers = [one.delivery_id for one in deliveries]
        releases = releases_of(cursor, numbers)
        files = files_of(cursor, [*numbers, *(one.delivery_id for one in releases)])
        batches = in_force(cursor, pipeline)
        stops = open_stops(cursor, pipeline.name)
    leaving = {number: past for number, past in batches.items() if number in numbers}
    kept = {number: past for number, past in batches.items() if number not in numbers}
    return WithdrawalPlan(
        pipeline=pipeline.name,
        before=before,
        deliveries=deliveries,
        releases=releases,
        files=files,
        leaving=leaving,
        kept=kept,
        stops=stops,
        found=stream.read_again([*leaving.values()], [*kept.values()], spark),
    )


def stateless(pipeline: str, before: int) -> SetupError:
    """Make the error of a pipeline whose batches stand alone, which need not go back to be computed anew."""
    return SetupError(
        f"Pipeline {pipeline} keeps no state between batches: each of them can be computed anew by itself",
        remedy=f"`sluice replay {pipeline} --deliveries {before}`, which puts the new rows in the place of the old ones at"
        f" once; or, if the transform has only now begun to keep state, `sluice recover {pipeline}` first",
    )


def commit_seq_of(cursor: Cursor, pipeline: str, number: int) -> int:
    """Return where a delivery stands in the order of commits; raise SetupError where it is not in force."""
    found = row(STATEMENTS.execute(cursor, "named", pipeline=pipeline, delivery=number))
    seen, remedy = (
        "",
        "the page of a batch has its delivery's number, as has sluice.delivery_input (docs/state.md)",
    )
    if found is None:
        raise SetupError(f"Pipeline {pipeline} has no delivery {number}", remedy=remedy)
    if not found["live"]:
        by = f"delivery {found['superseded_by']}, a {found['superseded_as']},"
        seen = f"Delivery {number} of {pipeline} is in neither sink any more: {by} took it out"
        if found["superseded_as"] == "withdrawal":
            remedy = f"nothing, if that was to be done: `sluice run {pipeline}` reads the inputs again"
    elif found["kind"] == "release":
        seen = f"Delivery {number} of {pipeline} is a release of rows that delivery {found['released_from']} had held"
        remedy = f"`sluice recover {pipeline} --before {found['released_from']}`, with which the release leaves as well"
    if seen:
        raise SetupError(seen, remedy=remedy)
    return int(found["commit_seq"])
