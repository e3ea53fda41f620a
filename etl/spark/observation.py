"""Reads what Spark observed of a job, and the micro-batch that is running."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from etl.spark.jvm import java_class
from etl.spark.state_plan import listed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A product takes its one input anew for each partition of the other; these joins end with the input that ends first.
_TAKES_OTHERWISE = frozenset({"CartesianProduct", "SortMergeJoin", "ShuffledHashJoin"})
_OBSERVES = "CollectMetrics"


def observed(frame: DataFrame, name: str) -> dict[str, Any]:
    """Return what `observe(name, …)` counted in the job that was run on exactly this frame.

    Raises KeyError when no job was run on it. Within foreachBatch it returns also what the streaming query
    itself observes: Spark hands the batch over as an RDD of the query's plan, so the metrics are the query's,
    whatever was made of the batch. They are those of each partition's last run, so a job that is run again
    counts once (Spark 4.3).
    """
    metrics = frame._jdf.queryExecution().observedMetrics()
    if not metrics.contains(name):
        batch = micro_batch(frame)
        metrics = batch and batch.observedMetrics()
    if metrics is None or not metrics.contains(name):
        raise KeyError(f"nothing was observed as {name!r}: no job was run on this frame")
    from pyspark.serializers import CPickleSerializer

    made = java_class(frame.sparkSession, "org.apache.spark.sql.api.python.PythonSQLUtils")
    pickled = made.toPyRow(metrics.apply(name))
    return dict(CPickleSerializer().loads(pickled).asDict())  # type: ignore[no-untyped-call]


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

    An exchange takes all of its input, whatever is above it.
    """
    executions = frame._jdf.queryExecution(), micro_batch(frame)
    return not any(_takes_otherwise(one.executedPlan()) for one in executions if one is not None)


def _takes_otherwise(plan: Any) -> bool:
    if not any(name in plan.toString() for name in _TAKES_OTHERWISE):
        return False
    waiting = [(plan, False)]
    while waiting:
        node, otherwise = waiting.pop()
        name = str(node.nodeName())
        if otherwise and name == _OBSERVES:
            return True
        otherwise = name in _TAKES_OTHERWISE or (otherwise and not name.endswith("Exchange"))
        waiting += [(one, otherwise) for one in _children(name, node)]
    return False


def _children(name: str, node: Any) -> list[Any]:
    """Return the nodes below a node of a plan that was run, adaptive or not."""
    if name == "AdaptiveSparkPlan":
        return [node.executedPlan()]
    return [node.plan()] if name.endswith("QueryStage") else listed(node.children())
