"""An isolation forest as ONNX: written where it was trained, applied in Spark's Python workers.

The file holds operators and no code: three of them; a file with any other is refused. Loading it needs no scikit-learn,
which costs a worker seconds to import, and whose next release might read its own files differently. Its scores are
scikit-learn's own to six digits, and each row falls to the same leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from etl.common.errors import NeedsPerson

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnxruntime import InferenceSession
    from sklearn.ensemble import IsolationForest

FEATURES, SCORE = "features", "score"  # what it takes and gives
OPERATORS = frozenset({("ai.onnx.ml", "TreeEnsembleRegressor"), ("", "Mul"), ("", "Pow")})


def written(forest: IsolationForest, features: int) -> bytes:
    """Convert the fitted forest's `-score_samples`, of `features` columns, to ONNX.

    The more of an anomaly a row is, the nearer its score is to 1.
    """
    from onnx import TensorProto, checker, helper

    one_tree = float(_mean_depth(np.array(forest.max_samples_)))
    share = -1 / (len(forest.estimators_) * one_tree)
    graph = helper.make_graph(
        [
            helper.make_node(
                "TreeEnsembleRegressor", [FEATURES], ["depth"], domain="ai.onnx.ml", **_trees(forest)
            ),
            helper.make_node("Mul", ["depth", "share"], ["exponent"]),
            helper.make_node("Pow", ["two", "exponent"], [SCORE]),
        ],
        "IsolationForest",
        [helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, [None, features])],
        [helper.make_tensor_value_info(SCORE, TensorProto.FLOAT, [None, 1])],
        [
            helper.make_tensor("share", TensorProto.FLOAT, [1], [share]),
            helper.make_tensor("two", TensorProto.FLOAT, [1], [2.0]),
        ],
    )
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=8, producer_name="sluice")
    checker.check_model(model)
    return bytes(model.SerializeToString())


def _trees(forest: IsolationForest) -> dict[str, Any]:
    """Return ONNX's attributes of all trees; a leaf weighs as much as the way to it is long."""
    parts = [_tree(number, one.tree_) for number, one in enumerate(forest.estimators_)]
    joined = {name: [value for part in parts for value in part[name]] for name in parts[0]}
    return joined | {"n_targets": 1, "aggregate_function": "SUM"}


def _tree(number: int, tree: Any) -> dict[str, list[Any]]:
    leaf = tree.children_left < 0
    nodes = np.arange(tree.node_count)
    depth = np.zeros(tree.node_count)
    for parent in nodes[~leaf]:  # before its children
        depth[[tree.children_left[parent], tree.children_right[parent]]] = depth[parent] + 1
    limits = tree.threshold.astype(np.float32)
    # A value is compared as float32: the same ones are below the next float32 below the limit.
    limits = np.where(limits > tree.threshold, np.nextafter(limits, np.float32(-np.inf)), limits)
    weight = depth + _mean_depth(tree.n_node_samples)
    return {
        "nodes_treeids": [number] * tree.node_count,
        "nodes_nodeids": nodes.tolist(),
        "nodes_featureids": np.where(leaf, 0, tree.feature).tolist(),
        "nodes_values": np.where(leaf, 0, limits).tolist(),
        "nodes_modes": np.where(leaf, "LEAF", "BRANCH_LEQ").tolist(),
        "nodes_truenodeids": np.where(leaf, 0, tree.children_left).tolist(),
        "nodes_falsenodeids": np.where(leaf, 0, tree.children_right).tolist(),
        "target_treeids": [number] * int(leaf.sum()),
        "target_nodeids": nodes[leaf].tolist(),
        "target_ids": [0] * int(leaf.sum()),
        "target_weights": weight[leaf].tolist(),
    }


def _mean_depth(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return how deep a tree that isolates each of so many rows is on average.

    After Liu, Ting and Zhou, *Isolation Forest*, 2008.
    """
    many = np.maximum(rows, 3).astype(np.float64)
    deep = 2 * (np.log(many - 1) + np.euler_gamma) - 2 * (many - 1) / many
    return np.where(rows <= 1, 0.0, np.where(rows == 2, 1.0, deep))


def refuse_other(content: bytes, where: str) -> None:
    """Raise NeedsPerson unless `content` is ONNX, whole in itself, of the operators that `written` writes."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx import ModelProto, TensorProto

    model = ModelProto()
    try:
        model.ParseFromString(content)
        operators = {(node.domain, node.op_type) for node in model.graph.node}
    except DecodeError:
        operators = set()
    given = [one.t for node in model.graph.node for one in node.attribute if one.HasField("t")]
    tensors = [*model.graph.initializer, *given]
    incomplete = bool(model.graph.sparse_initializer) or any(
        one.data_location == TensorProto.EXTERNAL for one in tensors
    )
    if operators and operators <= OPERATORS and not model.functions and not incomplete:
        return
    named = ", ".join(sorted(name for _, name in operators - OPERATORS))
    raise NeedsPerson(
        f"{where} is no isolation forest in ONNX" + (f": it has {named}" if named else ""),
        remedy="see who wrote it; `sluice train` of its pipeline makes a new version",
    )


def scores(content: bytes, columns: NDArray[Any]) -> NDArray[np.float64]:
    """Score each row of `columns`.

    The score is NaN where one of the row's values is none, or is not finite as float32.
    """
    with np.errstate(over="ignore"):
        rows = columns.astype(np.float32)
    whole = np.isfinite(rows).all(axis=1)
    result = np.full(len(rows), np.nan)
    if whole.any():
        result[whole] = _session(content).run([SCORE], {FEATURES: rows[whole]})[0][:, 0]
    return result


def scored(content: bytes, batches: Iterable[pa.StructArray]) -> Iterator[pa.Array]:
    """Yield the scores of batches of rows, as Spark hands these over; null where there is no score.

    A batch has a field for each feature, all of them doubles.
    """
    for batch in batches:
        columns = [one.to_numpy(zero_copy_only=False) for one in batch.flatten()]
        result = scores(content, np.column_stack(columns))
        yield pa.array(result, mask=np.isnan(result))


@lru_cache(maxsize=8)
def _session(content: bytes) -> InferenceSession:
    """Return a session that runs the model; the worker keeps it, from task to task.

    Spark has the cores busy: one thread will do.
    """
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return InferenceSession(content, options, providers=["CPUExecutionProvider"])
