"""The JVM of a Spark driver: how it is launched, and its settings."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from etl.common.errors import SetupError, SparkEnded
from etl.services.process import HOST
from etl.spark.java_errors import Cause, classify, memory_line
from etl.spark.launch import jvm_log
from etl.spark.launch.direct import launch_gateway
from etl.spark.launch.faults import refuse_values, telling_of_launch
from etl.spark.signals import end_with_this

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# A batch wants throughput: parsing takes a tenth less than under G1. And Spark's classes take 120 MB: where the JVM
# collects its whole heap each time they have grown, as it does by default from 21 MB on, a short run waits 0.2 s for it.
COLLECTOR = "-XX:+UseParallelGC -XX:MetaspaceSize=256m"
# The JVM's memory in pages of 2 MB where Linux has such: to get those of 4 kB took a short run a third of a second.
HUGE_PAGES = "-XX:+UseTransparentHugePages" if sys.platform == "linux" else ""
LOOPBACK = {"spark.driver.bindAddress": HOST, "spark.driver.host": HOST}
# What a transform keeps stays off the heap.
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state"
    ".RocksDBStateStoreProvider"
}


def launched(configuration: Mapping[str, str], logs: Path, given: Mapping[str, str]) -> SparkSession:
    """Launch a JVM that writes to a log below `logs` and not to the terminal; return a session in it.

    Where that fails, the error names what of the environment, or of the `given` settings, is wrong.
    """
    with telling_of_launch(configuration, given):
        return _launched(configuration, logs, given)


def _launched(configuration: Mapping[str, str], logs: Path, given: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    conf = SparkConf().setAll(list(configuration.items()))
    os.environ["LC_ALL"] = "C.UTF-8"  # by which Java reads the names of files, and passes over those it can't
    with jvm_log.opened(logs) as out, ended_unless_launched():
        gateway = launch_gateway(configuration, out)
    end_with_this(gateway.proc)
    refuse_values(gateway, {name: value for name, value in given.items() if configuration[name] == value})
    handler = signal.getsignal(signal.SIGINT)
    context = SparkContext(conf=conf, gateway=gateway)
    _leave_ends_untold(context, gateway.proc)
    _find_classes(context)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)  # the context puts one of its own in its place
    return SparkSession.builder.getOrCreate()


def _find_classes(context: SparkContext) -> None:
    """Find the classes that PySpark calls by their short names once, and not at each call.

    The JVM looks through all jars for such a name, once for each of the packages that it may be in.
    """
    for name in ("functions", "PythonUtils", "PythonSQLUtils", "SimplePythonFunction"):
        setattr(context._jvm, name, getattr(context._jvm, name))


def _leave_ends_untold(context: SparkContext, process: subprocess.Popen[bytes]) -> None:
    """Keep the server of accumulators from printing a traceback where the JVM has ended: whoever waits for it tells that."""
    server: Any = context._accumulatorServer
    told = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | ConnectionError) and not _ends(process):
            told(request, address)

    server.handle_error = handle_error


def _ends(process: subprocess.Popen[bytes]) -> bool:
    """Tell whether a JVM has ended, or does within a second: its sockets close before it is gone."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    return process.returncode is not None


@contextmanager
def ended_unless_launched() -> Iterator[None]:
    """End the JVM whose launch within breaks off, such as at a signal.

    Spark takes away the folder for the JVM's address then: the JVM fails to write it, and would wait for a driver for ever.
    """
    this = psutil.Process()
    before = this.children()
    try:
        yield
    except BaseException:
        for child in this.children():
            with suppress(psutil.NoSuchProcess):
                command = child.cmdline()
                # of a child that has not yet begun the script the command is still this process's own
                if child not in before and (command == this.cmdline() or _SUBMITS.search(" ".join(command))):
                    child.kill()
        raise


# In the command of the script, then of the JVM that takes its place.
_SUBMITS = re.compile(r"spark-submit|SparkSubmit")


@contextmanager
def telling_of_end(spark: SparkSession) -> Iterator[None]:
    """Raise SparkEnded where the block fails because Spark's JVM, or a Python worker of its, has ended.

    Raises SetupError where no Python worker can be started.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (OSError, EOFError, Py4JError, PySparkException) as error:
        if not _is_alive(spark):
            raise _jvm_ended(spark) from error
        found = classify(error)
        if said := found.get(Cause.WORKER_UNSTARTED):
            raise SetupError(
                f"An executor of Spark can't start a Python worker: {said}",
                remedy="let PYSPARK_PYTHON, or spark.pyspark.python in SLUICE_SPARK_CONF, name a Python that is on every"
                " machine of the cluster and has Sluice installed",
            ) from error
        if said := found.get(Cause.WORKER_ENDED):
            raise SparkEnded(
                f"A Python worker of Spark ended in the middle of its task: {said}",
                remedy="`dmesg` tells whether the kernel ended it for want of memory; a library that the transform or a"
                f" rule calls may have as well. {_LESS[0].upper()}{_LESS[1:]}, or give the machine more"
                " memory; then run again",
            ) from error
        raise


_LESS = "let a batch read less (`max_files`, then `sluice recover`, which plans it anew)"


def _is_alive(spark: SparkSession) -> bool:
    from py4j.protocol import Py4JError

    try:
        java_class(spark, "java.lang.System").nanoTime()
    except (OSError, Py4JError):
        return False
    return True


def _jvm_ended(spark: SparkSession) -> SparkEnded:
    """Return the error that tells how Spark's JVM has ended, as far as this process knows."""
    process: subprocess.Popen[bytes] | None = getattr(spark.sparkContext._gateway, "proc", None)
    written = f"its log is {jvm_log.current()}"
    if process is None:  # another process has launched it
        return SparkEnded("Spark's JVM is gone", remedy="see the log of what launched it; then run again")
    try:
        code = process.wait(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        return SparkEnded(
            f"Spark's JVM, process {process.pid}, answers no more", remedy=f"{written}; then run again"
        )
    if memory := memory_line(jvm_log.last_lines()):
        return SparkEnded(
            f"Spark's JVM is gone: {memory.strip()}",
            remedy=f"{written}; give it more memory (spark.driver.memory in SLUICE_SPARK_CONF), or {_LESS}; then run"
            " again",
        )
    if code == -signal.SIGKILL:
        return SparkEnded(
            "Spark's JVM is gone: it was killed",
            remedy=f"{written}; then, where `dmesg` tells that the kernel ended it for want of memory, {_LESS}, or give the"
            " machine more; run again",
        )
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return SparkEnded(f"Spark's JVM is gone: it ended {how}", remedy=f"{written}; then run again")


_END_SECONDS = 10  # that a JVM which answers no more has for its end


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a Java class by its whole name.

    Along a path, py4j would ask for each package, and the JVM look through all jars for it.
    """
    return getattr(spark.sparkContext._jvm, name)
