"""Reads Spark's checkpoint without Spark: the batches it has, and damage; seeds a new one from the ledger.

Nothing is guessed: a batch whose inputs the logs don't tell for sure raises CheckpointDamaged.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from etl.common.errors import CheckpointDamaged
from etl.common.paths import filesystem, landing_path
from etl.common.wording import first_few
from etl.spark.checkpoint.format import (
    NO_ENTRY,
    About,
    FileLike,
    Folder,
    LoggedFile,
    Torn,
    commit_text,
    lines_text,
    metadata_text,
    offset_lines,
    parse_about,
    parse_commit,
    parse_metadata,
)

if TYPE_CHECKING:
    from pyarrow import fs

    from etl.ledger.offsets import Range

__all__ = ["Checkpoint", "LoggedFile", "open_checkpoint"]

Offsets = Mapping[str, Mapping[int, int]]  # topic -> partition -> offset
AnyCheckpoint = TypeVar("AnyCheckpoint", bound="Checkpoint")


class Read(Protocol):
    """What a batch reads, as it is on record."""

    @property
    def files(self) -> Sequence[FileLike]: ...

    @property
    def ranges(self) -> Sequence[Range]: ...


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One look at a checkpoint: its list of files is read once, so open it again to look again.

    This one tells nothing of what was read: neither files nor offsets.
    """

    uri: str  # as Spark is given it
    sources: int  # of the pipeline
    folder: Folder

    @cached_property
    def _listed(self) -> Mapping[str, fs.FileInfo]:
        return self.folder.files()

    @property
    def exists(self) -> bool:
        """Tell whether any file of the checkpoint is there, those of the state aside."""
        return bool(self._listed)

    @property
    def fingerprint(self) -> str:
        """Return what differs once a file of Spark's logs came, went or was written again, whose names are no other's."""
        seen = sorted((name, one.size, one.mtime_ns) for name, one in self._listed.items())
        return hashlib.sha256(repr(seen).encode()).hexdigest()

    @cached_property
    def stream_id(self) -> str | None:
        """Return the stream's id; None when `metadata` is missing or torn."""
        try:
            return parse_metadata(self.folder.read("metadata"))
        except Torn:
            return None

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Return the ids of the batches that Spark has planned and still keeps, in order."""
        return self._numbers("offsets")

    @cached_property
    def commits(self) -> tuple[int, ...]:
        """Return the ids of the batches that Spark has marked as done and still keeps, in order."""
        return self._numbers("commits")

    @property
    def settled(self) -> bool:
        """Tell whether Spark has marked the last batch that it planned as done, or has planned none."""
        return not self.offsets or self.offsets[-1] in self.commits

    @property
    def has_state(self) -> bool:
        """Tell whether the checkpoint holds any state of the transform, whose content is Spark's own."""
        return self.folder.has("state")

    def _numbers(self, folder: str) -> tuple[int, ...]:
        below = (name.removeprefix(f"{folder}/") for name in self._listed if name.startswith(f"{folder}/"))
        return tuple(sorted(int(name) for name in below if name.isdigit()))

    def create(self, stream_id: str) -> None:
        """Write the `metadata` of a new checkpoint: Spark begins with batch 0 on it and keeps the id.

        Raises CheckpointDamaged where a checkpoint is already.
        """
        self._require_empty("is no place for a new stream")
        self.folder.write("metadata", metadata_text(stream_id))

    def _require_empty(self, otherwise: str) -> None:
        if self.exists:
            raise damaged(self.uri, [f"it is not empty, so it {otherwise}"])

    def inputs(self, batch_id: int) -> tuple[LoggedFile, ...]:  # noqa: ARG002
        """Return the files of one planned batch, by source and in Spark's order.

        Raises CheckpointDamaged when they can't be told for sure.
        """
        return ()

    def ranges(self, batch_id: int, topic_ids: Mapping[str, str]) -> tuple[Range, ...]:  # noqa: ARG002
        """Return what a planned batch reads of topics, partition by partition, those with nothing new included.

        Raises CheckpointDamaged when that can't be told.
        """
        return ()

    def starts(self, batch_id: int) -> list[Offsets] | None:  # noqa: ARG002
        """Return the offsets where a batch starts, source by source; None when Spark has not yet looked, or there are none.

        Raises CheckpointDamaged when they can't be told.
        """
        return None

    def reached(self, batch_id: int) -> list[Offsets]:  # noqa: ARG002
        """Return the offsets where a planned batch ends, source by source.

        Raises CheckpointDamaged when they can't be told.
        """
        return []

    def watermark_after(self, batch_id: int) -> int:
        """Return the watermark that a batch left to the next, in ms since 1970; 0 before the first batch."""
        if batch_id < 0:
            return 0
        name = f"commits/{batch_id}"
        with self._or_damaged():
            return parse_commit(name, self.folder.read(name))

    def watermark_of(self, batch_id: int) -> int:
        """Return the watermark that a planned batch began with, in ms since 1970; 0 before the first batch."""
        return self.about(batch_id).watermark_ms if batch_id >= 0 else 0

    @property
    def pinned(self) -> Mapping[str, Any]:
        """Return the settings that Spark keeps to on this checkpoint, whatever the session's are.

        Before the first batch there are none.
        """
        return self.about(self.offsets[-1]).pinned if self.offsets else {}

    def about(self, batch_id: int) -> About:
        """Return what a planned batch began with, besides its inputs.

        Raises CheckpointDamaged when that can't be told.
        """
        name = f"offsets/{batch_id}"
        with self._or_damaged():
            return parse_about(name, self.folder.read(name))

    @contextmanager
    def _or_damaged(self) -> Iterator[None]:
        try:
            yield
        except Torn as torn:
            raise damaged(self.uri, [str(torn)]) from None

    def damage(self) -> list[str]:
        """Name what Spark needs and is missing or unreadable, one sentence each; empty when Spark can go on.

        Log entries beyond the last planned batch are no damage: Spark died between listing and planning.
        """
        damage: list[str] = []
        with noting(damage):
            parse_metadata(self.folder.read("metadata"))
        if not self.offsets:
            return damage + [f"commits/{batch} is there, and no offsets are" for batch in self.commits[:1]]
        return damage + _holes("offsets", self.offsets) + self._commit_damage() + self._source_damage()

    def _source_damage(self) -> list[str]:
        """Name what is missing or unreadable of what the sources keep, one sentence each."""
        return []

    def _commit_damage(self) -> list[str]:
        last = self.offsets[-1]
        done = self.commits[-1] if self.commits else NO_ENTRY
        damage = _holes("commits", self.commits)
        if done > last:
            damage.append(f"commits/{done} is there, and offsets end at {last}")
        if done < last - 1:
            damage.append(f"commits/{last - 1} is missing, and offsets go to {last}")
        if self.commits:
            with noting(damage):
                parse_commit(f"commits/{done}", self.folder.read(f"commits/{done}"))
        return damage

    @property
    def owes(self) -> bool:
        """Tell whether the last batch moved the watermark on, and no batch came that does what is due by it.

        Spark makes that batch, which has no input, only in the query that made the last one (4.3): not after
        a kill or a stop.
        """
        if not self.offsets or not self.settled:
            return False
        last = self.offsets[-1]
        return self.watermark_after(last) > self.watermark_of(last)

    def plan_owed(self, *, time_ms: int) -> None:
        """Write the log of the batch without input that does what is due by the watermark of the last one.

        Spark runs it when a query starts. `time_ms` is its own time, since 1970.
        """
        last = self.offsets[-1]
        name = f"offsets/{last}"
        about = replace(self.about(last), watermark_ms=self.watermark_after(last), time_ms=time_ms)
        with self._or_damaged():
            ends = offset_lines(name, self.folder.read(name))
        self.folder.write(f"offsets/{last + 1}", lines_text(ends, about))

    def _begin_behind(self, offsets: str, stream_id: str) -> None:
        """Write that batch 0 ended at these offsets and is done; `metadata` is written last."""
        self.folder.write("offsets/0", offsets)
        self.folder.write("commits/0", commit_text())
        self.folder.write("metadata", metadata_text(stream_id))


