"""The pass without PostgreSQL and S3: flags, histograms and samples from one job, in plain Python."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pyspark.sql import DataFrame, Observation

from etl.quality.compile import CompiledSuite
from etl.quality.verdict import FLAGS_PER_WORD, SAMPLES_PER_RULE, Counts


def counts_of(suite: CompiledSuite, frame: DataFrame, *, malformed: int = 0) -> Counts:
    """Return what the stage would report of `frame`, collected as Arrow so that values are Arrow's."""
    flagged = frame.select("*", *suite.flags)
    observation = Observation()
    if suite.aggregates:
        flagged = flagged.observe(observation, *suite.aggregates)
    rows: list[dict[str, Any]] = flagged.toArrow().to_pylist()
    samples: dict[int, list[tuple[Any, ...]]] = {}
    held = 0
    for row in rows:
        broken = [rule for rule in suite.stage_rules if _is_set(row, rule.broken)]
        held += any(rule.quarantines for rule in broken)
        for rule in broken:
            kept = samples.setdefault(rule.number, [])
            if len(kept) < SAMPLES_PER_RULE:
                kept.append(tuple(row[name] for name in rule.columns))
    return Counts(
        rows=len(rows),
        held=held,
        histograms=tuple(Counter(row[f"_flags{w}"] for row in rows) for w in range(len(suite.flags))),
        samples=samples,
        aggregates=observation.get if suite.aggregates else {},
        malformed=malformed,
    )


def _is_set(row: dict[str, Any], flag: int) -> bool:
    word, bit = divmod(flag, FLAGS_PER_WORD)
    return bool(row[f"_flags{word}"] >> bit & 1)
