"""A pipeline opened in a Spark session: its source, its transform's output, its compiled suite and both sinks."""

from __future__ import annotations

import logging
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etl.common.steps import Listener
from etl.delivery.batch import DeliveryContext
from etl.delivery.correction import Correction
from etl.delivery.upserts.spark_change_log import LakeLog
from etl.ledger.leases import Lease
from etl.ledger.streams import StreamState
from etl.ledger.telemetry.lineage import LineageNote
from etl.pipeline import Pipeline
from etl.quality.rules import Rules, compile_rules
from etl.runs.slow_tasks import name_patterns
from etl.runs.stateful import kept_state
from etl.runs.telemetry.outbox import lineage_note
from etl.sinks.columns import common_schema
from etl.sinks.modes import mode_of
from etl.sinks.open import Sinks, open_sinks
from etl.sources.base import Source
from etl.sources.open import open_source
from etl.sources.side_inputs.lookups import as_recorded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from etl.runs.workspace import Workspace

log = logging.getLogger("sluice")


@dataclass(frozen=True, kw_only=True)
class OpenedPipeline:
    """What every run of a pipeline works with."""

    pipeline: Pipeline
    source: Source
    frame: DataFrame  # streaming: the transform's output
    rules: Rules
    state: tuple[str, ...]  # its operators that keep state between batches
    sinks: Sinks
    lineage: LineageNote | None  # where events are sent of what is delivered

    @property
    def queried(self) -> DataFrame:
        """Return the streaming frame that a run's query is of.

        It has the suite's flags, which a batch's frame would have to copy each row for, but where a batch may be read for
        its state alone, or the transform is not part of the query.
        """
        queried = self.source.queried
        return self.rules.flagged(queried) if self.source.transforms_in_query and not self.state else queried

    def stream_context(self, lease: Lease, stream: StreamState, on_step: Listener | None) -> DeliveryContext:
        """Return the context of a run of the stream."""
        return self._context(lease, stream.stream_id, stream.first_batch, stream.checkpoint, None, on_step)

    def correction_context(
        self, lease: Lease, correction: Correction, on_step: Listener | None
    ) -> DeliveryContext:
        """Return the context of a run beside the stream, whose own stream has the run's id."""
        return self._context(lease, lease.run_id, 0, None, correction, on_step)

    def change_log(self, change: Correction, connections: int) -> LakeLog | None:
        """Return where an upsert sink finds what the replaced rows had covered; None for any other sink."""
        if not self.sinks.warehouse.keys:
            return None
        replaced = change.files["data"]
        missing = self.sinks.lake.gone(sorted(replaced)) if change.as_found else []
        if missing:
            log.warning(
                "%s: %s of the objects that are replaced are gone from S3, and with them what keys they had: every key that"
                " the table lacks gets the newest change that is in force",
                self.pipeline.name,
                len(missing),
            )
        return LakeLog(
            spark=self.frame.sparkSession,
            sinks=self.sinks,
            schema=self.rules.schema,
            supersedes=change.supersedes,
            replaced=sorted(replaced.difference(missing)),
            lost=bool(missing),
            withdraws=change.name == "withdrawal",
            connections=connections,
        )

    def _context(
        self,
        lease: Lease,
        stream_id: str,
        first_batch: int,
        checkpoint: str | None,
        correction: Correction | None,
        on_step: Listener | None,
    ) -> DeliveryContext:
        return DeliveryContext(
            sinks=self.sinks,
            lease=lease,
            stream_id=stream_id,
            first_batch=first_batch,
            checkpoint=checkpoint,
            state=self.state,
            suite_digest=self.rules.suite.digest,
            flag_words=self.rules.flag_words,
            rules=self.rules.stage_rules,
            lookups=as_recorded(self.source.lookup_versions),
            correction=correction,
            lineage=self.lineage,
            on_step=on_step,
        )


def open_pipeline(
    workspace: Workspace,
    pipeline: Pipeline,
    spark: SparkSession,
    *,
    outside_stream: bool = False,
    fills: bool = False,
    takes_part: bool = True,
    landed: AbstractSet[str] | None = None,
) -> OpenedPipeline:
    """Check folders, lookups, models, suite and tables, and open them; no input is read yet.

    For a run `outside_stream` the frame is never run. A table or column that is gone is
    refused, unless this `fills` it. A batch `takes_part` of a backlog unless it must take all. Of files no others are read
    than those `landed`; None: all that there are.
    """
    source = open_source(
        spark, pipeline, workspace.settings, models=workspace.models, stream=not outside_stream
    )
    if landed is not None:
        source = source.of_landed(landed)
    if not takes_part or mode_of(pipeline.sink).only_newest:  # of whose table a part would be all
        source = source.without_default_limit()
    frame = source.shape() if outside_stream else source.streamed
    state = kept_state(pipeline, frame)
    if not outside_stream and state and source.has_default_limit:
        # In parts, records of a backlog in no order would come behind the watermark that an earlier part set.
        source = source.without_default_limit()
        frame = source.streamed
    rules = compile_rules(pipeline, frame, workspace.settings)
    name_patterns(rules)
    columns = common_schema(rules.arrow_schema, pipeline=pipeline.name)
    sinks = open_sinks(pipeline, columns, dsn=workspace.services.postgres, lake=workspace.lake, fills=fills)
    return OpenedPipeline(
        pipeline=pipeline,
        source=source,
        frame=frame,
        rules=rules,
        state=state,
        sinks=sinks,
        lineage=lineage_note(workspace.settings, pipeline, source, frame),
    )
