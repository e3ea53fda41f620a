"""A Spark micro-batch for the delivery: one job stages it, and the suite gives its verdict."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from etl.common.errors import InputsChanged, InputsDoubled, InputsUnreadable, SetupError, SparkEnded
from etl.common.outages import service_error
from etl.common.record_columns import DETAIL, RAW, SOURCE_PATH, WHY
from etl.common.settings import Settings
from etl.common.wording import first_few, left_out, moment_of_ms
from etl.common.wording import pluralize as in_words
from etl.delivery.batch import Staged
from etl.delivery.row_filter import TaskReport
from etl.delivery.stage import UNREADABLE_RAW, StageTask, stage, stage_malformed
from etl.delivery.transform_failed import fault_of, service_away, transform_failed, with_the_record
from etl.ledger.inputs import Input
from etl.ledger.offsets import Range
from etl.ledger.stops import STATE_STOP, UNREADABLE_STOP
from etl.pipeline import Pipeline
from etl.quality.rules import Rules
from etl.quality.verdict import Counts, Verdict, flag_column
from etl.sources import evidence
from etl.sources.counts import Counted, Drift
from etl.sources.cutoff import in_stream
from etl.sources.landing import refuse_doubled_by_links
from etl.sources.raw.compression import unpacker
from etl.sources.raw.origins import by_origin
from etl.spark.checkpoint.format import About
from etl.spark.frames import parquet
from etl.spark.session import MOST_ARROW_BYTES, UNMEASURED, setting
from etl.spark.state_plan import rows_dropped_late
from etl.spark.tasks import collect, in_tasks
from etl.spark.watermark import LATE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from etl.sources.base import Source
    from etl.spark.checkpoint.reader import Checkpoint, LoggedFile


log = logging.getLogger("sluice")

LITTLE = 512 << 20  # bytes of files
# Formats whose files are as large as what they hold, if they are not packed.
PLAIN = frozenset(("json", "json-array", "csv", "text"))
# In the words of the JVM, of Python, and of Arrow for one column.
MEMORY_ENDED = re.compile("OutOfMemory|MemoryError|OversizedAllocation")


@dataclass(frozen=True, kw_only=True)
class SparkBatch:
    """One micro-batch of foreachBatch."""

    batch_id: int
    frame: DataFrame
    inputs: Sequence[Input]
    ranges: Sequence[Range] = ()  # of Kafka
    stale: Sequence[str]  # inputs that are not as Spark listed them, in words
    state: Sequence[str] = ()  # what the transform keeps between batches
    about: About | None = None  # where it keeps state: what the batch began with
    holds: Callable[[str, str], bool] | None = (
        None  # whether a file that can't be read, for this reason, stops nothing
    )
    source: Source
    rules: Rules
    settings: Settings

    @classmethod
    def of(
        cls,
        frame: DataFrame,
        batch_id: int,
        checkpoint: Checkpoint,
        source: Source,
        rules: Rules,
        settings: Settings,
        *,
        state: Sequence[str],
    ) -> SparkBatch:
        """Make the batch, with its inputs from the logs that Spark wrote before it called foreachBatch.

        Raises InputsDoubled for a file that two patterns match, or that is read under two names, by a link.
        """
        if source.pipeline.bounds_moments:
            source = source.at(checkpoint.about(batch_id).time_ms)
        source, output = source.of_batch(frame)
        is_taken, landing = in_stream(rules.pipeline), settings.landing
        logged = [
            file for file in checkpoint.inputs(batch_id) if is_taken(evidence.path_of(file.uri, landing))
        ]
        _refuse_doubled(logged, rules.pipeline)
        refuse_doubled_by_links(
            rules.pipeline, (evidence.path_of(one.uri, landing) for one in logged), landing
        )
        present = evidence.look_again(logged, landing=landing)
        present_uris = {one.uri for one in present}
        missing = [_as_logged(file, settings) for file in logged if file.uri not in present_uris]
        return cls(
            batch_id=batch_id,
            frame=output,
            inputs=[*present, *missing],
            ranges=source.ranges(checkpoint, batch_id),
            stale=_since_listed(logged, present),
            state=state,
            about=checkpoint.about(batch_id) if state else None,
            source=source,
            rules=rules,
            settings=settings,
        )

    @property
    def _uris(self) -> list[str]:
        """Return the URIs of all that the batch reads: files, and ranges of offsets that are not empty."""
        return [one.uri for one in self.inputs] + [one.uri for one in self.ranges if not one.empty]

    def stage(self, task: StageTask) -> Staged:
        """Run one job over the batch, and a second one where there are more malformed records than it brings along.

        A job that failed over unreadable files is run once more without what can't be read of them.
        """
        self._refuse_stale()
        task = replace(task, files=by_origin(one.uri for one in self.inputs))
        misfits = self.source.misfits(self._uris, streamed=bool(self.state))
        self._refuse_part(misfits)
        uris = [one for one in self._uris if one not in misfits]
        broken: Mapping[str, str] = {}
        job = self._job(self._output_of(uris), task)
        try:
            job, reports = self._collected(job, uris, task)
        except Exception as error:  # noqa: BLE001 - raised again when nothing is to blame
            broken = self._to_blame(error, uris)
            self._refuse_part(broken)
            job = self._job(self.source.reread(uris, broken=broken), task)
            reports = self._collected_of_part(job, uris, broken)
        malformed: list[TaskReport] = []
        counted = (not broken and self._counted(job, uris)) or self.source.count(uris, broken=broken)
        unreadable = {**misfits, **broken}
        drift = Drift.total([counted.drift, self.source.drift(one for one in uris if one not in broken)])
        if unreadable or counted.malformed:
            malformed = self._hold(task, uris, counted, unreadable)
            self._require_all(malformed, counted.malformed, unreadable)
            self._tell(unreadable)
        return Staged(
            stops=self._stops(unreadable),
            reports=reports,
            malformed=malformed,
            aggregates=self.rules.aggregates(job),
            records=counted.rows if self.state else None,
            late=counted.late if self.state else None,
            dropped=self._dropped(counted.late) if self.state else None,
            unknown=drift.unknown,
            missing=drift.missing,
            about=self.about,
        )

    def _collected(
        self, job: DataFrame, uris: Sequence[str], task: StageTask
    ) -> tuple[DataFrame, list[TaskReport]]:
        """Run the job over these inputs, where memory ends once more; return the one that ended well, and its reports.

        What goes to its tasks is measured row by row, a quarter of what the JVM does, only where memory may not have room.
        """
        if task.tried_before or MOST_ARROW_BYTES in self.settings.spark_conf or not self._reads_little:
            return job, collect(job)
        try:
            with setting(job.sparkSession, MOST_ARROW_BYTES, UNMEASURED):
                return job, collect(job)
        except Exception as error:
            gone = isinstance(error, SparkEnded) or service_error(error) is not None
            if gone or not MEMORY_ENDED.search(str(error)):
                raise
            log.info("batch %s: memory ended; staging again, fewer rows at a time", self.batch_id)
            job = self._job(self._output_of(uris), task)
            return job, collect(job)

    @property
    def _reads_little(self) -> bool:
        """Tell whether the batch reads so little, by its files' sizes, that memory has room for all of it."""
        return (
            bool(self.inputs)
            and not self.state
            and all(one.kind in PLAIN for one in self.rules.pipeline.sources)
            and not any(unpacker(one.path) for one in self.inputs)
            and sum(one.size for one in self.inputs) <= LITTLE
        )

    def _counted(self, job: DataFrame, uris: Sequence[str]) -> Counted | None:
        """Count what the job read; None where it need not have read all: a limit stops when it has enough."""
        if any(one.startswith("GlobalLimit") for one in self.state):
            return None
        wanted = {*uris}
        return self.source.counted(job, [one for one in self.inputs if one.uri in wanted], self.ranges)

    def _collected_of_part(
        self, job: DataFrame, uris: Sequence[str], broken: Mapping[str, str]
    ) -> list[TaskReport]:
        """Run the job over what can be read of `broken` files; what fails now is a rule or the transform."""
        try:
            return collect(job)
        except Exception as error:
            self._refuse_rule_or_transform(error, uris, broken)
            raise

    def _to_blame(self, error: Exception, uris: Sequence[str]) -> Mapping[str, str]:
        """Name the files that made the job fail.

        Raises VerdictUnknown where a rule did, TransformFailed where the transform did, `error` when none of them.
        None of them is looked at where a service was away, or the source as a whole failed.
        """
        outage = service_error(error) or service_away(error, self.rules.pipeline, self.batch_id)
        if outage is not None:
            raise outage from error
        if self.source.is_cause_of(error):
            raise error
        try:
            return self.source.to_blame(error, uris)
        except Exception as other:
            if other is error:
                self._refuse_rule_or_transform(error, uris, {})
            raise

    def _refuse_rule_or_transform(
        self, error: Exception, uris: Sequence[str], broken: Mapping[str, str]
    ) -> None:
        """Raise VerdictUnknown for a rule, TransformFailed for the transform; return where `error` is of neither.

        What is to be looked at again is the batch's output without the rules. Where that can't be had, the
        error itself has to tell. Where Spark has ended, nothing is looked at again: it would end once more.
        """
        from etl.quality.blame import require_evaluable

        if isinstance(error, SparkEnded):
            return
        frame = self.source.reread(uris, broken=broken) if broken else self._static_frame(uris)
        if frame is None:
            self._refuse_transform(error)
        elif (alone := require_evaluable(self.rules.suite, frame)) is not None:
            self._refuse_transform(alone, uris, known_alone=True)

    def _refuse_transform(
        self, error: Exception, uris: Sequence[str] = (), *, known_alone: bool = False
    ) -> None:
        """Raise TransformFailed where `error` tells that it is the transform's; one file is looked for among `uris`."""
        if self.source.is_cause_of(error):
            return
        pipeline = self.rules.pipeline
        if (fault := fault_of(error, pipeline, known_alone=known_alone)) is None:
            return
        files = [one.uri for one in self.inputs if not uris or one.uri in {*uris}]
        what = f"Batch {self.batch_id} of {pipeline.name}"
        some = files if self.state else with_the_record(files, self._fails)
        raise transform_failed(
            pipeline, fault, what=what, files=some, of=len(files), ranges=[one.uri for one in self.ranges]
        ) from error

    def _fails(self, uris: Sequence[str]) -> bool:
        """Tell whether the transform fails on these files alone."""
        from etl.quality.blame import failure

        wrong = failure(self.source.reread(uris, broken=()))
        return wrong is not None and fault_of(wrong, self.rules.pipeline, known_alone=True) is not None

    def _output_of(self, uris: Sequence[str]) -> DataFrame:
        """Return the transform's output of these inputs, as the batch has it if it can read them, and no others."""
        if len(uris) == len(self._uris) and not self.source.reads_apart(uris):
            return self.frame
        return self.source.reread(uris, broken=())

    def _static_frame(self, uris: Sequence[str]) -> DataFrame | None:
        """Return the batch's output, without the rules, as a static frame over the same input.

        None of a stateful transform that can't run statically.
        """
        try:
            return self.source.reread(uris, broken=())
        except SetupError:  # of a transform that streams and can't be run in any other way
            return None

    def _dropped(self, late: int | None) -> int:
        """Count what Spark left out behind the watermark, and log a warning of it: it is in neither sink."""
        from etl.spark.observation import micro_batch

        execution = micro_batch(self.frame)
        count = rows_dropped_late(execution) if execution is not None else 0
        if count:
            log.warning(
                "batch %s of %s: %s%s%s%s",
                self.batch_id,
                self.rules.pipeline.name,
                left_out(count),
                f" (the watermark was {self._watermark})" if self._watermark else "",
                "" if late is None else f" (late, as they were read: {in_words(late, 'record')})",
                "" if self.rules.pipeline.tells_late else "; `late=` in the declaration holds such records",
            )
        return count

    def advance_state(self) -> None:
        """Run a batch that was delivered before, if it keeps state: the next needs what it leaves there."""
        if self.state:
            from etl.quality.blame import failure

            self._refuse_stale()
            if (wrong := failure(self.frame)) is not None:
                self._refuse_transform(wrong)
                raise wrong

    def _refuse_stale(self) -> None:
        """Raise InputsChanged where the inputs are not as Spark listed them.

        Call it only after the ledger was asked: the files of a batch that is delivered already may be gone.
        """
        if self.stale:
            name = self.rules.pipeline.name
            raise InputsChanged(
                f"Batch {self.batch_id} of {name} can't run: its inputs are not as Spark listed them:"
                f" {first_few(self.stale)}",
                remedy="restore the old files and land new content under new names; then run again."
                f" To take the files as they are now: `sluice recover {name}`",
            )

    def _refuse_part(self, unreadable: Mapping[str, str]) -> None:
        """Raise InputsUnreadable where the transform keeps state and not all of the files can be read.

        With state the batch can't be made of a part of them: its state would be of all of them.
        """
        if self.state and unreadable:
            name = self.rules.pipeline.name
            stops = _sentences(unreadable)
            raise InputsUnreadable(
                f"Batch {self.batch_id} of {name}, not delivered: {STATE_STOP}, and some of these can't be read:"
                f" {first_few(stops)}",
                remedy=f"put whole files in their place, then `sluice recover {name}` and `sluice run {name}`",
                stops=[*stops, STATE_STOP],
            )

    def _stops(self, unreadable: Mapping[str, str]) -> tuple[str, ...]:
        """Say why the batch may not be delivered of what can be read of its files.

        Files that the pipeline holds stop nothing.
        """
        holds = self.holds or (lambda _uri, _why: self.rules.pipeline.unreadable == "hold")
        return _sentences({uri: why for uri, why in unreadable.items() if not holds(uri, why)})

    def _tell(self, unreadable: Mapping[str, str]) -> None:
        """Log a warning for each file of which not all can be read.

        Where the batch is delivered, each such file is one held row: what of it could not be read is in
        neither sink.
        """
        for uri, why in unreadable.items():
            log.warning(
                "batch %s of %s: not all of %s can be read: %s. Where that is held as malformed, and a whole file is in its"
                " place later, `sluice replay` of this delivery with --accept-changed reads it again",
                self.batch_id,
                self.rules.pipeline.name,
                uri,
                why,
            )

    def _require_all(
        self, malformed: Sequence[TaskReport], counted: int, unreadable: Mapping[str, str]
    ) -> None:
        """Raise InputsChanged unless every record that the pass left out as malformed is held.

        With unreadable files that is not checked.
        """
        held = sum(report.quarantined for report in malformed)
        if not unreadable and held != counted:
            raise InputsChanged(
                f"Batch {self.batch_id} of {self.rules.pipeline.name}, not delivered: of the malformed records it"
                f" counted {counted:,}, and reading its files again found {held}",
                remedy="see what changes the landed files; then run again",
            )

    def _job(self, frame: DataFrame, task: StageTask) -> DataFrame:
        return self._staging(self.rules.judged(frame), task)

    def _staging(self, frame: DataFrame, task: StageTask) -> DataFrame:
        """Return the job that stages `frame` by at most `pg_connections` tasks, each with one connection."""
        return in_tasks(frame.coalesce(self.settings.pg_connections), partial(stage, task))

    def _hold(
        self, task: StageTask, uris: Sequence[str], counted: Counted, unreadable: Mapping[str, str]
    ) -> list[TaskReport]:
        """Stage malformed and late records; an unreadable file is one of them.

        What the pass brought along is staged here, without Spark.
        """
        known: list[Mapping[str, str]] = [
            {RAW: f"{UNREADABLE_RAW}{why}", SOURCE_PATH: uri, DETAIL: why} for uri, why in unreadable.items()
        ]
        if counted.carries_all:
            known += counted.held
        reports = [stage_malformed(task, known)] if known else []
        if not counted.carries_all:
            reports += collect(self._staging(self._malformed(uris, unreadable), task))
        return reports

    def _malformed(self, uris: Sequence[str], unreadable: Mapping[str, str]) -> DataFrame:
        """Read malformed and late records in the output's shape: null columns, no flag, the raw record."""
        from pyspark.sql import functions as F

        nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in self.rules.schema.fields]
        flags = [F.lit(0).cast("bigint").alias(flag_column(word)) for word in range(self.rules.flag_words)]
        behind = "its event time is missing"
        if self._watermark:
            behind += f", or not after the watermark, {self._watermark}"
        detail = F.when(F.col(WHY) == LATE, F.lit(behind)).otherwise(F.col(DETAIL)).alias(DETAIL)
        records = self.source.malformed(uris, broken=unreadable)
        return records.select(*nulls, *flags, RAW, SOURCE_PATH, WHY, detail)

    @property
    def _watermark(self) -> str | None:
        """Write the moment that the batch's watermark has reached; None where there is none."""
        watermark_ms = self.about.watermark_ms if self.about else 0
        return moment_of_ms(watermark_ms) if watermark_ms else None

    def judge(self, counts: Counts, staged: Staged) -> Verdict:
        """Return the suite's verdict; ask GX about rules that the pass can't answer, on the staged rows."""
        return self.rules.judge(counts, lambda: self._staged_rows(staged))

    def _staged_rows(self, staged: Staged) -> DataFrame:
        """Read the transform's whole output back from what was staged of it."""
        files = [f for report in staged.reports for f in (*report.data_files, *report.quarantine_files)]
        return parquet(self.frame.sparkSession, [file.path for file in files], self.rules.schema)

    def changed(self) -> Sequence[str]:
        """Return the inputs that are not as they were when the batch began.

        Raises OffsetsGone for a topic that was recreated.
        """
        self.source.require_same_topics(self.ranges)
        now = evidence.look_again(self.inputs, landing=self.settings.landing)
        return evidence.changed(self.inputs, now)


