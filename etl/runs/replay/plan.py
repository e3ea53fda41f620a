"""Plans a replay: what it would replace, and from which inputs. Planning changes nothing."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from etl.common.database import Cursor, rows_as, transaction
from etl.common.errors import SetupError
from etl.common.migrations import migrate
from etl.common.number_ranges import NumberRange, format_ranges
from etl.common.statements import Statements
from etl.common.wording import first_few, pluralize, visible
from etl.delivery.correction import Correction
from etl.delivery.ruling import MadeWith, differences
from etl.delivery.stage import UNREADABLE_RAW
from etl.ledger import streams
from etl.ledger.deliveries import last_delivery, live_inputs, origins
from etl.ledger.inputs import Input
from etl.ledger.offsets import Range, joined, ranges_of
from etl.pipeline import Pipeline
from etl.pipeline.intervals import PathTemplate, is_template
from etl.pipeline.replayability import require_replayable
from etl.quality.suite_file import digest_of
from etl.sinks.lake.interval_scan import rows_within
from etl.sinks.lake.table import LakeTable
from etl.sinks.modes import mode_of
from etl.sources import evidence
from etl.sources.cutoff import before_start
from etl.sources.kinds.declared import kind_of
from etl.sources.side_inputs.lookups import as_recorded, versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from etl.runs.workspace import Workspace

STATEMENTS = Statements(__name__)

Releases = Literal["keep", "drop"]
KINDS = ("data", "quarantine")
SHOWN = 10


def keep_or_drop(what: str, text: str | None) -> Releases | None:
    """Return what a person wrote for `what`, if anything; raise SetupError where it is neither keep nor drop."""
    if text not in (None, "keep", "drop"):
        raise SetupError(f"{what} {text} is not known", remedy=f"{what} keep or {what} drop")
    return cast("Releases | None", text)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The deliveries to be replayed: by number, batch (of `stream`), run or interval, exactly one of these."""

    deliveries: tuple[NumberRange, ...] = ()
    batches: NumberRange | None = None  # of `stream`, by their ids
    stream: str | None = None  # None: the current one
    runs: tuple[str, ...] = ()  # whatever these runs delivered
    interval: tuple[dt.datetime, dt.datetime] | None = None  # by the declared interval; the end is exclusive

    def describe(self) -> str:
        if self.deliveries:
            return "deliveries " + ",".join(f"{a}..{b}" if a < b else str(a) for a, b in self.deliveries)
        if self.batches:
            return f"batches {self.batches[0]} to {self.batches[1]}"
        if self.interval:
            return f"interval {self.interval[0].isoformat()} to {self.interval[1].isoformat()}"
        return f"what {pluralize(len(self.runs), 'run')} delivered"


@dataclass(frozen=True, kw_only=True)
class PlannedDelivery:
    """A delivery in force that is to be replaced."""

    delivery_id: int
    stream_id: str
    batch_id: int
    kind: str  # stream or replay
    rows_in: int
    delivered: int
    quarantined: int
    suite_digest: str
    committed_at: dt.datetime


@dataclass(frozen=True, kw_only=True)
class PlannedRelease:
    """A live release of rows that deliveries to be replaced had held, or that such a release had."""

    delivery_id: int
    released_from: int  # the delivery that had held the rows
    delivered: int
    quarantined: int


