"""A JVM that is launched without Spark's script has the command that Spark's launcher makes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from etl.services import java
from etl.spark.launch import home
from etl.spark.launch.direct import command_of

MAIN = "org.apache.spark.deploy.SparkSubmit"
CONFIGURATION = {
    "spark.master": "local[2]",
    "spark.app.name": "a name",
    "spark.driver.memory": "3g",
    "spark.driver.extraClassPath": "/some/jars/*",
    "spark.driver.extraJavaOptions": '-XX:+UseParallelGC -Dtold="of two words"',
}


@pytest.fixture(autouse=True)
def lean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith(("SPARK_", "HADOOP_", "YARN_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with home.lean(tmp_path):
        yield


def the_launchers() -> list[str]:
    """Return the command that Spark's launcher makes of CONFIGURATION."""
    words = [word for name, value in CONFIGURATION.items() for word in ("--conf", f"{name}={value}")]
    launcher = ["-cp", f"{os.environ['SPARK_HOME']}/jars/*", "org.apache.spark.launcher.Main", MAIN]
    said = subprocess.run(
        [str(java()), *launcher, *words, "pyspark-shell"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "SPARK_SCALA_VERSION": "2.13"},
    )
    return said.stdout.strip("\0\n").split("\0")


def test_it_is_the_command_that_sparks_launcher_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -Da='b c'")
    direct, launchers = command_of(CONFIGURATION), the_launchers()
    assert direct is not None
    main = direct.index(MAIN)
    assert Path(direct[0]).resolve() == Path(launchers[0]).resolve()
    assert direct[1:main] == launchers[1 : launchers.index(MAIN)]
    assert sorted(direct[main:]) == sorted(launchers[launchers.index(MAIN) :])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPARK_CONF_DIR", "/etc/spark"),
        ("SPARK_DIST_CLASSPATH", "/opt/hadoop/*"),
        ("HADOOP_CONF_DIR", "/etc/hadoop"),
        ("PYSPARK_SUBMIT_ARGS", "--verbose pyspark-shell"),
        ("SPARK_SUBMIT_OPTS", "-Da='b"),
    ],
)
def test_what_the_script_goes_by_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    assert command_of(CONFIGURATION) is not None
    monkeypatch.setenv(name, value)
    assert command_of(CONFIGURATION) is None


def test_settings_that_only_the_launcher_reads_are_left_to_it() -> None:
    assert command_of({**CONFIGURATION, "spark.driver.defaultJavaOptions": "-Da=b"}) is None


def test_another_spark_is_launched_by_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert command_of(CONFIGURATION) is None


def test_a_java_that_lacks_a_module_is_not_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "java"
    (own / "bin").mkdir(parents=True)
    (own / "bin" / "java").write_text(f'#!/bin/sh\nexec {java()} "$@"\n')
    (own / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(own))
    added = "--add-modules=jdk.incubator.vector"
    assert added in (command_of(CONFIGURATION) or [])
    (own / "release").write_text('MODULES="java.base java.sql"\n')
    assert added not in (command_of(CONFIGURATION) or [added])
    (own / "release").write_text('MODULES="java.base jdk.incubator.vector"\n')
    assert added in (command_of(CONFIGURATION) or [])
