"""What keeps Spark from starting is told by the variable or setting, what it is, and what comes next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark
import pytest

from etl.common.errors import SetupError
from etl.spark.launch.faults import environment_faults, require_master
from etl.spark.launch.worker_python import require_worker_python
from tests.support.environment import REPOSITORY
from tests.support.waiting import until

LOCAL = {"spark.master": "local[1]", "spark.ui.enabled": "false"}
LAUNCH = """
import json, os, sys
from pathlib import Path
from etl.common.errors import SluiceError
from etl.spark.jvm import launched
from etl.spark.launch.home import lean

logs, conf, given = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = sys.executable
try:
    with lean(Path(logs)):
        launched(json.loads(conf), Path(logs), json.loads(given))
except SluiceError as error:
    print(json.dumps([type(error).__name__, error.seen, error.remedy]))
"""


STOPPED = """
import signal
from etl.spark.signals import SIGNALS, stop_at_once

for one in SIGNALS:
    signal.signal(one, stop_at_once)
"""


ENDED = """
import json, logging, os, sys
from pathlib import Path
from etl.spark.jvm import launched
from etl.spark.launch.home import lean
from tests.support.waiting import until

os.environ["PYSPARK_PYTHON"] = sys.executable
logging.disable()  # py4j logs where an object of the JVM is forgotten after its end; the command line leaves that out too
with lean(Path(sys.argv[1])):
    context = launched(json.loads(sys.argv[2]), Path(sys.argv[1]), {}).sparkContext
