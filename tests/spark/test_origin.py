"""Every held row tells the file of its record, whatever the transform made of it, as long as it made it of one record."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from etl.common.paths import to_uri
from etl.spark.hidden import hide, unhide
from tests.support.home import Home

DECLARATION = """
from etl.pipeline import Append, Files, Lookup, Pipeline


def transform(df, names):
    from pyspark.sql import functions as F

    {body}


PIPELINE = Pipeline(
    name="taps", sources=({sources}), schema="{schema}", transform=transform, sink=Append(), suite="taps",
    lookups={{"names": Lookup("reference/names.csv", schema="id int, name string", key=("id",))}},
    max_quarantine_share=1.0,
)
"""
HELD = "SELECT (\"row\"::jsonb ->> 'id')::int, source_path FROM sluice.quarantine ORDER BY 1, 2"
IDS = {"a": range(3), "b": range(3, 6), "é d": range(6, 9)}  # of each file; every even one is held


def declare(home: Home, body: str, kind: str = "json", schema: str = "id int, s string") -> None:
    sources = f'Files("taps/*", format="{kind}"), '
    home.declare("taps", text=DECLARATION.format(body=body, sources=sources, schema=schema))
    odd = {"column": "odd", "value_set": [True]}
    rule = {"type": "expect_column_values_to_be_in_set", "kwargs": odd, "severity": "warning"}
    home.judge(rule, name="taps")
    home.write("reference/names.csv", "id,name\n" + "".join(f"{number},n{number}\n" for number in range(9)))


def land(home: Home, kind: str = "json") -> None:
    for name, ids in IDS.items():
        rows = [{"id": number, "s": "a"} for number in ids]
        if kind == "parquet":
            table = pa.Table.from_pylist(rows, pa.schema([("id", pa.int32()), ("s", pa.string())]))
            written = pa.BufferOutputStream()
            pq.write_table(table, written)
            home.write(f"taps/{name}", written.getvalue().to_pybytes())
            continue
        lines = {
            "json": [json.dumps(row) for row in rows],
            "json-array": [json.dumps(rows)],
            "csv": ["id,s", *(f"{row['id']},a" for row in rows)],
            "text": [str(row["id"]) for row in rows],
        }[kind]
        home.write(f"taps/{name}", "".join(f"{line}\n" for line in lines))


def expected(home: Home) -> list[tuple[int, str]]:
    return [
        (number, to_uri(f"{home.landing}/taps/{name}"))
        for name, ids in IDS.items()
        for number in ids
        if number % 2 == 0
    ]


ODD = '.withColumn("odd", F.col("id") % 2 == 1)'


@pytest.mark.parametrize("kind", ["json", "json-array", "csv", "parquet", "text"])
def test_of_every_format(home: Home, kind: str) -> None:
    if kind == "text":
        declare(home, f'return df.select(F.col("line").cast("int").alias("id")){ODD}', kind, "line string")
    else:
        declare(home, f"return df{ODD}", kind)
    home.make_folder("taps")
    land(home, kind)
    home.run("taps")
    assert home.ask(HELD) == expected(home)
    home.assert_clean("taps")


BODIES = {
    "columns left out and computed": f'return df.select("id"){ODD}.where("id >= 0")',
    "several rows of one": f'return df.withColumn("n", F.explode(F.array(F.lit(1), F.lit(None)))).where("n = 1"){ODD}',
    "a join by a column's name": f'return df.join(names, "id").select("id", "name"){ODD}',
    "two joins by a column's name": f'return df.join(names, "id").join(names.toDF("id", "other"), ["id"], "left"){ODD}',
    "a join of aliases": f'return df.alias("o").join(names.alias("n"), F.col("o.id") == F.col("n.id")).select("o.id"){ODD}',
    "a function of Python": f'return df.withColumn("id", F.udf(lambda n: n, "int")("id")){ODD}',
    "other names": f'return df.toDF("id", "_c"){ODD}.drop("_c")',
}


def test_beside_what_spark_hides_itself(home: Home) -> None:
    declare(home, f'return df.withColumn("s", F.col("_metadata.file_name")){ODD}', "parquet")
    land(home, "parquet")
    home.run("taps")
    assert home.ask(HELD) == expected(home)
    assert home.ask("SELECT DISTINCT s FROM warehouse.taps ORDER BY 1") == [("a",), ("b",), ("é%20d",)]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_whatever_is_made_of_single_records(home: Home, body: str) -> None:
    declare(home, body)
    land(home)
    home.run("taps")
    assert home.ask(HELD) == expected(home)
    home.assert_clean("taps")


OTHERWISE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "distinct": lambda df: df.distinct(),
    "duplicates left out": lambda df: df.dropDuplicates(["id"]),
    "counted": lambda df: df.groupBy("id").count(),
    "a union": lambda df: df.unionByName(df),
    "a join with itself": lambda df: df.join(df.select("id"), "id"),
    "mapped": lambda df: df.mapInArrow(lambda batches: batches, "id int"),
}


@pytest.mark.parametrize("make", OTHERWISE.values(), ids=OTHERWISE)
def test_what_is_not_made_of_single_records_stays_as_it_is(
    spark: SparkSession, make: Callable[[DataFrame], DataFrame]
) -> None:
    """A hidden column that is asked for within would make two rows of equal ones from two files."""
    frame = spark.createDataFrame([(1, 10), (1, 20), (2, 10)], "id int, _file_number int")
    made = make(hide(frame, "_file_number"))
    assert unhide(made, "_file_number").columns == made.columns
    assert unhide(made, "_file_number").count() == make(frame.select("id")).count()
    assert unhide(hide(frame, "_file_number").select(F.lit(1)), "_file_number").columns[1:] == [
        "_file_number"
    ]
