"""`python -m benchmarks.elsewhere`: the rules that need a shuffle or a window, which GX judges on the staged rows."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.__main__ import FOLDER
from benchmarks.ground import Ground, prepared
from etl.quality.compile import CompiledSuite, compile_suite
from etl.quality.gx_fallback import evaluate_by_gx

RULES: dict[str, dict[str, Any]] = {
    "expect_column_values_to_be_unique": {"column": "event_id"},
    "expect_compound_columns_to_be_unique": {"column_list": ["device_id", "event_time"]},
    "expect_column_values_to_be_increasing": {"column": "event_time"},
    "expect_column_unique_value_count_to_be_between": {"column": "device_id", "min_value": 1},
    "expect_column_distinct_values_to_be_in_set": {"column": "state", "value_set": ["on", "off", "idle"]},
    "expect_column_median_to_be_between": {"column": "temperature", "min_value": 0},
    "expect_column_quantile_values_to_be_between": {
        "column": "humidity",
        "quantile_ranges": {"quantiles": [0.05, 0.95], "value_ranges": [[0, 100], [0, 100]]},
    },
    "expect_column_value_z_scores_to_be_less_than": {
        "column": "temperature",
        "threshold": 4,
        "double_sided": True,
    },
}


def main(
    rows: Annotated[int, typer.Option(help="events of a batch")] = 2_000_000,
    rounds: Annotated[int, typer.Option(help="measured rounds, after one that is thrown away")] = 3,
    files: Annotated[int, typer.Option(help="files of the batch")] = 16,
    folder: Annotated[Path, typer.Option(help="where events, services and jars are kept")] = FOLDER,
    jars: Annotated[Path | None, typer.Option(help="where resolved jars are; default: in the folder")] = None,
) -> None:
    """Measure what each such rule adds to a batch: its own seconds, from Parquet on S3, as `judge` would wait for them."""
    with prepared(folder, rows=rows, files=files, jars=jars) as ground:
        staged = ground.s3a("elsewhere")
        ground.frame().write.mode("overwrite").parquet(staged)
        for kind in RULES:
            suite = _compiled(ground, kind)
            seconds = [_measured(ground, suite, staged) for _ in range(rounds + 1)][1:]
            typer.echo(
                f"{kind}: {statistics.median(seconds):.2f} s (from {min(seconds):.2f} to {max(seconds):.2f})"
            )


def _compiled(ground: Ground, kind: str) -> CompiledSuite:
    rule = {"type": kind, "kwargs": RULES[kind], "severity": "info"}
    suite = compile_suite({"name": kind, "expectations": [rule]}, ground.frame().schema, ground.spark)
    assert suite.by_gx, f"{kind} is evaluated in the pass"
    return suite


def _measured(ground: Ground, suite: CompiledSuite, staged: str) -> float:
    ground.rest()
    started = time.monotonic()
    found = evaluate_by_gx(suite, ground.spark.read.schema(suite.schema).parquet(staged))
    assert found
    return time.monotonic() - started


if __name__ == "__main__":
    typer.run(main)
