"""Words what an audit found, and which commands lead back from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import Any

from etl.common.number_ranges import format_ranges
from etl.common.wording import WHY, pluralize
from etl.ledger.deliveries import LiveDelivery
from etl.operations.audit.compare import LAKE, TABLE, AuditDifference
from etl.pipeline import Pipeline
from etl.sinks.modes import mode_of
from etl.sinks.open import table_back

SHOWN = 20  # of a kind, in the lines for people


@dataclass(frozen=True, kw_only=True)
class Orphan:
    """An object that no retained metadata references: what a failed attempt left, until it is swept."""

    uri: str
    bytes: int
    delivery_id: int | None  # of the attempt that wrote it; None: PostgreSQL knows none
    state: str  # of the attempt: open, delivered, stopped, failed, fenced, lost or unknown


@dataclass(frozen=True, kw_only=True)
class ChangedInputs:
    """The delivered files that are no longer as they were."""

    changes: Mapping[int, Sequence[str]]  # a sentence a file, by the deliveries that have these files
    gone: AbstractSet[int]  # the deliveries of which a file is no more

    def of(self, deliveries: Iterable[int]) -> ChangedInputs:
        """Return the changed inputs of these deliveries alone."""
        some = set(deliveries)
        changes = {delivery: whats for delivery, whats in self.changes.items() if delivery in some}
        return ChangedInputs(changes=changes, gone=self.gone & some)


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What was read and what was found."""

    pipeline: str
    snapshot_id: int | None
    deliveries: int  # live in the ledger
    rows: Mapping[str, int]  # place -> rows that were read there
    differences: Sequence[AuditDifference]
    orphans: Sequence[Orphan]
    changed_inputs: Sequence[str]  # delivered files that are no longer as they were
    changed_deliveries: Mapping[int, Sequence[str]]  # the same sentences by the deliveries of these files
    undelivered: Sequence[str]  # paths of landed files that the stream takes and no delivery has yet
    next: Sequence[str]  # what leads back
    seconds: float

    @property
    def clean(self) -> bool:
        return not self.differences

    def json(self) -> dict[str, Any]:
        return {"clean": self.clean, **asdict(self)}

    def lines(self) -> list[str]:
        """Return the report in lines for people."""
        rows = ", ".join(f"{sink} {count:,}" for sink, count in self.rows.items())
        count = len(self.changed_inputs)
        since = f", but {pluralize(count, 'delivered file')} {_have(count)} changed since" if count else ""
        verdict = f"clean{since}: both sinks hold what was delivered" if self.clean else "NOT clean"
        lines = [
            f"{self.pipeline}: {verdict}",
            f"  {pluralize(self.deliveries, 'delivery', 'deliveries')}; rows read: {rows}",
        ]
        lines += _some("difference", "", [one.what for one in self.differences])
        lines += _orphan_lines(self.orphans)
        changed = [
            f"delivery {delivery}: {what}"
            for delivery, whats in self.changed_deliveries.items()
            for what in whats
        ]
        lines += _some("delivered file", f"that {_have(count)} changed since", changed)
        them = "it" if len(self.undelivered) == 1 else "them"
        not_yet = f"that no delivery has; a run delivers {them}, or says why not"
        lines += _some("landed file", not_yet, self.undelivered)
        return lines + [f"next: {one}" for one in self.next]


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _some(noun: str, title: str, items: Sequence[str]) -> list[str]:
    if not items:
        return []
    more = [f"    and {len(items) - SHOWN:,} more (--json lists all)"] if len(items) > SHOWN else []
    heading = f"  {pluralize(len(items), noun)}{f' {title}' if title else ''}:"
    return [heading, *(f"    {item}" for item in items[:SHOWN]), *more]


def _orphan_lines(orphans: Sequence[Orphan]) -> list[str]:
    """Sum up objects by the attempt that wrote them: a killed run leaves dozens."""
    if not orphans:
        return []
    sizes: dict[tuple[bool, int, str], list[int]] = {}
    for one in orphans:
        sizes.setdefault((one.delivery_id is None, one.delivery_id or 0, one.state), []).append(one.bytes)
    return [
        f"  {_of_size([one.bytes for one in orphans])} that nothing refers to (see `sluice sweep`; --json lists them):",
        *(
            f"    {'of no known attempt' if unknown else f'delivery {delivery}, {state}'}: {_of_size(sizes[key])}"
            for key in sorted(sizes)
            for unknown, delivery, state in [key]
        ),
    ]


def _of_size(sizes: Sequence[int]) -> str:
    return f"{pluralize(len(sizes), 'object')} of {pluralize(sum(sizes), 'byte')}"


