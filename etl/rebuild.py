"""The state of a transform made anew, when its checkpoint is lost or is of another transform.

Every batch that is in force runs once more, in the order of the commits and with exactly its own files, on a new
checkpoint. Nothing of it is delivered: what it leaves in the checkpoint is what the next batch goes on from.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from etl import inputs as evidence
from etl import ledger
from etl.checkpoint import Checkpoint
from etl.checkpoint_files import About
from etl.database import Cursor, session
from etl.errors import Fenced, InputsChanged
from etl.inputs import Input
from etl.late import set_watermark
from etl.ledger import Lease
from etl.pipeline import Pipeline
from etl.preflight import by_source
from etl.run import a_session
from etl.state import SHUFFLES, kept, no_batch_without_files, output_mode, taken

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from etl.run import Place

Told = Callable[[int, int], None]  # batches that ran, of how many
SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Past:
    """What a planned batch is made of."""

    watermark_ms: int | None  # that it began with; None: it was made without state
    time_ms: int  # its own time, since 1970
    inputs: Sequence[Input]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A query of batches whose files are told to it: Spark lists none."""

    pipeline: Pipeline
    spark: SparkSession
    writer: DataStreamWriter
    times: int  # so often the transform takes its input
    pinned: Mapping[str, Any]

    @classmethod
    def of(cls, pipeline: Pipeline, frame: DataFrame, writer: DataStreamWriter) -> Planned:
        """`frame` is the pipeline's output over an empty folder, `writer` what becomes of it."""
        spark = frame.sparkSession
        times = len(taken(frame)) // len(pipeline.sources)
        return cls(pipeline=pipeline, spark=spark, writer=writer, times=times, pinned=_pinned(spark))

    def run(
        self, checkpoint: Checkpoint, number: int, past: Past, failure: Sequence[BaseException] = ()
    ) -> None:
        """One batch, to its mark in the checkpoint, which is as the batch before left it."""
        from etl.query import to_its_end

        left = checkpoint.watermark_after(number - 1)
        watermark = left if past.watermark_ms is None else past.watermark_ms
        about = About(watermark_ms=watermark, time_ms=past.time_ms, pinned=self.pinned)
        try:
            set_watermark(self.spark, checkpoint.watermark_of(number - 1))
            checkpoint.plan(number, past.inputs, times=self.times, about=about)
            to_its_end(self.writer.option("checkpointLocation", checkpoint.uri), self.pipeline.name, failure)
        finally:
            set_watermark(self.spark, None)


def rebuilt_stream(
    place: Place, pipeline: Pipeline, lease: Lease, told: Told, spark: SparkSession | None = None
) -> tuple[str, int] | None:
    """A new current stream whose checkpoint holds the state after all that is in force; its id, and how many files.

    None: the transform keeps no state. Raises InputsChanged, with nothing changed, when a file that is needed is
    gone or is another.
    """
    from etl.source import open_source

    dsn = place.services.postgres
    with a_session(place, spark) as found, tempfile.TemporaryDirectory(prefix="sluice-") as empty:
        source = open_source(found, pipeline, place.settings, models=place.models, stream=False)
        frame = source.below(empty)
        state = kept(pipeline, frame)
        if not state:
            return None
        with session(dsn) as cursor:
            batches = _in_force(cursor, pipeline)
        _refuse_changed(place, pipeline, batches.values())
        stream_id = str(uuid.uuid4())
        checkpoints = place.checkpoints(pipeline)
        checkpoints.of(stream_id).create(stream_id)
        nowhere = frame.writeStream.format("noop").outputMode(output_mode(pipeline, state))
        planned = Planned.of(pipeline, frame, nowhere)
        with no_batch_without_files(found):  # the planned batches and no other
            for number, past in enumerate(batches.values()):
                as_declared = replace(past, inputs=by_source(past.inputs, pipeline))
                planned.run(checkpoints.of(stream_id), number, as_declared)
                told(number + 1, len(batches))
    with session(dsn) as cursor:
        ledger.lock(cursor, pipeline.name)
        now = [number for number, *_ in ledger.batches_in_force(cursor, pipeline.name)]
        _require_ours(cursor, lease, list(batches), now)
        uri, first = checkpoints.of(stream_id).uri, len(batches)
        ledger.register_stream(
            cursor, pipeline.name, stream_id, checkpoint=uri, first_batch=first, state=state
        )
    return stream_id, sum(len(past.inputs) for past in batches.values())


def _in_force(cursor: Cursor, pipeline: Pipeline) -> dict[int, Past]:
    """By the number of the delivery, in the order of the commits."""
    return {
        number: Past(watermark_ms=mark, time_ms=time, inputs=ledger.inputs_of(cursor, number))
        for number, mark, time in ledger.batches_in_force(cursor, pipeline.name)
    }


def _refuse_changed(place: Place, pipeline: Pipeline, batches: Iterable[Past]) -> None:
    recorded = list(chain.from_iterable(past.inputs for past in batches))
    found = evidence.look_again(recorded, landing=place.settings.landing)
    changes = evidence.changed(recorded, found)
    read = {one.uri for one in by_source(recorded, pipeline)}
    changes += [f"{one.uri} is of no source any more" for one in recorded if one.uri not in read]
    if changes:
        raise InputsChanged(
            f"The state of {pipeline.name} can't be made anew: of the {len(recorded):,} files that it was made of,"
            f" {len(changes):,} are not as they were: {'; '.join(changes[:SHOWN])}",
            remedy=f"put them back as they were, then `sluice recover {pipeline.name}` again",
        )


def _require_ours(cursor: Cursor, lease: Lease, before: Sequence[int], now: Sequence[int]) -> None:
    """It took a while: the lease is still ours, and what is in force is what was run again."""
    if not (ledger.heartbeat(cursor, lease) and before == now):
        raise Fenced(
            f"Another run delivered into {lease.pipeline} while its state was made anew; nothing was changed",
            remedy=f"`sluice recover {lease.pipeline}` again",
        )


def _pinned(spark: SparkSession) -> dict[str, Any]:
    """The settings that Spark writes into a new checkpoint and keeps to: the state's format depends on them."""
    jvm: Any = spark.sparkContext._jvm
    metadata = jvm.org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata
    found: dict[str, Any] = json.loads(metadata.apply(0, 0, spark._jsparkSession.conf()).json())["conf"]
    return {**found, SHUFFLES: spark.conf.get(SHUFFLES)}
