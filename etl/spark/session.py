"""The Spark session of a run: quiet, on loopback when local, and set so that no input is skipped."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from etl.common.errors import SetupError
from etl.common.settings import Settings, load_settings
from etl.services import JarSet, Services, jars, java
from etl.services.jarsets import FIRST_COMPILER
from etl.services.process import HOST, make_folder
from etl.spark.checkpoint.format import COMPACTED
from etl.spark.jvm import COLLECTOR, HUGE_PAGES, LOOPBACK, ROCKSDB, launched
from etl.spark.launch import class_data, home
from etl.spark.launch.faults import READ_BY_JAVA
from etl.spark.launch.worker_python import require_worker_python, worker_python
from etl.spark.stacks import worker_daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("sluice")

_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_COMPACTED = "spark.sql.streaming.fileSource.log.compactInterval"
_CALL_SITES = "spark.python.sql.dataFrameDebugging.enabled"
LOGGING = Path(__file__).parent / "log4j2.properties"
_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
SHUFFLES = "spark.sql.shuffle.partitions"
ARROW_ROWS = 5_000  # rows of one Arrow batch: bounds a task's memory
MOST_ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
UNMEASURED = str(2**31 - 1)  # for which Spark does not measure all columns of an Arrow batch at each row
# Batches whose logs and versions of state Spark keeps. Recovery needs the last two, for what is older comes from the ledger;
# `sluice state` reads a version of state beside a run. Each tenth entry of a log of files has all files ever read.
RETAINED_BATCHES = 100

# Python of tasks keeps the memory that it has had: to get a page of 4 kB from the system again takes 3 µs, and a batch of
# 350 MB took 190,000. The first two are glibc's, the last is that of Arrow's allocator, and means never.
_KEPT_MEMORY = {
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "spark.executorEnv.MIMALLOC_PURGE_DELAY": "-1",
}


def configuration(settings: Settings, services: Services) -> dict[str, str]:
    """Return Spark's settings in force: Sluice's own, overridden by the user's.

    Those that could lose rows, or that recovery relies on, can't be overridden. Raises SetupError when the
    user's ask for cluster mode or hold secrets.
    """
    _check(settings)
    local = settings.spark_master.startswith("local")
    folder = jars(JarSet.SPARK, settings.jars)
    conf = {
        "spark.master": settings.spark_master,
        "spark.app.name": "sluice",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        _DRIVER_OPTIONS: f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {COLLECTOR}",
        "spark.executor.extraJavaOptions": COLLECTOR,
        # A source's options may be credentials; Spark shows a query's plan in messages and on its pages.
        "spark.sql.redaction.options.regex": "(?i)url|sasl|ssl|jaas|secret|password|token|key",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS),
        # Spark's first choice asks for links by a process of `readlink`, thirty times for each batch of a local checkpoint.
        "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager",
        "spark.sql.streaming.minBatchesToRetain": str(RETAINED_BATCHES),
        _COMPACTED: str(COMPACTED),  # `recover` writes such logs, and expects them
        _CALL_SITES: "false",  # `call_sites` has them where they tell something
        # A regular expression may need more stack than there is: that ends the job, which names the rule, and not the JVM.
        "spark.executor.killOnFatalError.depth": "0",
        **ROCKSDB,
        # A batch writes what it changed of what a transform keeps.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # A snapshot is uploaded at such a moment alone: within the default minute a run is over, and each one would
        # read all changes since the first batch.
        "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    }
    if local:
        cores = settings.spark_master.removeprefix("local").strip("[]").split(",")[0] or "1"
        conf[SHUFFLES] = cores if cores.isdigit() else str(os.cpu_count() or 1)
        conf[_LISTING_TASKS] = conf[SHUFFLES]  # Spark would make a task of each folder
        conf |= LOOPBACK
        conf["spark.python.daemon.module"] = worker_daemon.MODULE
        conf |= _KEPT_MEMORY
        # on the class path a jar costs nothing; spark.jars would copy each of them
        conf["spark.driver.extraClassPath"] = f"{folder}/*"
        conf[_DRIVER_OPTIONS] += f" {HUGE_PAGES}{class_data.option(folder)}"
    else:
        conf["spark.jars"] = ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))
    conf |= _s3a(services)
    fixed = {name: conf[name] for name in ("spark.sql.streaming.minBatchesToRetain", _COMPACTED)}
    return conf | settings.spark_conf | KEEP_EVERYTHING | fixed


def _check(settings: Settings) -> None:
    if settings.spark_conf.get("spark.submit.deployMode", "client") != "client":
        raise SetupError(
            "SLUICE_SPARK_CONF asks for cluster mode: the driver would outlive the command that controls it",
            remedy="leave spark.submit.deployMode out; docs/airflow.md says how the command itself runs in the cluster",
        )
    if shown := sorted(name for name in settings.spark_conf if SECRET.search(name)):
        raise SetupError(
            f"SLUICE_SPARK_CONF holds what looks like secrets, and Spark's settings show in `ps`: {', '.join(shown)}",
            remedy="leave credentials to the standard AWS chain and to password files",
        )


SECRET = re.compile(r"secret|password|token|access\.?key", re.IGNORECASE)

# A setting that skipped or blurred input would break conservation, so these can't be overridden.
KEEP_EVERYTHING = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",  # an overflow in a transform is an error, not a null
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    # Parquet's other reader rounds decimals, or makes nulls of them, and cuts whole numbers, where a file's type is wider.
    "spark.sql.parquet.enableVectorizedReader": "true",
    "spark.sql.parquet.enableNestedColumnVectorizedReader": "true",
    "spark.python.worker.reuse": "true",
}


def _s3a(services: Services) -> dict[str, str]:
    """Return the settings of S3A, for an s3a:// landing or checkpoint and to read the lake, and of executors' Python.

    Credentials come by the AWS chain alone.
    """
    conf = {
        # By their chain tasks open the files of a landing.
        "spark.executorEnv.AWS_REGION": services.s3_region,
        "spark.executorEnv.AWS_DEFAULT_REGION": services.s3_region,
        "spark.hadoop.fs.s3a.aws.credentials.provider": "software.amazon.awssdk.auth.credentials"
        ".DefaultCredentialsProvider",
        "spark.hadoop.fs.s3a.endpoint.region": services.s3_region,
        "spark.hadoop.fs.s3a.attempts.maximum": "3",  # a dead endpoint fails in 41 s instead of 269 s
        "spark.hadoop.fs.s3a.retry.limit": "4",
    }
    if services.s3_endpoint:
        conf["spark.executorEnv.AWS_ENDPOINT_URL_S3"] = services.s3_endpoint
        conf["spark.hadoop.fs.s3a.endpoint"] = services.s3_endpoint
        conf["spark.hadoop.fs.s3a.path.style.access"] = "true"
    return conf


_COMPILERS = re.compile(r"-XX:[-+]?(?:Tiered|CompilationMode)")  # of options by which a person chooses


def start(settings: Settings, services: Services, *, little: bool = False) -> SparkSession:
    """Start a new session with `configuration`; `little` says that its work will be over in seconds.

    What its JVM writes goes to a log below SLUICE_HOME, not to the terminal.
    """
    java()  # one line about a missing or old Java, before Spark's own report of it
    local = settings.spark_master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", HOST)
    conf = configuration(settings, services)
    chosen = [conf[_DRIVER_OPTIONS], *(os.environ.get(name, "") for name in READ_BY_JAVA)]
    if little and local and not any(map(_COMPILERS.search, chosen)):
        conf[_DRIVER_OPTIONS] += f" {FIRST_COMPILER}"
    os.environ["PYSPARK_PYTHON"] = require_worker_python(conf) if local else worker_python(conf)
    logs = make_folder(make_folder(settings.home) / "logs")
    with home.lean(settings.home) if local else nullcontext():
        return launched(conf, logs, settings.spark_conf)


@contextmanager
def unlogged_analysis() -> Iterator[None]:
    """Keep Spark's analysis errors from being logged while the block runs; they are raised all the same."""
    from pyspark.logger import PySparkLogger

    # Not logging.getLogger: the first to ask decides the class, and Spark's errors are written by its own alone.
    names = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
    loggers = [PySparkLogger.getLogger(name) for name in names]
    were_disabled = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, were_disabled, strict=True):
            logger.disabled = disabled


@contextmanager
def call_sites() -> Iterator[None]:
    """Let Spark's errors name the line of each function of columns that is called while the block runs.

    A function makes four times as many calls into the JVM for it, so that a run has it for the user's own lines alone.
    """
    from pyspark.errors import utils

    before = utils._enable_debugging_cache  # Spark asks its setting once a process (4.3)
    utils._enable_debugging_cache = True  # type: ignore[assignment]
    try:
        yield
    finally:
        utils._enable_debugging_cache = before


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Give a setting of Spark another value while the block runs."""
    from py4j.protocol import Py4JError

    previous = str(spark.conf.get(name))
    spark.conf.set(name, value)
    try:
        yield
    finally:
        try:
            spark.conf.set(name, previous)
        except (OSError, Py4JError) as error:  # its JVM is gone; what ended the work matters more
            log.debug("%s could not be put back: %s", name, error)


def session() -> SparkSession:
    """Start a Spark session of your own that can read the lake, with the settings in force."""
    from etl import services

    settings = load_settings()
    settings = settings.model_copy(update={"spark_conf": {_CALL_SITES: "true"} | settings.spark_conf})
    running = services.up(settings)
    os.environ.update(running.environment)
    return start(settings, running)
