"""Spark's classes as one run of it left them, for the next to map into memory: a start takes a third less.

The JVM calls this class data sharing. `python -m etl.classdata`, a step of `make install`, makes the archive for the
Java and the class path in force, from a small stream that is thrown away. Whether it fits is the JVM's own check at
every start: one that does not is left out, and costs no more than time.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from etl.errors import SetupError, SluiceError
from etl.services import JarSet, java
from etl.services import jars as resolve
from etl.services.process import only_one
from etl.settings import load_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOG = "-Xlog:disable -Xlog:all=error:stderr"  # else every class that can't be kept is a line
COLLECTOR = "-XX:+UseParallelGC"  # a batch wants throughput: parsing takes a tenth less than under G1


def option(jars: Path) -> str:
    """For the JVM of a driver with `jars` before Spark's own: to start from the archive, if there is one."""
    found = _archive(jars)
    return f' -XX:SharedArchiveFile="{found}"' if found.exists() else ""


def make(jars: Path) -> None:
    """Make the archive unless it is there, which takes half a minute; those of another Java or Spark here go."""
    target = _archive(jars)
    with only_one(jars.parent):
        if target.exists():
            return
        for old in jars.parent.glob(f"classes-{_identity(jars)[0]}-*"):
            old.unlink()
        part = target.with_suffix(".part")
        _learn(jars, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())  # half an archive would end every JVM that maps it
        part.rename(target)


def _archive(jars: Path) -> Path:
    where, what = _identity(jars)
    return jars.absolute().parent / f"classes-{where}-{what}.jsa"


def _identity(jars: Path) -> tuple[str, str]:
    """A name for the Java and the class path, and one for what stands there now."""
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise SetupError("pyspark is not installed", remedy="make install")
    places = [java().resolve(), Path(spark.origin).parent / "jars", jars.absolute()]
    return _digest(places), _digest([place.stat().st_mtime_ns for place in places])


def _digest(parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _learn(jars: Path, target: Path) -> None:
    """Run a small stream in a JVM that writes down the classes it loaded when it leaves."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    settings = {
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraClassPath": f"{jars}/*",
        "spark.driver.extraJavaOptions": f'{COLLECTOR} {LOG} -XX:ArchiveClassesAtExit="{target}"',
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state"
        ".RocksDBStateStoreProvider",
    }
    conf = SparkConf().setAll(list(settings.items()))
    with target.with_name("classes.log").open("w") as log:
        gateway = launch_gateway(conf, popen_kwargs={"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    SparkContext(conf=conf, gateway=gateway)
    spark = SparkSession.builder.getOrCreate()
    with tempfile.TemporaryDirectory() as work:
        _stream(spark, Path(work))
    spark.stop()
    gateway.proc.stdin.close()  # the JVM leaves now, and writes the archive
    gateway.proc.wait()


def _stream(spark: SparkSession, work: Path) -> None:
    """What every batch does: JSON, a join, an aggregate with state, Python."""
    from pyspark.sql import functions as F

    def deliver(batch: DataFrame, number: int) -> None:
        names = spark.createDataFrame([(number, "a")], "k long, name string")
        rows = batch.join(F.broadcast(names), "k", "left").withColumn("known", F.col("name").isNotNull())
        rows.mapInArrow(lambda tables: tables, rows.schema).orderBy("k").collect()

    landing = work / "landing"
    landing.mkdir()
    (landing / "one.json").write_text('{"k": 1, "at": "2026-01-01T00:00:00Z"}\n')
    lines = spark.readStream.text(str(landing))
    records = lines.select(
        F.from_json("value", "k long, at timestamp").alias("record"), "_metadata.file_path"
    )
    counts = records.groupBy("record.k", F.window("record.at", "1 hour")).count()
    stream = counts.writeStream.outputMode("update").foreachBatch(deliver).trigger(availableNow=True)
    stream.option("checkpointLocation", str(work / "checkpoint")).start().awaitTermination()


if __name__ == "__main__":
    try:
        make(resolve(JarSet.SPARK, load_settings().jars))
    except SluiceError as error:
        sys.exit(f"no archive of Spark's classes, so each run starts a few seconds later: {error}")
