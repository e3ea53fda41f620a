"""A driver starts from the archive of Spark's classes, and without one where it doesn't fit; its Python is compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession

from etl.common.errors import SetupError
from etl.common.settings import Settings
from etl.services import JarSet, jars, java
from etl.spark.launch import class_data
from etl.spark.stacks import worker_daemon


def test_the_drivers_jvm_has_the_archive_mapped(spark: SparkSession, settings: Settings) -> None:
    option = class_data.option(jars(JarSet.SPARK, settings.jars))
    archive = option.partition("=")[2].strip('"')
    assert archive in Path(f"/proc/{driver(spark)}/maps").read_text(), "run `make install`"


def test_another_class_path_has_an_archive_of_its_own(settings: Settings, tmp_path: Path) -> None:
    other = tmp_path / "spark"
    other.symlink_to(jars(JarSet.SPARK, settings.jars))
    assert class_data.option(jars(JarSet.SPARK, settings.jars))
    assert not class_data.option(other)


@pytest.mark.parametrize(
    "what_it_does",
    [
        pytest.param("exit 1", id="one that does not start"),
        pytest.param(
            'for word; do [[ $word == -XX:ArchiveClassesAtExit=* ]] || kept+=("$word"); done; exec {java} "${{kept[@]}}"',
            id="one that leaves without it",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_jvm_that_writes_no_archive_is_told_of_in_one_message(
    settings: Settings, tmp_path: Path, what_it_does: str
) -> None:
    program, folder = tmp_path / "java" / "bin" / "java", tmp_path / "jars"
    for one in (program.parent, folder):
        one.mkdir(parents=True)
    version = '[[ $1 == -version ]] && exec {java} "$@"'
    program.write_text(f"#!/bin/bash\n{version}\n{what_it_does}\n".format(java=java()))
    program.chmod(0o755)
    (folder / "spark").symlink_to(jars(JarSet.SPARK, settings.jars))
    made = subprocess.run(
        [sys.executable, "-m", "etl.spark.launch.class_data"],
        env={**os.environ, "JAVA_HOME": str(tmp_path / "java"), "SLUICE_JARS": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == SetupError.exit_code, made.stderr
    [log] = folder.glob("spark-*.log")
    assert f" is {log}\n" in made.stderr or f" is in {log}\n" in made.stderr
    assert "\n  next: " in made.stderr
    assert "Traceback" not in made.stderr
    assert list(folder.glob("*.jsa")) == []


def test_pythons_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    def imported(_: int) -> tuple[str, str | None]:
        return pyspark.__file__, os.environ.get("SPARK_HOME")

    [(file, home)] = spark.sparkContext.parallelize([0], 1).map(imported).collect()
    assert file == pyspark.__file__
    assert home is not None
    assert "SPARK_HOME" not in os.environ, "what is started otherwise has Spark's own"


def test_pythons_workers_are_forked_from_a_daemon_that_has_imported_for_them(spark: SparkSession) -> None:
    spark.range(1, numPartitions=1).mapInArrow(lambda rows: rows, "id long").collect()
    children = psutil.Process(driver(spark)).children()
    daemons = [one.pid for one in children if worker_daemon.MODULE in one.cmdline()]
    assert daemons
    assert all("libarrow" in Path(f"/proc/{pid}/maps").read_text() for pid in daemons)


def driver(spark: SparkSession) -> int:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return int(jvm.java.lang.ProcessHandle.current().pid())
