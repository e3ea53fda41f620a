"""`sluice quarantine release`: judges held rows again, corrected or not, and lets them into both sinks.

The rows of each delivery that holds some become one delivery of their own, which names it. A row is let out only
while it is held, in the transaction that delivers it: a second release of the same rows does nothing. What still
breaks a rule is held once more, with today's reasons, under the new delivery. Rules about a whole batch do not
apply to a handful of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa

from etl.common.database import kept_connections, transaction
from etl.common.errors import ContractBroken, SetupError
from etl.common.record_bounds import Bounds
from etl.common.record_columns import SOURCE_PATH
from etl.common.steps import Listener
from etl.delivery import correction
from etl.delivery.batch import Receipt, Staged
from etl.delivery.correction import Correction
from etl.delivery.deliver import deliver_correction
from etl.delivery.stage import StageTask
from etl.ledger.inputs import Input
from etl.ledger.offsets import Range
from etl.ledger.quarantine import HeldRow
from etl.pipeline import Pipeline
from etl.quality.verdict import Counts, Verdict
from etl.runs.heartbeat import leased, require_sink
from etl.runs.replay.corrections import Corrections, beside_of, corrected_rows
from etl.runs.run import refuse_lost
from etl.runs.spark_session import a_session
from etl.runs.summary import Progress
from etl.runs.telemetry.spans import traced
from etl.runs.telemetry.telling import telling_lineage
from etl.sinks.modes import mode_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from etl.delivery.spark_batch import SparkBatch
    from etl.runs.follow import RunControl
    from etl.runs.opened import OpenedPipeline
    from etl.runs.workspace import Workspace

GIVEN_UP = "what it has reported is released, and all else is held as before"  # by a signal, before a commit


@kept_connections()
@telling_lineage
@traced
def release(
    workspace: Workspace,
    pipeline: Pipeline,
    held: Sequence[HeldRow],
    corrections: Corrections,
    *,
    who: str,
    why: str,
    spark: SparkSession | None = None,
    progress: Progress = lambda _: None,
    began: Callable[[str], None] = lambda _: None,
    on_step: Listener | None = None,
    control: RunControl | None = None,
) -> list[Receipt]:
    """Deliver these rows, or raise; what was delivered before the error, as `progress` is told, stays delivered.

    Where one delivery holds nothing that passes, the rows of the others are released all the same, and then it
    raises ContractBroken. `began` is told the run's id.
    """
    _refuse(pipeline, held, corrections)
    dsn = workspace.services.postgres
    refuse_lost(workspace, pipeline)
    with transaction(dsn) as cursor:
        require_sink(cursor, pipeline)
        lease = correction.begin(cursor, pipeline.name, "release", who=who, why=why)
        correction.require_release_rate(cursor, pipeline.name, workspace.settings.releases_per_hour)
    bounds = workspace.settings.bounds
    receipts: list[Receipt] = []
    refused: list[ContractBroken] = []
    with leased(dsn, lease, began=began), a_session(workspace, spark) as session:
        from etl.runs.opened import open_pipeline

        opened = open_pipeline(workspace, pipeline, session, outside_stream=True)
        corrected = [
            (origin, rows, _corrected(opened, rows, corrections, bounds))
            for origin, rows in _by_delivery(held)
        ]
        for number, (origin, rows, table) in enumerate(corrected):
            if control is not None:
                control.require_going_on()
            ids = tuple(one.quarantine_id for one in rows)
            change = Correction(name="release", files={}, released_from=origin, rows=ids, who=who, why=why)
            batch = ReleaseBatch(micro=_micro(opened, number, rows, table, workspace), origin=origin)
            try:
                receipt = deliver_correction(opened.correction_context(lease, change, on_step), batch)
            except ContractBroken as error:
                refused.append(error)
                continue
            receipts.append(receipt)
            progress(receipt)
    if refused:
        raise _nothing_passed(refused, receipts)
    return receipts


def _nothing_passed(refused: Sequence[ContractBroken], receipts: Sequence[Receipt]) -> ContractBroken:
    numbers = ", ".join(str(one.delivery_id) for one in receipts)
    others = (
        f"They stay held; the other rows are released, by deliveries {numbers}"
        if receipts
        else "Nothing was changed"
    )
    return ContractBroken(f"{'; '.join(one.seen for one in refused)}. {others}", remedy=refused[0].remedy)


def _by_delivery(held: Sequence[HeldRow]) -> Iterator[tuple[int, list[HeldRow]]]:
    for origin, rows in groupby(sorted(held, key=lambda one: one.delivery_id), lambda one: one.delivery_id):
        yield origin, list(rows)


def _words(rows: Sequence[HeldRow]) -> str:
    """Return the options that choose these rows to be exported; none where they are of several deliveries."""
    if len(rows) == 1:
        return f" --id {rows[0].quarantine_id}"
    deliveries = {one.delivery_id for one in rows}
    return f" --delivery {deliveries.pop()}" if len(deliveries) == 1 else ""


def _refuse(pipeline: Pipeline, held: Sequence[HeldRow], corrections: Corrections) -> None:
    name = pipeline.name
    mode_of(pipeline.sink).refuse_release(name, [one.delivery_id for one in held])
    lost = [one for one in held if one.row is None and one.quarantine_id not in corrections]
    if lost:
        raise SetupError(
            f"{len(lost):,} of these never became rows, because their records are malformed or came late; such as"
            f" {lost[0].quarantine_id}: {(lost[0].raw or '')[:200]!r}",
            remedy=f"give their columns in a file of corrections: `sluice quarantine export {name}"
            f"{_words(lost)} -o rows.jsonl`, then release with --corrections rows.jsonl",
        )
    for one in held:
        given = corrections.get(one.quarantine_id, {})
        if written := [column for column in one.not_as_read if column not in given]:
            raise SetupError(
                f"Row {one.quarantine_id} is kept with other text than was read: bytes of {', '.join(written)} are no UTF-8,"
                " and are written as \\xNN",
                remedy=f"give these columns in a file of corrections: `sluice quarantine export {name}`, then release with"
                " --corrections FILE",
            )


def _corrected(
    opened: OpenedPipeline, rows: Sequence[HeldRow], corrections: Corrections, bounds: Bounds
) -> pa.Table:
    """Return the rows as they are to be released; raise SetupError before any of any delivery is."""
    columns, nested = opened.rules.arrow_schema, opened.rules.nested
    return corrected_rows(rows, corrections, columns, nested=nested, bounds=bounds)


def _micro(
    opened: OpenedPipeline, number: int, rows: Sequence[HeldRow], table: pa.Table, workspace: Workspace
) -> SparkBatch:
    from etl.delivery.spark_batch import SparkBatch

    return SparkBatch(
        batch_id=number,
        frame=_frame(opened, table, [one.source_path for one in rows]),
        inputs=(),
        stale=(),
        source=opened.source,
        rules=opened.rules,
        settings=workspace.settings,
    )


def _frame(opened: OpenedPipeline, table: pa.Table, paths: Sequence[str | None]) -> DataFrame:
    """Make a frame of the rows, each beside its record's file, with which it is held once more where it breaks a rule.

    What is corrected of a nested column becomes text as the transform's own does.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    from etl.spark.frames import NESTED, nested_fields, quoted

    fields = opened.rules.schema.fields
    beside = {
        one.name: StructField(beside_of(one.name), one.dataType) for one in nested_fields(opened.rules.schema)
    }
    beside = {name: one for name, one in beside.items() if one.name in table.column_names}
    named = table.append_column(SOURCE_PATH, pa.array(paths, pa.string()))
    schema = StructType([*fields, *beside.values(), StructField(SOURCE_PATH, StringType())])
    frame = opened.source.spark.createDataFrame(named, schema)
    for name, one in beside.items():
        text = F.to_json(F.col(quoted(one.name)), NESTED)
        frame = frame.withColumn(name, F.coalesce(text, F.col(quoted(name))))
    return opened.source.counting_none(frame.drop(*(one.name for one in beside.values())))


