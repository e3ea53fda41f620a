"""A run whose batch hangs in a task says which, where it is and what to do; then it delivers, once."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession, functions

from etl.operations.control.status import states
from etl.operations.suites.try_out import try_out
from etl.operations.suites.what_if import what_if
from etl.runs.follow import RunControl
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from etl.runs.slow_tasks import SlowTaskWatch
from etl.runs.workspace import Workspace
from etl.spark.launch import jvm_log
from tests.support import forked
from tests.support.data.orders import DECLARATION, NAME, RULES, Landed, Order, orders, rule
from tests.support.followed import Followed
from tests.support.home import Home

BLOCKS = """
    from pathlib import Path
    from pyspark.sql import functions as F

    def until_the_gate_opens(shop):
        return shop + Path({gate!r}).read_text()

    df = df.withColumn("shop", F.udf(until_the_gate_opens)("shop"))
    return"""
# Java remembers what it has tried, unless the expression refers to a group: each letter more takes twice as long.
# Of a key of the lookup, Spark's optimizer would try it on the lookup's rows as well.
BACKTRACKS = """
    from pyspark.sql import functions as F

    df = df.where(~F.concat(F.lit("a" * {letters}), F.lit("!"), "id").rlike(r"^(a+)+\\1$x"))
    return"""
LETTERS = 26  # a task of a second or more: far above its bound of 0.1 s, far below a test's patience on a busy machine


@dataclass(kw_only=True)
class Slow(Followed):
    """A run that ends when all is delivered."""

    caplog: pytest.LogCaptureFixture

    def warnings(self, where: str = "") -> list[str]:
        """Return those of tasks that are there: where a machine is busy, any stage may take longer than a second."""
        return [one for one in self.caplog.messages if "SLUICE_SLOW_TASK" in one and where in one]

    def warn_after(self, bound: timedelta, limit: timedelta | None = None) -> None:
        settings = self.home.place.settings.model_copy(update={"slow_task": bound, "task_limit": limit})
        workspace = Workspace(settings=settings, services=self.home.place.services)
        self.home = replace(self.home, place=workspace)

    def declare(self, within: str) -> None:
        text = DECLARATION.format(name=NAME, max_files=1, share=1.0)
        self.home.declare(text=text.replace("    return", within, 1))

    def wait_for_warnings(self, count: int, where: str) -> None:
        self.wait(lambda: len(self.warnings(where)) >= count, f"{count} warnings")


@pytest.fixture
def slow(home: Home, caplog: pytest.LogCaptureFixture) -> Iterator[Slow]:
    caplog.set_level(logging.WARNING, "sluice")
    found = Slow(home=home, name=NAME, control=RunControl(), caplog=caplog)
    found.warn_after(timedelta(seconds=1))
    yield found
    found.leave()


@dataclass(frozen=True)
class Gate:
    """A file that nobody can read to its end, or even open, until it is opened."""

    path: Path

    def open(self) -> None:
        """Let those go on that wait, and those that come."""
        if not self.path.is_fifo():
            return
        opened = self.path.with_suffix(".opened")
        opened.touch()
        writer = os.open(self.path, os.O_RDWR)
        opened.replace(self.path)
        os.close(writer)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    found = Gate(tmp_path / "gate")
    os.mkfifo(found.path)
    yield found
    found.open()


def test_a_function_that_blocks_is_named_with_its_line_and_the_batch_is_then_delivered_once(
    slow: Slow, gate: Gate
) -> None:
    home = slow.home
    slow.declare(BLOCKS.format(gate=str(gate.path)))
    landed = home.land("orders/0.jsonl", orders(0, 9, negative=[4]), ["{broken"])
    slow.start()
    slow.wait_for_warnings(2, "until_the_gate_opens")
    gate.open()
    assert slow.ended().batches == 1
    home.assert_holds(landed)

    path = home.landing / "orders" / "0.jsonl"
    pipeline = home.root / "my pipelines" / "orders.py"
    warnings = slow.warnings("until_the_gate_opens")
    for number, warning in enumerate(warnings):
        begun = re.match(
            r"orders: batch 0 has been in task 0 of Spark's stage \d+ for (\d+(?:\.\d)?) s \(SLUICE_SLOW_TASK is 1 s\),"
            r" on \S+; (the stage has no other|\d of the stage's \d tasks (is|are) done.*?)\.",
            warning,
        )
        assert begun and float(begun[1]) >= 2**number, warning
        assert f"The batch reads 1 file: {path}. It goes on." in warning
        assert (
            f"Next: `sluice try orders --input {path}` runs one file alone; `sluice stop orders`" in warning
        )
        assert re.search(rf"if the batch never ends, `kill {os.getpid()}` on \S+ twice$", warning)
    [line] = [
        number for number, text in enumerate(pipeline.read_text().splitlines(), 1) if "read_text" in text
    ]
    place = f" a Python worker: until_the_gate_opens ({pipeline}, line {line}), within open of pathlib.py"
    assert place in warnings[-1]
    assert f"; tracebacks: {jvm_log.current()}." in warnings[-1]


def test_a_regular_expression_that_backtracks_is_named_and_the_batch_is_then_delivered_once(
    slow: Slow,
) -> None:
    slow.warn_after(timedelta(seconds=0.1))
    slow.declare(BACKTRACKS.format(letters=LETTERS))
    landed = slow.home.land("orders/0.jsonl", orders(0, 1))
    slow.start()
    where = "It is in a regular expression, java.util.regex.Pattern$"
    slow.wait_for_warnings(1, where)
    assert slow.ended().batches == 1
    slow.home.assert_holds(landed)
    warning = slow.warnings(where)[0]
    assert ", called by the code that Spark has made of expressions, " in warning
    assert " The suite has none, so that it is one of the transform's. The batch reads" in warning


TIDY = r"^(a+)+\1$x"


def backtracking(letters: int) -> Order:
    [order] = orders(0, 1)
    return replace(order, shop="a" * letters + "!")


def judged_by_tidy(home: Home) -> None:
    home.judge(*RULES, rule("column_values_to_not_match_regex", "tidy", "info", column="shop", regex=TIDY))


def test_a_rule_whose_regular_expression_backtracks_is_named_and_the_batch_is_then_delivered_once(
    slow: Slow, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another process has launched Spark's JVM, it is not ended at the limit either, and that is told."""
    monkeypatch.setattr(spark.sparkContext._gateway, "proc", None)
    slow.warn_after(timedelta(minutes=10), limit=timedelta(seconds=0.1))
    judged_by_tidy(slow.home)
    landed = slow.home.land("orders/0.jsonl", [backtracking(LETTERS)])
    slow.start()
    slow.wait_for_warnings(1, "It is in a regular expression, java.util.regex.Pattern$")
    assert slow.ended().batches == 1
    slow.home.assert_holds(landed)
    [warning, *_] = slow.warnings("regular expression")
    assert f" In the suite there is a rule with one: tidy ({TIDY}); the transform may have others." in warning
    told = "It goes on. SLUICE_TASK_LIMIT is 0.1 s, but the task can't be ended from here: another process has launched"
    assert told in warning