class DeliveryFile(NamedTuple):
    """An object that a delivery wrote."""

    delivery_id: int
    kind: str  # data or quarantine
    uri: str


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """What a replay would replace, and from what."""

    pipeline: str
    chosen: str  # the selection, in words
    newest: int | None  # of the pipeline's deliveries
    keyed: bool  # by an upsert sink: what was overwritten before comes back
    state: Sequence[str]  # what the transform keeps between batches
    max_fewer_share: float  # as declared
    deliveries: Sequence[PlannedDelivery]  # in the order of their commits
    releases: Sequence[PlannedRelease]
    inputs: Sequence[Input]  # as they are now
    changed: Sequence[str]  # what is different since they were delivered, one sentence each
    made_otherwise: Sequence[str]  # which suite, lookups and models are others since, one sentence each
    gone: Sequence[Input]  # as they were recorded
    ranges: Sequence[Range]  # of Kafka, as they were read
    there: Sequence[Range]  # what Kafka still has of them
    undated: Sequence[str]  # by paths: files in force that are in no interval
    besides: Mapping[str, int]  # of these deliveries outside of the interval: rows, held ones too, or files
    # files that will not be read, as their headers and footers tell, with the reason
    foretold: Mapping[str, str]
    unread: frozenset[tuple[str, str]]  # files that these deliveries had held as unreadable, with the reason
    history: Sequence[Input]  # of these inputs those that the stream leaves out, and that no delivery has yet
    files: Sequence[DeliveryFile]  # of all of these
    # a phrase for each that is added to the tables, widened or refused; where asked for
    columns: Sequence[str] = ()

    @property
    def numbers(self) -> list[int]:
        return [one.delivery_id for one in self.deliveries]

    @property
    def rows(self) -> int:
        """Return how many rows in the warehouse are to be replaced, without those of releases."""
        return sum(one.delivered for one in self.deliveries)

    @property
    def held(self) -> int:
        return sum(one.quarantined for one in self.deliveries)

    @property
    def least(self) -> int:
        """Return how many rows the replay must deliver without a person's word: all but a share of those it replaces."""
        return self.rows - int(Decimal(str(self.max_fewer_share)) * self.rows)

    def had_held(self, uri: str, why: str) -> bool:
        """Tell whether what can't be read of this file was in neither sink before, or it was never delivered."""
        return (uri, why) in self.unread or any(one.uri == uri for one in self.history)

    def leaving(self, kind: str, deliveries: Sequence[PlannedDelivery | PlannedRelease]) -> frozenset[str]:
        """Return the URIs of these deliveries' objects of one kind: data, or quarantine."""
        numbers = {one.delivery_id for one in deliveries}
        return frozenset(one.uri for one in self.files if one.delivery_id in numbers and one.kind == kind)

    def change(self, releases: Releases | None, *, accept_changed: bool, who: str, why: str) -> Correction:
        """Return what the replay's transaction does to what was delivered."""
        dropped: list[PlannedDelivery | PlannedRelease] = [*self.deliveries]
        if releases == "drop":
            dropped += self.releases
        replaced = set(self.numbers)
        kept = [one.delivery_id for one in self.releases if one.released_from in replaced]
        return Correction(
            name="replay",
            supersedes=tuple(one.delivery_id for one in dropped),
            removed=sum(one.delivered for one in dropped),
            as_found=accept_changed,
            files={kind: self.leaving(kind, dropped) for kind in KINDS},
            kept_releases=tuple(kept) if releases == "keep" else (),
            who=who,
            why=why,
        )

    def json(self) -> dict[str, Any]:
        document = asdict(self)
        document["unread"] = [list(one) for one in sorted(self.unread)]
        for one in document["deliveries"]:
            one["committed_at"] = one["committed_at"].isoformat()
        return {**document, "rows": self.rows, "held": self.held, "least": self.least}

    def lines(self) -> Iterator[str]:
        """Yield the plan in lines for people."""
        if self.history:
            size = sum(one.size for one in self.history)
            yield (
                f"{self.pipeline}: {self.chosen}: {pluralize(len(self.history), 'file')},"
                f" {pluralize(size, 'byte')}, that the"
                " stream leaves out and no delivery has yet, to be loaded"
            )
        if self.undated:
            yield (
                f"{self.pipeline}: {pluralize(len(self.undated), 'delivered file')} in no interval, because no time can"
                f" be read from the path as `interval` declares it: {first_few([visible(path) for path in self.undated])}"
            )
        if not self.deliveries:
            if not self.history:
                yield f"{self.pipeline}: nothing to do; nothing that is in force is in {self.chosen}"
            return
        data, quarantine = (len(self.leaving(kind, self.deliveries)) for kind in KINDS)
        many = pluralize(len(self.deliveries), "delivery", "deliveries")
        yield f"{self.pipeline}: {self.chosen}: {many} ({format_ranges(self.numbers)}) replaced by one"
        if self.state:
            yield f"  refused    no batch can be replayed by itself: the transform keeps state ({'; '.join(self.state)})"
        changes = "changes of keys in PostgreSQL" if self.keyed else "rows of PostgreSQL"
        yield (
            f"  replaced   {self.rows:,} {changes} and {pluralize(data, 'Parquet file')};"
            f" {pluralize(self.held, 'row')} of quarantine and {quarantine:,} of its files"
        )
        if len(self.deliveries) > 1:
            yield "  judged     as one batch: its share of held rows, and rules about the whole table, count all of it"
        yield (
            f"  at least   {pluralize(self.least, 'row')} delivered, or the replay changes nothing and asks"
            f" (max_fewer_share {self.max_fewer_share:.2%})"
        )
        yield from (f"    {one}" for one in self.made_otherwise[:SHOWN])
        yield f"  read       {self._read()}"
        for what, count in self.besides.items():
            if count:
                yield f"    {pluralize(count, what)} of these outside the interval, which come again as well"
        yield from (f"    {one}" for one in self.changed[:SHOWN])
        if self.foretold:
            yield f"  unreadable {pluralize(len(self.foretold), 'file')}, by their headers and footers; the replay will stop"
            yield from (f"    {uri}: {why}" for uri, why in list(self.foretold.items())[:SHOWN])
        for one in self.releases[:SHOWN]:
            yield (
                f"  release    delivery {one.delivery_id}: {pluralize(one.delivered, 'row')} that delivery"
                f" {one.released_from}"
                " had held"
            )

    def column_lines(self) -> Iterator[str]:
        """Yield what happens to the tables' columns, in lines for people."""
        for one in self.columns:
            yield f"  columns    {one}"

    def _read(self) -> str:
        if self.ranges:
            records, still_there = (
                sum(one.end - one.start for one in some) for some in (self.ranges, self.there)
            )
            read = f"{pluralize(len(self.ranges), 'range')} of {pluralize(records, 'offset')}"
            return (
                f"{read}, all of them in Kafka"
                if still_there == records
                else f"{read}; Kafka has {still_there:,} of these"
            )
        files = pluralize(len(self.inputs), "input file")
        size = sum(one.size for one in self.inputs)
        return f"{files}, {pluralize(size, 'byte')}; {len(self.changed):,} changed since, of them {len(self.gone):,} gone"


