"""`sluice quarantine release`: judges held rows again, corrected or not, and lets them into both sinks.

The rows of each delivery that holds some become one delivery of their own, which names it. A row is let out only
while it is held, in the transaction that delivers it: a second release of the same rows does nothing. What still
breaks a rule is held once more, with today's reasons, under the new delivery. Rules about a whole batch do not
apply to a handful of its rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from etl.common.database import kept_connections, transaction
from etl.common.errors import ContractBroken, SetupError
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
from etl.runs.run import refuse_lost
from etl.runs.spark_session import a_session
from etl.runs.summary import Progress
from etl.sinks.columns import in_words
from etl.sinks.modes import mode_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from etl.delivery.spark_batch import SparkBatch
    from etl.runs.follow import RunControl
    from etl.runs.opened import OpenedPipeline
    from etl.runs.workspace import Workspace

GIVEN_UP = "what it has reported is released, and all else is held as before"  # by a signal, before a commit
Corrections = Mapping[int, Mapping[str, Any]]  # quarantine id -> column -> value as in JSON


@kept_connections()
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
    receipts: list[Receipt] = []
    refused: list[ContractBroken] = []
    with leased(dsn, lease, began=began), a_session(workspace, spark) as session:
        from etl.runs.opened import open_pipeline

        opened = open_pipeline(workspace, pipeline, session, outside_stream=True)
        corrected = [
            (origin, rows, _corrected(opened, rows, corrections)) for origin, rows in _by_delivery(held)
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


def _corrected(opened: OpenedPipeline, rows: Sequence[HeldRow], corrections: Corrections) -> pa.Table:
    """Return the rows as they are to be released, their corrections applied.

    Raises SetupError, before any row of any delivery is released, where one does not fit.
    """
    columns = opened.rules.arrow_schema
    for one in rows:
        given = corrections.get(one.quarantine_id, {})
        if one.row is None and (lacking := [name for name in columns.names if name not in given]):
            raise SetupError(
                f"Row {one.quarantine_id} never was a row, and its correction lacks {', '.join(lacking)}",
                remedy="give each of its columns a value, null where it has none",
            )
    values = [{**(one.values or {}), **corrections.get(one.quarantine_id, {})} for one in rows]
    return typed(values, columns, [one.quarantine_id for one in rows])


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
    """Make a frame of the rows, each beside its record's file, with which it is held once more where it breaks a rule."""
    from pyspark.sql.types import StringType, StructField, StructType

    named = table.append_column(SOURCE_PATH, pa.array(paths, pa.string()))
    schema = StructType([*opened.rules.schema.fields, StructField(SOURCE_PATH, StringType())])
    return opened.source.counting_none(opened.source.spark.createDataFrame(named, schema))


def typed(values: Sequence[Mapping[str, Any]], columns: pa.Schema, ids: Sequence[int]) -> pa.Table:
    """Convert rows whose values are as JSON has them to the columns' types.

    Raises SetupError, which names the row that does not fit.
    """
    for number, row in zip(ids, values, strict=True):
        if unknown := sorted(row.keys() - set(columns.names)):
            raise SetupError(
                f"Row {number} is given columns that the pipeline has not: {', '.join(unknown)}",
                remedy=f"its columns are {', '.join(columns.names)}",
            )
    arrays = [_column(field, [row.get(field.name) for row in values], ids) for field in columns]
    return pa.Table.from_arrays(arrays, schema=columns)


def _column(field: pa.Field, values: Sequence[Any], ids: Sequence[int]) -> pa.Array:
    arrays = []
    for number, value in zip(ids, values, strict=True):
        try:
            arrays.append(_value(value, field.type))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise SetupError(
                f"Row {number}: {value!r} is no value of column {field.name}, which is {in_words(field.type)}: {error}",
                remedy="correct it in the file of corrections",
            ) from error
    return pa.concat_arrays(arrays)


def _value(value: Any, kind: pa.DataType) -> pa.Array:
    _refuse_another(value, kind)
    if isinstance(value, float) and pa.types.is_decimal(kind):
        value = repr(value)
    if isinstance(value, str) and pa.types.is_binary(kind):
        return pa.array([bytes.fromhex(value)], kind)
    if isinstance(value, str) and _beyond(value) and pa.types.is_temporal(kind):
        unit: Any = "D" if pa.types.is_date32(kind) else kind.unit
        moment = np.datetime64(value.replace(" ", "T").removesuffix("Z"), unit).astype("int64")
        return pa.array([moment.item()], pa.int32() if unit == "D" else pa.int64()).view(kind)
    if isinstance(value, str) and not pa.types.is_string(kind):
        return pa.array([value]).cast(kind)
    return pa.array([value], kind)


def _refuse_another(value: Any, kind: pa.DataType) -> None:
    """Raise TypeError or ValueError where Arrow would take the value for another one.

    It would take a number for a moment, and a fraction or hexadecimal for a whole number.
    """
    if pa.types.is_temporal(kind) and isinstance(value, int | float):
        raise TypeError('a moment is text, such as "2024-01-31T12:00:00Z"')
    if pa.types.is_integer(kind) and isinstance(value, float) and not value.is_integer():
        raise ValueError("it is no whole number")
    if pa.types.is_integer(kind) and isinstance(value, str) and not re.fullmatch(r"[+-]?\d+", value):
        raise ValueError("it is no whole number")


def _beyond(moment: str) -> bool:
    """Tell whether a moment's year has not four digits: Arrow writes such moments and does not read them."""
    year = moment.lstrip("-").partition("-")[0]
    return moment.startswith("-") or (year.isdigit() and len(year) > 4)


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
