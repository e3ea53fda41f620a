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

from etl.runs.follow import RunControl
from etl.runs.workspace import Workspace
from etl.spark import jvm_log
from tests.support.data.orders import DECLARATION, NAME, orders
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

    def warn_after(self, bound: timedelta) -> None:
        settings = self.home.place.settings.model_copy(update={"slow_task": bound})
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
        assert f"The batch reads 1 file: {path}. The run goes on." in warning
        assert (
            f"Next: `sluice try orders --input {path}` runs one file alone; `sluice stop orders`" in warning
        )
        assert f"if the batch never ends, `kill {os.getpid()}` twice on " in warning
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
    assert ", called by the code that Spark has made of expressions, " in slow.warnings(where)[0]


def test_a_run_whose_tasks_are_quick_warns_of_none(slow: Slow) -> None:
    slow.warn_after(timedelta(minutes=10))
    landed = slow.home.land("orders/0.jsonl", orders(0, 9))
    slow.start()
    assert slow.ended().batches == 1
    slow.home.assert_holds(landed)
    assert slow.warnings() == []
    assert not [one for one in slow.caplog.messages if "slow tasks" in one]