def plan(
    workspace: Workspace, pipeline: Pipeline, selection: Selection, *, spark: SparkSession | None = None
) -> ReplayPlan:
    """Say what a replay would replace; nothing is changed.

    Kafka is asked, by Spark's JVM, for what it still has.
    """
    require_replayable(pipeline, "a replay")
    dsn = workspace.services.postgres
    migrate(dsn)
    rows_within_interval = _count_within(workspace, pipeline, selection)
    with transaction(dsn) as cursor:
        read = _paths_in_force(cursor, pipeline, selection)
        numbers = _numbers(cursor, pipeline, selection, rows_within_interval, read)
        STATEMENTS.execute(cursor, "in_force", deliveries=numbers)
        deliveries = rows_as(cursor, PlannedDelivery)
        replaced = [one.delivery_id for one in deliveries]
        releases = releases_of(cursor, replaced)
        recorded = rows_as(STATEMENTS.execute(cursor, "inputs", deliveries=replaced), Input)
        STATEMENTS.execute(cursor, "unread", deliveries=replaced, prefix=UNREADABLE_RAW)
        unread = frozenset(cursor.fetchall())
        made_with = STATEMENTS.execute(cursor, "made_with", deliveries=replaced).fetchall()
        ranges = joined(ranges_of(cursor, replaced))
        files = files_of(cursor, [*replaced, *(one.delivery_id for one in releases)])
        newest = last_delivery(cursor, pipeline.name)
        loads = selection.interval is not None and pipeline.start is not None
        live = {one.path for one in live_inputs(cursor, pipeline.name)} if loads else frozenset()
        stream = streams.current_stream(cursor, pipeline.name)
    now = evidence.look_again(recorded, landing=workspace.settings.landing)
    history = before_start(pipeline, workspace.settings.landing, selection.interval, live) if loads else []
    known = {(one.source, one.path) for one in now}
    there, lacking = _still_there(workspace, pipeline, ranges, spark)
    return ReplayPlan(
        pipeline=pipeline.name,
        chosen=selection.describe(),
        newest=newest,
        keyed=mode_of(pipeline.sink).key is not None,
        state=stream.state if stream else (),
        max_fewer_share=pipeline.max_fewer_share,
        deliveries=deliveries,
        releases=releases,
        inputs=[*now, *history],
        changed=[*evidence.changed(recorded, now), *lacking],
        made_otherwise=_made_otherwise(workspace, pipeline, made_with),
        gone=[one for one in recorded if (one.source, one.path) not in known],
        ranges=ranges,
        there=there,
        undated=_undated(pipeline, read),
        besides=_besides(pipeline, selection, deliveries, rows_within_interval, recorded),
        foretold=kind_of(pipeline).foretold([*now, *history]),
        unread=unread,
        history=history,
        files=files,
    )


