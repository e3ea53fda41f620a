"""Provides the Spark session of a run: the caller's, or one that is started and stopped for the run."""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from etl.runs.slow_tasks import watching_command
from etl.runs.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger("sluice")


@contextmanager
def a_session(
    workspace: Workspace, given: SparkSession | None, *, queries: bool = True, little: bool = False
) -> Iterator[SparkSession]:
    """Yield the given session and leave it running, or start one, for `little` work or much, and stop it at the end.

    Warns of tasks that are slow, also those of queries unless these have a watch of their own. Raises SparkEnded where
    the block fails because Spark has ended, TaskTooLong where it was ended for a task.
    """
    from etl.spark.jvm import telling_of_end

    if given is not None:
        with telling_of_end(given), watching_command(given, workspace.settings, queries=queries):
            yield given
        return
    import pyspark.sql  # noqa: F401 - wholly, before another thread imports parts of it

    from etl.quality.gx import registered
    from etl.spark.session import start
    from etl.spark.tasks import start_workers

    # Great Expectations takes seconds to import, Spark's JVM to start: side by side.
    # Great Expectations, and Python's view of Spark's moments, go by the zone of the process: a verdict must not.
    os.environ["TZ"] = "UTC"
    time.tzset()
    suites = threading.Thread(target=registered, name="suites", daemon=True)
    suites.start()
    spark = start(workspace.settings, workspace.services, little=little)
    try:
        start_workers(spark)
        suites.join()
        with telling_of_end(spark), watching_command(spark, workspace.settings, queries=queries):
            yield spark
    finally:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of a JVM that is gone
                spark.stop()
        except Exception as error:  # noqa: BLE001 - its JVM is gone; what ended the run matters more
            log.debug("Spark could not be stopped: %s", error)
