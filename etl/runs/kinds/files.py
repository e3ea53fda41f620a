"""Continues a stream over landed files, by the files that were delivered, each known by its path."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import psycopg2

from etl.common.database import Cursor, transaction
from etl.common.errors import CheckpointDamaged, FilesUnread, InputsChanged, ServiceAway, SluiceError
from etl.common.paths import is_utf8, path_array, shown
from etl.common.wording import first_few, pluralize
from etl.ledger import deliveries, leases, pipelines, streams
from etl.ledger.deliveries import Commit
from etl.ledger.inputs import Input
from etl.ledger.leases import Lease
from etl.ledger.streams import StreamState
from etl.pipeline import Pipeline
from etl.runs.kinds.base import ContinuedStream
from etl.runs.kinds.remembered import Begun, Remembered, compared
from etl.runs.preflight import unfit
from etl.runs.recovery.base import (
    ReadAgain,
    Rebuilt,
    RecordedBatch,
    RecoveryRequest,
    Seeded,
    StateRecovery,
)
from etl.sources import evidence
from etl.sources.cutoff import before_start, in_stream, undelivered
from etl.sources.evidence import look, paths_of, place_at, uri_at
from etl.sources.kinds.files import FileKind
from etl.sources.landing import assigned, folders_gone, is_listed_by_log, source_of
from etl.sources.listing.closing import closings
from etl.sources.listing.folder_states import LandingLook
from etl.spark.checkpoint.files import FileCheckpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("sluice")

# What a run reads in seconds, packed files among it; to look at so many costs less than they save.
LITTLE_FILES, LITTLE_BYTES = 32, 16 << 20
FEW_FILES = 10_000  # that PostgreSQL is asked about by name; about more, the checkpoint's whole log is read


@dataclass(frozen=True, kw_only=True)
class FileStream(ContinuedStream[FileCheckpoint]):
    """The stream of a pipeline of landed files: what has landed is known without Spark."""

    kind: FileKind
    begun: dict[str, Begun] = field(default_factory=dict, compare=False, repr=False)  # by stream

    def _is_as_compared(self, known: StreamState, checkpoint: FileCheckpoint, commit: Commit | None) -> bool:
        begun = self.begun[known.stream_id] = Begun(checkpoint=checkpoint, commit=commit)
        remembered = Remembered.read(checkpoint.folder, begun.clock)
        if remembered is None or remembered.compared != self._compared(checkpoint, commit):
            return False
        if known.state and not checkpoint.has_state:  # Spark's own files of it are not among what is compared
            return False
        closed = closings(self.pipeline, min(remembered.began, begun.at))  # the clock may have gone back
        begun.remembered, begun.look = remembered, LandingLook(known=remembered.folders, closings=closed)
        return True

    def _begun(self, stream_id: str) -> Begun:
        return self.begun.setdefault(stream_id, Begun(checkpoint=self.checkpoints.of(stream_id)))

    def _compared(self, checkpoint: FileCheckpoint, commit: Commit | None) -> str:
        return compared(self.pipeline, self.landing, checkpoint, commit)

    def _creator(self) -> Callable[[str], None]:
        """Return what makes the checkpoint of a first stream, by its id.

        The history that the stream leaves out makes no batches of its own, which would be without a row.
        """
        history = before_start(self.pipeline, self.landing)
        return lambda stream_id: self.checkpoints.of(stream_id).create(stream_id, history)

    def awaited(self, stream_id: str) -> AbstractSet[str]:
        """Return the paths of the landed files that the stream takes and that are in no batch that Spark has planned.

        Raises ServiceAway for a folder that files were delivered from and that is not there: a storage that is away
        is not one where nothing has landed.
        """
        begun = self._begun(stream_id)
        taken = self._taken(begun)
        if begun.remembered is not None and len(taken) <= FEW_FILES:
            return self._undelivered(taken)
        unplanned = self._unplanned(begun.checkpoint, taken)
        begun.checkpoint.forget_logs()
        return unplanned

    def _taken(self, begun: Begun) -> set[str]:
        """Return the paths of the landed files that the stream takes, without those in folders that are as remembered."""
        taken = undelivered(self.pipeline, self.landing, frozenset(), begun.look)
        if begun.look.known and folders_gone(self.pipeline, self.landing, taken):
            begun.look = LandingLook()
            taken = undelivered(self.pipeline, self.landing, frozenset(), begun.look)
        self._refuse_gone(taken)
        return taken

    def _refuse_gone(self, taken: AbstractSet[str]) -> None:
        if not (gone := folders_gone(self.pipeline, self.landing, taken)):
            return
        name, landing = self.pipeline.name, self.landing
        with transaction(self.dsn) as cursor:
            live = [one.path for one in deliveries.live_inputs(cursor, name)]
        counts = Counter(source_of(self.pipeline, path, landing) for path in live)
        for number, folder in gone.items():
            if not counts[number]:  # it may be waiting for its first file
                continue
            raise ServiceAway(
                f"The folder {folder} is not there, and {pluralize(counts[number], 'file')} of"
                f" {self.kind.files[number].pattern} came from it: its storage is away, or it was removed",
                remedy=f"mount it or put it back; if it is to be empty from now on, create it; then `sluice run {name}`",
            )

    def _undelivered(self, paths: AbstractSet[str]) -> set[str]:
        if not paths:
            return set()
        with transaction(self.dsn) as cursor:
            return {*paths} - deliveries.live_among(cursor, self.pipeline.name, list(filter(is_utf8, paths)))

    def _unread(self, checkpoint: FileCheckpoint, awaited: AbstractSet[str]) -> set[str]:
        """Return the `awaited` files that no batch has; of a few the ledger tells, and the log is seldom read."""
        few = len(awaited) <= FEW_FILES
        return self._unplanned(checkpoint, self._undelivered(awaited) if few else awaited)

    def _unplanned(self, checkpoint: FileCheckpoint, paths: AbstractSet[str]) -> set[str]:
        if not paths or not checkpoint.offsets:
            return {*paths}
        import pyarrow.compute as pc

        behind = paths_of(checkpoint.uris_until(checkpoint.offsets[-1]), self.landing)
        named = path_array(filter(is_utf8, paths))  # Spark can't read others
        return {*paths} - set(named.filter(pc.is_in(named, value_set=behind)).to_pylist())

    def look_into_closed(self, stream_id: str) -> None:
        """List closed folders in this run as well."""
        self._begun(stream_id).look = LandingLook()

    def nothing_new(self, stream: StreamState, awaited: AbstractSet[str]) -> bool:
        checkpoint = self._begun(stream.stream_id).checkpoint
        if not checkpoint.offsets or not checkpoint.settled:
            return False
        if stream.closes and checkpoint.owes:
            return False
        return not awaited

    def remember(self, stream_id: str) -> None:
        begun = self._begun(stream_id)
        may_close = bool(closings(self.pipeline, begun.at))
        if begun.remembered is None or begun.remembered.folders != begun.look.found or may_close:
            with self._remembering():
                self._write(begun, begun.checkpoint, begun.commit)

    def remember_delivered(self, stream_id: str, awaited: AbstractSet[str], batches: int) -> None:
        begun, checkpoint = self._begun(stream_id), self.checkpoints.of(stream_id)
        with self._remembering():
            with transaction(self.dsn) as cursor:
                commit = deliveries.last_commit(cursor, self.pipeline.name)
            commits = (commit.commit_seq if commit else 0) - (begun.commit.commit_seq if begun.commit else 0)
            if commits != batches:  # a delivery beside the stream may have taken inputs out of force
                return
            read = checkpoint.settled and not self._unread(checkpoint, awaited)
            if read and unfit(self.dsn, self.state(stream_id), checkpoint) is None:
                self._write(begun, checkpoint, commit)

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        try:
            yield
        except (SluiceError, psycopg2.Error) as error:  # the run has done its work
            log.warning("%s: the next run compares everything again: %s", self.pipeline.name, error)

    def _write(self, begun: Begun, checkpoint: FileCheckpoint, commit: Commit | None) -> None:
        seen = self._compared(checkpoint, commit)
        remembered = Remembered(compared=seen, folders=begun.look.found, began=begun.at)
        remembered.write(checkpoint.folder, begun.clock)

    def is_little(self, stream_id: str, awaited: AbstractSet[str]) -> bool:
        if len(awaited) > LITTLE_FILES or not self.checkpoints.of(stream_id).settled:
            return False
        seen = look((uri_at(path, self.landing) for path in awaited), landing=self.landing)
        return sum(one.size for one in seen) <= LITTLE_BYTES

    def unread(self, stream_id: str, awaited: AbstractSet[str]) -> FilesUnread | None:
        """Return FilesUnread, which names the `awaited` files that no batch has though they are still there, else None.

        What Spark leaves out because the log of its own file sink does not name it is told by a warning instead.
        """
        name, landing = self.pipeline.name, self.landing
        unread = self._passed_over(stream_id, awaited)
        by_log = [n for n, files in enumerate(self.kind.files) if unread and is_listed_by_log(files, landing)]
        not_in_log = [path for path in unread if source_of(self.pipeline, path, landing) in by_log]
        if not_in_log:
            log.warning(
                "%s: Spark reads what the log _spark_metadata names there, and not %s",
                name,
                first_few([shown(path) for path in not_in_log]),
            )
        if not (lost := [self._told(path) for path in unread if path not in not_in_log]):
            return None
        return FilesUnread(
            f"{pluralize(len(lost), 'file')} below {landing} had landed before this run of {name} began, and Spark has"
            f" skipped {'it' if len(lost) == 1 else 'them'}: {first_few(lost)}",
            remedy="land each again under another name, in UTF-8 and without control characters, or as a file where it is a"
            f" link to nothing, then `sluice run {name}`",
        )

    def _passed_over(self, stream_id: str, awaited: AbstractSet[str]) -> list[str]:
        """Return the paths of the `awaited` files that no batch has yet, though they are still there; sorted."""
        unplanned = self._unread(self.checkpoints.of(stream_id), awaited)
        still_there = look((uri_at(path, self.landing) for path in unplanned), landing=self.landing)
        return sorted({one.path for one in still_there} | set(filter(self._leads_nowhere, unplanned)))

    def _leads_nowhere(self, path: str) -> bool:
        place = Path(place_at(path, self.landing))
        return place.is_absolute() and place.is_symlink() and not place.exists()

    def _told(self, path: str) -> str:
        return f"{shown(path)}, a link to nothing" if self._leads_nowhere(path) else shown(path)

    def _read_otherwise(
        self, known: StreamState, checkpoint: FileCheckpoint, delivered: int
    ) -> SluiceError | None:
        """Return CheckpointDamaged where the checkpoint counts a file as read that no delivery has, else None."""
        import pyarrow.compute as pc

        counted = checkpoint.uris_until(delivered)
        paths = paths_of(counted, self.landing)
        with transaction(self.dsn) as cursor:
            live = path_array(deliveries.live_paths(cursor, known.pipeline))
        lacking = pc.invert(pc.is_in(paths, value_set=live))
        taken, uris = in_stream(self.pipeline), counted.filter(lacking).to_pylist()
        unknown = dict(zip(paths.filter(lacking).to_pylist(), uris, strict=True))
        if not (undelivered := sorted(filter(taken, unknown))):
            return None
        with transaction(self.dsn) as cursor:
            delivered_from = {one.uri for one in deliveries.live_inputs(cursor, known.pipeline)}
        if {unknown[path] for path in undelivered} <= delivered_from:
            return CheckpointDamaged(
                f"The landing is now {self.landing}, and"
                f" {pluralize(len(undelivered), 'file was', 'files were')} delivered from another place:"
                f" {first_few(undelivered)}",
                remedy="restore the old SLUICE_LANDING; or, if the files were moved to the new one,"
                f" `sluice recover {known.pipeline}`",
            )
        return CheckpointDamaged(
            f"Checkpoint {checkpoint.uri} of {known.pipeline} counts {pluralize(len(undelivered), 'file')} as"
            " read that no delivery has:"
            f" {first_few(undelivered)}",
            remedy=f"`sluice recover {known.pipeline}`",
        )

    @property
    def way_back(self) -> str:
        return "land these input files again"

    def counted(self, seen: int) -> str:
        return pluralize(seen, "delivered file")

    def read_again(
        self,
        leaving: Sequence[RecordedBatch],
        before: Sequence[RecordedBatch],
        spark: SparkSession | None,  # noqa: ARG002 - what has landed is known without it
    ) -> ReadAgain:
        pipeline, landing = self.pipeline, self.landing
        recorded = _files_of(leaving)
        here = [replace(one, uri=uri_at(one.path, landing)) for one in recorded]
        taken, read = in_stream(pipeline), {one.path: one for one in assigned(here, pipeline, landing)}
        present = evidence.look_again(read.values(), landing=landing)
        there = {one.path for one in present}
        was = [
            replace(one, uri=read[one.path].uri, source=read[one.path].source)
            for one in recorded
            if one.path in there
        ]
        unread = [one.path for one in recorded if one.path not in read or not taken(one.path)]
        return ReadAgain(
            gone=[
                *(f"{path} is of no source any more, or before its start" for path in unread),
                *(f"{path} is gone" for path in read if path not in there),
            ],
            changed=evidence.changed(was, present),
            lost_to_state=_changes(pipeline, landing, _files_of(before)),
        )

    @contextmanager
    def recovery(self, request: RecoveryRequest, spark: SparkSession | None) -> Iterator[StateRecovery]:
        yield FileRecovery(stream=self, request=request, spark=spark)


@dataclass(frozen=True, kw_only=True)
class FileRecovery(StateRecovery):
    """A recovery of a stream over files; Spark is started only where a state has to be rebuilt."""

    stream: FileStream
    request: RecoveryRequest
    spark: SparkSession | None

    def problem(self) -> str | None:
        return self.stream.problem(self.request.lease)

    def next_stream(self) -> Seeded:
        """Return the stream to go on with, whose checkpoint counts what was delivered as read."""
        from etl.runs.recovery.state_rebuild import rebuild_all

        dsn, lease = self.stream.dsn, self.request.lease
        with transaction(dsn) as cursor:
            known = streams.current_stream(cursor, lease.pipeline)
            changed = "StateChanged" in leases.pending_outcomes(cursor, lease)
        if (known and known.state) or changed:
            if known and self.problem() is None:
                with transaction(dsn) as cursor:  # what was put back was all that its checkpoint was ahead by
                    seen = len(deliveries.live_inputs(cursor, lease.pipeline))
                return Seeded(stream_id=known.stream_id, seen=seen)
            if rebuilt := rebuild_all(self, dsn, self.stream.pipeline):
                return rebuilt
        return _seeded(self.stream, lease)

    def rebuild(self, batches: Mapping[int, RecordedBatch]) -> Rebuilt | None:
        from etl.runs.recovery.state_rebuild import rerun_batches
        from etl.runs.spark_session import a_session
        from etl.runs.stateful import kept_state
        from etl.sources.open import open_kind

        workspace, pipeline, landing = self.stream.workspace, self.stream.pipeline, self.stream.landing
        checkpoints = self.stream.checkpoints
        with a_session(workspace, self.spark) as session, TemporaryDirectory(prefix="sluice-") as empty:
            kind, settings = self.stream.kind, workspace.settings
            frame = open_kind(session, kind, settings, models=workspace.models, stream=False).below(empty)
            state = kept_state(pipeline, frame)
            if not state:
                return None
            _refuse_changed(pipeline, landing, batches.values(), self.request.command)
            declared = [
                replace(past, files=assigned(past.files, pipeline, landing)) for past in batches.values()
            ]
            stream_id = rerun_batches(
                self.stream.dsn,
                checkpoints,
                pipeline,
                frame,
                state,
                declared,
                self.request,
                create=None if declared else self.stream._creator(),
            )
        return Rebuilt(
            stream_id=stream_id,
            checkpoint=checkpoints.of(stream_id).uri,
            first=len(declared),
            state=state,
            batches=batches,
        )

    def go_on(self, cursor: Cursor, rebuilt: Rebuilt) -> Seeded:
        from etl.runs.recovery.state_rebuild import make_current

        make_current(cursor, self.request, rebuilt)
        seen = sum(len(past.files) for past in rebuilt.batches.values())
        return Seeded(stream_id=rebuilt.stream_id, seen=seen)


def _changes(pipeline: Pipeline, landing: str, recorded: Sequence[Input]) -> list[str]:
    """Name what of these files is not as it was delivered, or is of no source now, one sentence each."""
    changes = evidence.changed(recorded, evidence.look_again(recorded, landing=landing))
    read = {one.uri for one in assigned(recorded, pipeline, landing)}
    return changes + [f"{one.uri} is of no source any more" for one in recorded if one.uri not in read]


def _refuse_changed(pipeline: Pipeline, landing: str, batches: Iterable[RecordedBatch], command: str) -> None:
    recorded = _files_of(batches)
    if changes := _changes(pipeline, landing, recorded):
        raise InputsChanged(
            f"The state of {pipeline.name} can't be rebuilt: of the {pluralize(len(recorded), 'file')} that it"
            " was computed from,"
            f" {len(changes):,} are not as they were: {first_few(changes)}",
            remedy=f"restore the old files, then {command} again",
        )


def _files_of(batches: Iterable[RecordedBatch]) -> list[Input]:
    return list(chain.from_iterable(past.files for past in batches))


def _seeded(stream: FileStream, lease: Lease) -> Seeded:
    """Begin a new current stream whose checkpoint counts exactly the live inputs as read.

    What the stream leaves out counts as read, too.

    The inputs are read in the transaction that makes the stream current: no other stream can add one later.
    """
    stream_id, pipeline, landing = str(uuid.uuid4()), stream.pipeline, stream.landing
    checkpoint = stream.checkpoints.of(stream_id)
    with transaction(stream.dsn) as cursor:
        pipelines.lock(cursor, pipeline.name)
        streams.register_stream(
            cursor, lease.pipeline, lease.run_id, stream_id, checkpoint=checkpoint.uri, first_batch=1
        )
        seen = deliveries.live_inputs(cursor, pipeline.name)
    history = before_start(pipeline, landing, live={one.path for one in seen})
    behind = [replace(one, uri=uri_at(one.path, landing)) for one in assigned(seen, pipeline, landing)]
    checkpoint.seed([*behind, *history], stream_id=stream_id)
    return Seeded(stream_id=stream_id, seen=len(seen))
