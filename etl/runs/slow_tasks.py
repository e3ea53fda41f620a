"""Warns of one task of Spark that keeps a batch, or a command, for long: which, where it is, what a person does about it.

So it does of a stage none of whose tasks can start, since a cluster has given the run no executor.

Nothing waits for it, and nothing fails by it but what has a task at its limit, where there is one. It looks often, which
costs one question to Spark's driver; the rest is asked of a task that is slow.
"""

from __future__ import annotations

import logging
import math
import os
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from etl.common.errors import SluiceError, TaskTooLong
from etl.common.outcome import in_short
from etl.common.wording import first_few, pluralize
from etl.runs.looks import looking
from etl.spark import signals
from etl.spark.launch import jvm_log
from etl.spark.stacks.running_tasks import (
    DRIVER,
    Stage,
    Task,
    is_in_python,
    is_in_regex,
    java_place,
    stages,
    without_executor,
)
from etl.spark.stacks.worker_places import worker_places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from etl.common.settings import Settings
    from etl.quality.rules import Rules

log = logging.getLogger("sluice")

_STANDALONE = (
    "look on the cluster's page who has its cores; set `spark.cores.max` in SLUICE_SPARK_CONF, so that other runs take"
    " fewer, or start more workers"
)
_OTHER_CLUSTER = "look there what its queue or its pending pods wait for"
LONGEST_PAUSE = 30  # seconds between two looks
LOOKS = 4  # at least, within the bound
FILES, PLACES, RULES = 3, 5, 5  # that a warning names at most


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What a stage is a part of, in words."""

    what: str  # the beginning of a sentence: who has been in one of its tasks
    files: Sequence[str] = ()  # the paths of those that it reads, as far as they can be told
    next: str  # what a person does about a task that is slow


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A task at its limit, for which a watch has ended Spark's JVM."""

    stage: Stage
    files: Sequence[str]
    seen: str  # where the task was


