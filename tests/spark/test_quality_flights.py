"""The shipped suite on the real flights: what it holds back, and that no batch of real days stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from etl.quality.compile import CompiledSuite, compile_suite
from etl.quality.judge import judge
from etl.quality.verdict import Counts, Severity, Verdict
from tests.support.data.flights import FLIGHTS, held_flights, packaged

SUITE = Path(__file__).parents[2] / "expectations" / "flights.json"
Day = tuple[int, int]


@pytest.fixture(scope="module")
def flights(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Derive the flights as the pipeline delivers them, a second time."""
    path = tmp_path_factory.mktemp("flights") / "flights.parquet"
    rows = packaged("flights.csv.zip")
    whole = ["dep_time", "arr_time", *rows.select_dtypes("int64").columns]
    rows = rows.astype(dict.fromkeys(whole, "Int32")).assign(time_hour=pd.to_datetime(rows.time_hour))
    pa.parquet.write_table(pa.Table.from_pandas(rows, preserve_index=False), path, coerce_timestamps="us")
    frame = spark.read.parquet(str(path))
    local = "make_timestamp(year, month, day, hour, minute, 0, 'America/New_York')"
    lookups = [
        ("carrier", _lookup(spark, "airlines", {"carrier": "carrier", "name": "airline"})),
        ("dest", _lookup(spark, "airports", {"faa": "dest", "name": "dest_name"})),
        (
            "tailnum",
            _lookup(
                spark,
                "planes",
                {
                    "tailnum": "tailnum",
                    "year": "plane_year",
                    "manufacturer": "manufacturer",
                    "model": "model",
                    "seats": "seats",
                },
            ),
        ),
    ]
    frame = frame.withColumn("scheduled_departure", F.expr(local))
    for key, lookup in lookups:
        frame = frame.join(F.broadcast(lookup), key, "left")
    return frame.cache()


def _lookup(spark: SparkSession, name: str, columns: dict[str, str]) -> DataFrame:
    table = packaged(f"{name}.csv")[list(columns)].rename(columns=columns)
    kinds = {"plane_year": "double", "seats": "int"}
    schema = ", ".join(f"{column} {kinds.get(column, 'string')}" for column in table.columns)
    rows = [
        tuple(None if pd.isna(value) else value for value in row) for row in table.itertuples(index=False)
    ]
    return spark.createDataFrame(rows, schema)


@pytest.fixture(scope="module")
def suite(spark: SparkSession, flights: DataFrame) -> CompiledSuite:
    return compile_suite(SUITE, flights.schema, spark)


@pytest.fixture(scope="module")
def days(flights: DataFrame, suite: CompiledSuite) -> dict[Day, Counter[int]]:
    """Per day: mask of flags -> rows."""
    assert len(suite.flags) == 1
    found: dict[Day, Counter[int]] = {}
    for row in (
        flights.select("month", "day", *suite.flags).groupBy("month", "day", "_flags0").count().collect()
    ):
        found.setdefault((row.month, row.day), Counter())[row._flags0] += row["count"]
    return found


def _judged(
    flights: DataFrame, suite: CompiledSuite, days: dict[Day, Counter[int]], length: int
) -> dict[int, Verdict]:
    """Judge the flights in batches of `length` days."""
    day_of_year = F.dayofyear(F.make_date("year", "month", "day")) - 1
    batch = F.floor(day_of_year / length).alias("batch")
    observed = {row.batch: row.asDict() for row in flights.groupBy(batch).agg(*suite.aggregates).collect()}
    histograms: dict[int, Counter[int]] = {}
    for position, day in enumerate(sorted(days)):
        histograms.setdefault(position // length, Counter()).update(days[day])
    return {
        batch: judge(suite, _counts(suite, histogram, observed[batch]), max_quarantine_share=0.05)
        for batch, histogram in histograms.items()
    }


def _counts(suite: CompiledSuite, histogram: Counter[int], aggregates: dict[str, Any]) -> Counts:
    held = sum(rows for mask, rows in histogram.items() if _reasons(suite, mask))
    return Counts(rows=histogram.total(), held=held, histograms=(histogram,), aggregates=aggregates)


def _reasons(suite: CompiledSuite, mask: int) -> list[str]:
    return [rule.reason for rule in suite.stage_rules if rule.quarantines and mask >> rule.broken & 1]


def _broken(suite: CompiledSuite, days: Iterable[Counter[int]], reason: str) -> int:
    (rule,) = [rule for rule in suite.stage_rules if rule.reason == reason]
    return sum(rows for day in days for mask, rows in day.items() if mask >> rule.broken & 1)


def test_facts_are_delivered_and_counted(suite: CompiledSuite, days: dict[Day, Counter[int]]) -> None:
    assert sum(day.total() for day in days.values()) == FLIGHTS
    facts = {
        "flights depart": 8_255,
        "tail number is given": 2_512,
        "departed flights land": 458,
        "landed flights have an air time": 717,
    }
    assert {reason: _broken(suite, days.values(), reason) for reason in facts} == facts
    assert not any(rule.quarantines for rule in suite.stage_rules if rule.reason in facts)


def test_exactly_the_outliers_and_mistypings_are_held(
    suite: CompiledSuite, days: dict[Day, Counter[int]]
) -> None:
    held: Counter[str] = Counter()
    rows_held = 0
    for histogram in days.values():
        for mask, rows in histogram.items():
            reasons = _reasons(suite, mask)
            rows_held += rows if reasons else 0
            held.update(dict.fromkeys(reasons, rows))
    wanted = held_flights(packaged("flights.csv.zip"))
    assert held == Counter({reason: int(rows.sum()) for reason, rows in wanted.items()})
    assert rows_held == int(pd.DataFrame(wanted).any(axis=1).sum())


@pytest.mark.parametrize("length", [pytest.param(7, marks=pytest.mark.slow), 30])
def test_no_batch_of_real_days_stops(
    flights: DataFrame, suite: CompiledSuite, days: dict[Day, Counter[int]], length: int
) -> None:
    verdicts = _judged(flights, suite, days, length)
    assert {batch: verdict.stops for batch, verdict in verdicts.items() if verdict.stops} == {}
    assert sum(verdict.results[0].element_count or 0 for verdict in verdicts.values()) == FLIGHTS
    assert {result.where for verdict in verdicts.values() for result in verdict.results} == {"pass", "reader"}


def test_the_suite_shows_every_kind_of_rule(suite: CompiledSuite) -> None:
    rules = [rule.declared for rule in suite.rules]
    assert len({rule.kind for rule in rules}) >= 12
    assert {rule.severity for rule in rules} == set(Severity)
    assert all(rule.expectation.notes for rule in rules)