def test_a_rule_that_backtracks_is_named_by_every_command_that_judges_by_it(
    slow: Slow, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    home = slow.home
    home.land("orders/0.jsonl", [backtracking(LETTERS)])
    home.run()
    slow.warn_after(timedelta(seconds=0.1))
    judged_by_tidy(home)
    place, pipeline = slow.home.place, home.pipeline()
    everything = plan(place, pipeline, Selection(batches=(0, 0)))
    for judge in (
        lambda: what_if(place, pipeline, home.root / "our-suites" / "orders.json", spark=spark),
        lambda: try_out(place, pipeline, [str(home.landing / "orders/0.jsonl")], spark=spark),
        lambda: replay(place, pipeline, everything, who="tests", spark=spark),
    ):
        caplog.clear()
        judge()
        [warning, *_] = slow.warnings("regular expression")
        assert warning.startswith("The command has been in task"), warning
        assert (
            f" In the suite there is a rule with one: tidy ({TIDY}); the transform may have others."
            in warning
        )


@pytest.mark.slow
def test_a_run_whose_task_is_at_its_limit_ends_for_a_person_and_says_of_which_rules_it_may_be(
    home: Home,
) -> None:
    judged_by_tidy(home)
    landed = home.land("orders/0.jsonl", [backtracking(100)])
    limited = {**home.environment, "SLUICE_TASK_LIMIT": "PT15S"}
    done = forked.sluice(["run", NAME], environment=limited, folder=home.root)
    assert done.returncode == 4, done.stderr
    told = " ".join(done.stderr.split())
    assert "(SLUICE_TASK_LIMIT is 15 s)" in told
    assert "It is in a regular expression, java.util.regex.Pattern$" in told
    assert f"In the suite there is a rule with one: tidy ({TIDY}); the transform may have others." in told
    assert "Nothing of the batch was delivered" in told
    assert f"`sluice try orders --input {home.landing}/orders/0.jsonl` runs one file alone" in told
    home.assert_holds(Landed())
    [state] = states(home.place, NAME)
    assert (state.state, state.next) == ("last run: TaskTooLong", "sluice run orders")
    tried = forked.sluice(
        ["try", NAME, "--input", str(home.landing / "orders/0.jsonl")], environment=limited, folder=home.root
    )
    told = " ".join(tried.stderr.split())
    assert tried.returncode == 4, told
    assert re.search(r"sluice: The command has been in task \d of Spark's stage", told)
    assert (
        f"there is a rule with one: tidy ({TIDY}); the transform may have others. Spark's JVM was ended"
        in told
    )
    home.judge(*RULES)
    home.run()
    home.assert_holds(landed)


def test_a_task_that_ends_while_its_place_is_asked_for_ends_no_jvm(
    spark: SparkSession, gate: Gate, tmp_path: Path
) -> None:
    folder, asked = tmp_path / "read", list[int]()
    folder.mkdir()
    (folder / "1").write_text("one\n")

    def files_of(batch: int) -> list[str]:
        asked.append(batch)
        gate.open()
        assert query.awaitTermination(60)
        return []

    def until_the_gate_opens(value: str) -> str:
        return value + Path(path).read_text()

    path, second = str(gate.path), timedelta(seconds=1)
    watch = SlowTaskWatch(NAME, spark, second, files_of, lambda _: None, limit=second)
    frame = spark.readStream.text(str(folder)).select(functions.udf(until_the_gate_opens)("value"))
    written = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = written.trigger(availableNow=True).start()
    with watch.watching(query):
        assert query.awaitTermination(120)
    assert (asked, watch.ended_by()) == ([0], None)
    assert spark.range(3).count() == 3


def test_a_run_whose_tasks_are_quick_warns_of_none(slow: Slow) -> None:
    slow.warn_after(timedelta(minutes=10))
    landed = slow.home.land("orders/0.jsonl", orders(0, 9))
    slow.start()
    assert slow.ended().batches == 1
    slow.home.assert_holds(landed)
    assert slow.warnings() == []
    assert not [one for one in slow.caplog.messages if "slow tasks" in one]
