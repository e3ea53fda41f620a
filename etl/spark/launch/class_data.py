"""Archives Spark's classes as one run loaded them, so that the next maps them into memory: a start takes a third less.

The JVM calls this class data sharing. `python -m etl.spark.launch.class_data`, a step of `make install`, makes the
archive for the Java and the class path in force, from a small stream that is thrown away. The JVM checks at every start
whether the archive fits; one that does not is ignored, and costs only time.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from etl.common.errors import SetupError, SluiceError
from etl.common.settings import load_settings
from etl.services import JarSet, java, java_version, spark_jars
from etl.services import jars as resolve
from etl.services.jarsets import FIRST_COMPILER
from etl.services.process import HOST, make_folder, only_one
from etl.spark.jvm import COLLECTOR, LOOPBACK, ROCKSDB, launched
from etl.spark.launch import jvm_log
from etl.spark.launch.home import digest, lean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WITH_PROFILES = 25  # the Java whose archives are made in one step (JEP 514)
QUIET = "-Xlog:disable -Xlog:all=error:stderr"  # else every class that can't be kept is a line


class _Options(NamedTuple):
    """The JVM's options to make an archive when it ends, and to start from one; `=` and its path follow each."""

    made: str
    used: str
    suffix: str


def _options() -> _Options:
    """Return the options of the Java in force: from 25 on, an archive also has what the JVM has learnt of the code.

    Before, no more than the first compiler is needed to make one.
    """
    if java_version() >= WITH_PROFILES:
        return _Options("-XX:AOTCacheOutput", "-XX:AOTCache", "aot")
    return _Options(f"{FIRST_COMPILER} -XX:ArchiveClassesAtExit", "-XX:SharedArchiveFile", "jsa")


def option(jars: Path) -> str:
    """Return the JVM option that makes a driver with `jars` before Spark's own start from the archive.

    The text is empty when there is no archive.
    """
    archive = _archive(jars)
    return f' {_options().used}="{archive}"' if archive.exists() else ""


def make(jars: Path) -> None:
    """Make the archive unless it is there, which takes half a minute.

    Those of another Java or Spark that stood in the same places are removed.
    """
    target = _archive(jars)
    with only_one(jars.parent):
        if target.exists():
            return
        for old in target.parent.glob(f"{target.stem.rpartition('-')[0]}-*"):
            old.unlink()
        part = target.with_suffix(".part")
        _learn(jars, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())  # half an archive would end every JVM that maps it
        part.rename(target)


def _archive(jars: Path) -> Path:
    """Return the archive's path: its name tells the Java and the class path, and then what stands there now."""
    paths = [java().resolve(), spark_jars(), jars.absolute()]
    where, what = digest(paths), digest([path.stat().st_mtime_ns for path in paths])
    return jars.absolute().parent / f"classes-{where}-{what}.{_options().suffix}"


def _learn(jars: Path, target: Path) -> None:
    """Run a small stream in a JVM that writes down the classes it loaded when it ends. Raises SetupError."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    os.environ |= {"SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": sys.executable}
    configuration = {
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.driver.extraClassPath": f"{jars}/*",
        "spark.driver.extraJavaOptions": f'{COLLECTOR} {QUIET} {_options().made}="{target}"',
        "spark.sql.shuffle.partitions": "1",
    }
    try:
        with lean(make_folder(target.parent / "home")):  # it stays: the archive goes by where its jars were
            spark = launched(configuration | LOOPBACK | ROCKSDB, target.parent, {})
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        with tempfile.TemporaryDirectory() as work:
            _stream(spark, Path(work))
        spark.stop()
    except (OSError, Py4JError, PySparkException) as error:
        raise _failed() from error
    gateway.proc.stdin.close()  # the JVM leaves now, and writes the archive
    if gateway.proc.wait() != 0 or not target.exists():
        raise _failed()


def _failed() -> SetupError:
    return SetupError(
        f"the JVM that was to write it failed; what it said is in {jvm_log.current()}",
        remedy="check that it has memory, and that there are 200 MB of disk beside that log, then do the same again",
    )


def _stream(spark: SparkSession, work: Path) -> None:
    """Run a stream that does what every batch does: JSON, a join, an aggregate with state, Python."""
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
        print(
            f"no archive of Spark's classes, so each run starts a few seconds later: {error}", file=sys.stderr
        )
        sys.exit(error.exit_code)
