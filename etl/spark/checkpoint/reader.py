"""Spark's checkpoint without Spark: which files are in a batch, what is damaged, and a new one from a ledger.

Nothing is guessed: a batch whose inputs the logs don't tell for sure raises CheckpointDamaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from etl.common.errors import CheckpointDamaged
from etl.common.paths import filesystem, landing_path
from etl.spark.checkpoint.format import (
    COMPACT,
    COMPACTED,
    NO_ENTRY,
    About,
    FileLike,
    Folder,
    LoggedFile,
    Torn,
    commit_text,
    lines_text,
    log_text,
    metadata_text,
    offset_lines,
    offsets_text,
    parse_about,
    parse_commit,
    parse_log,
    parse_metadata,
    parse_offsets,
)

if TYPE_CHECKING:
    from etl.ledger.offsets import Range

__all__ = ["Checkpoint", "LoggedFile", "open_checkpoint"]


class Read(Protocol):
    """What a batch reads, as it is on record."""

    @property
    def files(self) -> Sequence[FileLike]: ...

    @property
    def ranges(self) -> Sequence[Range]: ...


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One look at a checkpoint: its list of files is read once, so open it again to look again."""

    uri: str  # as Spark is given it
    sources: int  # of the pipeline
    folder: Folder

    @cached_property
    def _names(self) -> frozenset[str]:
        return self.folder.names()

    @property
    def exists(self) -> bool:
        """Tell whether any file of the checkpoint is there, those of the state aside."""
        return bool(self._names)

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
        below = (name.removeprefix(f"{folder}/") for name in self._names if name.startswith(f"{folder}/"))
        return tuple(sorted(int(name) for name in below if name.isdigit()))

    def create(self, stream_id: str, listed: Iterable[FileLike] = ()) -> None:
        """Write the `metadata` of a new checkpoint: Spark begins with batch 0 on it and keeps the id.

        Spark takes the `listed` files for files that it has listed itself, so they come with batch 0 whatever
        the limit of a batch is. Raises CheckpointDamaged where a checkpoint is already.
        """
        self._require_empty("is no place for a new stream")
        self.folder.write("metadata", metadata_text(stream_id))
        self._log_first(listed)

    def _require_empty(self, otherwise: str) -> None:
        if self.exists:
            raise damaged(self.uri, [f"it is not empty, so it {otherwise}"])

    def inputs(self, batch_id: int) -> tuple[LoggedFile, ...]:
        """Return the files of one planned batch, by source and in Spark's order.

        Reads a few small files and lists nothing while the newest batches are asked for. Raises
        CheckpointDamaged when the files can't be told for sure.
        """
        try:
            ends = self._ends(batch_id)
            starts = self._ends(batch_id - 1) if batch_id > 0 else (NO_ENTRY,) * self.sources
            found: list[LoggedFile] = []
            for source, (start, end) in enumerate(zip(starts, ends, strict=True)):
                found += self._entries(source, start, end)
            return tuple(found)
        except Torn as torn:
            seen = f"the inputs of batch {batch_id} can't be told: {torn}"
            raise damaged(self.uri, [seen]) from None

    def read_until(self, batch_id: int) -> tuple[LoggedFile, ...]:
        """Return every file of the batches up to `batch_id`, and of what the checkpoint was seeded with.

        `batch_id` is planned. Raises CheckpointDamaged when the files can't be told for sure.
        """
        with self._or_damaged():
            ends = self._ends(batch_id)
            found = [self._entries(source, NO_ENTRY, end) for source, end in enumerate(ends)]
        return tuple(file for files in found for file in files)

    def logged(self) -> tuple[LoggedFile, ...]:
        """Return every file that Spark counts as seen, those of a batch not yet planned included.

        Raises CheckpointDamaged when they can't be told for sure.
        """
        with self._or_damaged():
            found = [self._entries(source, NO_ENTRY, self._last_entry(source)) for source in self._sources()]
        return tuple(file for files in found for file in files)

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
        found: list[str] = []
        with noting(found):
            parse_metadata(self.folder.read("metadata"))
        if not self.offsets:
            return found + [f"commits/{batch} is there, and no offsets are" for batch in self.commits[:1]]
        return found + _holes("offsets", self.offsets) + self._commit_damage() + self._source_damage()

    def _source_damage(self) -> list[str]:
        found: list[str] = []
        ends: tuple[int, ...] = ()
        # Spark reads the last two when it starts, and the inputs of the last batch are between them.
        for batch in self.offsets[-2:]:
            with noting(found):
                ends = self._ends(batch)
        for source, end in enumerate(ends):
            with noting(found):
                self._entries(source, NO_ENTRY, max(end, self._last_entry(source)))
        beyond = [source for source in self._sources() if ends and source >= len(ends)]
        return found + [f"sources/{source} is there, offsets are of {len(ends)} sources" for source in beyond]

    def _commit_damage(self) -> list[str]:
        last = self.offsets[-1]
        done = self.commits[-1] if self.commits else NO_ENTRY
        found = _holes("commits", self.commits)
        if done > last:
            found.append(f"commits/{done} is there, and offsets end at {last}")
        if done < last - 1:
            found.append(f"commits/{last - 1} is missing, and offsets go to {last}")
        if self.commits:
            with noting(found):
                parse_commit(f"commits/{done}", self.folder.read(f"commits/{done}"))
        return found

    def _ends(self, batch_id: int) -> tuple[int, ...]:
        """Return the last log entry that a planned batch reads of each source.

        A transform that takes its input twice has all of them named twice in the file. Raises Torn when they
        are not of the pipeline's sources.
        """
        name = f"offsets/{batch_id}"
        ends = parse_offsets(name, self.folder.read(name))
        if len(ends) % self.sources or ends != ends[: self.sources] * (len(ends) // self.sources):
            raise Torn(f"{name} is of {len(ends)} sources, the pipeline has {self.sources}")
        return ends[: self.sources]

    def _entries(self, source: int, start: int, end: int) -> list[LoggedFile]:
        """Return the files of the log's entries in (start, end]. Raises Torn when an entry is not told."""
        found: list[LoggedFile] = []
        wanted = end  # read backwards: one compacted file tells all that come before it
        while wanted > start:
            name, text = self._log_file(source, wanted)
            compacted = name.endswith(COMPACT)
            files = parse_log(name, text, source)
            told = range(start + 1 if compacted else wanted, wanted + 1)
            there = {file.entry for file in files}
            if lost := sorted(set(told) - there):
                raise Torn(f"{name} is torn: entry {lost[0]} is not in it")
            found = [file for file in files if file.entry in told] + found
            wanted = told.start - 1
        return found

    def _log_file(self, source: int, entry: int) -> tuple[str, str]:
        """Return the name and text of the log file that tells an entry. Raises Torn when there is none.

        A compacted file tells all entries before it as well.
        """
        plain = f"sources/{source}/{entry}"
        for name in (plain, plain + COMPACT):
            with suppress(Torn):
                return name, self.folder.read(name)
        # Spark removes plain entries some time after they were compacted.
        later = [n for n in self._log_numbers(source, compacted=True) if n > entry]
        if not later:
            raise Torn(f"{plain} is missing, and no compacted entry has it")
        name = f"sources/{source}/{min(later)}{COMPACT}"
        return name, self.folder.read(name)

    def _sources(self) -> list[int]:
        folders = {name.split("/")[1] for name in self._names if name.startswith("sources/")}
        return sorted(int(folder) for folder in folders if folder.isdigit())

    def _log_numbers(self, source: int, *, compacted: bool) -> list[int]:
        prefix, suffix = f"sources/{source}/", COMPACT if compacted else ""
        found = [name for name in self._names if name.startswith(prefix) and name.endswith(suffix)]
        numbers = [name.removeprefix(prefix).removesuffix(suffix) for name in found]
        return [int(number) for number in numbers if number.isdigit()]

    def _last_entry(self, source: int) -> int:
        both = [n for compacted in (True, False) for n in self._log_numbers(source, compacted=compacted)]
        return max(both, default=NO_ENTRY)

    def plan(self, batch_id: int, read: Read, *, times: int, about: About) -> None:
        """Write the logs of the next batch, of exactly these files: Spark runs it when a query starts.

        `times` is how often the transform takes its input.
        """
        ends = list(self._ends(batch_id - 1)) if batch_id > 0 else [NO_ENTRY] * self.sources
        for source, logged in enumerate(self._by_source(read.files)):
            if logged:
                self._log(source, ends[source] + 1, logged)
                ends[source] += 1
        self.folder.write(f"offsets/{batch_id}", offsets_text(ends * times, about))

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

    def _log(self, source: int, entry: int, files: Sequence[FileLike]) -> None:
        """Write an entry of a source's log; like Spark's, every tenth has all that came before it as well."""
        name, entries = f"sources/{source}/{entry}", {entry: list(files)}
        if (entry + 1) % COMPACTED == 0:
            before = self._entries(source, NO_ENTRY, entry - 1)
            name += COMPACT
            for file in before:
                entries.setdefault(file.entry, []).append(file)
        self.folder.write(name, log_text(entries))

    def _by_source(self, files: Iterable[FileLike]) -> list[list[FileLike]]:
        found: list[list[FileLike]] = [[] for _ in range(self.sources)]
        for file in files:
            found[file.source].append(file)
        return found

    def seed(self, files: Iterable[FileLike], *, stream_id: str) -> None:
        """Write a checkpoint on which Spark goes on with batch 1 and reads all but these files.

        `metadata` is written last: a seeding that was not finished is damage, and is never taken for new.
        Raises CheckpointDamaged where a checkpoint is already.
        """
        self._require_empty("can't be seeded")
        ends = self._log_first(files)
        self._begin_behind(offsets_text(ends, About(watermark_ms=0, time_ms=0)), stream_id)

    def _log_first(self, files: Iterable[FileLike]) -> list[int]:
        """Write the first entry of each source that has some of the files.

        Returns the last log entry of each source then.
        """
        seen = self._by_source(files)
        for source, logged in enumerate(seen):
            if logged:
                self.folder.write(f"sources/{source}/0", log_text({0: logged}))
        return [0 if logged else NO_ENTRY for logged in seen]

    def _begin_behind(self, offsets: str, stream_id: str) -> None:
        """Write that batch 0 ended at these offsets and is done; `metadata` is written last."""
        self.folder.write("offsets/0", offsets)
        self.folder.write("commits/0", commit_text())
        self.folder.write("metadata", metadata_text(stream_id))


@dataclass(frozen=True, kw_only=True)
class FilelessCheckpoint(Checkpoint):
    """One look at a checkpoint of a query that reads no files."""

    def inputs(self, batch_id: int) -> tuple[LoggedFile, ...]:  # noqa: ARG002
        return ()

    def read_until(self, batch_id: int) -> tuple[LoggedFile, ...]:  # noqa: ARG002
        return ()

    def logged(self) -> tuple[LoggedFile, ...]:
        return ()

    def plan(self, batch_id: int, read: Read, *, times: int, about: About) -> None:
        raise NotImplementedError("a batch of what can't be read again is planned by Spark alone")


def open_checkpoint(uri: str, *, sources: int, kind: type[Checkpoint] = Checkpoint) -> Checkpoint:
    """Return the checkpoint at `uri` of a query over so many sources; it need not be there.

    `uri` is a local folder or s3a://….
    """
    place = landing_path(uri)
    store, root = filesystem(place)
    return kind(uri=place, sources=sources, folder=Folder(uri=place, store=store, root=root))


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
    seen = f"Checkpoint {uri} lacks what Spark needs: {'; '.join(damage[:5])}"
    return CheckpointDamaged(seen, remedy="`sluice recover`, with the pipeline's name")
