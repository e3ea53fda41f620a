"""Checks a transform that keeps state: what a run must know of it, and what the run refuses."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from etl.common.errors import SetupError
from etl.pipeline import Pipeline
from etl.pipeline.state_fingerprint import MODE
from etl.sinks.modes import mode_of
from etl.sources.cutoff import StartCutoff
from etl.sources.kinds.declared import kind_of
from etl.spark.session import SHUFFLES
from etl.spark.state_plan import AGGREGATE, numbers_of, operators_of, streaming_nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from etl.spark.checkpoint.reader import Checkpoint


log = logging.getLogger("sluice")


def kept_state(pipeline: Pipeline, frame: DataFrame) -> tuple[str, ...]:
    """Name what the transform keeps between batches and can't change while it does.

    The result is empty if each batch stands alone. Raises SetupError when the transform does not take its
    streams in a way for which a checkpoint can be rebuilt.
    """
    if not frame.isStreaming:
        raise SetupError(
            f"The output of the transform of {pipeline.name} uses none of its streams",
            remedy="derive it from the DataFrames that the transform is given",
        )
    nodes = streaming_nodes(frame)
    operators = operators_of(nodes)
    numbers = numbers_of(nodes)
    _refuse_other_order(pipeline, numbers)
    if len(numbers) > len(pipeline.sources):
        kind_of(pipeline).refuse_taken_twice(operators)
    aggregated = any(one.startswith(AGGREGATE) for one in operators)
    return (*operators, f"{output_mode(pipeline, operators)}{MODE}") if aggregated else operators


def _refuse_other_order(pipeline: Pipeline, numbers: Sequence[int]) -> None:
    """Raise SetupError where the transform leaves a source out, or takes them unevenly or not in the declared order.

    Spark numbers what it reads in the order of its plan, and a checkpoint's logs go by those numbers.
    """
    wanted = tuple(range(len(pipeline.sources)))
    if numbers == wanted * (len(numbers) // len(wanted)):
        return
    if unread := [pipeline.sources[number].named for number in wanted if number not in numbers]:
        raise SetupError(
            f"The transform of {pipeline.name} does not use {', '.join(unread)}",
            remedy="take that stream in the transform, or take it out of the declaration",
        )
    order = ", ".join(pipeline.sources[number].named for number in numbers)
    uneven = len(set(Counter(numbers).values())) > 1
    how = (
        "one of its sources more often than another"
        if uneven
        else "its sources in another order than declared"
    )
    raise SetupError(
        f"The transform of {pipeline.name} takes {how}: {order}",
        remedy="take each as often as the others" if uneven else "declare `sources` in that order",
    )


def tell_of_pinned(pipeline: str, checkpoint: Checkpoint, spark: SparkSession) -> None:
    """Warn where the session's shuffle partitions are not as many as the state has parts.

    State is split into as many parts as there were shuffle partitions at first: another number changes
    nothing.
    """
    pinned, now = checkpoint.pinned.get(SHUFFLES), spark.conf.get(SHUFFLES)
    if pinned is not None and pinned != now:
        log.warning(
            "%s keeps its state in %s parts, the shuffle partitions that its checkpoint began with; %s=%s has no effect",
            pipeline,
            pinned,
            SHUFFLES,
            now,
        )


def tell_of_history(pipeline: Pipeline) -> None:
    """Warn that what `start` leaves out of a stream that keeps state stays out: no replay may load it afterwards."""
    if cutoff := StartCutoff.of(pipeline):
        log.warning(
            "%s keeps state, so no replay will load files from before its start, %s: to include them, declare an"
            " earlier start now, or later rebuild all of it (docs/state.md)",
            pipeline.name,
            cutoff.start.isoformat(),
        )


def output_mode(pipeline: Pipeline, state: Sequence[str]) -> str:
    """Return Spark's output mode: the declared one, else what an aggregate needs for the pipeline's sink.

    Raises SetupError where the sink can't take what comes out in it.
    """
    aggregated = any(one.startswith(AGGREGATE) for one in state)
    sink = mode_of(pipeline.sink)
    mode = pipeline.output_mode or (sink.output_mode if aggregated else "append")
    sink.refuse_output(pipeline.name, state, mode)
    return mode


def refuse_replay(pipeline: Pipeline, state: Sequence[str]) -> None:
    """Raise SetupError for a pipeline whose batches depend on all that came before them."""
    if state:
        name = pipeline.name
        go_back = (
            ""
            if mode_of(pipeline.sink).only_newest
            else f" To compute anew from a delivery on: `sluice recover {name} --before DELIVERY --plan` says what that"
            " would be."
        )
        raise SetupError(
            f"Pipeline {name} keeps state between batches ({'; '.join(state)}): what a batch delivers depends on"
            " all batches before it, so none can be replayed by itself",
            remedy="land corrected records as new files; an upsert or replace sink takes what they change."
            f"{go_back} To rebuild all of it beside the old rows: declare the transform as a pipeline of another name,"
            f" such as {name}_2, over the same sources, `sluice run {name}_2`, then give it the readers' name, in both"
            f" sinks at once, by `sluice publish {name}_2 --as SCHEMA.NAME` (docs/state.md)",
        )
