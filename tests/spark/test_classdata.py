"""A driver starts from the archive of Spark's classes, and without one where it doesn't fit."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from etl import classdata
from etl.services import JarSet, jars
from etl.settings import Settings


def test_the_drivers_jvm_has_the_archive_mapped(spark: SparkSession, settings: Settings) -> None:
    option = classdata.option(jars(JarSet.SPARK, settings.jars))
    archive = option.partition("=")[2].strip('"')
    assert archive in Path(f"/proc/{driver(spark)}/maps").read_text(), "run `make install`"


def test_another_class_path_has_an_archive_of_its_own(settings: Settings, tmp_path: Path) -> None:
    other = tmp_path / "spark"
    other.symlink_to(jars(JarSet.SPARK, settings.jars))
    assert classdata.option(jars(JarSet.SPARK, settings.jars))
    assert not classdata.option(other)


def driver(spark: SparkSession) -> int:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return int(jvm.java.lang.ProcessHandle.current().pid())
