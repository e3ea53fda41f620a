"""A transform that makes much of little is staged a little at a time, whatever the memory."""

from __future__ import annotations

import pytest

from tests.support.home import Home

pytestmark = pytest.mark.slow  # it fills a JVM's memory of its own

ROWS, WIDTH = 6_000, 400_000  # 2.4 GB, of which Spark would hand 2 GB to a task at once
DECLARATION = f"""
from etl.pipeline import Append, Files, Pipeline

def wide(df):
    from pyspark.sql import functions as F

    return df.withColumn("text", F.repeat("text", {WIDTH // 10}))

PIPELINE = Pipeline(
    name="wide",
    sources=(Files("wide/*.jsonl"),),
    schema="id bigint, text string",
    transform=wide,
    sink=Append(),
)
"""


@pytest.mark.timeout(600)
def test_rows_that_memory_has_no_room_for_are_staged_fewer_at_a_time(home: Home) -> None:
    home.declare("wide", text=DECLARATION)
    home.write("wide/1.jsonl", "".join(f'{{"id": {one}, "text": "0123456789"}}\n' for one in range(ROWS)))
    done = home.sluice("run", "wide")
    assert done.returncode == 0, done.stderr
    assert "memory ended; staging again" in done.stderr
    widths = "SELECT count(*), min(length(text)), max(length(text)) FROM warehouse.wide"
    assert home.ask(widths) == [(ROWS, WIDTH, WIDTH)]
