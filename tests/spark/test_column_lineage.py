"""What each column is made of, as Spark's plan of the transform has it, and nothing where that is not known."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from etl.common.settings import Settings
from etl.pipeline import Append, Files, Lookup, Pipeline, load_pipeline
from etl.runs.telemetry.outbox import lineage_note
from etl.sources.kinds.declared import kind_of
from etl.sources.open import open_kind
from etl.sources.side_inputs.scorers import ModelScorer, Version
from tests.support.environment import REPOSITORY

IDENTITY, COMPUTED, SUMMED = "IDENTITY", "TRANSFORMATION", "AGGREGATION"
CLOCK = ("year", "month", "day", "hour", "minute")  # what a scheduled departure is computed of


VERSION = Version(
    pipeline="device_anomalies",
    name="anomaly",
    version=1,
    location="s3://lake/models/1.onnx",
    bytes=1,
    digest="",
    threshold=0.5,
    metadata_location="",
    report={},
    made_at=dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
)


class Models:
    """Has one version of each model, whose scores nobody asks for."""

    def required(self, pipeline: str, name: str) -> Version:
        return VERSION

    def scorer(self, pipeline: Pipeline, name: str) -> tuple[ModelScorer, Version]:
        features = pipeline.models[name].features
        return ModelScorer(version=1, threshold=VERSION.threshold, features=features, content=b""), VERSION


Said = Mapping[str, Mapping[str, str]]


def said(spark: SparkSession, folder: Path, pipeline: Pipeline) -> tuple[Said, Mapping[str, str]]:
    """Return what is noted of the pipeline's columns, and of what decides on its rows."""
    for lookup in pipeline.lookups.values():
        names = [column.split()[0] for column in lookup.schema.split(",")]
        (folder / lookup.pattern).parent.mkdir(parents=True, exist_ok=True)
        (folder / lookup.pattern).write_text(f"{','.join(names)}\n{','.join('1' for _ in names)}\n")
    settings = Settings(home=folder, landing=str(folder), openlineage="http://127.0.0.1:9")
    source = open_kind(spark, kind_of(pipeline), settings, models=Models(), stream=False)
    note = lineage_note(settings, pipeline, source, source.shape())
    assert note is not None
    assert note.made_of is not None
    return {name: named(one) for name, one in note.made_of["columns"].items()}, named(note.made_of["rows"])


def named(lineage: list[dict[str, Any]]) -> Mapping[str, str]:
    """Name each field by its stream or lookup, and tell how it takes part."""
    return {
        f"{one['name']}{'!' if one['lookup'] else '.'}{one['field']}".removeprefix("."): "|".join(one["how"])
        for one in lineage
    }


def of(*fields: str, how: str = IDENTITY) -> Mapping[str, str]:
    return dict.fromkeys(fields, how)


