"""Launches a driver's JVM without Spark's script: that starts a JVM of its own each time, only to be told the command.

Spark's launcher is asked once for each of its versions, and its answer kept. Where the environment or the settings have
something else that the script or the launcher goes by, they launch the JVM themselves.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from etl.services import java
from etl.services.process import only_one
from etl.spark.launch.home import is_lean

_READS = ("SPARK_", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_SUBMIT_ARGS")  # beginnings of variables
_KNOWN = {"SPARK_HOME", "SPARK_LOCAL_IP", _SUBMIT_OPTIONS := "SPARK_SUBMIT_OPTS"}
_SETTINGS = {"spark.driver.defaultJavaOptions", "spark.driver.extraLibraryPath"}
_CLASS_PATH, _OPTIONS, _MEMORY = (
    "spark.driver.extraClassPath",
    "spark.driver.extraJavaOptions",
    "spark.driver.memory",
)
_MAIN = "org.apache.spark.deploy.SparkSubmit"
_POLL_SECONDS = 0.01


def launch_gateway(configuration: Mapping[str, str], out: IO[bytes]) -> Any:
    """Launch a JVM with these settings, which writes to `out`; return py4j's gateway to it, its process in `proc`.

    Raises PySparkRuntimeError where the JVM ends instead of telling its address.
    """
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway as connected

    command = command_of(configuration)
    if command is None:
        conf = SparkConf().setAll(list(configuration.items()))
        return connected(conf, popen_kwargs={"stdout": out, "stderr": out})  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:
        address = Path(folder, "address")
        process = _started(command, address, out)
        with _told(process, address):
            gateway = connected()  # type: ignore[no-untyped-call]
    gateway.proc = process
    return gateway


def command_of(configuration: Mapping[str, str]) -> list[str] | None:
    """Return the command of a JVM with these settings; None where Spark's script is to launch it."""
    variables = {name for name in os.environ if name.startswith(_READS)} - _KNOWN
    home = Path(os.environ.get("SPARK_HOME", ""))
    if variables or _SETTINGS & configuration.keys() or not is_lean(home) or not (asked := _asked(home)):
        return None
    try:
        first, last = (
            shlex.split(text)
            for text in (os.environ.get(_SUBMIT_OPTIONS, ""), configuration.get(_OPTIONS, ""))
        )
    except ValueError:  # a quote that is not closed
        return None
    runner = java()
    _, flag, class_path, _, *options = asked
    paths = [configuration[_CLASS_PATH], class_path] if _CLASS_PATH in configuration else [class_path]
    return [
        *(str(runner), flag, os.pathsep.join(paths)),
        *(*first, f"-Xmx{configuration.get(_MEMORY, '1g')}", *last),
        *(option for option in options if _has_modules(runner, option)),
        *(_MAIN, *(word for name, value in configuration.items() for word in ("--conf", f"{name}={value}"))),
        "pyspark-shell",
    ]


def _has_modules(runner: Path, option: str) -> bool:
    """Tell whether Java has the modules that an option adds; a small Java may lack some that Spark can do without."""
    name, _, modules = option.partition("=")
    if name != "--add-modules":
        return True
    release = runner.resolve().parent.parent / "release"
    there = re.search(r'^MODULES="(.*)"$', release.read_text(), re.MULTILINE) if release.exists() else None
    return there is None or set(modules.split(",")) <= set(there[1].split())


def _asked(home: Path) -> Sequence[str]:
    """Return the command that Spark's launcher makes where nothing is set, up to the main class; [] where it fails."""
    from pyspark import __version__

    kept = home / f"command-{__version__}"
    if not kept.exists():
        with only_one(home.parent):
            words = [
                str(java()),
                "-Xmx128m",
                "-cp",
                f"{home}/jars/*",
                "org.apache.spark.launcher.Main",
                _MAIN,
            ]
            rest = {name: value for name, value in os.environ.items() if name != _SUBMIT_OPTIONS}
            environment = {**rest, "SPARK_SCALA_VERSION": "2.13"}  # as its script has it
            said = subprocess.run(
                [*words, "pyspark-shell"], capture_output=True, check=False, env=environment
            )
            if said.returncode:  # the script fails by the same, and its log tells
                return []
            part = kept.with_suffix(".part")
            part.write_bytes(said.stdout.partition(b"\0\n")[2] or said.stdout)
            part.rename(kept)
    words = kept.read_text().strip("\0\n").split("\0")
    return words[: words.index(_MAIN)]


def _started(command: Sequence[str], address: Path, out: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the JVM, which ends when its standard input does, and heeds no Ctrl-C of the terminal."""
    environment = {**os.environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address)}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=out,
        stderr=out,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )


@contextmanager
def _told(process: subprocess.Popen[bytes], address: Path) -> Iterator[None]:
    """Wait until the JVM has written its address; PySpark connects to it within."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.serializers import UTF8Deserializer, read_int

    while not address.exists():
        if process.poll() is not None:
            raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
        time.sleep(_POLL_SECONDS)
    with address.open("rb") as file:
        port, secret = read_int(file), UTF8Deserializer().loads(file)  # type: ignore[no-untyped-call]
    told = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ |= told
    try:
        yield
    finally:
        for name in told:
            del os.environ[name]
