"""Runs of several pipelines in one process that can be killed: each stops when its batch is in both sinks.

Called as `side_by_side <deliveries> <folder> <pipeline>...`, with the settings in
the environment as for the command. When every pipeline has so many deliveries, and none of them the mark of
its last batch, it says so in the FIFO `reached`. Each waits by reading from a FIFO that nobody writes to.
They share a session. As many come to their step at a time as there are slots: Spark gives a worker ten
seconds to connect. A run that comes to an end, in whatever way, ends the process.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from etl import services
from etl.common import steps
from etl.common.settings import load_settings
from etl.common.steps import Step
from etl.pipeline import Pipeline, load_pipeline
from etl.runs.run import run
from etl.runs.spark_session import a_session
from etl.runs.summary import Summary
from etl.runs.workspace import Workspace
from tests.support import oracle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOTS = 2


@dataclass(frozen=True, kw_only=True)
class StopTogether:
    """Stops the thread whose stream has all its deliveries; the last one of them tells."""

    deliveries: int
    pipelines: int
    folder: str
    dsn: str
    slots: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(SLOTS))
    stopped: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, place: Workspace, pipeline: Pipeline, spark: SparkSession) -> Summary:
        self.slots.acquire()
        return run(place, pipeline, spark=spark)

    def __call__(self, step: Step) -> None:
        if step != Step.COMMITTED:
            return
        stream = stream_of_thread()
        [(count,)] = oracle.ask(
            self.dsn, "SELECT count(*) FROM sluice.delivery WHERE stream_id = %s", (stream,)
        )
        if count < self.deliveries:
            return
        with self.lock:
            self.stopped.add(stream)
            if len(self.stopped) == self.pipelines:
                with Path(self.folder, "reached").open("w") as reached:
                    reached.write(f"{os.getpid()}\n")
        self.slots.release()
        Path(self.folder, "wait").read_text()


def stream_of_thread() -> str:
    """Return the stream of the batch that this thread delivers: the id of Spark's query that calls it."""
    from pyspark import SparkContext

    found = SparkContext.getOrCreate().getLocalProperty("sql.streaming.queryId")
    assert found is not None, "no thread of a query"
    return found


def main() -> None:
    deliveries, folder, *names = sys.argv[1:]
    settings = load_settings()
    found = services.up(settings)
    os.environ.update(found.environment)
    place = Workspace(settings=settings, services=found)
    pipelines = [load_pipeline(name, settings.pipelines) for name in names]
    stop = StopTogether(
        deliveries=int(deliveries), pipelines=len(names), folder=folder, dsn=place.services.postgres
    )
    steps.listen(stop)
    with a_session(place, None) as spark:
        pool = ThreadPoolExecutor(len(names))
        runs = {pool.submit(stop.run, place, one, spark): one.name for one in pipelines}
        ended = next(as_completed(runs))
        try:
            print(f"{runs[ended]} ended before its step: {ended.result()}")
        except Exception:  # noqa: BLE001 - told, and the process ends
            print(f"{runs[ended]} failed:\n{traceback.format_exc()}")
        sys.stdout.flush()
        os._exit(1)  # the other threads are at their steps, or in the JVM
