"""The query of a run: one micro-batch after the other, and the query opened again when a lookup or model has changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from etl.common.database import transaction
from etl.common.errors import BatchEndsSpark, FilesUnread, RecordsMissing, SluiceError, SparkEnded
from etl.common.paths import shown, to_path
from etl.common.steps import Listener
from etl.common.wording import first_few, pluralize
from etl.delivery.batch import Receipt
from etl.delivery.deliver import deliver
from etl.delivery.kind import StreamDelivery
from etl.ledger import attempts, deliveries
from etl.ledger.leases import Lease
from etl.ledger.streams import StreamState
from etl.pipeline import Pipeline
from etl.pipeline.replayability import run_command
from etl.runs.follow import RunControl, StopAsked
from etl.runs.kinds.base import PipelineStream
from etl.runs.preflight import require_same, require_state
from etl.runs.progress_recorder import ProgressRecorder, kept_batches
from etl.runs.slow_tasks import FILES, SlowTaskWatch, one_file, patterns_by_rule
from etl.spark.checkpoint.reader import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from etl.quality.rules import Rules
    from etl.runs.opened import OpenedPipeline
    from etl.runs.query import BatchFailure, OnBatch
    from etl.runs.workspace import Workspace

log = logging.getLogger("sluice")

COMMIT_SECONDS = 30  # that a batch has to come to its end once its JVM is gone
TRIES = 3  # of a batch that Spark may end at before a person is asked


@dataclass(frozen=True, kw_only=True)
class StreamRun:
    """A run that has the lease, and its stream."""

    stream: PipelineStream[Any]  # by the kind of the pipeline's sources
    lease: Lease
    stream_id: str
    received: Callable[[Receipt], None]  # told of every batch
    on_step: Listener | None
    control: RunControl
    awaited: AbstractSet[str]  # the paths of files that had landed before it began, and are to be read

    @property
    def workspace(self) -> Workspace:
        return self.stream.workspace

    @property
    def pipeline(self) -> Pipeline:
        return self.stream.pipeline

    def require_read(self) -> None:
        """Raise FilesUnread, which names the files that had landed before the run and were not read.

        A run that was stopped before it had read all that was there is exempt.
        """
        if self.control.heeded and not self.control.caught_up:
            return
        if unread := self._unread():
            raise unread

    def _unread(self) -> FilesUnread | None:
        return self.stream.unread(self.stream_id, self.awaited)

    def _tell_unread(self) -> None:
        """Warn of files that Spark has skipped; what can't be looked at now is looked at again at the run's end."""
        try:
            unread = self._unread()
        except (OSError, SluiceError) as error:
            log.warning("%s: can't tell now which files were skipped: %s", self.pipeline.name, error)
            return
        if unread:
            log.warning("%s. The run goes on", unread.seen)

    def deliver_all(self, spark: SparkSession) -> None:
        """Deliver every batch that there is, or that comes for as long as the run is to stay."""
        while not self._run_query(spark):
            log.info("%s goes on with its lookups and models as they are now", self.pipeline.name)

    def _run_query(self, spark: SparkSession) -> bool:
        """Run the query to its end; return False if a lookup or model had changed before a batch."""
        from etl.runs.opened import open_pipeline
        from etl.runs.query import BatchFailure, run_query
        from etl.runs.stateful import output_mode
        from etl.sources.side_inputs.lookups import SideInputsChanged
        from etl.spark.jvm import telling_of_end
        from etl.spark.state_plan import processing_time_batches

        landed = self.awaited if self.control.every is None else None
        soon = self.control.soon_again
        opened = open_pipeline(self.workspace, self.pipeline, spark, takes_part=soon, landed=landed)
        known = self.stream.state(self.stream_id)
        require_state(self._dsn, self.lease, known, opened.state)
        self._require_readable(opened)
        if opened.state:
            self._go_on_with_state(spark, known)
        keep = kept_batches(self.workspace.settings.backup_horizon)
        recorder = ProgressRecorder(
            self._dsn, self.lease, self.stream_id, keep=keep, observations=opened.source.observations
        )
        failure = BatchFailure()
        slow = self._slow_tasks(spark, opened, failure)
        on_batch = failure.capturing(self._on_batch(opened, known, recorder))
        writer = opened.queried.writeStream.foreachBatch(on_batch).option(
            "checkpointLocation", known.checkpoint
        )
        retry = f"`{run_command(self.pipeline)}`"
        try:
            with (
                telling_of_end(spark),
                processing_time_batches(opened.frame, opened.state),
                self.control.listing(spark),
            ):
                run_query(
                    writer.outputMode(output_mode(self.pipeline, opened.state)),
                    self.pipeline.name,
                    failure,
                    self.control,
                    raise_read_error=partial(self.stream.kind.raise_read_error, retry=retry),
                    settled=lambda: self._checkpoint().settled,
                    exhausted=lambda: self._exhausted(opened),
                    watched=partial(_watching, recorder, slow),
                    ended_by=slow.ended_by,
                    caught_up=self._tell_unread,
                )
        except RecordsMissing:
            self._require_readable(opened)  # tells what is gone
            raise
        except SparkEnded as error:
            if (again := self._ends_again(opened, failure, error)) is not None:
                raise again from error
            raise
        except SideInputsChanged as changed:
            log.info("batch not begun: %s", changed)
            return False
        except StopAsked as stop:
            log.info("batch not begun: %s", stop)
        return True

    def _go_on_with_state(self, spark: SparkSession, known: StreamState) -> None:
        """Warn of what holds for the state in the checkpoint, and plan the batch that is due by the last one's watermark."""
        from etl.runs.stateful import tell_of_history, tell_of_pinned

        checkpoint = self._checkpoint()
        tell_of_pinned(self.pipeline.name, checkpoint, spark)
        if known.next_batch == 0:
            tell_of_history(self.pipeline)
        if known.closes and checkpoint.owes:
            checkpoint.plan_owed(time_ms=int(time.time() * 1000))

    def _slow_tasks(
        self, spark: SparkSession, opened: OpenedPipeline, failure: BatchFailure
    ) -> SlowTaskWatch:
        """Make the watch over the query's slow tasks."""
        settings = self.workspace.settings
        return SlowTaskWatch(
            self.pipeline.name,
            spark,
            settings.slow_task,
            self._files_of,
            partial(self._delivery_of, failure),
            limit=settings.task_limit,
            patterns=patterns_by_rule(opened.rules),
        )

    def _files_of(self, batch: int) -> list[str]:
        """Return the paths of the files that a batch reads, to be told; none where that can't be known."""
        try:
            return [shown(to_path(file.uri)) for file in self._checkpoint().inputs(batch)]
        except (OSError, SluiceError) as error:
            log.debug("the files of batch %s of %s can't be told: %s", batch, self.pipeline.name, error)
            return []

    def _delivery_of(self, failure: BatchFailure, batch: int) -> int | None:
        """Return the number of a batch's delivery once no batch is at work; None where it has none.

        Raises SluiceError where one still is.
        """
        if not failure.await_end(COMMIT_SECONDS):
            raise SluiceError(
                f"Batch {batch} of {self.pipeline.name} is still at its commit",
                remedy=f"`sluice status {self.pipeline.name}`",
            )
        with transaction(self._dsn) as cursor:
            return deliveries.delivery_of_batch(cursor, self.stream_id, batch)

    def _ends_again(
        self, opened: OpenedPipeline, failure: BatchFailure, error: SparkEnded
    ) -> BatchEndsSpark | None:
        """Return the error of a batch that has ended Spark again and again, and so is a person's; None for another."""
        failure.await_end(COMMIT_SECONDS)
        try:
            with transaction(self._dsn) as cursor:
                batch, tries = attempts.ended_spark(cursor, self.lease)
            files = self._files_of(batch) if tries >= TRIES else []
        except (OSError, SluiceError) as unknown:
            log.debug("what batch Spark ended at can't be told: %s", unknown)
            return None
        if tries < TRIES:
            return None
        name = self.pipeline.name
        return BatchEndsSpark(
            f"Batch {batch} of {name} has ended Spark at each of {pluralize(tries, 'try', 'tries')}, the last time so:"
            f" {error.seen.removesuffix('.')}.{_reading(files)}",
            remedy=f"{one_file(name, files)}correct what the transform{_or_rules(opened.rules)} does to it, or give"
            " Spark more memory (spark.driver.memory in SLUICE_SPARK_CONF), then run again; or"
            f" {StreamDelivery().smaller(name)}. Of the last time: {error.remedy}",
        )

    def refuse_killer(self) -> None:
        """Raise BatchEndsSpark where run after run was killed at the batch that comes next; the run after this tries it.

        What is killed says nothing of it, so the next run does, in the place of another try.
        """
        with transaction(self._dsn) as cursor:
            killed = attempts.killed_at(cursor, self.pipeline.name, self.stream_id)
        if killed is None or killed.tries < TRIES:
            return
        name, files, again = self.pipeline.name, self._files_of(killed.batch_id), run_command(self.pipeline)
        host, _, process = killed.holder.partition("/")
        rule = ", or a rule of the suite," if self.pipeline.suite else ""
        raise BatchEndsSpark(
            f"Batch {killed.batch_id} of {name} was not tried again: at each of"
            f" {pluralize(killed.tries, 'try', 'tries')} the whole run was killed or cut off, the last one as process"
            f" {process} of {host}, last seen at {killed.seen_at} UTC.{_reading(files)}",
            remedy=f"`dmesg` on {host} tells whether the kernel ended it for want of memory; {one_file(name, files)}correct"
            f" what the transform{rule} does to it, or give the run more memory; or {StreamDelivery().smaller(name)}."
            f" `{again}` then tries it once more",
        )

    def _on_batch(self, opened: OpenedPipeline, known: StreamState, recorder: ProgressRecorder) -> OnBatch:
        """Return the function that Spark's foreachBatch calls."""
        from etl.delivery.spark_batch import SparkBatch
        from etl.quality.history import past_batches
        from etl.spark.watermark import set_watermark

        now, left, told = opened, len(self.awaited), False

        def batch(frame: DataFrame, number: int) -> None:
            nonlocal now, left, told
            self.control.refuse_next(self._dsn, self.lease)
            now = self._with_lookups(now)
            suite = now.rules.suite
            looks_back = suite.looks_back, suite.looks_back_on_weekday
            rules = replace(now.rules, past=partial(past_batches, self._dsn, self.pipeline, *looks_back))
            checkpoint = self._checkpoint()
            require_same(checkpoint, self.stream_id, self.pipeline.name)
            if now.source.tells_late:
                set_watermark(now.source.spark, checkpoint.watermark_of(number - 1))
            micro = SparkBatch.of(
                frame, number, checkpoint, now.source, rules, self.workspace.settings, state=now.state
            )
            left -= sum(one.path in self.awaited for one in micro.inputs)
            if not told and (cut := now.source.cut(micro.inputs, micro.ranges, left=left)):
                log.info("batch %s of %s takes %s", number, self.pipeline.name, cut)
                told = True
            receipt = deliver(now.stream_context(self.lease, known, self.on_step), micro)
            if receipt.delivered_before:
                micro.advance_state()
            recorder.delivered(receipt)
            self.received(receipt)

        return batch

    def _exhausted(self, opened: OpenedPipeline) -> bool:
        """Tell whether nothing more can come.

        It is False until the first batch has its mark: before, Spark may not have connected yet.
        """
        return opened.source.exhausted() and bool(self._checkpoint().commits)

    def _with_lookups(self, opened: OpenedPipeline) -> OpenedPipeline:
        """Return `opened` if its lookups and models are as they were; else raise SideInputsChanged, for a new query.

        Where the transform is applied within the batch the query goes on: the pipeline is opened again and returned.
        """
        from etl.runs.opened import open_pipeline
        from etl.sources.side_inputs.lookups import SideInputsChanged

        try:
            opened.source.require_lookups()
        except SideInputsChanged:
            if opened.source.transforms_in_query:
                raise
            log.info("%s goes on with its lookups and models as they are now", self.pipeline.name)
            return open_pipeline(self.workspace, self.pipeline, opened.source.spark, outside_stream=True)
        return opened

    @property
    def _dsn(self) -> str:
        return self.stream.dsn

    def _checkpoint(self) -> Checkpoint:
        """Open the stream's checkpoint again at each call: Spark writes to it all the time."""
        checkpoint: Checkpoint = self.stream.checkpoints.of(self.stream_id)
        return checkpoint

    def _require_readable(self, opened: OpenedPipeline) -> None:
        """Raise where what comes next can't be read, or Spark could not go on with the checkpoint."""
        opened.source.require_readable(self._dsn, self.stream.state(self.stream_id), self._checkpoint())


def _or_rules(rules: Rules) -> str:
    """Name the rules that may have ended Spark as well, those first that more than Spark's own expressions evaluate."""
    if not rules.suite.rules:
        return ""
    outside = [rule.declared.reason for rule in rules.suite.rules if rule.outside_spark]
    which = f" (evaluated in Python or by GX: {first_few(outside)})" if outside else ""
    return f", or a rule of the suite{which},"


def _reading(files: Sequence[str]) -> str:
    return f" The batch reads {pluralize(len(files), 'file')}: {first_few(files, FILES)}." if files else ""


@contextmanager
def _watching(recorder: ProgressRecorder, slow: SlowTaskWatch, query: StreamingQuery) -> Iterator[None]:
    """Record the query's progress and watch over its slow tasks while the block runs."""
    with recorder.watching(query), slow.watching(query):
        yield
