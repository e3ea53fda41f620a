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

from etl.common.errors import SetupError
from etl.services import installed_java, java
from etl.services.jarsets import OLDEST_JAVA
from etl.services.process import only_one
from etl.spark.launch.home import digest, is_lean

# What the script and the launcher read, as their sources have it (4.3), but for what is put in here.
_READS = (
    *("SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_DRIVER_MEMORY", "SPARK_MEM", "SPARK_LAUNCHER_OPTS"),
    *("SPARK_PREPEND_CLASSES", "SPARK_TESTING", "SPARK_SQL_TESTING", "SPARK_ENV_LOADED"),
    *("HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_SUBMIT_ARGS"),
)
_SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"
_SETTINGS = {"spark.driver.defaultJavaOptions", "spark.driver.extraLibraryPath"}
_FILES = ("spark-env.sh", "spark-defaults.conf", "java-opts")
_CLASS_PATH, _OPTIONS, _MEMORY = (
    "spark.driver.extraClassPath",
    "spark.driver.extraJavaOptions",
    "spark.driver.memory",
)
_MAIN = "org.apache.spark.deploy.SparkSubmit"
_POLL_SECONDS = 0.01


def launch_gateway(configuration: Mapping[str, str], out: IO[bytes]) -> Any:
    """Launch a JVM with these settings, which writes to `out`; return py4j's gateway to it, its process in `proc`.

    Raises PySparkRuntimeError where the JVM ends instead of telling its address, and SetupError where Spark's script is to
    launch it and there is only the Java that was installed with Sluice.
    """
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway as connected

    if because := by_script(configuration):
        _require_java_of_script(because)
        conf = SparkConf().setAll(list(configuration.items()))
        return connected(conf, popen_kwargs={"stdout": out, "stderr": out})  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:
        address = Path(folder, "address")
        process = _started(command_of(configuration, out), address, out)
        with _told(process, address):
            gateway = connected()  # type: ignore[no-untyped-call]
    gateway.proc = process
    return gateway


def by_script(configuration: Mapping[str, str]) -> str:
    """Say for what Spark's own script, or its launcher, is to launch the JVM; the text is empty where nothing needs them."""
    home = Path(os.environ.get("SPARK_HOME", ""))
    read = [name for name in _READS if os.environ.get(name)]
    read += _SETTINGS & configuration.keys()
    if not is_lean(home):
        read.append("the home or the Python of another Spark")
    read += [f"{home}/conf/{name}" for name in _FILES if (home / "conf" / name).exists()]
    if not all(_is_taken(text) for text in _options(configuration)):
        read.append(f"{_SUBMIT_OPTIONS} or {_OPTIONS}")  # the launcher says why
    return ", ".join(sorted(read))


def _options(configuration: Mapping[str, str]) -> tuple[str, str]:
    """Return Java's options that stand before the size of its heap in the command, and those behind it."""
    return os.environ.get(_SUBMIT_OPTIONS, ""), configuration.get(_OPTIONS, "")


def _is_taken(options: str) -> bool:
    """Tell whether the launcher takes options of Java: it refuses the size of the heap, and a quote that is not closed."""
    try:
        return not any(word.startswith("-Xmx") for word in shlex.split(options))
    except ValueError:
        return False


def _require_java_of_script(because: str) -> None:
    own = installed_java()
    if own is not None and java().resolve() == own.resolve():
        raise SetupError(
            f"Spark's own script is to launch its JVM, because of {because}, and it can't launch the small Java that is"
            " installed with Sluice, the only one in reach",
            remedy=f"install Java {OLDEST_JAVA} or later and set JAVA_HOME to it, or take away what is named",
        )


def command_of(configuration: Mapping[str, str], out: IO[bytes]) -> list[str]:
    """Return the command of a JVM with these settings; what Spark's launcher has to say goes to `out`."""
    runner, home = java(), Path(os.environ["SPARK_HOME"])
    _, flag, class_path, _, *options = _asked(home, out)
    paths = [one for one in (configuration.get(_CLASS_PATH), class_path) if one]
    first, last = map(shlex.split, _options(configuration))
    return [
        *(str(runner), flag, os.pathsep.join(paths)),
        *(*first, f"-Xmx{configuration.get(_MEMORY) or '1g'}", *last),
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


def _asked(home: Path, out: IO[bytes]) -> Sequence[str]:
    """Return the command that Spark's launcher makes where nothing is set, up to the main class.

    It is kept beside the home, for this PySpark and where the home is now. Raises PySparkRuntimeError where it fails.
    """
    from pyspark import __version__

    kept = home.absolute().with_name(f"command-{__version__}-{digest(home.absolute())}")
    if not (kept.exists() and _is_command(kept.read_bytes())):
        with only_one(home.parent):
            part = kept.with_name(f"{kept.name}.part")
            part.write_bytes(_ask(home, out))
            part.rename(kept)
    words = kept.read_text().split("\0")
    return words[: words.index(_MAIN)]


def _ask(home: Path, out: IO[bytes]) -> bytes:
    """Ask Spark's launcher, a program for a JVM of its own, for a driver's command."""
    from pyspark.errors import PySparkRuntimeError

    launcher = ("-Xmx128m", "-cp", f"{home}/jars/*", "org.apache.spark.launcher.Main")
    rest = {name: value for name, value in os.environ.items() if name != _SUBMIT_OPTIONS}
    said = subprocess.run(
        [str(java()), *launcher, _MAIN, "pyspark-shell"],
        stdout=subprocess.PIPE,
        stderr=out,
        check=False,
        env={**rest, "SPARK_SCALA_VERSION": "2.13"},  # as its script has it
    )
    command = said.stdout.strip(b"\0\n")
    if said.returncode or not _is_command(command):
        out.write(said.stdout)
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
    return command


def _is_command(text: bytes) -> bool:
    words = text.decode(errors="replace").split("\0")
    return _MAIN in words[4:] and words[1] == "-cp" and words[3].startswith("-Xmx")


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
