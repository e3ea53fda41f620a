"""Spark that ends within a batch is told as that, with what comes next, and is not tried with the same batch for ever."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from etl.common.errors import BatchEndsSpark, SparkEnded
from etl.common.steps import Step
from etl.operations.control.status import states
from etl.operations.suites.try_out import try_out
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from tests.support.data.orders import DECLARATION, NAME, RULES, Landed, orders, rule
from tests.support.home import Home, once_at

KILLS = """
    import os
    import signal
    from pyspark.sql import functions as F

    def looked_up(shop):
        if shop == "x1":
            os.kill(os.getpid(), signal.SIGKILL)
        return shop

    df = df.withColumn("shop", F.udf(looked_up)("shop"))
    return"""
KILLER = replace(orders(9, 1)[0], shop="x1")


def test_a_batch_that_kills_its_worker_is_a_persons_at_the_third_try(home: Home) -> None:
    declare(home, KILLS)
    landed = home.land("orders/1.jsonl", [*orders(0, 3), KILLER])
    home.judge(*RULES, rule("column_values_to_be_json_parseable", "parses", "info", column="shop"))
    for _ in range(2):
        with pytest.raises(
            SparkEnded, match="A Python worker of Spark ended in the middle of its task"
        ) as ended:
            home.run()
        assert ended.value.exit_code == 70
        assert "`dmesg`" in ended.value.remedy
    with pytest.raises(BatchEndsSpark) as stopped:
        home.run()
    file = str(home.landing / "orders/1.jsonl")
    assert stopped.value.exit_code == 4
    assert stopped.value.seen.startswith(
        "Batch 0 of orders has ended Spark at each of 3 tries, the last time so: A Python"
    )
    assert stopped.value.seen.endswith(f"The batch reads 1 file: {file}.")
    alone = f"`sluice try orders --input {shlex.quote(file)}` runs one file alone"
    rules = "a rule of the suite (evaluated in Python or by GX: parses)"
    assert f"{alone}; correct what the transform, or {rules}, does to it" in stopped.value.remedy
    home.assert_holds(Landed())
    [told] = states(home.place, NAME)
    assert told.state == "last run: BatchEndsSpark"
    assert told.next == "sluice run orders"

    home.ask("UPDATE sluice.attempt SET outcome = 'fenced', closed_at = now()")
    home.ask("UPDATE sluice.run SET outcome = 'lost its lease', stop_asked_at = now(), stop_asked_by = 'x'")
    home.declare(max_files=1)
    with once_at(Step.ATTEMPT_OPENED, end_spark), pytest.raises(SparkEnded, match="once more"):
        home.run()  # who had asked the others to stop may have killed them
    home.ask("UPDATE sluice.attempt SET outcome = 'fenced', closed_at = now()")
    home.ask("UPDATE sluice.run SET outcome = 'lost its lease', stop_asked_at = NULL, stop_asked_by = NULL")
    with pytest.raises(
        BatchEndsSpark, match="at each of 4 tries the whole run was killed or cut off"
    ) as refused:
        home.run()
    assert refused.value.seen.endswith(f" UTC. The batch reads 1 file: {file}.")
    assert refused.value.remedy.endswith("`sluice run orders` then tries it once more")
    assert "correct what the transform, or a rule of the suite, does to it" in refused.value.remedy
    with once_at(Step.ATTEMPT_OPENED, end_spark), pytest.raises(SparkEnded, match="once more"):
        home.run()
    home.ask("UPDATE sluice.attempt SET outcome = 'fenced', closed_at = now() WHERE closed_at IS NULL")
    home.ask("UPDATE sluice.run SET outcome = 'lost its lease' WHERE outcome = 'SparkEnded'")
    with pytest.raises(BatchEndsSpark, match="at each of 5 tries the whole run was killed"):
        home.run()
    home.run()
    home.assert_holds(landed)

    declare(home, KILLS)
    planned = plan(home.place, home.pipeline(), Selection(deliveries=((1, 99),)))
    with pytest.raises(SparkEnded, match="A Python worker"):
        try_out(home.place, home.pipeline(), [file], spark=home.spark)
    with pytest.raises(SparkEnded, match="A Python worker"):
        replay(home.place, home.pipeline(), planned, who="tests", why="to see", spark=home.spark)
    home.assert_holds(landed)


def test_a_batch_that_ends_spark_is_planned_anew_by_recover_when_a_person_makes_it_smaller(
    home: Home,
) -> None:
    declare(home, KILLS, max_files=9)
    landed = home.land("orders/1.jsonl", orders(0, 3))
    home.land("orders/2.jsonl", [KILLER])
    with pytest.raises(SparkEnded, match="A Python worker") as ended:
        home.run()
    assert "Let a batch read less (`max_files`, then `sluice recover`" in ended.value.remedy
    declare(home, KILLS, max_files=1)
    assert home.recover().problem == "the last run ended with SparkEnded"
    with pytest.raises(SparkEnded):
        home.run()
    home.assert_rows(landed)


def end_spark() -> None:
    raise SparkEnded("Spark ended once more", remedy="run again")


def declare(home: Home, within: str, *, max_files: int = 1) -> None:
    text = DECLARATION.format(name=NAME, max_files=max_files, share=1.0)
    home.declare(text=text.replace("    return", within, 1))
