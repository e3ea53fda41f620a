"""A forest in ONNX scores as scikit-learn's own, and a file of anything else is not loaded."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from onnx import ModelProto, TensorProto, helper
from sklearn.ensemble import IsolationForest

from etl.common.errors import NeedsPerson
from etl.sources.side_inputs import onnx_forest
from tests.support.data.pickles import Malicious

ROWS = np.random.default_rng(3).normal((21, 3.7, -1e6), (3, 0.05, 1e5), (4000, 3))


def fitted(rows: np.ndarray, **settings: object) -> IsolationForest:
    return IsolationForest(random_state=5, **settings).fit(rows)


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (ROWS, {}),
        (ROWS.round(1), {"n_estimators": 7, "max_samples": 3000}),
        (ROWS[:, :1], {"n_estimators": 300}),
        (np.repeat(ROWS[:5], 40, axis=0), {"n_estimators": 10}),
        (np.ones((200, 2)), {"n_estimators": 3}),
        (np.arange(4, dtype=float)[:, None], {"max_samples": 2}),
    ],
    ids=["as by default", "deep trees", "one column", "five values", "one value", "leaves of two"],
)
def test_its_scores_are_those_of_scikit_learn(rows: np.ndarray, settings: dict[str, object]) -> None:
    one = fitted(rows, **settings)
    content = onnx_forest.written(one, rows.shape[1])
    assert content == onnx_forest.written(one, rows.shape[1])
    onnx_forest.refuse_other(content, "the model")
    beyond = rows + np.random.default_rng(4).normal(0, 5, rows.shape)
    for asked in (rows, beyond):
        np.testing.assert_allclose(onnx_forest.scores(content, asked), -one.score_samples(asked), atol=2e-6)


def test_a_row_on_a_limit_falls_to_the_same_leaf() -> None:
    """Every value is the float32 next to a limit of a tree, on either side of it and the limit itself."""
    one = fitted(ROWS[:, :1], n_estimators=1, max_samples=64)
    tree = one.estimators_[0].tree_
    limits = tree.threshold[tree.children_left >= 0]
    near = limits.astype(np.float32)
    sides = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    asked = np.concatenate([limits, *sides]).astype(np.float64)[:, None]
    content = onnx_forest.written(one, 1)
    np.testing.assert_allclose(onnx_forest.scores(content, asked), -one.score_samples(asked), atol=1e-6)


def test_a_row_that_lacks_a_value_has_no_score_and_the_others_theirs() -> None:
    one = fitted(ROWS)
    columns: list[list[float | None]] = [list(column) for column in ROWS[:6].T]
    columns[0][1], columns[1][2], columns[2][3], columns[0][4] = None, float("nan"), float("inf"), 1e39
    batch = pa.StructArray.from_arrays(
        [pa.array(column, pa.float64()) for column in columns], ["a", "b", "c"]
    )
    nothing = batch.slice(0, 0)
    found, empty = onnx_forest.scored(onnx_forest.written(one, 3), [batch, nothing])
    assert [one is None for one in found.to_pylist()] == [False, True, True, True, True, False]
    assert (found.type, len(empty), empty.type) == (pa.float64(), 0, pa.float64())
    wanted = -one.score_samples(ROWS[[0, 5]])
    np.testing.assert_allclose([found[0].as_py(), found[5].as_py()], wanted, atol=1e-6)


def changed(change: str) -> bytes:
    model = ModelProto()
    model.ParseFromString(onnx_forest.written(fitted(ROWS), 3))
    if change == "another operator":
        model.graph.node.append(helper.make_node("If", ["score"], ["other"]))
    if change == "an operator of its own":
        model.graph.node[1].domain = "com.example"
    if change == "a function":
        model.functions.append(helper.make_function("com.example", "f", ["x"], ["y"], [], []))
    if change == "data elsewhere":
        model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    if change == "data of an operator elsewhere":
        tensor = TensorProto(data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
        model.graph.node[0].attribute.append(helper.make_attribute("nodes_values_as_tensor", tensor))
    if change == "sparse data":
        model.graph.sparse_initializer.add()
    if change == "nothing in it":
        del model.graph.node[:]
    return model.SerializeToString()


@pytest.mark.parametrize(
    "change",
    [
        "another operator",
        "an operator of its own",
        "a function",
        "data elsewhere",
        "data of an operator elsewhere",
        "sparse data",
        "nothing in it",
    ],
)
def test_what_is_not_of_its_operators_alone_is_refused(change: str) -> None:
    with pytest.raises(NeedsPerson, match="the model is no isolation forest in ONNX"):
        onnx_forest.refuse_other(changed(change), "the model")


def test_a_pickle_is_refused_and_does_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "it was executed"
    content = pickle.dumps(Malicious(mark))
    for refused in (content, b"", content * 1000):
        with pytest.raises(NeedsPerson, match="no isolation forest"):
            onnx_forest.refuse_other(refused, "the model")
    with pytest.raises(Exception, match=r"INVALID_PROTOBUF"):
        onnx_forest.scores(content, ROWS)
    assert not mark.exists()
    pickle.loads(content)
    assert mark.exists(), "the test would see it"