SHIPPED: Mapping[str, tuple[Said, Mapping[str, str]]] = {
    "fleet": (
        {
            **{name: of(name) for name in ("tailnum", "carrier")},
            "last_dest": of("dest"),
            "last_departure": of(*CLOCK, how=COMPUTED),
            "built": of("planes!year"),
            **{name: of(f"planes!{name}") for name in ("manufacturer", "model", "engines", "seats")},
        },
        {"tailnum": "FILTER|JOIN", "planes!tailnum": "JOIN"},
    ),
    "delays_by_carrier": (  # how many flights there are is counted of no field
        {
            "carrier": of("carrier", how=COMPUTED),
            "origin": of("origin", how=COMPUTED),
            **{name: of("dep_delay", how=SUMMED) for name in ("departed", "minutes_late", "mean_delay")},
        },
        of("carrier", "origin", how="GROUP_BY"),
    ),
    "departures_per_hour": (
        {
            "hour": of(*CLOCK, "time_hour", how="CONDITIONAL|TRANSFORMATION"),
            "origin": of("origin"),
            "departed": of("dep_time", how=SUMMED),
            "delayed": of("dep_delay", how="CONDITIONAL"),
            "latest_departure": of(*CLOCK, "time_hour", how=SUMMED),
        },
        {**of(*CLOCK, "time_hour", how="FILTER|GROUP_BY"), "origin": "GROUP_BY"},
    ),
    "quiet_hours": (
        {
            "hour": of("weather.time_hour"),
            **{name: of(f"weather.{name}") for name in ("origin", "temp", "wind_speed", "visib")},
        },
        {
            "origin": "FILTER|JOIN",
            **of("weather.origin", "weather.time_hour", *CLOCK, "time_hour", how="JOIN"),
        },
    ),
    "device_anomalies": (
        {
            **{name: of(name) for name in ("device", "reading", "at", "temperature", "voltage")},
            **{name: of("temperature", "voltage", how=COMPUTED) for name in ("score", "anomaly")},
        },
        {},
    ),
    "unpaid_openings": ({}, {}),  # a function of Python makes its rows
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_columns_of_shipped_pipelines_are_followed_to_the_fields_they_are_made_of(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    found = said(spark, tmp_path, load_pipeline(name, [REPOSITORY / "etl/pipelines"]))
    assert found == SHIPPED[name]


CODES = Lookup("codes.csv", schema="code string, name string", key=("code",))
TAPS = Pipeline(
    name="taps",
    sources=(Files("taps/*.jsonl"),),
    schema="id bigint, shop string, code string, other string, price double, items array<struct<name: string>>",
    lookups={"codes": CODES},
    transform=lambda df, *, codes: df,
    sink=Append(),
)


def looked_up_twice(df: DataFrame, *, codes: DataFrame) -> DataFrame:
    first = codes.select("code", F.col("name").alias("first"))
    second = codes.select(F.col("code").alias("other"), F.col("name").alias("second"))
    return (
        df.join(first, "code")
        .join(second, "other", "leftanti")
        .select("id", "first")
        .union(df.select("id", "shop"))
    )


def over_a_window(df: DataFrame, *, codes: DataFrame) -> DataFrame:
    by_shop = Window.partitionBy("shop").orderBy("id")
    return df.select(
        "id", F.sum("price").over(by_shop).alias("so_far"), F.row_number().over(by_shop).alias("place")
    )


def exploded(df: DataFrame, *, codes: DataFrame) -> DataFrame:
    items = df.select("id", "items", F.explode("items").alias("item")).where("item.name != ''")
    return items.select("id", "items", F.col("item.name").alias("name"), F.lit(1).alias("one"))


def by_python(df: DataFrame, *, codes: DataFrame) -> DataFrame:
    short = F.udf(lambda text: text[:3], "string")

    def same(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield from batches

    made = df.select("code", "id").mapInPandas(same, "code string, number bigint")
    return made.join(codes, "code").select(
        "number", short("name").alias("short"), F.concat("name", "code").alias("both")
    )


def with_subquery(df: DataFrame, *, codes: DataFrame) -> DataFrame:
    most: Column = codes.agg(F.max("name")).scalar()
    return df.select(
        "id",
        F.when(F.col("price") > 1, F.col("shop")).otherwise(F.col("code")).alias("which"),
        most.alias("most"),
    )


def passed_on(df: DataFrame, *, codes: DataFrame) -> DataFrame:
    narrow = df.select("id", "shop")
    some = narrow.alias("n").hint("broadcast").repartition(2, "id").sort("id").distinct().sample(0.5)
    few = some.dropDuplicates(["id"]).offset(1).limit(5).intersect(narrow)
    return few.union(df.select("id", "code"))


def by_state(df: DataFrame, *, codes: DataFrame) -> DataFrame:
    """Put out what Python makes of a state: it has as many columns as what it is made of, in another order."""
    made = (
        df.select("id", "shop")
        .groupBy("shop")
        .applyInPandasWithState(
            lambda key, frames, state: frames,
            outputStructType="shop string, number bigint",
            stateStructType="seen bigint",
            outputMode="append",
            timeoutConf=GroupStateTimeout.NoTimeout,
        )
    )
    return df.select("shop", "id").union(made).select("shop", "id", F.lit(1).alias("one"))


class Counting(StatefulProcessor):
    """Makes rows of a state that nobody runs."""

    def init(self, handle: StatefulProcessorHandle) -> None: ...

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        yield from rows

    def close(self) -> None: ...


def by_processor(df: DataFrame, *, codes: DataFrame) -> DataFrame:
    by_shop = df.groupBy("shop")
    made = by_shop.transformWithStateInPandas(Counting(), "shop string, number bigint", "append", "None")
    return made.union(df.select("shop", "id"))


def with_named_query(df: DataFrame, *, codes: DataFrame) -> DataFrame:
    """Put out what a query with a name has, by ids that the plan has at other places as well."""
    query = (
        "WITH named AS (SELECT shop FROM {df}) SELECT code, id FROM {df} UNION ALL SELECT shop, 1 FROM named"
    )
    return df.sparkSession.sql(query, df=df).union(df.select("other", "id"))


def united_twice(df: DataFrame, *, codes: DataFrame) -> DataFrame:
    """Put out columns of one stream beneath each other, none of which is in two parts."""
    both = df.select("shop").union(df.select("other")).repartition(2)
    return df.select("code").union(both)


def beside_each_other(df: DataFrame, *, codes: DataFrame) -> DataFrame:
    """Put out rows of a kind of node that is not known, which has `id` of the union's other part at another place."""
    one = df.sparkSession.sql("SELECT 1 AS place")
    return (
        df.select("id").lateralJoin(one).union(df.select(F.lit(1), "id")).select("id", F.lit(1).alias("one"))
    )


Transform = Callable[..., DataFrame]
OWN: Mapping[str, tuple[Transform, Said, Mapping[str, str]]] = {
    "a lookup that is joined twice, and a union": (
        looked_up_twice,
        {"id": of("id"), "first": of("codes!name", "shop")},
        of("code", "codes!code", "other", how="JOIN"),
    ),
    "windows": (
        over_a_window,
        {
            "id": of("id"),
            "so_far": {"price": SUMMED, "shop": "WINDOW", "id": "WINDOW"},
            "place": of("id", "shop", how="WINDOW"),
        },
        {},
    ),
    "what is nested": (
        exploded,
        {"id": of("id"), "items": of("items", how=COMPUTED), "name": of("items", how=COMPUTED)},
        of("items", how="FILTER"),
    ),
    "rows that Python makes, and a function of Python's": (
        by_python,
        {"short": of("codes!name", how=COMPUTED)},
        of(),
    ),
    "what passes columns on": (
        passed_on,
        {"id": of("id"), "shop": of("shop", "code")},
        {"id": "FILTER|SORT", "shop": "FILTER"},
    ),
    "a union with what Python makes of a state": (by_state, {}, {}),
    "a union with what a processor makes of a state": (by_processor, {}, {}),
    "a query with a name, which is not followed": (with_named_query, {"id": of("id")}, {}),
    "a union of a union": (united_twice, {"code": of("code", "shop", "other")}, {}),
    "a union with what is not known": (beside_each_other, {}, {}),
    "a condition, and a subquery": (
        with_subquery,
        {"id": of("id"), "which": {"price": "CONDITIONAL", **of("shop", "code", how=COMPUTED)}},
        {},
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_columns_are_followed_through(spark: SparkSession, tmp_path: Path, name: str) -> None:
    transform, columns, rows = OWN[name]
    assert said(spark, tmp_path, replace(TAPS, transform=transform)) == (columns, rows)


def test_a_plan_that_can_not_be_read_is_logged_and_fails_nothing(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(home=tmp_path, landing=str(tmp_path), openlineage="http://127.0.0.1:9")
    pipeline = replace(TAPS, lookups={}, transform=lambda df: df)
    source = open_kind(spark, kind_of(pipeline), settings, stream=False)
    no_frame: Any = None
    note = lineage_note(settings, pipeline, source, no_frame)
    assert note is not None
    assert note.made_of is None
    assert "what the columns of taps are made of can't be read from its plan" in caplog.text
