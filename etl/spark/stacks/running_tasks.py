"""Looks at the stages that Spark is in, and at their oldest running task: for how long, and where it is.

Spark keeps all of it in the driver, whether its pages are on or off; the stack alone is fetched from the executor.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from etl.spark.jvm import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER = "driver"  # the executor of a local Spark
_API = "org.apache.spark.status.api.v1"
_MODULE = re.compile(r"^(?:[\w.]+@[^/]*/|\w*//)")  # java.base@17.0.15/ and app//
_SPARK = "org.apache.spark."
_PYTHON = "org.apache.spark.api.python."
_GENERATED = ".expressions.GeneratedClass$"
# Spark's description of a query's job
_OF_QUERY = re.compile(r"\brunId = (\S+).*?\bbatch = (\d+)", re.DOTALL)
_REGEX = "java.util.regex."


@dataclass(frozen=True)
class Stage:
    """One look at a stage that runs."""

    spark: SparkSession
    data: Any  # StageData of Java
    run_id: str | None  # of a query's run; None: it is of no query
    batch: int = -1  # of the query

    @property
    def key(self) -> tuple[int, int]:
        return self.data.stageId(), self.data.attemptId()

    @property
    def seconds(self) -> float:
        """Return for how long the session has been in it."""
        return _since(self.data.submissionTime().get())

    @cached_property
    def tasks(self) -> int:
        return int(self.data.numTasks())

    @cached_property
    def done(self) -> int:
        return int(self.data.numCompleteTasks())

    def oldest_running(self) -> Task | None:
        """Return the task that runs for longest; None if none runs."""
        tasks = self._list("RUNNING", "ID", 0)  # Spark counts them as it launches them
        return Task(self.spark, tasks.apply(0)) if tasks.size() else None

    def took(self) -> tuple[float, float] | None:
        """Return within how many seconds half of the done tasks were done, and all; None where that is not known."""
        half = self._list("SUCCESS", "INCREASING_RUNTIME", max(0, self.done - 1) // 2)
        longest = self._list("SUCCESS", "DECREASING_RUNTIME", 0)
        if not half.size() or not longest.size():
            return None
        return _seconds(half.apply(0)), _seconds(longest.apply(0))

    def _list(self, status: str, order: str, offset: int) -> Any:
        """Return one task of a status, or none: Seq[TaskData] of Scala."""
        statuses = java_class(self.spark, "java.util.ArrayList")()
        statuses.add(getattr(java_class(self.spark, f"{_API}.TaskStatus"), status))
        sorting = getattr(java_class(self.spark, f"{_API}.TaskSorting"), order)
        return _store(self.spark).taskList(*self.key, offset, 1, sorting, statuses)


@dataclass(frozen=True)
class Task:
    """One look at a task that runs."""

    spark: SparkSession
    data: Any  # TaskData of Java

    @property
    def number(self) -> int:
        """Return the task's number among all tasks of the session."""
        return int(self.data.taskId())

    @property
    def index(self) -> int:
        """Return the task's number within the stage, from 0."""
        return int(self.data.index())

    @property
    def executor(self) -> str:
        return str(self.data.executorId())

    @property
    def host(self) -> str:
        return str(self.data.host())

    @property
    def seconds(self) -> float:
        return _since(self.data.launchTime())

    def stack(self) -> list[str]:
        """Fetch the calls of the task's thread, the innermost first; none where the task has just ended."""
        dump = _context(self.spark).getTaskThreadDump(self.number, self.data.executorId())
        if dump.isEmpty():
            return []
        return [_MODULE.sub("", line) for line in str(dump.get().stackTrace().toString()).splitlines()]


def stages(spark: SparkSession, *, older_than: float) -> Iterator[Stage]:
    """Yield the stages that the session has been in for longer than so many seconds."""
    active = _store(spark).activeStages()
    for index in range(active.size()):
        data = active.apply(index)
        submitted = data.submissionTime()
        if submitted.isEmpty() or _since(submitted.get()) < older_than:
            continue
        described = data.description()
        found = None if described.isEmpty() else _OF_QUERY.search(str(described.get()))
        yield Stage(spark, data, found[1], int(found[2])) if found else Stage(spark, data, None)


def without_executor(spark: SparkSession) -> str | None:
    """Return the application's name for its cluster where that has given it no executor, so that no task can run."""
    context = spark.sparkContext
    known = _store(spark).executorList(True).size()  # the driver is one of them
    return None if known > 1 or str(context.master).startswith("local") else str(context.applicationId)


def is_in_python(stack: Sequence[str]) -> bool:
    """Tell whether a task waits for a Python worker."""
    return _caller(stack).startswith(_PYTHON)


def is_in_regex(stack: Sequence[str]) -> bool:
    """Tell whether a task tries a regular expression on a text."""
    return stack[0].startswith(_REGEX)


def java_place(stack: Sequence[str]) -> str:
    """Name the innermost call of a task, and the one of Spark's that leads to it."""
    innermost, caller = stack[0], _caller(stack)
    what = "a regular expression, " if is_in_regex(stack) else ""
    if _GENERATED in caller:
        caller = "the code that Spark has made of expressions, those of the transform or of the suite"
    return f"{what}{innermost}" + (f", called by {caller}" if caller and caller != innermost else "")


def _caller(stack: Sequence[str]) -> str:
    return next((one for one in stack if one.startswith(_SPARK)), "")


def _since(moment: Any) -> float:
    """Return how many seconds have passed since a moment: Date of Java."""
    return time.time() - float(moment.getTime()) / 1000


def _seconds(task: Any) -> float:
    duration = task.duration()
    return 0.0 if duration.isEmpty() else int(duration.get()) / 1000


def _context(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.sc()


def _store(spark: SparkSession) -> Any:
    return _context(spark).statusStore()
