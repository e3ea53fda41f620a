"""Reads Spark's checkpoint of a query over landed files: the files of a batch; seeds a new one from the ledger.

sources/<i>/<n>    the files of entry n of a source's log, as `format` tells
offsets/<batch>    v1 | a line of JSON about the batch | for each source the last entry that the batch reads
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from etl.common.wording import pluralize
from etl.spark.checkpoint.format import (
    COMPACT,
    COMPACTED,
    NO_ENTRY,
    NO_FILES,
    About,
    FileLike,
    LoggedFile,
    Missing,
    Torn,
    log_text,
    offsets_text,
    parse_log,
    parse_offsets,
)
from etl.spark.checkpoint.reader import PlannableCheckpoint, Read, damaged, noting


@dataclass(frozen=True, kw_only=True)
class FileCheckpoint(PlannableCheckpoint):
    """One look at a checkpoint of a query over landed files."""

    def create(self, stream_id: str, listed: Iterable[FileLike] = ()) -> None:
        """Write the `metadata` of a new checkpoint: Spark begins with batch 0 on it and keeps the id.

        Spark takes the `listed` files for files that it has listed itself, so they come with batch 0 whatever
        the limit of a batch is. Raises CheckpointDamaged where a checkpoint is already.
        """
        super().create(stream_id)
        self._log_first(listed)

    def inputs(self, batch_id: int) -> tuple[LoggedFile, ...]:
        """Return the files of one planned batch, by source and in Spark's order.

        Reads a few small files and lists nothing while the newest batches are asked for.
        """
        try:
            ends = self._ends(batch_id)
            starts = self._ends(batch_id - 1) if batch_id > 0 else (NO_ENTRY,) * self.sources
            files: list[LoggedFile] = []
            for source, (start, end) in enumerate(zip(starts, ends, strict=True)):
                files += self._files(source, start, end)
            return tuple(files)
        except Torn as torn:
            seen = f"the inputs of batch {batch_id} can't be read: {torn}"
            raise damaged(self.uri, [seen]) from None

    def uris_until(self, batch_id: int) -> pa.ChunkedArray:
        """Return the URI of every file of the batches up to `batch_id`, and of what the checkpoint was seeded with.

        `batch_id` is planned. Raises CheckpointDamaged when the files can't be told for sure.
        """
        with self._or_damaged():
            ends = self._ends(batch_id)
            by_source = [self._entries(source, NO_ENTRY, end) for source, end in enumerate(ends)]
        return pa.concat_tables([NO_FILES, *by_source])["uri"]

    def logged(self) -> tuple[LoggedFile, ...]:
        """Return every file that Spark counts as seen, those of a batch not yet planned included.

        Raises CheckpointDamaged when they can't be told for sure.
        """
        with self._or_damaged():
            by_source = [
                self._files(source, NO_ENTRY, self._last_entry(source)) for source in self._sources()
            ]
        return tuple(file for files in by_source for file in files)

    def _source_damage(self) -> list[str]:
        damage: list[str] = []
        ends: tuple[int, ...] = ()
        # Spark reads the last two when it starts, and the inputs of the last batch are between them.
        for batch in self.offsets[-2:]:
            with noting(damage):
                ends = self._ends(batch)
        for source, end in enumerate(ends):
            with noting(damage):
                self._entries(source, NO_ENTRY, max(end, self._last_entry(source)))
        beyond = [source for source in self._sources() if ends and source >= len(ends)]
        return damage + [
            f"sources/{source} is there, offsets are of {pluralize(len(ends), 'source')}" for source in beyond
        ]

    def _ends(self, batch_id: int) -> tuple[int, ...]:
        """Return the last log entry that a planned batch reads of each source.

        A transform that takes its input twice has all of them named twice in the file. Raises Torn when they
        are not of the pipeline's sources.
        """
        name = f"offsets/{batch_id}"
        ends = parse_offsets(name, self.folder.read(name))
        if len(ends) % self.sources or ends != ends[: self.sources] * (len(ends) // self.sources):
            raise Torn(f"{name} is of {pluralize(len(ends), 'source')}, the pipeline has {self.sources}")
        return ends[: self.sources]

    def _files(self, source: int, start: int, end: int) -> list[LoggedFile]:
        """Return the files of the log's entries in (start, end]. Raises Torn when an entry is not told."""
        return [LoggedFile(source=source, **one) for one in self._entries(source, start, end).to_pylist()]

    def _entries(self, source: int, start: int, end: int) -> pa.Table:
        """Return the files of the log's entries in (start, end], as a table of LOG. Raises Torn when one is not told."""
        import pyarrow.compute as pc

        entries: list[pa.Table] = []
        wanted = end  # read backwards: one compacted file tells all that come before it
        while wanted > start:
            name, files = self._log_file(source, wanted)
            first = start + 1 if name.endswith(COMPACT) else wanted
            present, asked = {*files["entry"].unique().to_pylist()}, {*range(first, wanted + 1)}
            if lost := asked - present:
                raise Torn(f"{name} is torn: entry {min(lost)} is not in it")
            if present > asked:
                entry = pc.field("entry")
                files = files.filter((entry >= first) & (entry <= wanted))
            entries.insert(0, files)
            wanted = first - 1
        return pa.concat_tables([NO_FILES, *entries])

    def _log_file(self, source: int, entry: int) -> tuple[str, pa.Table]:
        """Return the name and the files of the log file that tells an entry. Raises Torn when there is none.

        A compacted file tells all entries before it as well.
        """
        plain = f"sources/{source}/{entry}"
        for name in (plain, plain + COMPACT):
            with suppress(Missing):
                return name, self._read_log(name)
        # Spark removes plain entries some time after they were compacted.
        later = [n for n in self._log_numbers(source, compacted=True) if n > entry]
        if not later:
            raise Torn(f"{plain} is missing, and no compacted entry has it")
        name = f"sources/{source}/{min(later)}{COMPACT}"
        return name, self._read_log(name)

    def _read_log(self, name: str) -> pa.Table:
        """Return the files of a log file, which is read once: it may tell millions. Raises Missing where there is none."""
        if name not in self._read:
            self._read[name] = parse_log(name, self.folder.read_bytes(name))
        return self._read[name]

    @cached_property
    def _read(self) -> dict[str, pa.Table]:
        return {}

    def forget_logs(self) -> None:
        """Give back the memory of the logs that were read; a later question reads them again."""
        self._read.clear()

    def _sources(self) -> list[int]:
        folders = {name.split("/")[1] for name in self._listed if name.startswith("sources/")}
        return sorted(int(folder) for folder in folders if folder.isdigit())

    def _log_numbers(self, source: int, *, compacted: bool) -> list[int]:
        prefix, suffix = f"sources/{source}/", COMPACT if compacted else ""
        names = [name for name in self._listed if name.startswith(prefix) and name.endswith(suffix)]
        numbers = [name.removeprefix(prefix).removesuffix(suffix) for name in names]
        return [int(number) for number in numbers if number.isdigit()]

    def _last_entry(self, source: int) -> int:
        both = [n for compacted in (True, False) for n in self._log_numbers(source, compacted=compacted)]
        return max(both, default=NO_ENTRY)

    def plan(self, batch_id: int, read: Read, *, times: int, about: About) -> None:
        ends = list(self._ends(batch_id - 1)) if batch_id > 0 else [NO_ENTRY] * self.sources
        for source, logged in enumerate(self._by_source(read.files)):
            if logged:
                self._log(source, ends[source] + 1, logged)
                ends[source] += 1
        self.folder.write(f"offsets/{batch_id}", offsets_text(ends * times, about))

    def _log(self, source: int, entry: int, files: Sequence[FileLike]) -> None:
        """Write an entry of a source's log; like Spark's, every tenth has all that came before it as well."""
        name, entries = f"sources/{source}/{entry}", {entry: list(files)}
        if (entry + 1) % COMPACTED == 0:
            earlier = self._files(source, NO_ENTRY, entry - 1)
            name += COMPACT
            for file in earlier:
                entries.setdefault(file.entry, []).append(file)
        self.folder.write(name, log_text(entries))

    def _by_source(self, files: Iterable[FileLike]) -> list[list[FileLike]]:
        grouped: list[list[FileLike]] = [[] for _ in range(self.sources)]
        for file in files:
            grouped[file.source].append(file)
        return grouped

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