sums, server = context.accumulator(0), context._accumulatorServer
context.parallelize([1, 2], 1).foreach(sums.add)
told, seen = server.handle_error, []
server.handle_error = lambda *of: (told(*of), seen.append(of))
context._gateway.proc.kill()
until(lambda: seen, "the server of accumulators sees the end", patience=30)
os._exit(sums.value)
"""


def launch(conf: dict[str, str], folder: Path) -> tuple[str, str, str]:
    """Launch Spark in a process of its own, with the settings that a user gives; return kind and words of its error."""
    script = folder / "launch.py"
    script.write_text(LAUNCH)
    words = [sys.executable, str(script), str(folder), json.dumps(LOCAL | conf), json.dumps(conf)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    kind, seen, remedy = json.loads(done.stdout)
    return kind, seen, remedy


def another_spark(folder: Path, version: str) -> Path:
    for name in ("bin/spark-submit", f"jars/spark-core_2.13-{version}.jar"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    return folder


def test_a_home_of_another_spark_is_refused_and_one_of_the_same_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(another_spark(tmp_path / "old", "3.5.1")))
    [error] = environment_faults()
    assert error.seen == (
        f"SPARK_HOME={tmp_path}/old is Spark 3.5.1, and the installed PySpark is {pyspark.__version__}"
    )
    assert "`unset SPARK_HOME`" in error.remedy
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    [error] = environment_faults()
    assert "is no Spark with bin/spark-submit" in error.seen
    monkeypatch.setenv("SPARK_HOME", str(another_spark(tmp_path / "same", pyspark.__version__)))
    assert list(environment_faults()) == []


@pytest.mark.parametrize(
    ("name", "value", "seen"),
    [
        (
            "PYSPARK_SUBMIT_ARGS",
            "--master local[2]",
            "PYSPARK_SUBMIT_ARGS=--master local[2] does not end with",
        ),
        (
            "PYSPARK_SUBMIT_ARGS",
            "--master foo pyspark-shell",
            "PYSPARK_SUBMIT_ARGS=--master foo pyspark-shell says where Spark is to run, by --master",
        ),
        ("PYSPARK_SUBMIT_ARGS", "'", "PYSPARK_SUBMIT_ARGS=' does not end with"),
        ("PYSPARK_GATEWAY_PORT", "4711", "PYSPARK_GATEWAY_PORT=4711 names a JVM of somebody else's"),
    ],
)
def test_a_variable_that_sends_the_launch_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, seen: str
) -> None:
    monkeypatch.setenv(name, value)
    kind, told, remedy = launch({}, tmp_path)
    assert kind == "SetupError"
    assert told.startswith(seen)
    assert f"unset {name}" in remedy
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--verbose pyspark-shell")
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert list(environment_faults()) == []


def test_options_that_java_does_not_take_are_told_with_where_they_are_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:NoSuchOption=1")
    kind, seen, remedy = launch({}, tmp_path)
    assert kind == "SetupError"
    assert "Unrecognized VM option 'NoSuchOption=1'" in seen
    assert "JAVA_TOOL_OPTIONS: -XX:NoSuchOption=1" in seen
    assert "(from PATH) does not run" in seen or "(from JAVA_HOME" in seen
    assert "correct or unset JAVA_TOOL_OPTIONS" in remedy


@pytest.mark.parametrize(
    ("conf", "seen"),
    [
        ({"spark.driver.memory": "abc"}, "Invalid maximum heap size: -Xmxabc"),
        ({"spark.executor.heartbeatInterval": "x"}, "spark.executor.heartbeatInterval=x"),
        pytest.param(
            {"spark.sql.shuffle.partitions": "many"},
            "Spark does not take spark.sql.shuffle.partitions=many",
            marks=pytest.mark.slow,
        ),
        (
            {"spark.sql.files.maxPartitionBytes": "128 parsecs", "spark.sql.autoBroadcastJoinThreshold": "x"},
            "Spark does not take spark.sql.autoBroadcastJoinThreshold=x (",
        ),
        pytest.param(
            {"spark.reducer.maxSizeInFlight": "huge"},
            "Spark does not take spark.reducer.maxSizeInFlight=huge",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"spark.sql.sources.partitionOverwriteMode": "never"},
            "partitionOverwriteMode=never",
            marks=pytest.mark.slow,
        ),
        ({"spark.master": "locl"}, "SLUICE_SPARK_MASTER=locl is no master of Spark"),
    ],
)
def test_a_setting_that_spark_does_not_take_is_named(tmp_path: Path, conf: dict[str, str], seen: str) -> None:
    kind, told, _ = launch(conf, tmp_path)
    assert kind == "SetupError"
    assert seen in told
    assert all(f"{name}={value}" in told for name, value in conf.items() if name != "spark.master")


@pytest.mark.parametrize(
    "master",
    [
        *(
            "local",
            "local[*]",
            "local[2]",
            *("local[*, 3]", "local[4 , 2]"),
            *("local-cluster[2,1,1024]", "local-cluster[ 2 , 1 , 1024 ]"),
            "yarn",
            "spark://host:7077",
        ),
        *("spark://one:7077,two:7077", "k8s://https://host:6443", "theirs://somewhere"),
    ],
)
def test_the_form_of_a_master_that_may_be_one_is_taken(master: str) -> None:
    require_master(master)


@pytest.mark.parametrize(
    "master",
    [
        "locl",
        "local[two]",
        "local[]",
        "local[ 4]",
        "local-cluster[2]",
        "spark:/host:7077",
        "host:7077",
        "spark://",
    ],
)
def test_what_by_its_form_is_no_master_is_refused_without_spark(master: str) -> None:
    with pytest.raises(SetupError, match="is no master of Spark: it names none of these") as refused:
        require_master(master)
    assert "spark://host:7077" in refused.value.remedy


def test_a_signal_in_the_middle_of_a_launch_leaves_no_jvm_behind(tmp_path: Path) -> None:
    script = tmp_path / "launch.py"
    script.write_text(STOPPED + LAUNCH)
    words = [sys.executable, str(script), str(tmp_path), json.dumps(LOCAL), "{}"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    launching = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
    jvms: list[psutil.Process] = []
    try:
        jvms = until(psutil.Process(launching.pid).children, "it launches its JVM", patience=60)
        launching.terminate()
        assert launching.wait(30) != 0
        assert psutil.wait_procs(jvms, timeout=30)[1] == []
    finally:
        for one in jvms:
            with suppress(psutil.NoSuchProcess):
                one.kill()


def test_a_jvm_that_ends_leaves_no_traceback_of_the_server_of_accumulators(tmp_path: Path) -> None:
    script = tmp_path / "ended.py"
    script.write_text(ENDED)
    words = [sys.executable, str(script), str(tmp_path), json.dumps(LOCAL)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=environment, timeout=120)
    assert done.stderr == ""
    assert done.returncode == 3


def other_python(folder: Path, text: str) -> Path:
    """Return a program that stands in a Python's place."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exit 1", "it ended with exit code 1 and said nothing"),
        ("echo \"ModuleNotFoundError: No module named 'pyarrow'\" >&2; exit 1", "No module named 'pyarrow'"),
        ("echo 3 9", f"it is Python 3.9, and this one is {sys.version_info[0]}.{sys.version_info[1]}"),
    ],
)
def test_a_python_that_cannot_run_workers_is_told_by_the_name_that_chose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    python = str(other_python(tmp_path, text))
    monkeypatch.setenv("PYSPARK_PYTHON", python)
    with pytest.raises(SetupError) as refused:
        require_worker_python({})
    assert refused.value.seen.startswith(f"PYSPARK_PYTHON is {python}, and that can't run Spark's workers: ")
    assert why in refused.value.seen
    with pytest.raises(SetupError, match=r"^spark\.pyspark\.python, of SLUICE_SPARK_CONF or --conf, is /no"):
        require_worker_python({"spark.pyspark.python": "/no/python"})
    assert require_worker_python({"spark.pyspark.python": sys.executable}) == sys.executable


def test_the_home_that_sluice_makes_for_spark_is_not_told_as_set_by_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--nonsense pyspark-shell")
    _, seen, _ = launch({}, tmp_path)
    assert "set by you: PYSPARK_SUBMIT_ARGS=--nonsense pyspark-shell" in seen
    assert "SPARK_HOME" not in seen