@dataclass(frozen=True, kw_only=True)
class ReleaseBatch:
    """Rows that were held, as a batch."""

    micro: SparkBatch
    origin: int  # the delivery that holds them

    @property
    def batch_id(self) -> int:
        return self.micro.batch_id

    @property
    def inputs(self) -> Sequence[Input]:
        return ()

    @property
    def ranges(self) -> Sequence[Range]:
        return ()

    def stage(self, task: StageTask) -> Staged:
        """Stage the rows as any batch is staged; raise ContractBroken when none of them would be delivered."""
        staged = self.micro.stage(task)
        if not sum(report.delivered for report in staged.all):
            reasons = ", ".join(f"{reason} ({count})" for reason, count in staged.reasons.most_common())
            raise ContractBroken(
                f"All of these rows of delivery {self.origin} would be held again: {reasons}",
                remedy="correct them (--corrections FILE), or fix the suite, then release them again",
            )
        return staged

    def judge(self, counts: Counts, staged: Staged) -> Verdict:
        """Judge the rows by the rules about rows alone: a handful of a batch's rows is no batch."""
        verdict = self.micro.judge(counts, staged)
        results = tuple(one for one in verdict.results if one.element_count is not None)
        return replace(verdict, stops=(), results=results, success=all(one.success for one in results))

    def changed(self) -> Sequence[str]:
        return ()
