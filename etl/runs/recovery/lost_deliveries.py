"""Puts deliveries back, from their manifests, that the ledger lost and the lake still has.

After PostgreSQL went back in time both sinks are back together, but the lost deliveries' objects and manifests
are still on S3. Each is committed again through the same transaction and the same checks as any batch.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from etl.common.database import Cursor, transaction
from etl.common.errors import NeedsPerson
from etl.common.number_ranges import format_ranges
from etl.common.record_columns import is_own
from etl.common.wording import WHY, pluralize
from etl.delivery.batch import DeliveryContext, Receipt, Staged
from etl.delivery.commit import commit
from etl.delivery.deliver import stage_task
from etl.delivery.ledger_entry import Entry
from etl.delivery.manifest import DeliveryManifest, WrittenObject
from etl.delivery.row_filter import HoldPolicy, TaskReport
from etl.delivery.stage import StageTask
from etl.ledger import attempts, deliveries, offsets, pipelines
from etl.ledger.deliveries import KnownAttempt
from etl.ledger.inputs import Input
from etl.ledger.leases import Lease
from etl.ledger.offsets import Range
from etl.ledger.streams import register_stream, stream_state
from etl.pipeline import Pipeline
from etl.quality.verdict import Counts, Verdict
from etl.sinks.checksum import MODULUS, checksum
from etl.sinks.columns import SYSTEM_COLUMNS
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.manifests import manifests
from etl.sinks.lake.marker import Newest
from etl.sinks.lake.parquet_writer import FileSpec, StagedFile, split
from etl.sinks.lake.schema import arrow_schema
from etl.sinks.lake.table import LakeTable
from etl.sinks.open import open_sinks
from etl.sinks.warehouse.staging import StagingWriter
from etl.spark.checkpoint.format import About

READERS = 8


@dataclass(frozen=True, kw_only=True)
class LostDelivery:
    """A delivery that the lake has and the ledger has not."""

    manifest: DeliveryManifest
    uri: str
    whole: bool  # all of its objects are there
    taken: bool = False  # its number was given to another run since: after a restore a sequence starts over
    # PostgreSQL knows the attempt: put back before, or nothing says that it was ever committed
    known: bool = False
    committed: bool = False  # a later one says so, or the marker

    @property
    def entry(self) -> Entry:
        return self.manifest.entry

    @property
    def delivery_id(self) -> int:
        return self.entry.delivery_id

    @property
    def of_the_stream(self) -> bool:
        return self.entry.kind == "stream"

    @property
    def withdraws(self) -> bool:
        return self.entry.kind == "withdrawal"


@dataclass(frozen=True, kw_only=True)
class OnLake:
    """What the lake has that the ledger has not delivered."""

    lost: Sequence[LostDelivery]  # can be put back; in the order to commit them
    unrestorable: Sequence[LostDelivery]  # can't be


def lost_deliveries(dsn: str, lake: Lake, pipeline: Pipeline, newest: Newest | None) -> OnLake:
    """Find the manifests of what PostgreSQL has not delivered; those whose objects are all there can be put back.

    An attempt that PostgreSQL knows counts as failed or fenced, unless a later manifest says that it was
    delivered, or it is the `newest` that the lake's marker names.
    """
    named = manifests(LakeTable.of(lake, pipeline.table))
    numbers = [one.delivery_id for one in named]
    with transaction(dsn) as cursor:
        if numbers:
            attempts.skip_numbers(cursor, max(numbers))
        known = attempts.known_attempts(cursor, pipeline.name, numbers)
    unsure = [one.uri for one in named if not _is_delivered(known.get(one.delivery_id), one.run)]
    lost = _read(lake, unsure, pipeline.name)
    with transaction(dsn) as cursor:
        last = deliveries.last_delivery(cursor, pipeline.name)
    followed = {one.entry.previous for one in lost}
    marked = newest and (newest.delivery_id, newest.run_id)
    marked_committed = [
        replace(one, committed=one.delivery_id in followed or (one.delivery_id, one.entry.run_id) == marked)
        for one in lost
    ]
    judged = [_judged(one, known.get(one.delivery_id)) for one in marked_committed]
    candidates = [one for one in judged if one.whole and not one.taken and not one.known]
    with transaction(dsn) as cursor:
        streams = {one.entry.stream_id: one for one in candidates}
        following = {stream_id: _next_batch(cursor, one) for stream_id, one in streams.items()}
    chain = _chain(candidates, last, following)
    restorable = {one.uri for one in chain}
    return OnLake(lost=chain, unrestorable=[one for one in judged if one.uri not in restorable])


def skip_lost_commits(dsn: str, pipeline: Pipeline, on_lake: OnLake, newest: Newest | None) -> None:
    """Give no commit the number of one that was lost, unless every lost one is put back under its own.

    A consumer's place may be the number of a lost commit: what took that number would never be new to it. No commit has a
    number above its delivery's, so none was lost above the newest lost delivery's.
    """
    lost = [one for one in (*on_lake.lost, *on_lake.unrestorable) if one.committed and not one.known]
    numbers = {one.delivery_id for one in lost}
    put_back = {one.delivery_id for one in on_lake.lost if one.of_the_stream}
    with transaction(dsn) as cursor:
        if newest and not deliveries.is_delivered(cursor, newest.delivery_id, newest.run_id):
            numbers.add(newest.delivery_id)
        if not numbers <= put_back:
            attempts.skip_numbers(cursor, max(numbers))
            pipelines.skip_commits(cursor, pipeline.name, max(numbers))


def _is_delivered(known: KnownAttempt | None, run: str) -> bool:
    return known is not None and known.delivered and known.run_id.startswith(run)


def _read(lake: Lake, uris: Sequence[str], pipeline: str) -> list[LostDelivery]:
    """Read the manifests by several requests at once: a database that was emptied lost all of them.

    Those from before the pipeline was renamed say its name of then.
    """

    def one(uri: str) -> LostDelivery:
        stored = DeliveryManifest.from_json(lake.read_text(uri), uri=uri)
        manifest = replace(stored, entry=replace(stored.entry, pipeline=pipeline))
        return LostDelivery(manifest=manifest, uri=uri, whole=_is_whole(lake, manifest))

    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(one, uris))


def _judged(one: LostDelivery, known: KnownAttempt | None) -> LostDelivery:
    if known is None:
        return one
    if known.adopted:
        return replace(one, known=True)
    if known.run_id != one.entry.run_id:
        return replace(one, taken=True)
    return replace(one, known=not one.committed)


def _is_whole(lake: Lake, manifest: DeliveryManifest) -> bool:
    return all(lake.size(one.path) == one.bytes for one in manifest.objects)


def _next_batch(cursor: Cursor, lost: LostDelivery) -> int:
    state = stream_state(cursor, lost.entry.stream_id)
    return lost.manifest.first_batch if state is None else state.next_batch


def _chain(
    unknown: Sequence[LostDelivery], last: int | None, next_batch: dict[str, int]
) -> list[LostDelivery]:
    """Return the lost deliveries that can be put back, in their order, from the ledger's last delivery on.

    Of several that follow it, the one that others follow is taken. Each is the next batch of its stream: an
    attempt that was under way when PostgreSQL went back may name the same previous delivery as the batch
    before it. The chain ends before a withdrawal: what came after that was read a second time, and would be there twice.
    """
    after: dict[int | None, list[LostDelivery]] = {}
    for one in unknown:
        after.setdefault(one.entry.previous, []).append(one)
    chain: list[LostDelivery] = []
    while following := [
        one for one in after.get(last, ()) if one.entry.batch_id == next_batch[one.entry.stream_id]
    ]:
        following_one = max(following, key=lambda one: (one.delivery_id in after, one.delivery_id))
        if following_one.withdraws:
            break
        chain.append(following_one)
        last = following_one.delivery_id
        next_batch[following_one.entry.stream_id] = following_one.entry.batch_id + 1
    return chain


def how_to_redo(one: LostDelivery, lost: Mapping[int, LostDelivery], had: AbstractSet[str]) -> str:
    """Say how to have a lost replay, release or withdrawal again, which can't be put back by itself.

    `lost` are all that were lost, by number; `had` the inputs that are in force now, or that the stream reads.
    """
    pipeline, number = one.entry.pipeline, one.delivery_id
    if one.entry.kind == "release":
        holding = sorted({live_one for origin in _changed_by(one) for live_one in _in_force(origin, lost)})
        return f"release {number}: its rows are held again: " + ", ".join(
            f"`sluice quarantine list {pipeline} --delivery {origin}`" for origin in holding
        )
    if one.withdraws:
        first = min(
            live_one for withdrawn in one.manifest.supersedes for live_one in _in_force(withdrawn, lost)
        )
        return (
            f"withdrawal {number}: what it had taken out is in force again:"
            f" `sluice recover {pipeline} --before {first} {WHY}`"
        )
    reasons = []
    if in_force_again := {
        live_one for replaced in one.manifest.supersedes for live_one in _in_force(replaced, lost)
    }:
        command = f"`sluice replay {pipeline} --deliveries {format_ranges(in_force_again)}`"
        reasons.append(f"what it had replaced is in force again: {command}")
    if paths := _history(one, had):
        reasons.append(
            pluralize(
                len(paths), "file of history that it had loaded is", "files of history that it had loaded are"
            )
            + f" in no delivery again, such as {paths[0]}:"
            f" `sluice replay {pipeline} --interval START END`"
        )
    return f"replay {number}: {'; '.join(reasons) or 'it had replaced what is lost as well'}"


def is_missed(
    one: LostDelivery,
    lost: Mapping[int, LostDelivery],
    live: AbstractSet[int],
    holding: AbstractSet[int],
    had: AbstractSet[str],
) -> bool:
    """Tell whether a lost replay, release or withdrawal is missed.

    What it had changed is live, or held, again as before it; or history that it had loaded is in no delivery.
    """
    if one.of_the_stream or one.known:
        return False
    in_force = live if one.manifest.supersedes else holding
    changed = {number for each in _changed_by(one) for number in _in_force(each, lost)}
    return bool(in_force & changed or _history(one, had))


def _history(one: LostDelivery, had: AbstractSet[str]) -> list[str]:
    """Return the files that a replay had loaded and that nothing else has, or will have by itself."""
    return [file.path for file in one.manifest.inputs if file.path not in had]


def _changed_by(one: LostDelivery) -> list[int]:
    """Return the deliveries that a replay or a release had changed."""
    if one.manifest.supersedes:
        return list(one.manifest.supersedes)
    return [] if one.entry.released_from is None else [one.entry.released_from]


def _in_force(number: int, lost: Mapping[int, LostDelivery]) -> set[int]:
    """Return what is in force in place of a delivery: itself, or what it had replaced or come from."""
    one = lost.get(number)
    if one is None or one.of_the_stream:
        return {number}
    return {original for each in _changed_by(one) for original in _in_force(each, lost)}


def restore_delivery(dsn: str, lake: Lake, pipeline: Pipeline, lease: Lease, lost: LostDelivery) -> Receipt:
    """Commit a lost delivery again, under its own number, in both sinks at once, or raise.

    HAZARD: the lake's marker stays as it is, for it tells of what is still lost if the next one can't be put
    back. Settle it once nothing is lost.
    """
    manifest, entry = lost.manifest, lost.entry
    sinks = open_sinks(pipeline, _columns(dsn, lake, pipeline, manifest), dsn=dsn, lake=lake, fills=True)
    context = DeliveryContext(
        sinks=sinks,
        lease=lease,
        stream_id=entry.stream_id,
        first_batch=manifest.first_batch,
        checkpoint=manifest.checkpoint,
        state=manifest.state,
        suite_digest=entry.suite_digest,
        flag_words=0,
        rules=(),
        lookups=entry.lookups,
        tells=False,
    )
    with transaction(dsn) as cursor:
        register_stream(
            cursor,
            lease.pipeline,
            lease.run_id,
            entry.stream_id,
            checkpoint=context.checkpoint,
            first_batch=context.first_batch,
            state=context.state,
        )
        attempts.adopt_attempt(
            cursor, lease, entry.delivery_id, entry.stream_id, entry.batch_id, was=entry.run_id
        )
        offsets.accept_skipped(cursor, pipeline.name, manifest.ranges)
        task = stage_task(cursor, context, entry.batch_id, entry.delivery_id, HoldPolicy(rules=()))
    batch = _LakeBatch(manifest=manifest, lake=lake)
    staged = batch.stage(task)
    counts = replace(staged.counts(0), malformed=entry.malformed)
    return commit(context, batch, task, staged, counts, batch.judge(counts, staged), None)


def _columns(dsn: str, lake: Lake, pipeline: Pipeline, manifest: DeliveryManifest) -> pa.Schema:
    """Return the columns of the transform's output when the delivery was made.

    They are those of its own objects, or of the table if it had none. Raises NeedsPerson where the table is
    gone, too.
    """
    if manifest.objects:
        with lake.open(manifest.objects[0].path) as source:
            schema = pq.read_schema(source)
    else:
        table = LakeTable.of(lake, pipeline.table)
        with transaction(dsn) as cursor:
            pointer = table.pointer(cursor)
        if pointer is None:
            raise NeedsPerson(
                f"Delivery {manifest.entry.delivery_id} of {pipeline.name} had no row, and its table is gone",
                remedy="remove its manifest from the lake's deliveries/ folder, then"
                f" `sluice recover {pipeline.name}` again",
            )
        schema = arrow_schema(table.load(pointer).schema())
    names = [name for name in schema.names if not is_own(name)]
    return pa.schema([pa.field(name, schema.field(name).type) for name in names])


def _about(entry: Entry) -> About | None:
    if entry.watermark_ms is None or entry.time_ms is None:
        return None
    return About(watermark_ms=entry.watermark_ms, time_ms=entry.time_ms)


@dataclass(frozen=True, kw_only=True)
class _LakeBatch:
    """A batch whose objects are on S3 already: only PostgreSQL's side is staged."""

    manifest: DeliveryManifest
    lake: Lake

    @property
    def batch_id(self) -> int:
        return self.manifest.entry.batch_id

    @property
    def inputs(self) -> Sequence[Input]:
        return self.manifest.inputs

    @property
    def ranges(self) -> Sequence[Range]:
        return self.manifest.ranges

    def stage(self, task: StageTask) -> Staged:
        report = TaskReport(partition=0, task=0)
        names = task.row_filter.columns.names
        with StagingWriter(task.tables, report.task) as staging:
            for part in self._delivered(task, report):
                task.deliver(staging, part)
            for rows in self._rows(self.manifest.quarantine, report.quarantine_files, task.quarantine):
                held = rows.select([name for name in rows.schema.names if name not in SYSTEM_COLUMNS])
                report.quarantined += held.num_rows
                report.quarantine_checksum = (report.quarantine_checksum + checksum(held, names)) % MODULUS
                report.reasons.update(Counter(r for row in held.column("_reasons").to_pylist() for r in row))
                task.hold(staging, held, names)
            report.packed = staging.commit()
        entry = self.manifest.entry
        return Staged(
            reports=[report],
            records=entry.records,
            late=entry.late,
            dropped=entry.dropped,
            unknown=entry.unknown,
            missing=entry.missing,
            about=_about(entry),
        )

    def _delivered(self, task: StageTask, report: TaskReport) -> Iterator[pa.RecordBatch]:
        names = task.row_filter.columns.names
        for rows in self._rows(self.manifest.data, report.data_files, task.data):
            part = rows.select(names).cast(task.row_filter.columns)
            report.delivered += part.num_rows
            report.checksum = (report.checksum + checksum(part, names)) % MODULUS
            yield part

    def _rows(
        self, objects: Sequence[WrittenObject], files: list[StagedFile], spec: FileSpec
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these objects of the delivery, and note each object in `files`."""
        for one in objects:
            with self.lake.open(one.path) as source:
                parquet = pq.ParquetFile(source)
                value = None
                for rows in parquet.iter_batches():
                    value = next(split(rows, spec.partitioning))[0]
                    yield rows
                footer = pickle.dumps(parquet.metadata)
            files.append(
                StagedFile(path=one.path, rows=one.rows, size=one.bytes, partition=value, footer=footer)
            )

    def judge(self, counts: Counts, staged: Staged) -> Verdict:  # noqa: ARG002 - it was judged before
        return self.manifest.verdict

    def changed(self) -> Sequence[str]:
        return ()
