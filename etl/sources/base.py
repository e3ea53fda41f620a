"""What a pipeline reads, as DataFrames, and what its transform makes of them.

No record is dropped and none is blurred into nulls: a malformed one is counted where it is read, before the
transform can lose it, and can be had as its raw text afterwards. Blank lines are no records.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Self

from etl.common.errors import SetupError, SluiceError
from etl.common.outcome import in_short
from etl.common.record_bounds import Bounds
from etl.common.record_columns import (
    BEHIND,
    DETAIL,
    FUTURE_REASON,
    MALFORMED_COLUMN,
    MALFORMED_REASON,
    ORIGIN,
    RAW,
    REPORT,
    SOURCE_PATH,
    WHY,
)
from etl.ledger.inputs import Input
from etl.pipeline import Pipeline
from etl.sources.counts import MOST_CARRIED, Counted, Drift
from etl.sources.evidence import changed
from etl.sources.parsing import Reading, Records, union
from etl.sources.raw.parts import most_tasks
from etl.sources.schemas import field_of
from etl.sources.side_inputs.lookups import SideInputsChanged, versions
from etl.sources.side_inputs.scorers import ModelScorer, ModelVersions
from etl.spark.checkpoint.reader import Checkpoint
from etl.spark.frames import NESTED, output, quoted
from etl.spark.hidden import hide, unhide
from etl.spark.observation import observed_as_json, observes_all_once
from etl.spark.session import call_sites, unlogged_analysis
from etl.spark.state_plan import column_ids, watermarked
from etl.spark.watermark import LATE, ahead, is_behind, is_late

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from etl.ledger.offsets import Range
    from etl.ledger.streams import StreamState


OBSERVATION = "source"  # observed with the counts of `Counted`


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """What a run reads: the sources of one pipeline, opened."""

    pipeline: Pipeline
    spark: SparkSession
    landing: str
    bounds: Bounds  # of what a record may be at most
    fields: Mapping[str | None, StructType]  # of each stream's declared schema
    lookups: Mapping[str, DataFrame]  # as they were when the source was opened
    lookup_versions: Mapping[str, tuple[Input, ...]]  # each lookup's files, and each model's version
    scorers: Mapping[str, ModelScorer] = field(default_factory=dict)  # the models, likewise
    models: ModelVersions | None = None  # where their versions are told; None: of a pipeline without any
    late_by: dict[str | None, str] = field(default_factory=dict)  # by stream; found in the transform's plan
    clock_ms: int | None = None  # since 1970; None: where it is read in batches, that of each
    takes_part: bool = True  # of a backlog a batch takes a part, also where no limit is declared

    @cached_property
    def streamed(self) -> DataFrame:
        """Return the transform's output over all that comes, streaming."""
        return self._stream()

    def shape(self) -> DataFrame:
        """Return the transform's output, streaming, for what asks its plan alone.

        Nothing is listed, nobody is asked anything, and it can't be run.
        """
        return self.streamed

    @abstractmethod
    def _stream(self) -> DataFrame:
        """Return the transform's output over all that comes, streaming."""

    @abstractmethod
    def _static(self, uris: Iterable[str], broken: Iterable[str], *, malformed: bool = False) -> Records:
        """Read exactly these inputs, not streaming, malformed records included.

        The columns are the fields and REPORT, of files also ORIGIN. An input that can't be read to its end fails the job,
        unless it is one of `broken`. Where the `malformed` records are wanted they are rows, with MALFORMED_COLUMN, DETAIL
        and SOURCE_PATH in place of REPORT, and those that can't be held may be left out.
        """

    @property
    def transforms_in_query(self) -> bool:
        """Tell whether the transform is part of the query, which is then opened again when what it takes has changed."""
        return True

    @property
    def holds_unknown(self) -> bool:
        """Tell whether records with a member that the schema does not name are held."""
        return self.pipeline.unknown == "hold"

    @property
    def tells_late(self) -> bool:
        """Tell whether the source's jobs have to know the watermark."""
        return self.pipeline.tells_late or bool(self.late_by)

    @property
    def has_default_limit(self) -> bool:
        """Tell whether a batch has a limit that nobody declared."""
        return False

    def without_default_limit(self) -> Self:
        """Return the source with no limit of a batch but what is declared."""
        return replace(self, takes_part=False)

    def of_landed(self, paths: AbstractSet[str]) -> Self:  # noqa: ARG002
        """Return the source for a run of no more than the landed files with these paths, for which less is listed."""
        return self

    @property
    def queried(self) -> DataFrame:
        """Return the streaming frame that a run's query is of: the transform's output, with ORIGIN where rows know it.

        What foreachBatch has of it is for `of_batch`.
        """
        return unhide(self.streamed, ORIGIN)

    def at(self, clock_ms: int) -> Self:
        """Return the source as of a moment, since 1970: all that it reads is of one clock, whenever Spark reads it."""
        return replace(self, clock_ms=clock_ms) if self.pipeline.bounds_moments else self

    def cut(self, inputs: Sequence[Input], ranges: Sequence[Range], *, left: int) -> str | None:  # noqa: ARG002
        """Say what a batch took, where that was cut short by a limit that nobody declared; None where it was not.

        `left` is how many files that had landed before the run are in no batch yet.
        """
        return None

    def of_batch(self, frame: DataFrame) -> tuple[Source, DataFrame]:
        """Return the source that a micro-batch was read from, and the transform's output of the batch."""
        return self, frame

    def ranges(self, checkpoint: Checkpoint, batch_id: int) -> tuple[Range, ...]:
        """Return what a planned batch reads of topics, by the checkpoint: of others, nothing."""
        return checkpoint.ranges(batch_id, self.topic_ids)

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """Return the ids of the topics that are read, as they were when they were first asked for."""
        return {}

    def require_readable(self, dsn: str, stream: StreamState, checkpoint: Checkpoint) -> None:  # noqa: B027 - most refuse nothing
        """Raise OffsetsGone where what comes next is gone, CheckpointDamaged where Spark could not go on.

        Files that are gone are told by the batch that reads them.
        """

    def require_same_topics(self, ranges: Sequence[Range]) -> None:  # noqa: B027 - most have none
        """Raise OffsetsGone when a topic is no longer the one that these ranges are of."""

    def exhausted(self) -> bool:
        """Tell whether nothing more can come while the query runs; for use after its first batch."""
        return False

    def reread(self, uris: Iterable[str], *, broken: Iterable[str]) -> DataFrame:
        """Return the transform's output of the given files alone, not streaming, with ORIGIN where rows know it.

        Of the `broken` ones it is what can be read. With `broken` ones among others its records are to be
        counted by `count`. Each record becomes rows by itself, so the transform is asked for those of either
        kind apart: of their union it would have no `_metadata`.
        """
        known, uris = set(broken), list(uris)
        if known.isdisjoint(uris) or known.issuperset(uris):
            return unhide(self._put_out(self._static(uris, known.intersection(uris))), ORIGIN)
        return self._apart([uris], known)

    def _apart(self, groups: Iterable[Sequence[str]], broken: AbstractSet[str]) -> DataFrame:
        """Return the transform's output of each group, and of the `broken` ones in it, apart, not counted."""
        kinds = [
            [one for one in group if (one in broken) is torn] for group in groups for torn in (False, True)
        ]
        parts = [self._static(some, broken & set(some)) for some in kinds if some]
        return union([unhide(self._put_out(part, counted=False), ORIGIN) for part in parts])

    def malformed(self, uris: Iterable[str], *, broken: Iterable[str] = ()) -> DataFrame:
        """Return exactly the records of the given files that are held: malformed, late, or ahead of a bound.

        The columns are `_raw`, `_source_path`, `_why` and `_detail`, all text; a late record has no `_detail`.
        """
        read = self._static(uris, broken, malformed=True)
        held = [self._held(name, records) for name, records in read.items()]
        return reduce(lambda one, other: one.unionAll(other), held)

    def _held(self, name: str | None, records: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        malformed = F.when(F.col(MALFORMED_COLUMN).isNotNull(), MALFORMED_REASON)
        held = records.withColumn(WHY, self._why_held(name, malformed)).where(F.col(WHY).isNotNull())
        raw, detail = F.col(MALFORMED_COLUMN), F.col(DETAIL)
        if self.pipeline.all_streams[name].holds_good_records:
            fields = (F.col(quoted(one.name)) for one in self.fields[name].fields)
            raw = F.coalesce(raw, F.to_json(F.struct(*fields), NESTED))
        if self.pipeline.all_streams[name].not_after:
            detail = F.when(F.col(WHY) == FUTURE_REASON, self._ahead(name)).otherwise(detail)
        return held.select(raw.alias(RAW), SOURCE_PATH, WHY, detail.alias(DETAIL))

    def counted(
        self, job: DataFrame, inputs: Iterable[Input] | None = None, ranges: Iterable[Range] = ()
    ) -> Counted | None:
        """Count what the job over exactly this frame read.

        None: Spark saw that it need not read some records, such as for an inner join with a table of no row; or it did not
        read each of them once: a product with a table reads them for each of the table's partitions. The size of the
        `inputs`, or of the `ranges`, tells that; where it does not, the plan does.
        """
        try:
            counted = Counted.of([observed_as_json(job, name) for name in self.observations])
        except KeyError:
            return None
        whole = None if inputs is None else self.is_whole(counted, inputs, ranges)
        if whole is None:
            whole = observes_all_once(job)
        return counted if whole else None

    def is_whole(self, counted: Counted, inputs: Iterable[Input], ranges: Iterable[Range]) -> bool | None:  # noqa: ARG002
        """Tell whether what was counted is all of the inputs and ranges, once, by their size; None: it does not tell."""
        return None

    def count(self, uris: Iterable[str], *, broken: Iterable[str] = ()) -> Counted:
        """Read the given files and count their records, as `counted` does."""
        frames = self._static(uris, broken).items()
        found = (self._marked(name, frame).agg(*self._counts(name)).collect() for name, frame in frames)
        return Counted.of([row.asDict() for [row] in found])

    def require_lookups(self) -> None:
        """Raise SideInputsChanged unless lookups and models are as this source has read them.

        They are compared by every lookup's files, and every model's version.
        """
        for name, seen in versions(self.pipeline, self.landing, self.models).items():
            if changes := changed(self.lookup_versions[name], seen):
                raise SideInputsChanged(f"{name!r}: {'; '.join(changes)}")

    def counting_none(self, frame: DataFrame) -> DataFrame:
        """Observe a frame that this source did not read as if it had, with no malformed record."""

        for name in self.observations:
            frame = frame.observe(name, *_counts("CAST(NULL AS string)"))
        return frame

    def _put_out(self, records: Records, *, counted: bool = True) -> DataFrame:
        good = {name: self._good(name, frame, counted=counted) for name, frame in records.items()}
        made = self._made(good)
        if made.isStreaming and self._finds_late(good, made):
            made = self._made({name: self._good(name, frame) for name, frame in records.items()})
        return output(made)

    def _made(self, good: Records) -> DataFrame:
        named = {name: frame for name, frame in good.items() if name is not None}
        return _transformed(self.pipeline, good[None], {**named, **self.lookups, **self.scorers})

    def _finds_late(self, good: Records, made: DataFrame) -> bool:
        """Note by which columns records are late, as the plan says; return True if some were not known before.

        Raises SetupError where `late=` names another column than the watermark is on; of one that is computed
        nothing is known.
        """
        if not (watermark_ids := watermarked(made)):
            return False
        known_before = len(self.late_by)
        for name, frame in good.items():
            by = [column for number, column in column_ids(frame).items() if number in watermark_ids]
            late = self.pipeline.all_streams[name].late
            if by and late is None:
                self.late_by[name] = by[0]
            elif by and late not in by:
                raise SetupError(
                    f"Pipeline {self.pipeline.name}: {field_of('late', name)}={late!r}, and the transform's watermark is on"
                    f" {by[0]!r}: records behind it would be dropped, and others held",
                    remedy=f"name {by[0]!r}, or take late= out",
                )
        return len(self.late_by) > known_before

    def _good(self, name: str | None, records: DataFrame, *, counted: bool = True) -> DataFrame:
        """Return the records that are not held; count all first, those that are apart."""
        from pyspark.sql import functions as F

        marked = self._marked(name, records)
        if counted:
            marked = marked.observe(self.observed_as[name], *self._counts(name))
        row = F.col(REPORT).isNull()
        if self.pipeline.all_streams[name].holds_good_records:
            row &= F.col(WHY).isNull()
        good = marked.where(row).drop(REPORT, SOURCE_PATH, WHY, BEHIND)
        return hide(good, ORIGIN) if ORIGIN in good.columns else good

    def _counts(self, name: str | None) -> tuple[Column, ...]:
        from pyspark.sql import functions as F

        stream = self.pipeline.all_streams[name]
        counts = _counts(REPORT, WHY if stream.holds_good_records else None)
        if stream.late is not None:
            return *counts, F.count_if(F.col(WHY) == LATE).alias(LATE)
        return (*counts, F.count_if(BEHIND).alias(LATE)) if name in self.late_by else counts

    def reading(self, *, malformed: bool = False, tasks: int | None = None, **more: Any) -> Reading:
        """Say how records are read, by so many `tasks` at most, or by `most_tasks` for each source.

        Where the `malformed` ones are wanted they are rows; else each task reports its share of MOST_CARRIED.
        """
        tasks = tasks or most_tasks(self.spark) * len(self.pipeline.sources)
        carried = None if malformed else MOST_CARRIED // tasks
        return Reading(carried=carried, holds_unknown=self.holds_unknown, bounds=self.bounds, **more)

    @property
    def observations(self) -> Collection[str]:
        """Return what each stream's counts are observed as."""
        return self.observed_as.values()

    @property
    def observed_as(self) -> dict[str | None, str]:
        """Name what each stream's counts are observed as."""
        return {name: OBSERVATION if name is None else f"{OBSERVATION} {name}" for name in self.fields}

    def _marked(self, name: str | None, records: DataFrame) -> DataFrame:
        """Tell in WHY of records that are held, in BEHIND of those that are late and not held; there are no others."""
        from pyspark.sql import functions as F

        stream, by, marked = self.pipeline.all_streams[name], self.late_by.get(name), records
        row = F.col(REPORT).isNull()
        if stream.holds_good_records:
            marked = marked.withColumn(WHY, self._why_held(name, F.when(~row, None)))
            row &= F.col(WHY).isNull()
        if stream.late is None and by:
            marked = marked.withColumn(BEHIND, row & is_behind(F.col(quoted(by))))
        return marked

    def _why_held(self, name: str | None, why: Column) -> Column:
        """Say of records for which `why` has no case why they are held, null of those that are not."""
        stream = self.pipeline.all_streams[name]
        if stream.not_after:
            why = why.when(self._ahead(name).isNotNull(), FUTURE_REASON)
        return why if stream.late is None else why.when(is_late(quoted(stream.late)), LATE)

    def _ahead(self, name: str | None) -> Column:
        return ahead(self.pipeline.all_streams[name].not_after, self.clock_ms)

    def misfits(self, uris: Iterable[str], *, streamed: bool = False) -> dict[str, str]:  # noqa: ARG002
        """Return the inputs that would be read with blurred values, each with the reason.

        Where a batch can't be read in another way than it is `streamed`, also those that need one.
        """
        return {}

    def drift(self, uris: Iterable[str]) -> Drift:  # noqa: ARG002
        """Tell of the inputs that `misfits` looked at last how they drift, where reading does not."""
        return Drift()

    def reads_apart(self, uris: Iterable[str]) -> bool:  # noqa: ARG002
        """Tell whether some of the inputs that `misfits` looked at last can be read by `reread` alone."""
        return False

    def is_cause_of(self, error: Exception) -> bool:  # noqa: ARG002
        """Tell whether the source as a whole failed, so that no input and no rule is to blame for the error."""
        return False

    def to_blame(self, error: Exception, uris: Iterable[str]) -> dict[str, str]:  # noqa: ARG002
        """Return the inputs that made a job over them fail, each with the reason.

        Raises `error` when none is to blame: a record that can't be parsed is malformed, and fails no job.
        """
        raise error


def _counts(report: str, why: str | None = None) -> tuple[Column, ...]:
    """Return what is observed of rows and reports, and of rows that are held for a reason: `Counted.of` takes it.

    Both are SQL. What is more than a count is computed of lists: Spark would interpret it for each row. It computes all
    of this whenever somebody asks for what was observed, so that of a report no more is looked at than the number before
    its first blank.
    """
    from pyspark.sql import functions as F

    told = f"collect_list(substring_index({report}, ' ', 1))"
    malformed = f"aggregate({told}, 0L, (sum, one) -> sum + cast(one AS bigint))"
    return (
        F.expr(f"count(1) - count({report}) + {malformed}").alias("rows"),
        F.expr(malformed).alias("malformed"),
        F.expr(f"collect_list({report})").alias("reports"),
        *(() if why is None else (F.expr(f"count({why})").alias("held"),)),
    )


def _transformed(pipeline: Pipeline, frame: DataFrame, others: Mapping[str, Any]) -> DataFrame:
    """Return what the transform makes of a frame. Raises SetupError that says why it makes nothing."""
    from pyspark.sql import DataFrame

    remedy = f"change it, in {pipeline.file}; `sluice try {pipeline.name} --input FILES` shows what it does"
    try:
        with unlogged_analysis(), call_sites():
            made = pipeline.transform(frame, **others)
    except SluiceError:
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)
        line = next(
            (f", line {one.lineno}" for one in reversed(at) if one.filename == str(pipeline.file)), ""
        )
        raise SetupError(
            f"The transform of {pipeline.name} fails{line}: {type(error).__name__}: {in_short(error)}",
            remedy=remedy,
        ) from error
    if not isinstance(made, DataFrame):
        raise SetupError(
            f"The transform of {pipeline.name} returns {type(made).__name__}, not a DataFrame", remedy=remedy
        )
    if doubled := _doubled(made.columns):
        raise SetupError(
            f"The transform of {pipeline.name} puts out columns that neither sink can tell apart: {doubled}",
            remedy=f"rename or drop all but one of each (`select` names what is put out), or {remedy}",
        )
    return made


def _doubled(columns: Sequence[str]) -> str:
    """Name the columns whose names are the same, upper and lower case aside; nothing where all are different."""
    alike: dict[str, list[str]] = {}
    for name in columns:
        alike.setdefault(name.lower(), []).append(name)
    return "; ".join(" and ".join(map(repr, names)) for names in alike.values() if len(names) > 1)
