"""A pipeline's suite, compiled for its output: the flags of the stage, and the judgement of the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from etl.common.errors import VerdictUnknown
from etl.common.settings import Settings
from etl.pipeline import Pipeline
from etl.quality import measure
from etl.quality.suite_file import suite_source
from etl.quality.verdict import Counts, StageRule, Verdict, flag_column
from etl.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from etl.quality.compile import CompiledSuite
    from etl.quality.metrics import PastBatch


@dataclass(frozen=True, kw_only=True)
class Rules:
    """A pipeline's suite, compiled for the frames of one run."""

    pipeline: Pipeline
    suite: CompiledSuite
    schema: StructType  # of the transform's output, nested columns as JSON text
    metrics: tuple[str, ...] = ()  # columns whose metrics are kept
    past: Callable[[], Sequence[PastBatch]] = tuple  # the batches before, newest first

    @property
    def arrow_schema(self) -> pa.Schema:
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self.schema, timezone="UTC")

    @property
    def nested(self) -> Mapping[str, pa.DataType]:
        """Return the types, as the transform puts them out, of the columns that are JSON text."""
        from pyspark.errors import PySparkTypeError
        from pyspark.sql.pandas.types import to_arrow_type

        from etl.spark.frames import nested_fields

        types = {}
        for field in nested_fields(self.schema):
            try:
                types[field.name] = to_arrow_type(field.dataType, timezone="UTC")
            except PySparkTypeError:
                types[field.name] = pa.null()  # Arrow has no such type
        return types

    @property
    def stage_rules(self) -> tuple[StageRule, ...]:
        return self.suite.stage_rules

    @property
    def flag_words(self) -> int:
        return len(self.suite.flags)

    def flagged(self, frame: DataFrame) -> DataFrame:
        """Return the output with the suite's flags beside it, which it may have already."""
        if not self.flag_words or flag_column(0) in frame.columns:
            return frame
        return frame.select("*", *self.suite.flags)

    def judged(self, frame: DataFrame) -> DataFrame:
        """Return the output with the suite's flags beside it, and with what `observe` must count of it."""
        observed = [*self.suite.aggregates, *measure.aggregates(self.metrics, self.schema)]
        if not observed:
            return self.flagged(frame)
        if not self.metrics:
            return self.flagged(frame.observe("suite", *observed))
        beside = frame.select("*", *measure.terms(self.metrics, self.schema)).observe("suite", *observed)
        return self.flagged(beside.select(*map(quoted, frame.columns)))

    def aggregates(self, job: DataFrame) -> Mapping[str, Any]:
        """Return what was observed in the job that was run on exactly this frame.

        Raises VerdictUnknown where a figure can't be read, such as a moment that Python has no year for.
        """
        from etl.spark.observation import observed

        if not self.suite.aggregates and not self.metrics:
            return {}
        try:
            return observed(job, "suite")
        except (OverflowError, ValueError) as error:  # such as a moment that Python has no year for
            raise VerdictUnknown(
                f"Suite {self.suite.name!r}: the batch's figures can't be read: {error}; Python knows the years 1 to 9999",
                remedy="hold or drop such values in the transform, or take rules on the least, greatest or mean of that"
                " column out of the suite; then run again",
            ) from error

    def judge(self, counts: Counts, rows: Callable[[], DataFrame]) -> Verdict:
        """Return the suite's verdict; GX judges rules that the pass can't answer, on all output `rows`."""
        from etl.quality.gx_fallback import evaluate_by_gx
        from etl.quality.judge import judge

        by_gx = evaluate_by_gx(self.suite, rows()) if self.suite.by_gx else {}
        columns = measure.read_metrics(self.metrics, counts.rows, counts.aggregates)
        counts = replace(counts, columns={one.column: one for one in columns})
        share = self.pipeline.max_quarantine_share
        verdict = judge(self.suite, counts, by_gx, max_quarantine_share=share, past=self.past())
        return replace(verdict, columns=columns)


def compile_rules(
    pipeline: Pipeline,
    frame: DataFrame,
    settings: Settings,
    *,
    instead: Path | Mapping[str, Any] | None = None,
) -> Rules:
    """Compile the suite over the output's columns; a pipeline without one is judged by an empty suite.

    `instead` is a suite, or its file, to judge by instead of the pipeline's own.
    """
    from etl.quality.compile import compile_suite

    suite = instead or suite_source(pipeline, settings)
    measure.require_columns(pipeline.metrics, frame.schema, pipeline.name)
    compiled = compile_suite(suite, frame.schema, frame.sparkSession, measured=pipeline.metrics)
    return Rules(pipeline=pipeline, suite=compiled, schema=frame.schema, metrics=pipeline.metrics)
