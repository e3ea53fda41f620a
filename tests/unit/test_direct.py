"""A JVM that is launched without Spark's script has the command that Spark's launcher makes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from etl.services import java
from etl.spark.launch import home
from etl.spark.launch.direct import by_script, command_of

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


def command() -> list[str]:
    with tempfile.TemporaryFile() as out:
        return command_of(CONFIGURATION, out)


def test_it_is_the_command_that_sparks_launcher_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -Da='b c'")
    assert by_script(CONFIGURATION) == ""
    direct, launchers = command(), the_launchers()
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
        ("SPARK_SUBMIT_OPTS", "-Da=b -Xmx9g"),
    ],
)
def test_what_the_script_goes_by_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert name in by_script(CONFIGURATION)


def test_settings_and_files_that_only_the_launcher_reads_are_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = "spark.driver.defaultJavaOptions"
    assert by_script({**CONFIGURATION, named: "-Da=b"}) == named
    assert by_script({**CONFIGURATION, "spark.driver.extraJavaOptions": "-Xmx9g"}) != ""
    own = Path(os.environ["SPARK_HOME"])
    (own / "conf").unlink()
    (own / "conf").mkdir()
    (own / "conf/spark-defaults.conf").touch()
    assert by_script(CONFIGURATION) == f"{own}/conf/spark-defaults.conf"
    with monkeypatch.context() as another:
        another.setenv("SPARK_HOME", str(tmp_path))
        assert by_script(CONFIGURATION) == "the home or the Python of another Spark"


def test_a_home_that_was_moved_has_a_command_of_its_own_and_a_torn_one_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = command()
    [kept] = tmp_path.glob("command-*")
    kept.write_bytes(kept.read_bytes()[:100])
    assert command() == before
    moved = tmp_path / "moved"
    moved.mkdir()
    Path(os.environ["SPARK_HOME"]).rename(moved / "spark")
    kept.rename(moved / kept.name)
    with monkeypatch.context() as another:
        another.setenv("SPARK_HOME", str(moved / "spark"))
        assert f"{moved}/spark/jars/*" in command()[2]
        assert f"{tmp_path}/spark" not in command()[2]


def test_empty_settings_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONFIGURATION, "spark.driver.memory", "")
    monkeypatch.setitem(CONFIGURATION, "spark.driver.extraClassPath", "")
    direct = command()
    assert "-Xmx1g" in direct
    assert not direct[2].startswith(":")


def test_a_java_that_lacks_a_module_is_not_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "java"
    (own / "bin").mkdir(parents=True)
    (own / "bin" / "java").write_text(f'#!/bin/sh\nexec {java()} "$@"\n')
    (own / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(own))
    added = "--add-modules=jdk.incubator.vector"
    assert added in command()
    (own / "release").write_text('MODULES="java.base java.sql"\n')
    assert added not in command()
    (own / "release").write_text('MODULES="java.base jdk.incubator.vector"\n')
    assert added in command()