class TaskWatch:
    """A watch over tasks; it warns once a stage has had one task for `bound`, then for twice as long each time.

    Where a task has run for `limit`, it ends Spark's JVM. Where another process has launched the JVM, it can't, and warns.
    """

    def __init__(
        self,
        spark: SparkSession,
        bound: timedelta,
        limit: timedelta | None,
        watched: Callable[[Stage], Watched | None],
        patterns: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Take what to look at, and how; `watched` is asked for a slow stage alone, and returns None for one of others'.

        `patterns` are the regular expressions of the suite's rules, by the rules' names; None: no rule is evaluated yet.
        """
        self.patterns = patterns
        self.spark, self._watched = spark, watched
        self._process = getattr(spark.sparkContext._gateway, "proc", None)
        self._bound = bound.total_seconds()
        self._limit = limit.total_seconds() if limit else math.inf
        self._due: dict[tuple[int, int], float] = {}  # how long a stage's task runs when it is told of next
        self._failed = False
        self.ended: Ended | None = None

    def watching(self) -> AbstractContextManager[None]:
        """Look at the tasks while the block runs."""
        every = min(self._bound / LOOKS, self._limit / LOOKS, LONGEST_PAUSE)
        return looking(self._look, every=every, name="slow tasks")

    def _look(self) -> None:
        from py4j.protocol import Py4JError

        if self.ended:
            return
        try:
            first = min(self._bound, self._limit)
            slow = stages(self.spark, older_than=first)
            self._due = {one.key: self._tell(one, self._due.get(one.key, first)) for one in slow}
        except (OSError, Py4JError) as error:  # its JVM is gone, which the command itself tells
            log.debug("Spark can't be asked for its tasks: %s", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing ends by it
            if not self._failed:
                log.warning("slow tasks can't be told: %r", error)
            self._failed = True

    def _tell(self, stage: Stage, due: float) -> float:
        """Warn of the stage's oldest task if it is due; return when it is due next."""
        task = stage.oldest_running()
        if task is None and (application := without_executor(self.spark)) is not None:
            return self._tell_waiting(stage, due, application)
        seconds = task.seconds if task else 0.0
        ends = seconds >= self._limit and self._process is not None
        if task is None or not (ends or seconds >= due) or (of := self._watched(stage)) is None:
            return due
        if ends:
            self._end(stage, task, seconds, of)
            return due
        log.warning("%s", self._message(stage, task, seconds, of))
        return _after(seconds, due)

    def _tell_waiting(self, stage: Stage, due: float, application: str) -> float:
        """Warn of a stage that waits for an executor if it is due; return when it is due next."""
        seconds, master = stage.seconds, self.spark.sparkContext.master
        if seconds < max(due, self._bound) or (of := self._watched(stage)) is None:
            return due
        log.warning(
            "%s in Spark's stage %s for %s (SLUICE_SLOW_TASK is %s) and waits for an executor: %s has none of its cluster"
            " %s. It goes on waiting. Next: %s; %s",
            of.what,
            stage.key[0],
            lasting(seconds),
            lasting(self._bound),
            application,
            master,
            _STANDALONE if (master or "").startswith("spark://") else _OTHER_CLUSTER,
            of.next,
        )
        return _after(seconds, due)

    def _end(self, stage: Stage, task: Task, seconds: float, of: Watched) -> None:
        """End Spark's JVM, and with it the task, if it still runs: Java's regular expressions heed no interrupt.

        It ends as a second signal to the command ends it, and what runs fails with it.
        """
        seen = self._seen(stage, task, seconds, f"SLUICE_TASK_LIMIT is {lasting(self._limit)}", of)
        running = stage.oldest_running()  # to tell where it is takes seconds
        if running is not None and running.number == task.number:
            self.ended = Ended(stage=stage, files=of.files, seen=seen)
            assert self._process is not None
            signals.end(self._process)

    def _message(self, stage: Stage, task: Task, seconds: float, of: Watched) -> str:
        seen = self._seen(stage, task, seconds, f"SLUICE_SLOW_TASK is {lasting(self._bound)}", of)
        goes_on = "It goes on."
        if seconds >= self._limit:
            goes_on += (
                f" SLUICE_TASK_LIMIT is {lasting(self._limit)}, but the task can't be ended from here: another process has"
                " launched Spark's JVM."
            )
        return f"{seen} {goes_on} Next: {of.next}"

    def _seen(self, stage: Stage, task: Task, seconds: float, limit: str, of: Watched) -> str:
        begun = (
            f"{of.what} in task {task.index} of Spark's stage {stage.key[0]} for"
            f" {lasting(seconds)} ({limit}), on {_machine(task)}; {_done(stage)}."
        )
        sentences = [begun]
        if where := self._where(task):
            sentences.append(where)
        if of.files:
            sentences.append(
                f"The batch reads {pluralize(len(of.files), 'file')}: {first_few(of.files, FILES)}."
            )
        return " ".join(sentences)

    def _where(self, task: Task) -> str:
        """Say where a task is, or why that can't be told."""
        try:
            return self._place(task)
        except Exception as error:  # noqa: BLE001 - such as of an executor that does not answer
            return f"Where it is can't be told: {in_short(error)}."

    def _place(self, task: Task) -> str:
        """Say where a task is; nothing where it has just ended."""
        stack = task.stack()
        if not stack:
            return ""
        log.debug("the stack of task %s:\n%s", task.index, "\n".join(stack))
        if not is_in_python(stack):
            return f"It is in {java_place(stack)}.{self._of_whom() if is_in_regex(stack) else ''}"
        written = jvm_log.current()
        if task.executor != DRIVER or self._process is None or written is None:
            return f"It waits for a Python worker; `py-spy dump` on {task.host} tells in which line that is."
        if places := worker_places(self._process.pid, written):
            return f"It waits for a Python worker: {first_few(places, PLACES)}; tracebacks: {written}."
        return "It waits for a Python worker; none tells where it is."

    def _of_whom(self) -> str:
        """Say whose regular expression a task may be at: of the suite's rules all that have one."""
        if self.patterns is None:
            return " It is one of the transform's: no rule of a suite has been evaluated."
        if not self.patterns:
            return " The suite has none, so that it is one of the transform's."
        rules = [f"{name} ({', '.join(patterns)})" for name, patterns in self.patterns.items()]
        have = "is a rule" if len(rules) == 1 else "are rules"
        return (
            f" In the suite there {have} with one: {first_few(rules, RULES)}; the transform may have others."
        )


def _after(seconds: float, due: float) -> float:
    """Return when what has lasted so long is told of next: each time after twice as long."""
    while due <= seconds:
        due *= 2
    return due


# over the command that this thread is at
_command_watch: ContextVar[TaskWatch | None] = ContextVar("command_watch", default=None)


class SlowTaskWatch:
    """The watch over one query of a run; `ended_by` says why it has ended Spark's JVM."""

    def __init__(
        self,
        pipeline: str,
        spark: SparkSession,
        bound: timedelta,
        files_of: Callable[[int], Sequence[str]],
        delivery_of: Callable[[int], int | None],
        *,
        limit: timedelta | None = None,
        patterns: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Take whom to ask: `files_of` returns the paths of a batch's files, and is asked for a slow batch alone.

        `delivery_of` returns the number of a batch's delivery, and is asked for the batch whose JVM was ended.
        """
        self._name, self._files_of, self._delivery_of = pipeline, files_of, delivery_of
        self._run_id = ""
        self._tasks = TaskWatch(spark, bound, limit, self._watched, patterns or {})

    def watching(self, query: StreamingQuery) -> AbstractContextManager[None]:
        """Look at the query's tasks while the block runs."""
        self._run_id = str(query.runId)
        return self._tasks.watching()

    def ended_by(self) -> SluiceError | None:
        """Return why the watch has ended Spark's JVM, and what became of the batch; None where it has not ended it."""
        ended = self._tasks.ended
        if ended is None:
            return None
        return end_of(self._name, ended.seen, ended.files, partial(self._delivery_of, ended.stage.batch))

    def _watched(self, stage: Stage) -> Watched | None:
        if stage.run_id != self._run_id:
            return None
        files = self._files_of(stage.batch)
        return Watched(
            what=f"{self._name}: batch {stage.batch} has been",
            files=files,
            next=f"{one_file(self._name, files)}`sluice stop {self._name}` ends it after this batch; if the batch never"
            f" ends, {_kill()} twice",
        )


def end_of(pipeline: str, seen: str, files: Sequence[str], delivery: Callable[[], int | None]) -> SluiceError:
    """Return what a run ends with for a task at its limit, by the delivery of its batch, if that can be told."""
    alone = one_file(pipeline, files)
    try:
        number = delivery()
    except SluiceError as error:
        told = f"`sluice status {pipeline}` tells whether the batch was delivered, which can't be told now ({error.seen})"
        return too_long(seen, told, alone)
    if number is None:
        return too_long(seen, "Nothing of the batch was delivered", alone)
    return SluiceError(
        f"{seen} Spark's JVM was ended for it, but the batch had come to its end: it is delivery {number}",
        remedy="run again, which goes on after this batch; set SLUICE_TASK_LIMIT higher, if it is often as slow",
    )


@contextmanager
def watching_command(spark: SparkSession, settings: Settings, *, queries: bool) -> Iterator[None]:
    """Look at the tasks of a command's session while the block runs, those of its streaming `queries` too or not.

    A session that is looked at already is not looked at twice. Raises TaskTooLong where the block fails since Spark's JVM
    was ended for a task at its limit.
    """
    outer = _command_watch.get()
    if outer is not None and outer.spark is spark:
        yield
        return

    def watched(stage: Stage) -> Watched | None:
        if stage.run_id is not None and not queries:
            return None
        return Watched(what="The command has been", next=f"{_kill()}, which ends it")

    tasks = TaskWatch(spark, settings.slow_task, settings.task_limit, watched)
    before = _command_watch.set(tasks)
    try:
        with tasks.watching():
            yield
    except Exception as error:
        if tasks.ended is None:
            raise
        raise too_long(tasks.ended.seen, "Spark's JVM was ended for it") from error
    finally:
        _command_watch.reset(before)


def name_patterns(rules: Rules) -> None:
    """Have the watch over this thread's command, if there is one, name the rules of the suite that it judges by now."""
    if (watch := _command_watch.get()) is not None:
        watch.patterns = patterns_by_rule(rules)


def patterns_by_rule(rules: Rules) -> dict[str, Sequence[str]]:
    """Return the regular expressions of the rules that have some, by the rules' names."""
    from etl.quality.mistakes.arguments import patterns_of

    patterns = ((rule.declared.reason, patterns_of(rule.declared)) for rule in rules.suite.rules)
    return {reason: some for reason, some in patterns if some}


def too_long(seen: str, became: str, one_file: str = "") -> TaskTooLong:
    """Make the error of a command that ends for a task at its limit."""
    return TaskTooLong(
        f"{seen} {became}",
        remedy=f"correct what takes so long; {one_file}then run again, or set SLUICE_TASK_LIMIT higher, if it is only slow",
    )


def _kill() -> str:
    return f"`kill {os.getpid()}` on {socket.gethostname()}"


def one_file(pipeline: str, files: Sequence[str]) -> str:
    """Say how to run one file of a batch alone, as the beginning of a next step; nothing where it reads none."""
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