def ways_back(
    pipeline: Pipeline,
    differences: Sequence[AuditDifference],
    inputs: ChangedInputs,
    *,
    in_force: Sequence[LiveDelivery],
    state: bool,
) -> list[str]:
    """Name the commands that lead back from these differences, and to what delivered files are now.

    None takes out of the sinks what nothing would deliver again: a file that is gone stays delivered as it was.
    """
    commands = []
    if any(one.kind == "table" for one in differences):
        table = table_back(pipeline, in_force, state=state)
        commands.append(f"{table}. `sluice audit {pipeline.name}` then reads it")
    different = {one.delivery_id for one in differences}
    other = [one for one in in_force if one.delivery_id in different]
    commands += _strays(pipeline, differences, {one.delivery_id for one in in_force})
    if state and pipeline.replayable and (back := _back_with_state(pipeline, other, inputs, in_force)):
        commands.append(back)
    elif pipeline.replayable and not state:
        by_number = {one.delivery_id: one for one in in_force}
        of_releases = {_held_first(by_number, one).delivery_id for one in other if one.kind == "release"}
        commands += _replays(
            pipeline.name, {one.delivery_id for one in other if one.kind != "release"} - of_releases, inputs
        )
        commands += _delivered_again(
            pipeline.name,
            of_releases,
            inputs,
            with_option=" --releases drop",
            what="what had held the released rows again, and judges these with the rest",
        )
    return commands


def _strays(
    pipeline: Pipeline, differences: Sequence[AuditDifference], in_force: AbstractSet[int]
) -> list[str]:
    """Name the statement that takes out rows of the table that no delivery in force has brought, nor has the lake."""
    return [
        f"`DELETE FROM {pipeline.quoted_table} WHERE _delivery_id = {one.delivery_id}` takes out these rows, which somebody"
        " else has put there"
        for one in differences
        if one.kind == "rows"
        and one.delivery_id is not None
        and one.delivery_id not in in_force
        and one.seen.get(TABLE, {}).get("rows")
        and not one.seen.get(LAKE, {}).get("rows")
    ]


def _replays(name: str, other: set[int], inputs: ChangedInputs) -> list[str]:
    """Name the replays of deliveries that differ, and of those whose files are there with other content."""
    what = "these from their inputs again, and replaces whatever both sinks have of them"
    commands = _delivered_again(name, other, inputs, what=what)
    if apart := inputs.changes.keys() - inputs.gone - other:
        commands.append(
            f"`sluice replay {name} --deliveries {format_ranges(apart)} --accept-changed` delivers these files as"
            " they are now, in place of what was delivered of them; --plan says what it would do"
        )
    return commands


def _delivered_again(
    name: str, deliveries: set[int], inputs: ChangedInputs, *, what: str, with_option: str = ""
) -> list[str]:
    """Name the replay of the deliveries whose files are there, and say which files of the others are to be landed again."""
    commands = []
    if lacking := deliveries & inputs.gone:
        commands.append(_land_again(lacking))
    if there := deliveries - inputs.gone:
        commands.append(
            f"`sluice replay {name} --deliveries {format_ranges(there)} --accept-changed{with_option}` delivers {what};"
            " --plan says what it would do"
        )
    return commands


def _back_with_state(
    pipeline: Pipeline, other: Sequence[LiveDelivery], inputs: ChangedInputs, in_force: Sequence[LiveDelivery]
) -> str | None:
    """Name the way back of a pipeline that keeps state: all batches depend on those before, so all inputs are needed."""
    changed = inputs.changes.keys() - inputs.gone
    wanted = [*other, *(one for one in in_force if one.delivery_id in changed)]
    if not wanted:
        return None
    if inputs.gone:
        return _land_again(inputs.gone)
    if mode_of(pipeline.sink).only_newest:
        return 'docs/state.md, "All of it anew": no batch of a transform that keeps state can be replayed by itself'
    by_number = {one.delivery_id: one for one in in_force}
    first = min((_held_first(by_number, one) for one in wanted), key=lambda one: one.commit_seq)
    return (
        f"`sluice recover {pipeline.name} --before {first.delivery_id} {WHY}` takes these and all after them out of"
        " both sinks, and the next run computes them anew; --plan says what it would do"
    )


def _held_first(by_number: Mapping[int, LiveDelivery], found: LiveDelivery) -> LiveDelivery:
    """Return the delivery that had held the rows of a release first; any other delivery itself."""
    while found.released_from is not None and found.released_from in by_number:
        found = by_number[found.released_from]
    return found


def _land_again(deliveries: Collection[int]) -> str:
    them = "it" if len(deliveries) == 1 else "them"
    which = f"{'delivery' if len(deliveries) == 1 else 'deliveries'} {format_ranges(deliveries)}"
    return f"land the files that are gone of {which} again, as they were: nothing can deliver {them} anew without"
