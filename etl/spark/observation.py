"""Reads what Spark observed of a job, and the micro-batch that is running."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from etl.spark.jvm import java_class
from etl.spark.state_plan import listed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OBSERVING = "CollectMetrics"
# A product takes one input anew for each partition of the other; of these joins one input may end before the other is taken.
_PARTIAL = frozenset({"CartesianProduct", "SortMergeJoin", "ShuffledHashJoin"})
# These end at once where the table has no row, unless code was generated for them; a plan that adapts is without them then.
_BROADCAST = frozenset({"BroadcastHashJoin", "BroadcastNestedLoopJoin"})


def observed(frame: DataFrame, name: str) -> dict[str, Any]:
    """Return what `observe(name, …)` counted in the job that was run on exactly this frame.

    Raises KeyError when no job was run on it. Within foreachBatch it returns also what the streaming query
    itself observes: Spark hands the batch over as an RDD of the query's plan, so the metrics are the query's,
    whatever was made of the batch. They are those of each partition's last run, so a job that is run again
    counts once (Spark 4.3).
    """
    from pyspark.serializers import CPickleSerializer

    made = java_class(frame.sparkSession, "org.apache.spark.sql.api.python.PythonSQLUtils")
    pickled = made.toPyRow(_observation(frame, name))
    return dict(CPickleSerializer().loads(pickled).asDict())  # type: ignore[no-untyped-call]


def observed_as_json(frame: DataFrame, name: str) -> dict[str, Any]:
    """Return what `observed` returns, where it is whole numbers and texts alone.

    py4j hands over a megabyte of text in a millisecond, and one of bytes in a tenth of a second.
    """
    return dict(json.loads(_observation(frame, name).json()))


def _observation(frame: DataFrame, name: str) -> Any:
    """Return the row of what was observed, of the JVM. Raises KeyError when no job was run on this frame."""
    metrics = frame._jdf.queryExecution().observedMetrics()
    if not metrics.contains(name):
        batch = micro_batch(frame)
        metrics = batch and batch.observedMetrics()
    if metrics is None or not metrics.contains(name):
        raise KeyError(f"nothing was observed as {name!r}: no job was run on this frame")
    return metrics.apply(name)


def micro_batch(frame: DataFrame) -> Any:
    """Return Spark's execution of the micro-batch that this thread is in, or None."""
    session = frame.sparkSession
    own = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    # The frame's session is a clone that knows no query; the state shared by all sessions does.
    for query in session._jsparkSession.sharedState().activeStreamingQueries().values():
        if query.id().toString() == own:
            return query.lastExecution()
    return None


def observes_all_once(frame: DataFrame) -> bool:
    """Tell whether the job on exactly this frame, by its plan, took each row that it observes, and once.

    Where it may not have, the answer is no.
    """
    executions = frame._jdf.queryExecution(), micro_batch(frame)
    return not any(_observes_partly(one.executedPlan()) for one in executions if one is not None)


def _observes_partly(plan: Any) -> bool:
    """Tell whether rows are observed below a join that may take only some of them, or some of them again.

    What is below a stage that was run by itself, or was broadcast, was all taken. An exchange that is no such stage may not
    have been: Spark runs none for a product without a partition.
    """
    waiting = [(plan, False, False, False)]
    while waiting:
        node, partial, generated, adaptive = waiting.pop()
        name = str(node.nodeName())
        if partial and name == _OBSERVING:
            return True
        adaptive = adaptive or name == "AdaptiveSparkPlan"
        generated = name.startswith("WholeStageCodegen") or (generated and name != "InputAdapter")
        if name in _PARTIAL or (name in _BROADCAST and not (adaptive or generated)):
            partial = True
        elif name.endswith("QueryStage") or name == "BroadcastExchange":
            partial = False
        waiting += [(one, partial, generated, adaptive) for one in _children(name, node)]
    return False


def _children(name: str, node: Any) -> list[Any]:
    """Return the nodes below a node of a plan that was run, adaptive or not."""
    if name == "AdaptiveSparkPlan":
        return [node.executedPlan()]
    return [node.plan()] if name.endswith("QueryStage") else listed(node.children())
