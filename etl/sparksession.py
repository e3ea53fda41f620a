"""The Spark session of a run: quiet, on loopback when local, and set so that no input is skipped."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from etl.services import JarSet, Services, jars, java
from etl.services.process import make_folder
from etl.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).parent / "log4j2.properties"
ARROW_ROWS = 20_000  # rows of one Arrow batch: bounds a task's memory
MINIMAL_RETAINED_BATCHES = 100


def retained_batches(horizon: timedelta) -> int:
    """How many batches Spark keeps in a checkpoint: one a minute of the backup horizon, at least 100."""
    return max(MINIMAL_RETAINED_BATCHES, int(horizon.total_seconds() // 60))


def configuration(settings: Settings, services: Services) -> dict[str, str]:
    """Spark's settings in force; the user's own come last, but for those that could lose rows."""
    local = settings.spark_master.startswith("local")
    found = {
        "spark.master": settings.spark_master,
        "spark.app.name": "sluice",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS),
        "spark.sql.streaming.minBatchesToRetain": str(retained_batches(settings.backup_horizon)),
    }
    if local:
        cores = settings.spark_master.removeprefix("local").strip("[]").split(",")[0]
        found["spark.sql.shuffle.partitions"] = cores if cores.isdigit() else str(os.cpu_count() or 1)
        found |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    found |= _s3a(settings, services, local=local)
    return found | settings.spark_conf | KEEP_EVERYTHING


# A setting that skipped or blurred input would break conservation, so these can't be overridden.
KEEP_EVERYTHING = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    "spark.python.worker.reuse": "true",
}


def _s3a(settings: Settings, services: Services, *, local: bool) -> dict[str, str]:
    """S3A, for an s3a:// landing or checkpoint and to read the lake; credentials by the AWS chain alone."""
    folder = jars(JarSet.S3A, settings.jars)
    found = {
        "spark.hadoop.fs.s3a.aws.credentials.provider": "software.amazon.awssdk.auth.credentials"
        ".DefaultCredentialsProvider",
        "spark.hadoop.fs.s3a.endpoint.region": services.s3_region,
        "spark.hadoop.fs.s3a.attempts.maximum": "3",  # a dead endpoint fails in 41 s instead of 269 s
        "spark.hadoop.fs.s3a.retry.limit": "4",
    }
    if services.s3_endpoint:
        found["spark.hadoop.fs.s3a.endpoint"] = services.s3_endpoint
        found["spark.hadoop.fs.s3a.path.style.access"] = "true"
    if local:  # on the class path a jar costs nothing; spark.jars would copy each of them
        found["spark.driver.extraClassPath"] = f"{folder}/*"
    else:
        found["spark.jars"] = ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))
    return found


def start(settings: Settings, services: Services) -> SparkSession:
    """A new session with `configuration`; what its JVM writes goes to `log_file`, not to the terminal."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    java()  # one line about a missing or old Java, before Spark's own report of it
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # its default is whatever python3 is on PATH
    conf = SparkConf().setAll(list(configuration(settings, services).items()))
    log = log_file(settings)
    make_folder(log.parent)
    with log.open("w") as out:
        gateway = launch_gateway(conf, popen_kwargs={"stdout": out, "stderr": out})  # type: ignore[no-untyped-call]
    SparkContext(conf=conf, gateway=gateway)
    return SparkSession.builder.getOrCreate()


def log_file(settings: Settings) -> Path:
    """Where Spark's JVM writes its errors."""
    return settings.home / "logs" / "spark.log"