@dataclass(frozen=True, kw_only=True)
class PlannableCheckpoint(Checkpoint, ABC):
    """One look at a checkpoint of what can be read again: a batch can be planned from what is on record of it."""

    @abstractmethod
    def plan(self, batch_id: int, read: Read, *, times: int, about: About) -> None:
        """Write the logs of the next batch, of exactly what was read: Spark runs it when a query starts.

        `times` is how often the transform takes its input.
        """


def open_checkpoint(uri: str, kind: type[AnyCheckpoint], *, sources: int) -> AnyCheckpoint:
    """Return the checkpoint at `uri` of a query over so many sources; it need not be there.

    `uri` is a local folder or s3a://….
    """
    path = landing_path(uri)
    store, root = filesystem(path)
    return kind(uri=path, sources=sources, folder=Folder(uri=path, store=store, root=root))


@contextmanager
def noting(damage: list[str]) -> Iterator[None]:
    try:
        yield
    except Torn as torn:
        damage.append(str(torn))


def _holes(name: str, numbers: Sequence[int]) -> list[str]:
    """Name the files that are missing between the first and the last number, a sentence each.

    The oldest ones may have been removed by Spark itself.
    """
    there = set(numbers)
    missing = set(range(min(there, default=0), max(there, default=0))) - there
    return [f"{name}/{n} is missing" for n in sorted(missing)]


def damaged(uri: str, damage: Sequence[str]) -> CheckpointDamaged:
    seen = f"Checkpoint {uri} lacks what Spark needs: {first_few(damage)}"
    return CheckpointDamaged(seen, remedy="`sluice recover`, with the pipeline's name")
