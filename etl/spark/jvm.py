"""The JVM of a Spark driver: how it is launched, and its settings."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etl.services.process import HOST
from etl.spark import jvm_log
from etl.spark.launch_faults import telling_of_launch
from etl.spark.signals import end_with_this

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A batch wants throughput: parsing takes a tenth less than under G1. And Spark's classes take 120 MB: where the JVM
# collects its whole heap each time they have grown, as it does by default from 21 MB on, a short run waits 0.2 s for it.
COLLECTOR = "-XX:+UseParallelGC -XX:MetaspaceSize=256m"
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
        return _launched(configuration, logs)


def _launched(configuration: Mapping[str, str], logs: Path) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf().setAll(list(configuration.items()))
    os.environ["LC_ALL"] = "C.UTF-8"  # by which Java reads the names of files, and passes over those it can't
    with jvm_log.opened(logs) as out:
        gateway = launch_gateway(conf, popen_kwargs={"stdout": out, "stderr": out})  # type: ignore[no-untyped-call]
    end_with_this(gateway.proc)
    handler = signal.getsignal(signal.SIGINT)
    SparkContext(conf=conf, gateway=gateway)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)  # the context puts one of its own in its place
    return SparkSession.builder.getOrCreate()


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a Java class by its whole name.

    Along a path, py4j would ask for each package, and the JVM look through all jars for it.
    """
    return getattr(spark.sparkContext._jvm, name)
