"""A transform that fails on a record is told with Spark's error, its own line and the file, and nothing is delivered."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from etl.common.errors import ServiceAway, TransformFailed
from etl.operations.control.status import states
from etl.operations.suites.try_out import try_out
from etl.runs.recovery.recover import recover
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from tests.support.data import taps
from tests.support.data.orders import DECLARATION, NAME, Landed, orders
from tests.support.home import Home

GOOD = DECLARATION.format(name=NAME, max_files=4, share=1.0)
SELECT = 'return df.join(shops, "shop", "left").select("id", "shop", "amount", "at", "city")'
BAD = replace(orders(6, 1)[0], shop="x1", amount=0.0)


@dataclass(frozen=True, kw_only=True)
class Failing:
    """A transform that does not get over BAD, and what is to be told of it."""

    code: str
    said: str
    line: str | None = None  # a piece of the line that is to be told; None: none is

    @property
    def declaration(self) -> str:
        body = f"from pyspark.sql import functions as F\n    {self.code}\n    {SELECT}"
        return GOOD.replace(SELECT, body)

    def number_in(self, file: Path) -> int:
        assert self.line
        return next(n for n, line in enumerate(file.read_text().splitlines(), 1) if self.line in line)


PYTHON = """def strict(shop):
        if shop == "x1":
            raise KeyError(shop)
        return shop
    df = df.withColumn("shop", F.udf(strict)("shop"))"""
PANDAS = """def halved(frames):
        for frame in frames:
            for amount in frame["amount"]:
                1 / int(100 * amount)
            yield frame
    df = df.mapInPandas(halved, df.schema)"""
FAILING = {
    "a cast": Failing(
        code='df = df.withColumn("id", F.when(F.col("shop") == "x1", F.col("shop").cast("int")).otherwise(F.col("id")))',
        said='[CAST_INVALID_INPUT] The value \'x1\' of the type "STRING" cannot be cast to "INT"',
        line=".cast(",
    ),
    "a division": Failing(
        code='df = df.withColumn("amount", F.col("id") / F.col("amount"))',
        said="[DIVIDE_BY_ZERO] Division by zero",
        line=" / ",
    ),
    "an error that is raised": Failing(
        code='df = df.withColumn("id", F.when(F.col("shop") == "x1", F.raise_error("no such shop")).otherwise(F.col("id")))',
        said="[USER_RAISED_EXCEPTION] no such shop",  # of which Spark keeps no line
    ),
    "SQL": Failing(
        code="""df = df.selectExpr("if(shop = 'x1', cast(shop as bigint), id) as id", "shop", "amount", "at")""",
        said="[CAST_INVALID_INPUT] The value 'x1' of the type",
    ),
    "a Python function": Failing(code=PYTHON, said="KeyError: 'x1'", line="raise KeyError"),
    "mapInPandas": Failing(code=PANDAS, said="ZeroDivisionError: division by zero", line="1 / int"),
}


def declared(home: Home, failing: Failing) -> Path:
    home.declare(text=failing.declaration)
    return home.root / "my pipelines" / f"{NAME}.py"


def land(home: Home) -> Landed:
    """Land four files; one record of the third one is BAD."""
    made = [orders(0, 3), orders(3, 3), [*orders(10, 2), BAD, *orders(12, 3)], orders(20, 3)]
    return sum((home.land(f"orders/{n}.jsonl", some) for n, some in enumerate(made)), start=Landed())


def test_a_run_tells_error_line_and_file_and_goes_on_with_another_transform(home: Home) -> None:
    landed = land(home)
    for failing in FAILING.values():
        assert_stopped_by(home, failing)
    home.declare(text=GOOD)
    home.run()
    home.assert_holds(landed)


def assert_stopped_by(home: Home, failing: Failing) -> None:
    """Require that a run of this transform delivers nothing, and tells all that is known of its error."""
    file = declared(home, failing)
    with pytest.raises(TransformFailed) as stop:
        home.run()
    seen, third = stop.value.seen, home.landing / "orders/2.jsonl"
    assert stop.value.exit_code == 4
    assert seen.startswith("Batch 0 of orders, not delivered: its transform fails on a record")
    assert failing.said in seen
    assert seen.endswith(f"\n  in: {home.uri('orders/2.jsonl')}")
    assert len(seen.splitlines()) == 2
    if failing.line:
        assert f" at {file}:{failing.number_in(file)}" in seen
    look = f"`sluice try orders --input {shlex.quote(str(third))}`"
    assert stop.value.remedy == f"change it, in {file}; {look} shows whether it gets over it; then run again"
    home.assert_holds(Landed())
    [told] = states(home.place, NAME)
    assert told.state == "last run: TransformFailed, which first needs another transform"
    assert told.next == "sluice run orders"


def test_a_try_and_a_replay_end_in_the_same_way_and_change_nothing(home: Home) -> None:
    home.declare(text=GOOD)
    landed = land(home)
    home.run()
    declared(home, FAILING["a cast"])
    third = home.uri("orders/2.jsonl")
    with pytest.raises(TransformFailed, match=r"orders\.py:\d+ \(cast\): \[CAST_INVALID_INPUT\]") as stop:
        try_out(home.place, home.pipeline(), [third], spark=home.spark)
    assert stop.value.seen.endswith(f"\n  in: {third}")
    [(number,)] = home.ask("SELECT delivery_id FROM sluice.delivery")
    planned = plan(home.place, home.pipeline(), Selection(deliveries=((number, number),)))
    with pytest.raises(TransformFailed, match=r"orders\.py:\d+ \(cast\): \[CAST_INVALID_INPUT\]") as stop:
        replay(home.place, home.pipeline(), planned, who="tests", spark=home.spark)
    assert stop.value.seen.endswith(f"\n  in: {third}")
    home.assert_holds(landed)


def test_what_is_not_the_transforms_fault_is_tried_again(home: Home) -> None:
    """A service of its own is away, and a later try may have it: that is no verdict on the transform."""
    away = PYTHON.replace("KeyError(shop)", 'ConnectionRefusedError("api.example.org")')
    declared(home, Failing(code=away, said=""))
    landed = land(home)
    told = r"its transform could not reach a service of its own at .*orders\.py:\d+: ConnectionRefusedError: api\."
    with pytest.raises(ServiceAway, match=told):
        home.run()
    home.assert_holds(Landed())
    home.declare(text=GOOD)
    home.run()
    home.assert_holds(landed)


def test_the_command_says_it_in_lines_and_not_in_pages(home: Home) -> None:
    declared(home, FAILING["a cast"])
    land(home)
    done = home.sluice_here("run", NAME)
    assert done.returncode == 4, done.stderr
    assert "fails on a record at" in done.stderr
    assert "DataFrameQueryContextLogger" not in done.stderr
    assert len(done.stderr) < 3_000, done.stderr
    shown = home.sluice_here("try", NAME, "--input", str(home.landing / "orders/2.jsonl"))
    assert shown.returncode == 4, shown.stderr
    assert len(shown.stderr) < 3_000, shown.stderr


KINDS = {
    "complete": (taps.ROLLUP, {"sink": "Replace()", "columns": taps.ROLLUP_COLUMNS}),
    "timers": (taps.recipe("timers"), {"sink": "Append()", "columns": taps.SILENCES}),
}
RAISING = """
    df = df.where(F.when(F.col("action") == "call", F.raise_error("no calls")).otherwise(True))