def releases_of(cursor: Cursor, deliveries: Sequence[int]) -> list[PlannedRelease]:
    """Return the live releases of rows that these deliveries had held, or that such a release had."""
    return rows_as(STATEMENTS.execute(cursor, "releases", deliveries=list(deliveries)), PlannedRelease)


def files_of(cursor: Cursor, deliveries: Sequence[int]) -> list[DeliveryFile]:
    """Return the objects that these deliveries wrote."""
    STATEMENTS.execute(cursor, "files", deliveries=list(deliveries))
    return [DeliveryFile(*one) for one in cursor.fetchall()]


def _made_otherwise(workspace: Workspace, pipeline: Pipeline, made_with: Sequence[MadeWith]) -> list[str]:
    """Name suite, lookups and models that are not those that these deliveries were made with."""
    if not made_with:
        return []
    now = as_recorded(versions(pipeline, workspace.settings.landing, workspace.models))
    today = (digest_of(pipeline, workspace.settings), now)
    found = (differences(before, today, pipeline.models) for before in made_with)
    return list(dict.fromkeys(one for some in found for one in some))


def _besides(
    pipeline: Pipeline,
    selection: Selection,
    deliveries: Sequence[PlannedDelivery],
    rows_within_interval: Mapping[int, int] | None,
    read: Sequence[Input],
) -> dict[str, int]:
    """Count what these deliveries have outside of the interval, rows or files: it can't be left where it is."""
    if rows_within_interval is not None:
        rows = sum(one.rows_in - rows_within_interval.get(one.delivery_id, 0) for one in deliveries)
        return {"row": rows}
    if selection.interval is not None:
        template = PathTemplate(text=pipeline.interval or "")
        return {"file": sum(not template.overlaps(one.path, selection.interval) for one in read)}
    return {}


def _still_there(
    workspace: Workspace, pipeline: Pipeline, ranges: Sequence[Range], spark: SparkSession | None
) -> tuple[list[Range], list[str]]:
    """Return what Kafka still has of these ranges, and a sentence for each of which it no longer has all."""
    if not ranges:
        return [], []
    from etl.runs.spark_session import a_session

    with a_session(workspace, spark, little=True) as session:
        return kind_of(pipeline).still_there(session, workspace.settings, ranges)


