"""How often a run and a batch ask PostgreSQL, S3 and Spark's JVM: counts, which docs/benchmarks.md has in a table."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from threading import get_ident
from typing import Any

import pytest
from py4j.clientserver import ClientServerConnection

from etl.pipeline import load_pipeline
from etl.runs.run import run
from etl.runs.workspace import Workspace
from tests.support.asked import counted
from tests.support.data.orders import NAME, Order, orders
from tests.support.home import Home

MANY = 80_000


def test_a_batch_asks_the_services_as_often_as_the_table_says(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four batches of one file each, of a pipeline that has delivered before; a row of each is held.

    The fifth has more rows than a task's report takes.
    """
    assert home.spark is not None
    scheduler = home.spark.sparkContext._jsc.sc().dagScheduler()
    home.declare(max_files=1)
    home.land("orders/0.jsonl", orders(0, 10, negative=[3]))
    home.run()
    for number in range(1, 5):
        home.land(f"orders/{number}.jsonl", orders(10 * number, 10, negative=[10 * number]))
    chance = random.Random(7)
    home.land("orders/5.jsonl", [Order(id=number, amount=chance.random()) for number in range(100, MANY)])

    # of each thread: others look at what tasks are at, and tell the JVM of what was collected as garbage
    calls, send = Counter[int](), ClientServerConnection.send_command

    def counting(*command: Any) -> Any:
        calls[get_ident()] += 1
        return send(*command)

    monkeypatch.setattr(ClientServerConnection, "send_command", counting)
    with counted(home.place.services) as (services, postgres, s3):

        def asked() -> Counter[str]:
            return Counter(
                jobs=scheduler.numTotalJobs(), calls=calls[get_ident()], **postgres.counts, **s3.counts
            )

        looks = [asked()]
        place = Workspace(settings=home.place.settings, services=services)
        done = run(
            place,
            load_pipeline(NAME, place.settings.pipelines),
            spark=home.spark,
            progress=lambda _: looks.append(asked()),
        )
    assert (done.batches, done.delivered) == (5, 4 * 9 + MANY - 100)
    first, *others, large = [after - before for before, after in pairwise(looks)]
    assert (first["PUT"], first["HEAD"], first["GET"], first["jobs"]) == (10, 6, 8, 3)
    assert first["connections"] <= 2
    # A request that the client sends once more, on a slow machine, is counted as well.
    asked_for = {name: min(batch[name] for batch in others) for name in ("PUT", "HEAD", "GET", "jobs")}
    assert asked_for == {"PUT": 10, "HEAD": 0, "GET": 1, "jobs": 3}
    assert not any(batch["POST"] + batch["DELETE"] for batch in others)
    assert (
        sum(batch["connections"] for batch in others) <= 2
    )  # the heartbeat's, that of Spark's figures: tasks need none
    assert large["connections"] >= 1
    assert max(batch["calls"] for batch in others) <= 80
    # heartbeats, of five statements, come beside slow batches
    assert min(batch["statements"] for batch in others) <= 65
