"""Reads from a transform's plan which state it keeps between micro-batches, and what follows for its stream.

The state is in the checkpoint. It grows with every batch in its order, so no batch stands alone: one that was
delivered already still has to run, a single one can't be replayed, and a checkpoint without its state is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from etl.common.errors import SetupError
from etl.common.record_columns import SOURCE_PATH
from etl.pipeline.state_fingerprint import COMPUTING
from etl.spark.session import setting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


log = logging.getLogger("sluice")

Node = tuple[Any, list[Any]]  # of a plan, with those of its children that are streaming

_KEYS = {
    "Aggregate": "groupingExpressions",
    "Deduplicate": "keys",
    "DeduplicateWithinWatermark": "keys",
    "FlatMapGroupsInPandasWithState": "groupingAttributes",
    "TransformWithStateInPySpark": "leftAttributes",
}
_STATEFUL = frozenset({*_KEYS, "Distinct", "GlobalLimit"})
_NO_FILES = "spark.sql.streaming.noDataMicroBatches.enabled"
AGGREGATE = "Aggregate"
_DROPPED = "numRowsDroppedByWatermark"


def source_numbers(frame: DataFrame) -> tuple[int, ...]:
    """Return the numbers of the pipeline's sources as Spark counts them.

    They are in the plan's order, each as often as the transform takes it. Raises SetupError when the
    transform reads a stream that is none of them.
    """
    return numbers_of(streaming_nodes(frame))


def numbers_of(nodes: Sequence[Node]) -> tuple[int, ...]:
    return tuple(_number(node) for node, inputs in nodes if not inputs)


def _number(leaf: Any) -> int:
    number = None
    if leaf.nodeName() == "StreamingRelation":  # of files
        options = leaf.dataSource().options()
        number = options.apply(SOURCE_NUMBER) if options.contains(SOURCE_NUMBER) else None
    elif leaf.nodeName() == "StreamingRelationV2":  # of topics
        number = leaf.extraOptions().get(SOURCE_NUMBER)
    if number is None:
        raise SetupError(
            f"The transform reads a stream that is not among its sources ({leaf.nodeName()})",
            remedy="declare it in `sources`, with a stream of its own if its schema differs",
        )
    return int(number)


def operators(frame: DataFrame) -> tuple[str, ...]:
    """Describe every operator of a streaming frame that keeps state, from the output down, with its keys."""
    return operators_of(streaming_nodes(frame))


def operators_of(nodes: Sequence[Node]) -> tuple[str, ...]:
    if not (stateful := list(_stateful(nodes))):
        return ()  # what is computed takes longer to look at than all the rest
    computed = _computed(nodes)
    return tuple(_described(node, computed) for node in stateful)


def _stateful(nodes: Sequence[Node]) -> Iterator[Any]:
    return (node for node, inputs in nodes if inputs and _keeps_state(str(node.nodeName()), len(inputs)))


def streaming_nodes(frame: DataFrame) -> list[Node]:
    """List the streaming nodes of a plan, from output down and left on, with their streaming children."""
    nodes, waiting = list[Node](), [frame._jdf.queryExecution().analyzed()]
    while waiting:
        node = waiting.pop()
        streams = [child for child in listed(node.children()) if child.isStreaming()]
        nodes.append((node, streams))
        waiting += reversed(streams)
    return nodes


def _keeps_state(name: str, streams: int) -> bool:
    return name in _STATEFUL or "WithState" in name or (name == "Join" and streams > 1)


def watermarked(frame: DataFrame) -> frozenset[str]:
    """Return the ids in the plan of the columns that the watermarks of a transform that keeps state are on.

    One under another name is found as the one that it was; a computed one is no column of what is read.
    Without state there are none.
    """
    nodes = streaming_nodes(frame)
    if next(_stateful(nodes), None) is None:
        return frozenset()
    computed, ids = _computed(nodes), set[str]()
    for node, _ in nodes:
        column = node.eventTime() if node.nodeName() == "EventTimeWatermark" else None
        while column is not None and column.nodeName() == "AttributeReference":
            ids.add(column.exprId().toString())
            column = computed.get(column.exprId().toString())
    return frozenset(ids)


def column_ids(frame: DataFrame) -> dict[str, str]:
    """Map the ids in the plan of a frame's columns to their names."""
    return {
        one.exprId().toString(): one.name() for one in listed(frame._jdf.queryExecution().analyzed().output())
    }


def processing_time_batches(frame: DataFrame, state: Sequence[str]) -> AbstractContextManager[None]:
    """Keep a query with timers by the clock from making batches without files, if it starts within.

    It would never end otherwise. For any other frame nothing changes. `state` names the operators of the frame that keep
    state: where there are none, it has no timers.
    """
    clocked = bool(state) and any(_clocked(node) for node, _ in streaming_nodes(frame))
    return setting(frame.sparkSession, _NO_FILES, "false") if clocked else nullcontext()