def _count_within(workspace: Workspace, pipeline: Pipeline, selection: Selection) -> Counter[int] | None:
    """Count the rows, delivered or held, that each delivery has in a column's interval; None if none is asked for.

    Held ones count whatever became of them since: a replay judges all of what its deliveries had read.
    """
    if selection.interval is None or is_template(pipeline.interval or ""):
        return None
    tables = [LakeTable.of(workspace.lake, name) for name in (pipeline.table, pipeline.quarantine_table)]
    with transaction(workspace.services.postgres) as cursor:
        pointers = [table.pointer(cursor) for table in tables]
    counts = Counter[int]()
    for table, pointer in zip(tables, pointers, strict=True):
        if pointer:
            counts += rows_within(table, pointer, pipeline, selection.interval)
    return counts


def _numbers(
    cursor: Cursor,
    pipeline: Pipeline,
    selection: Selection,
    rows_within_interval: Mapping[int, int] | None,
    read: Sequence[tuple[int, str]],
) -> list[int]:
    newest = last_delivery(cursor, pipeline.name)
    if newest is None:
        return []
    if selection.deliveries:
        firsts, lasts = map(list, zip(*selection.deliveries, strict=True))
        STATEMENTS.execute(cursor, "by_deliveries", pipeline=pipeline.name, firsts=firsts, lasts=lasts)
        _require_some(cursor, pipeline, selection)
    elif selection.batches:
        known = streams.current_stream(cursor, pipeline.name)
        stream = selection.stream or (known.stream_id if known else None)
        first, last = selection.batches
        STATEMENTS.execute(
            cursor, "by_batches", pipeline=pipeline.name, stream=stream, first=first, last=last
        )
        _require_some(cursor, pipeline, selection)
    elif rows_within_interval is not None:
        # Quarantine still has what deliveries held that are no longer in force.
        mode = mode_of(pipeline.sink)
        return origins(
            cursor, [number for number in rows_within_interval if mode.is_in_force(number, newest=newest)]
        )
    elif selection.interval:
        template = PathTemplate(text=pipeline.interval or "")
        return sorted({number for number, path in read if template.overlaps(path, selection.interval)})
    else:
        STATEMENTS.execute(cursor, "runs", pipeline=pipeline.name, runs=list(selection.runs))
        _require_some(cursor, pipeline, selection)
        STATEMENTS.execute(cursor, "by_runs", pipeline=pipeline.name, runs=list(selection.runs))
    return [number for (number,) in cursor.fetchall()]


def _require_some(cursor: Cursor, pipeline: Pipeline, selection: Selection) -> None:
    """Raise SetupError where the last statement found nothing of what was named."""
    if not cursor.rowcount:
        raise SetupError(
            f"Pipeline {pipeline.name} has none of {selection.describe()} to be replayed",
            remedy=f"`sluice deliveries {pipeline.name}` lists its last deliveries, `sluice status {pipeline.name}`"
            " its runs; what was released goes with what held it",
        )


def _paths_in_force(cursor: Cursor, pipeline: Pipeline, selection: Selection) -> list[tuple[int, str]]:
    """Return the paths of all files in force, each with its delivery, if the selection goes by paths; else nothing."""
    if selection.interval is None or not is_template(pipeline.interval or ""):
        return []
    STATEMENTS.execute(cursor, "inputs_in_force", pipeline=pipeline.name)
    return cast("list[tuple[int, str]]", cursor.fetchall())


def _undated(pipeline: Pipeline, read: Sequence[tuple[int, str]]) -> list[str]:
    """Return the paths that are in no interval, for they name no time as declared."""
    if not read:
        return []
    template = PathTemplate(text=pipeline.interval or "")
    return sorted({path for _, path in read if template.of(path) is None})