def _sentences(unreadable: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{uri}{UNREADABLE_STOP}{why}" for uri, why in unreadable.items())


def _refuse_doubled(logged: Sequence[LoggedFile], pipeline: Pipeline) -> None:
    """Raise InputsDoubled for a file that two of the patterns match.

    It is read twice, and would be told as of one source when it is read again.
    """
    sources: dict[str, list[str]] = {}
    for file in logged:
        sources.setdefault(file.uri, []).append(pipeline.sources[file.source].named)
    for uri, patterns in sources.items():
        if len(patterns) > 1:
            raise InputsDoubled(
                f"{uri} is matched by {' and by '.join(patterns)} of pipeline {pipeline.name}: it would be delivered twice",
                remedy=f"declare patterns of which one matches it, then `sluice recover {pipeline.name}`",
            )


def _as_logged(file: LoggedFile, settings: Settings) -> Input:
    """Make the input of a file that is gone, by what Spark's log says of it."""
    path = evidence.path_of(file.uri, settings.landing)
    return Input(path=path, uri=file.uri, size=0, mtime_ms=file.mtime_ms, etag=None, source=file.source)


def _since_listed(logged: Sequence[LoggedFile], present: Sequence[Input]) -> list[str]:
    """Say what changed between Spark's listing and now: it logs each file's time of last change."""
    now = {one.uri: one for one in present}
    problems = [f"{file.uri} is gone" for file in logged if file.uri not in now]
    return problems + [
        f"{file.uri} was changed after it was listed"
        for file in logged
        if file.uri in now and now[file.uri].mtime_ms // 1000 != file.mtime_ms // 1000
    ]