def _clocked(node: Any) -> bool:
    name = str(node.nodeName())
    if "WithState" not in name:
        return False
    by = node.timeMode() if name.startswith("TransformWithState") else node.timeout()
    return "ProcessingTime" in str(by.toString())


def _described(node: Any, computed: Mapping[str, Any]) -> str:
    """Describe an operator by what it can't change while it has state: its keys, or how it joins."""
    name = str(node.nodeName())
    if name == "Join":
        return _joined(node, computed)
    if name not in _KEYS:
        return name
    keys = listed(getattr(node, _KEYS[name])())
    described = f"{name} by {', '.join(key.sql() + _made_of(key, computed) for key in keys)}"
    return described + (_figures(node, computed) if name == AGGREGATE else "")


def _joined(node: Any, computed: Mapping[str, Any]) -> str:
    """Describe how a join joins, and what the columns that it joins by are computed of."""
    how = f"Join {node.joinType().sql()} on"
    if node.condition().isEmpty():
        return f"{how} all"
    on = node.condition().get()
    made = "".join(dict.fromkeys(_expressions(on, computed)))
    return f"{how} {on.sql()}" + (COMPUTING + made.strip() if made else "")


def _figures(node: Any, computed: Mapping[str, Any]) -> str:
    """Describe what an aggregate computes, in its order.

    Spark compares the types of what is kept, not what it is a figure of.
    """
    figures, waiting = list[str](), listed(node.aggregateExpressions())[::-1]
    while waiting:
        one = waiting.pop()
        if one.nodeName() == "AggregateExpression":
            figures.append(one.sql() + "".join(_expressions(one, computed)))
        else:
            waiting += listed(one.children())[::-1]
    return f"{COMPUTING}{', '.join(dict.fromkeys(figures))}" if figures else ""


def _expressions(expression: Any, computed: Mapping[str, Any]) -> Iterator[str]:
    """Yield what each computed column within an expression is computed of, in its order."""
    for leaf in listed(expression.collectLeaves()):
        if (made := _origin(leaf, computed)) is not None:
            yield f" ({leaf.name()} = {made.sql()})"


def _made_of(key: Any, computed: Mapping[str, Any]) -> str:
    """Describe the columns and constants that a named key is computed of; empty when there are fewer than two.

    They tell what the name does not: a window of another width keeps its name.
    """
    made = _origin(key, computed)
    if made is None:
        return ""
    values = listed(made.valExprs()) if made.nodeName() == "CreateNamedStruct" else [made]
    leaves = [leaf for value in values for leaf in listed(value.collectLeaves())]
    plain = dict.fromkeys(
        leaf.sql() for leaf in leaves if leaf.nodeName() in ("AttributeReference", "Literal")
    )
    return f" ({', '.join(plain)})" if len(plain) > 1 else ""


def _origin(column: Any, computed: Mapping[str, Any]) -> Any | None:
    """Return what a column is computed of; None for one that is read, as is the path of the record's file.

    That is computed of the landing's place as well, of which no state is.
    """
    if column.nodeName() != "AttributeReference":
        return None
    made = computed.get(column.exprId().toString())
    leaves = listed(made.collectLeaves()) if made is not None else []
    if any(leaf.nodeName() == "AttributeReference" and leaf.name() == SOURCE_PATH for leaf in leaves):
        return None
    return made


def _computed(nodes: Sequence[Node]) -> dict[str, Any]:
    """Map the ids of the columns that a plan computes and names to their expressions."""
    by_id: dict[str, Any] = {}
    for node, _ in nodes:
        if node.nodeName() == "Project":
            aliases = [one for one in listed(node.projectList()) if one.nodeName() == "Alias"]
            by_id |= {one.exprId().toString(): one.child() for one in aliases}
        elif node.nodeName() == "Expand":  # several rows of one: sliding windows, rollup
            row = zip(listed(node.output()), listed(node.projections().head()), strict=True)
            by_id |= {
                one.exprId().toString(): made for one, made in row if made.nodeName() != "AttributeReference"
            }
    return by_id


def listed(sequence: Any) -> list[Any]:
    """Return the elements of a Scala Seq as a list."""
    return [sequence.apply(number) for number in range(sequence.size())]


def rows_dropped_late(execution: Any) -> int:
    """Count the rows, or groups of rows, that a micro-batch which was run left out behind the watermark."""
    total, waiting = 0, [execution.executedPlan()]
    while waiting:
        node = waiting.pop()
        if node.metrics().contains(_DROPPED):
            total += node.metrics().apply(_DROPPED).value()
        waiting += listed(node.children())
    return total


SOURCE_NUMBER = "sluiceSource"  # an option that Spark keeps in the plan and makes nothing of
