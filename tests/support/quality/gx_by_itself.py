"""Great Expectations used the way its own guide says, and the two results side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import great_expectations as gx
from pyspark.sql import DataFrame

from etl.quality.compile import compile_suite
from etl.quality.gx_fallback import evaluate_by_gx
from etl.quality.judge import judge
from etl.quality.verdict import Verdict
from tests.support.quality.pass_evaluator import counts_of

SUMMARY = {"result_format": "SUMMARY", "partial_unexpected_count": 20}
Results = dict[str, dict[str, Any]]


def by_gx(suite: Mapping[str, Any], frame: DataFrame, result_format: Mapping[str, Any] = SUMMARY) -> Results:
    """GX's own validation of the frame: results as JSON by the rule's `meta.name`."""
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    # Not persisted: Spark's cache prunes by column statistics that ignore NaN, so that a filter on a cached
    # frame loses NaN rows, and GX's default would list fewer unexpected values than it counts.
    asset = context.data_sources.add_spark("spark", persist=False).add_dataframe_asset("frame")
    batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": frame})
    outcome = batch.validate(gx.ExpectationSuite(**suite), result_format=dict(result_format))
    assert len(outcome.results) == len(suite["expectations"])
    return {result.expectation_config.meta["name"]: result.to_json_dict() for result in outcome.results}


def in_one_pass(suite: Mapping[str, Any], frame: DataFrame) -> Verdict:
    compiled = compile_suite(suite, frame.schema, frame.sparkSession)
    counts = counts_of(compiled, frame)
    return judge(compiled, counts, evaluate_by_gx(compiled, frame), max_quarantine_share=1.0)


def differences(suite: Mapping[str, Any], frame: DataFrame) -> list[str]:
    """Return every place where the one pass and GX disagree, as readable lines."""
    theirs = by_gx(suite, frame)
    ours = {result.reason: result for result in in_one_pass(suite, frame).results}
    assert set(ours) == set(theirs)
    found = []
    for name, expected in theirs.items():
        got = ours[name].result
        if not same(_without_identity(got), _without_identity(in_words(expected, got))):
            found.append(f"{name}:\n   one pass {got}\n   GX       {expected}")
    return found


def same(one: Any, other: Any) -> bool:
    """Equal, types included; floats to a relative 1e-9."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-9)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def in_words(theirs: Any, ours: Any) -> Any:
    """Return GX's content with NaN and infinities in words where ours has them so: GX writes null for NaN."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return {key: in_words(value, ours.get(key)) for key, value in theirs.items()}
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return [in_words(*pair) for pair in zip(theirs, ours, strict=True)]
    if ours == "NaN" and theirs is None:
        return ours
    return (
        {math.inf: "Infinity", -math.inf: "-Infinity"}.get(theirs, theirs)
        if isinstance(theirs, float)
        else theirs
    )


def _without_identity(result: Mapping[str, Any]) -> dict[str, Any]:
    """GX adds the batch it judged and ids of its own making."""
    kept = {key: value for key, value in result.items() if key != "expectation_config"}
    config = dict(result["expectation_config"])
    config.pop("id", None)
    config["kwargs"] = {key: value for key, value in config["kwargs"].items() if key != "batch_id"}
    return {**kept, "expectation_config": config}
