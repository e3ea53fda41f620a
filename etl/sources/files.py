"""Reads landed files as DataFrames, malformed records apart from typed ones."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Self

from etl.common.errors import SetupError
from etl.common.paths import shown, spark_path
from etl.common.record_columns import HELD_UNKNOWN, SOURCE_PATH
from etl.common.wording import pluralize, visible
from etl.ledger.inputs import Input
from etl.ledger.offsets import Range
from etl.pipeline import Files, declaration
from etl.pipeline.patterns import inferred_format, named_by_folders, split_pattern
from etl.sources.base import Source
from etl.sources.counts import Counted, Drift
from etl.sources.cutoff import StartCutoff
from etl.sources.evidence import path_column, path_of
from etl.sources.landing import source_of
from etl.sources.named_paths import named_path
from etl.sources.parsing import Records, faults, read_files, read_stream, union
from etl.sources.unreadable import lz4_frames, refuse_colon, unreadable
from etl.spark.input_files import takes_input_file_name
from etl.spark.java_errors import Cause, classify

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from etl.sources.parquet_types import Footers, ReadAs

log = logging.getLogger("sluice")

_IN_A_FOLDER = (
    "%s: %s lies in a folder %s, and a folder gives no column a value: %s is null where the records do not have it."
    ' Files("%s", path="file") gives the transform the path to take it from, and ends this warning: docs/cookbook/paths.md'
)
_DECLARED_PATH = 'declare Files(…, path="file"), and use the column file'


@dataclass(frozen=True, kw_only=True)
class FileSource(Source):
    """What a run reads, where it is landed files."""

    files: Sequence[Files]
    paths: Sequence[str]  # where the files of each of the pipeline's sources are; none: it is not streamed
    anywhere: bool = False  # a file that no pattern means is read by the first source of its format
    read_as: dict[str, ReadAs | None] = field(
        default_factory=dict
    )  # the Parquet files that were looked at last
    drifts: dict[str, Drift] = field(default_factory=dict)  # of Parquet files that were looked at last
    told: set[str] = field(default_factory=set)  # the columns of which a warning was that a folder names them

    @property
    def _undeclared(self) -> Sequence[Files]:
        """Return the sources that declare no limit of a batch."""
        return [one for one in self.files if one.max_files is None and one.max_bytes is None]

    @property
    def has_default_limit(self) -> bool:
        return self.takes_part and bool(self._undeclared)

    @property
    def _with_default_limit(self) -> Sequence[Files]:
        """Return the sources, those without a limit with their share of the default one, if there is one."""
        if not self.has_default_limit:
            return self.files
        share = max(declaration.BATCH_BYTES // len(self._undeclared), 1)
        return [replace(one, max_bytes=share) if one in self._undeclared else one for one in self.files]

    def cut(self, inputs: Sequence[Input], ranges: Sequence[Range], *, left: int) -> str | None:  # noqa: ARG002
        if not left or not self.takes_part or len(self._undeclared) < len(self.files):
            return None
        files, size = pluralize(len(inputs), "file"), pluralize(sum(one.size for one in inputs), "byte")
        return (
            f"{files} of {size}, and {pluralize(left, 'file')} that had landed come later: where its sources declare neither"
            f" max_files nor max_bytes, a batch takes about {declaration.BATCH_BYTES:,} bytes"
        )

    def shape(self) -> DataFrame:
        with tempfile.TemporaryDirectory(prefix="sluice-") as empty:
            return self.below(empty)

    def below(self, folder: str) -> DataFrame:
        """Return the transform's output over a local folder instead of the landing, streaming.

        Files are read whatever the sources' patterns say of names.
        """
        return self._over([spark_path(folder)] * len(self.files), anything=True)

    def by_source(self, uris: Iterable[str]) -> dict[int, list[str]]:
        """Sort files by the number of the source that reads them: the first whose pattern means the file.

        With `anywhere` a file that no pattern means is read by the first source of its format. Raises
        SetupError for a file that no source reads, or whose stream can't be told.
        """
        grouped: dict[int, list[str]] = {}
        for uri in uris:
            source = source_of(self.pipeline, path_of(uri, self.landing), self.landing)
            if source is None and self.anywhere:
                kind = inferred_format(uri)
                kinds = enumerate({one.kind, inferred_format(one.pattern)} for one in self.files)
                like = [n for n, known in kinds if kind is not None and kind in known]
                self._refuse_ambiguous(uri, like)
                source = like[0] if like else None
            if source is None:
                seen = f"{uri} is no file of pipeline {self.pipeline.name}: it matches none of its patterns"
                raise SetupError(seen, remedy="check the pipeline's sources and SLUICE_LANDING")
            grouped.setdefault(source, []).append(uri)
        return grouped

    def of_landed(self, paths: AbstractSet[str]) -> Self:
        named = [named_path(one, self.landing, paths) for one in self.files]
        return replace(self, paths=[new or old for new, old in zip(named, self.paths, strict=True)])

    def is_whole(self, counted: Counted, inputs: Iterable[Input], ranges: Iterable[Range]) -> bool | None:  # noqa: ARG002
        # Tasks tell how many bytes of a file they have read; those that Spark itself reads nobody tells.
        told = {number for number, one in enumerate(self.files) if one.kind not in ("parquet", "text")}
        if counted.read != sum(one.size for one in inputs if one.source in told):
            return False
        return True if len(told) == len(self.files) else None

    def _stream(self) -> DataFrame:
        try:
            return self._over(self.paths)
        except Exception as error:
            refuse_colon(self.pipeline.name, error)
            raise

    def _over(self, paths: Sequence[str], *, anything: bool = False) -> DataFrame:
        """Return the transform's output over the files of these paths, streaming; Spark lists all of them for it."""
        streams: dict[str | None, list[DataFrame]] = {}
        for number, (files, path) in enumerate(zip(self._with_default_limit, paths, strict=True)):
            # Spark asks the name of a file that its log tells as well.
            fields, called = self.fields[files.stream], "*" if anything else split_pattern(files.pattern).name
            reading = self.reading(
                named=files.path is not None, wanted=None if anything else self._from_the_start()
            )
            frame = read_stream(self.spark, files, fields, path, called, number=number, reading=reading)
            frame = self._with_path(files, frame)
            streams.setdefault(files.stream, []).append(frame)
        return self._put_out({name: union(frames) for name, frames in streams.items()})

    def _from_the_start(self) -> Callable[[Column], Column] | None:
        """Return what tells by a file's URI that its interval is not before the pipeline's `start`, if there is one."""
        cutoff = StartCutoff.of(self.pipeline)
        return None if cutoff is None else lambda uri: ~cutoff.column(uri, self.landing)

    def _static(self, uris: Iterable[str], broken: Iterable[str], *, malformed: bool = False) -> Records:
        known = set(broken)
        frames: dict[str | None, list[DataFrame]] = {name: [] for name in self.fields}
        for number, some in self.by_source(uris).items():
            files = self.files[number]
            for damaged in (False, True):
                if selected := [uri for uri in some if (uri in known) is damaged]:
                    frames[files.stream].append(
                        self._read(files, selected, broken=damaged, malformed=malformed)
                    )
        return {
            name: union(some) if some else self._none_of(name, malformed=malformed)
            for name, some in frames.items()
        }

    def _none_of(self, stream: str | None, *, malformed: bool) -> DataFrame:
        """Read no file of a stream, as its files are read: a transform may ask for their `_metadata`."""
        files = next(one for one in self.files if one.stream == stream)
        return self._read(files, (), broken=False, malformed=malformed)

    def _read(self, files: Files, uris: Iterable[str], *, broken: bool, malformed: bool = False) -> DataFrame:
        only_malformed = malformed and not self.pipeline.all_streams[files.stream].holds_good_records
        fields, uris = self.fields[files.stream], list(uris)
        if files.kind == "parquet":
            self._look_at([uri for uri in uris if uri not in self.read_as], fields)
        apart = {uri: read_as for uri in uris if (read_as := self.read_as.get(uri)) is not None}
        reading = self.reading(
            malformed=malformed,
            named=files.path is not None,
            broken=broken,
            only_malformed=only_malformed,
            read_as=apart,
        )
        frame = read_files(self.spark, files, fields, uris, reading=reading)
        return self._with_path(files, frame)

    def _with_path(self, files: Files, frame: DataFrame) -> DataFrame:
        """Give each record the path of its file, in the column that the declaration names, if any."""
        from pyspark.sql import functions as F

        if files.path is None:
            return frame
        return frame.withColumn(files.path, path_column(F.col(SOURCE_PATH), self.landing))

    def _made(self, good: Records) -> DataFrame:
        """Return the transform's output. Raises SetupError for one that asks Spark for a record's file in vain."""
        try:
            made = super()._made(good)
        except SetupError as failed:
            if re.search('[`"]_metadata[`"]', failed.seen):
                raise SetupError(failed.seen, remedy=_DECLARED_PATH) from failed
            raise
        if takes_input_file_name(made):
            raise SetupError(
                f"The transform of {self.pipeline.name} takes input_file_name(), which may tell another file than the"
                " record's",
                remedy=_DECLARED_PATH,
            )
        return made

    def reread(self, uris: Iterable[str], *, broken: Iterable[str]) -> DataFrame:
        uris, broken = list(uris), set(broken)
        try:
            return super().reread(uris, broken=broken)
        except SetupError as failed:
            alike: dict[ReadAs | None, list[str]] = {}
            for uri in uris:
                alike.setdefault(self.read_as.get(uri), []).append(uri)
            if len(alike) < 2 or "`_metadata`" not in failed.seen:
                raise
        return self._apart(alike.values(), broken)

    def misfits(self, uris: Iterable[str], *, streamed: bool = False) -> dict[str, str]:
        """Return the files that would be read with blurred values, or as if they had no record, each with the reason.

        Where the batch has to be read as it is `streamed`, also those that Spark refuses by the declared types.
        """
        if all(one.kind != "parquet" for one in self.files):
            uris = [
                uri for uri in uris if "=" in uri or uri.endswith(".lz4")
            ]  # "=": a folder may name a column
        self.read_as.clear()
        self.drifts.clear()
        reasons: dict[str, str] = {}
        for number, some in self.by_source(uris).items():
            files, fields = self.files[number], self.fields[self.files[number].stream]
            if files.kind == "text":
                reasons |= lz4_frames(some)
            if files.kind == "parquet":
                found = self._look_at(some, fields, keep=not streamed)
                reasons |= {
                    **self._held_for_unknown(found),
                    **found.misfits,
                    **(found.refused if streamed else {}),
                }
                self._tell_of_folders(files, found.lacking)
            elif files.kind == "json":
                self._tell_of_folders(files, dict.fromkeys(some, fields.names))
        return reasons

    def _tell_of_folders(self, files: Files, lacking: Mapping[str, Iterable[str]]) -> None:
        """Warn, once for each column, of files that may lack it while a folder of theirs names it.

        Whoever declares `path` takes from there what is wanted.
        """
        for uri, columns in lacking.items() if files.path is None else ():
            path = path_of(uri, self.landing)
            for column, folder in named_by_folders(path, columns).items():
                if column not in self.told:
                    self.told.add(column)
                    log.warning(_IN_A_FOLDER, self.pipeline.name, shown(path), folder, column, files.pattern)

    def _look_at(self, uris: Sequence[str], fields: StructType, *, keep: bool = True) -> Footers:
        """Look at Parquet files, and keep by which schema each is read if it is another than the declared one."""
        from etl.sources.parquet_types import footers

        found = footers(uris, fields, keep=keep)
        self.drifts.update(found.drifts)
        self.read_as.update({uri: found.read_as.get(uri) for uri in uris})
        return found

    def _held_for_unknown(self, found: Footers) -> dict[str, str]:
        """Return the files with values that the schema does not name, where these are held: their columns are the file's."""
        if not self.holds_unknown:
            return {}
        unknown = {uri: next(iter(one.unknown)) for uri, one in found.drifts.items() if one.unknown}
        return {uri: f"{visible(name)}: {HELD_UNKNOWN}" for uri, name in unknown.items()}

    def drift(self, uris: Iterable[str]) -> Drift:
        return Drift.total(self.drifts[uri] for uri in uris if uri in self.drifts)

    def reads_apart(self, uris: Iterable[str]) -> bool:
        return any(self.read_as.get(uri) is not None for uri in uris)

    def to_blame(self, error: Exception, uris: Iterable[str]) -> dict[str, str]:
        if Cause.FILE_UNREAD not in classify(error):
            raise error
        reasons = self.unreadable(uris)
        if not reasons:
            raise error
        return reasons

    def unreadable(self, uris: Iterable[str]) -> dict[str, str]:
        """Return the files that can't be read to their end, each with the reason.

        For use after a job failed. Raises InputsChanged for a file that is gone and ServiceAway when the
        storage did not answer: neither is the fault of a file's content.
        """
        reasons: dict[str, str] = {}
        for number, some in self.by_source(uris).items():
            reasons |= self._unreadable(self.files[number], some)
        return reasons

    def _unreadable(self, files: Files, uris: Sequence[str]) -> dict[str, str]:
        read = partial(self._read, files, broken=False)
        if files.kind in ("parquet", "text"):  # which Spark reads
            return unreadable(uris, read)
        return unreadable(
            uris, read, at_once=partial(faults, self.spark, files, self.fields[files.stream], self.bounds)
        )

    def _refuse_ambiguous(self, uri: str, like: Sequence[int]) -> None:
        if len({self.files[n].stream for n in like}) > 1:
            raise SetupError(
                f"{uri} may belong to more than one stream of pipeline {self.pipeline.name}, and matches"
                " none of its patterns",
                remedy=f"put it below the landing as one of {', '.join(self.files[n].pattern for n in like)}",
            )
