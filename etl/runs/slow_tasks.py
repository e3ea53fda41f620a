"""Warns of a batch that one task of Spark keeps for long: which task, where it is, and what a person does about it.

No batch waits for it and no run fails by it. It looks often, which costs one question to Spark's driver; the rest is
asked of a task that is slow.
"""

from __future__ import annotations

import logging
import os
import shlex
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING

from etl.common.errors import SluiceError
from etl.common.wording import first_few, pluralize
from etl.runs.looks import looking
from etl.spark import jvm_log
from etl.spark.stacks.running_tasks import DRIVER, Stage, Task, is_in_python, java_place, stages_of
from etl.spark.stacks.worker_places import worker_places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("sluice")

LONGEST_PAUSE = 30  # seconds between two looks
LOOKS = 4  # at least, within the bound
FILES, PLACES = 3, 5  # that a warning names at most


class SlowTaskWatch:
    """The watch over one query; it warns once a stage has had one task for `bound`, then for twice as long each time."""

    def __init__(
        self, pipeline: str, spark: SparkSession, bound: timedelta, files_of: Callable[[int], Sequence[str]]
    ) -> None:
        """`files_of` returns the paths of a batch's files, and is asked for a slow batch alone."""
        self._name, self._spark, self._files_of = pipeline, spark, files_of
        self._bound = bound.total_seconds()
        self._due: dict[tuple[int, int], float] = {}  # how long a stage's task runs when it is told of next
        self._failed = False

    def watching(self, query: StreamingQuery) -> AbstractContextManager[None]:
        """Look at the query's tasks while the block runs."""
        run_id = str(query.runId)
        every = min(self._bound / LOOKS, LONGEST_PAUSE)
        return looking(lambda: self._look(run_id), every=every, name="slow tasks")

    def _look(self, run_id: str) -> None:
        from py4j.protocol import Py4JError

        try:
            stages = stages_of(self._spark, run_id, older_than=self._bound)
            self._due = {one.key: self._tell(one, self._due.get(one.key, self._bound)) for one in stages}
        except (OSError, Py4JError) as error:  # its JVM is gone, which the run itself tells
            log.debug("Spark can't be asked for the tasks of %s: %s", self._name, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, no run ends by it
            if not self._failed:
                log.warning("slow tasks of %s can't be told: %r", self._name, error)
            self._failed = True

    def _tell(self, stage: Stage, due: float) -> float:
        """Warn of the stage's oldest task if it is due; return when it is due next."""
        task = stage.oldest_running()
        if task is None or (seconds := task.seconds) < due:
            return due
        log.warning("%s", self._message(stage, task, seconds))
        while due <= seconds:
            due *= 2
        return due

    def _message(self, stage: Stage, task: Task, seconds: float) -> str:
        begun = (
            f"{self._name}: batch {stage.batch} has been in task {task.index} of Spark's stage {stage.key[0]} for"
            f" {lasting(seconds)} (SLUICE_SLOW_TASK is {lasting(self._bound)}), on {_machine(task)}; {_done(stage)}."
        )
        sentences = [begun]
        if where := self._where(task):
            sentences.append(where)
        one_file = ""
        if files := self._files(stage.batch):
            sentences.append(f"The batch reads {pluralize(len(files), 'file')}: {first_few(files, FILES)}.")
            one_file = f"`sluice try {self._name} --input {shlex.quote(files[0])}` runs one file alone; "
        sentences.append(
            f"The run goes on. Next: {one_file}`sluice stop {self._name}` ends it after this batch; if the batch never"
            f" ends, `kill {os.getpid()}` twice on {socket.gethostname()}"
        )
        return " ".join(sentences)

    def _where(self, task: Task) -> str:
        """Say where a task is, or why that can't be told."""
        try:
            return self._place(task)
        except Exception as error:  # noqa: BLE001 - such as of an executor that does not answer
            why, *_ = str(error).splitlines() or [type(error).__name__]
            return f"Where it is can't be told: {why}."

    def _place(self, task: Task) -> str:
        """Say where a task is; nothing where it has just ended."""
        stack = task.stack()
        if not stack:
            return ""
        log.debug("the stack of task %s of %s:\n%s", task.index, self._name, "\n".join(stack))
        if not is_in_python(stack):
            return f"It is in {java_place(stack)}."
        process, written = getattr(self._spark.sparkContext._gateway, "proc", None), jvm_log.current()
        if task.executor != DRIVER or process is None or written is None:
            return f"It waits for a Python worker; `py-spy dump` on {task.host} tells in which line that is."
        if places := worker_places(process.pid, written):
            return f"It waits for a Python worker: {first_few(places, PLACES)}; tracebacks: {written}."
        return "It waits for a Python worker; none tells where it is."

    def _files(self, batch: int) -> Sequence[str]:
        try:
            return self._files_of(batch)
        except (OSError, SluiceError) as error:
            log.debug("the files of batch %s of %s can't be told: %s", batch, self._name, error)
            return []


def _machine(task: Task) -> str:
    return socket.gethostname() if task.executor == DRIVER else f"executor {task.executor} of {task.host}"


def _done(stage: Stage) -> str:
    """Say how many of a stage's tasks are done, and how long these took."""
    if stage.tasks == 1:
        return "the stage has no other"
    are = "is" if stage.done == 1 else "are"
    done = f"{stage.done:,} of the stage's {stage.tasks:,} tasks {are} done"
    if not stage.done or (took := stage.took()) is None:
        return done
    half, longest = map(lasting, took)
    return (
        f"{done}, in {longest}"
        if stage.done == 1
        else f"{done}, half of them within {half}, all within {longest}"
    )


def lasting(seconds: float) -> str:
    """Write how long something lasts: `0.4 s`, `90 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 and seconds % 1 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