"""


@pytest.mark.parametrize("recipe", ["complete", "timers"])
def test_a_transform_with_state_fails_in_a_run_a_try_and_when_its_state_is_rebuilt(
    home: Home, recipe: str
) -> None:
    """What `timers` keeps can't be computed apart from a stream: the batch's own error has to tell."""
    files = taps.taps(2, 20, seed=3)
    body: str = KINDS[recipe][0]
    more: dict[str, Any] = KINDS[recipe][1]
    taps.declare(home, body=body, **more)
    taps.land_all(home, files)
    stream = home.run(taps.NAME).stream
    before = taps.in_force(home)
    taps.declare(home, body=RAISING + body.lstrip("\n"), **more)
    taps.land(home, 2, taps.taps(3, 20, seed=3)[2])
    told = r"fails on a record: \[USER_RAISED_EXCEPTION\] no calls"
    with pytest.raises(TransformFailed, match=told):
        home.run(taps.NAME)
    path = str(home.landing / taps.NAME / "002.jsonl")
    with pytest.raises(TransformFailed, match=told):
        try_out(home.place, home.pipeline(taps.NAME), [path], spark=home.spark)
    shutil.rmtree(home.checkpoint(stream, taps.NAME))
    with pytest.raises(TransformFailed, match=told):
        recover(home.place, home.pipeline(taps.NAME), spark=home.spark)
    assert taps.in_force(home) == before
