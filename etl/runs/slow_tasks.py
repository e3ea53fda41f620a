"""Warns of a batch that one task of Spark keeps for long: which task, where it is, and what a person does about it.

No batch waits for it, and no run fails by it but one whose task is at its limit, where there is one. It looks often, which
costs one question to Spark's driver; the rest is asked of a task that is slow.
"""

from __future__ import annotations

import logging
import math
import os
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING

from etl.common.errors import SluiceError, TaskTooLong
from etl.common.wording import first_few, pluralize
from etl.runs.looks import looking
from etl.spark import jvm_log, signals
from etl.spark.stacks.running_tasks import (
    DRIVER,
    Stage,
    Task,
    is_in_python,
    is_in_regex,
    java_place,
    stages_of,
)
from etl.spark.stacks.worker_places import worker_places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("sluice")

LONGEST_PAUSE = 30  # seconds between two looks
LOOKS = 4  # at least, within the bound
FILES, PLACES, RULES = 3, 5, 5  # that a warning names at most


class SlowTaskWatch:
    """The watch over one query; it warns once a stage has had one task for `bound`, then for twice as long each time.

    Where a task has run for `limit`, it ends Spark's JVM, and `ended_by` says why.
    """

    def __init__(
        self,
        pipeline: str,
        spark: SparkSession,
        bound: timedelta,
        files_of: Callable[[int], Sequence[str]],
        *,
        limit: timedelta | None = None,
        patterns: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`files_of` returns the paths of a batch's files, and is asked for a slow batch alone.

        `patterns` are the regular expressions of the suite's rules, by the rules' names.
        """
        self._name, self._spark, self._files_of = pipeline, spark, files_of
        self._bound = bound.total_seconds()
        self._limit = limit.total_seconds() if limit else math.inf
        self._patterns = patterns or {}
        self._due: dict[tuple[int, int], float] = {}  # how long a stage's task runs when it is told of next
        self._failed = False
        self._ended: TaskTooLong | None = None

    def ended_by(self) -> TaskTooLong | None:
        """Return why the watch has ended Spark's JVM; None where it has not."""
        return self._ended

    def watching(self, query: StreamingQuery) -> AbstractContextManager[None]:
        """Look at the query's tasks while the block runs."""
        run_id = str(query.runId)
        every = min(self._bound / LOOKS, self._limit / LOOKS, LONGEST_PAUSE)
        return looking(lambda: self._look(run_id), every=every, name="slow tasks")

    def _look(self, run_id: str) -> None:
        from py4j.protocol import Py4JError

        if self._ended:
            return
        try:
            stages = stages_of(self._spark, run_id, older_than=min(self._bound, self._limit))
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
        if task is None or (seconds := task.seconds) < min(due, self._limit):
            return due
        if seconds >= self._limit:
            self._end(self._too_long(stage, task, seconds))
            return due
        log.warning("%s", self._message(stage, task, seconds))
        while due <= seconds:
            due *= 2
        return due

    def _end(self, why: TaskTooLong) -> None:
        """End Spark's JVM, and with it the task: Java's regular expressions heed no interrupt.

        It ends as a second signal to the run ends it, and the query fails with it.
        """
        process = getattr(self._spark.sparkContext._gateway, "proc", None)
        if process is not None:  # else another process has launched it
            self._ended = why
            signals.end(process)

    def _too_long(self, stage: Stage, task: Task, seconds: float) -> TaskTooLong:
        files = self._files(stage.batch)
        seen = self._seen(stage, task, seconds, f"SLUICE_TASK_LIMIT is {lasting(self._limit)}", files)
        return TaskTooLong(
            f"{seen} Nothing of the batch was delivered",
            remedy=f"correct what takes so long; {_one_file(self._name, files)}then run again, or set SLUICE_TASK_LIMIT"
            " higher, if it is only slow",
        )

    def _message(self, stage: Stage, task: Task, seconds: float) -> str:
        files = self._files(stage.batch)
        seen = self._seen(stage, task, seconds, f"SLUICE_SLOW_TASK is {lasting(self._bound)}", files)
        return (
            f"{seen} The run goes on. Next: {_one_file(self._name, files)}`sluice stop {self._name}` ends it after this"
            f" batch; if the batch never ends, `kill {os.getpid()}` twice on {socket.gethostname()}"
        )

    def _seen(self, stage: Stage, task: Task, seconds: float, limit: str, files: Sequence[str]) -> str:
        begun = (
            f"{self._name}: batch {stage.batch} has been in task {task.index} of Spark's stage {stage.key[0]} for"
            f" {lasting(seconds)} ({limit}), on {_machine(task)}; {_done(stage)}."
        )
        sentences = [begun]
        if where := self._where(task):
            sentences.append(where)
        if files:
            sentences.append(f"The batch reads {pluralize(len(files), 'file')}: {first_few(files, FILES)}.")
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
            return f"It is in {java_place(stack)}.{self._of_whom() if is_in_regex(stack) else ''}"
        process, written = getattr(self._spark.sparkContext._gateway, "proc", None), jvm_log.current()
        if task.executor != DRIVER or process is None or written is None:
            return f"It waits for a Python worker; `py-spy dump` on {task.host} tells in which line that is."
        if places := worker_places(process.pid, written):
            return f"It waits for a Python worker: {first_few(places, PLACES)}; tracebacks: {written}."
        return "It waits for a Python worker; none tells where it is."

    def _of_whom(self) -> str:
        """Say whose regular expression it may be: of the suite's rules all that have one."""
        if not self._patterns:
            return " The suite has none, so that it is one of the transform's."
        rules = [f"{name} ({', '.join(patterns)})" for name, patterns in self._patterns.items()]
        have = "is a rule" if len(rules) == 1 else "are rules"
        return (
            f" In the suite there {have} with one: {first_few(rules, RULES)}; the transform may have others."
        )

    def _files(self, batch: int) -> Sequence[str]:
        try:
            return self._files_of(batch)
        except (OSError, SluiceError) as error:
            log.debug("the files of batch %s of %s can't be told: %s", batch, self._name, error)
            return []


def _one_file(pipeline: str, files: Sequence[str]) -> str:
    return f"`sluice try {pipeline} --input {shlex.quote(files[0])}` runs one file alone; " if files else ""


def _machine(task: Task) -> str:
    return socket.gethostname() if task.executor == DRIVER else f"executor {task.executor} of {task.host}"


def _done(stage: Stage) -> str:
    """Say how many of a stage's tasks are done, and how long these took."""
    if stage.tasks == 1:
        return "the stage has no other"
    are = "is" if stage.done == 1 else "are"
    done = f"{stage.done:,} of the stage's {pluralize(stage.tasks, 'task')} {are} done"
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
