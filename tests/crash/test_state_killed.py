"""Pipelines that keep state, killed with SIGKILL and run again: sinks and state are as if no run had been killed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from etl.common.settings import Settings
from etl.common.steps import Step
from etl.services import Services
from tests.support.data import taps
from tests.support.data.state_kinds import KEPT, land_kinds
from tests.support.databases import new_database
from tests.support.home import Home
from tests.support.killed.runs import PATIENCE, Runs, kill, runs_of

# (step, in which batch, batches delivered afterwards), of a pipeline that keeps state: every step of an upsert sink
OF_UPSERTS = tuple(step for step in Step if step != Step.ROWS_COPIED)
STATE_KILLS = (
    ("rows-encoded", 0, 0),  # on an executor, whose part of the state is not written
    ("staged", 1, 1),  # all of it is
    ("batch-done", 2, 3),
    *((step.value, 3, 3) for step in OF_UPSERTS[: OF_UPSERTS.index(Step.COMMITTED)]),
    ("committed", 3, 4),
    ("batch-done", 4, 5),
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_state_is_as_if_no_run_had_been_killed(runs: Runs) -> None:
    files = taps.taps(14, 40, seed=21)
    taps.declare(runs.home)
    taps.land_all(runs.home, files)
    delivered = 0
    for step, batch, delivered_then in STATE_KILLS:
        process = runs.start(step, batch - delivered, taps.NAME)
        stopped = runs.wait_for_step(process)
        kill(process, stopped)
        runs.forget()
        delivered = delivered_then
        assert runs.home.ask("SELECT count(*) FROM sluice.delivery") == [(delivered,)], step
        assert taps.in_force(runs.home) == taps.hourly(taps.flat(files[:delivered])), step
    last = runs.start("none", 0, taps.NAME)
    assert last.wait(PATIENCE) == 0, runs.log
    assert taps.in_force(runs.home) == taps.hourly(taps.flat(files))
    taps.assert_clean(runs.home)
    [(stream,)] = runs.home.ask("SELECT stream_id::text FROM sluice.stream")
    snapshots = runs.home.checkpoint(stream, taps.NAME).glob("state/0/*/*.zip")
    assert {one.parent.name for one in snapshots} >= {"0", "1"}, (
        "else a run reads the changes of all before it"
    )


USUAL = ("doubles", "left_outer_join", "timers", "lists")  # the others are close to one of these
KINDS = [pytest.param(kind, marks=() if kind in USUAL else pytest.mark.slow) for kind in KEPT]
DELIVERED = 2  # of each kind's batches, when its process is killed: the second goes on from the first's state


@pytest.fixture(scope="module")
def killed(
    request: pytest.FixtureRequest,
    services: Services,
    settings: Settings,
    template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Home]:
    """Kill each tested kind's pipeline where it hurts most: a batch is in both sinks, and Spark has not marked it.

    One process runs them all side by side, and is killed when each of them is there.
    """
    tests = (one for one in request.session.items if isinstance(one, pytest.Function))
    kinds = [one.callspec.params["kind"] for one in tests if "killed" in one.fixturenames]

    def settings_for(home: Path, **changes: Any) -> Settings:
        s3 = {"s3_endpoint": services.s3_endpoint, "s3_region": services.s3_region}
        return Settings.model_validate({"home": home, "jars": settings.jars, **s3, **changes})

    folder, lake = tmp_path_factory.mktemp("killed"), f"{services.lake}/{uuid.uuid4().hex[:12]}"
    with new_database(services.postgres, template=template) as dsn:
        home = Home.at(folder / "user", dsn, services, lake, settings_for)
        land_kinds(home, kinds)
        with runs_of(home, folder) as runs:
            process = runs.start_together(kinds, deliveries=DELIVERED)
            kill(process, runs.wait_for_step(process, patience=5 * PATIENCE))
        yield home


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_state_of_every_kind_goes_on_after_a_kill(killed: Home, spark: SparkSession, kind: str) -> None:
    kept = KEPT[kind]
    home = replace(killed, spark=spark, columns=kept.columns)
    assert_stopped(home, kind)
    home.run(kind)
    wanted = kept.wanted(kept.files)
    assert taps.in_force(home, kind) == wanted
    assert wanted.total() > 5
    batches = batches_of(home, kind)
    assert batches == list(range(len(batches))), "none is left out, none is delivered twice"
    assert len(batches) >= len(kept.files)
    taps.assert_clean(home, kind)


def assert_stopped(home: Home, kind: str) -> None:
    """Require that the last batch is delivered and planned, and that Spark has marked all but it."""
    assert batches_of(home, kind) == list(range(DELIVERED))
    [(stream,)] = home.ask("SELECT stream_id::text FROM sluice.stream WHERE pipeline = %s", kind)
    checkpoint = home.checkpoint(stream, kind)
    logs = {log: {one.name for one in (checkpoint / log).glob("[0-9]*")} for log in ("offsets", "commits")}
    planned = {str(number) for number in range(DELIVERED)}
    assert logs == {"offsets": planned, "commits": planned - {str(DELIVERED - 1)}}
    assert list(checkpoint.glob("state/*/*/*")), "it keeps state"


def batches_of(home: Home, kind: str) -> list[int]:
    query = "SELECT batch_id FROM sluice.delivery WHERE pipeline = %s ORDER BY commit_seq"
    return [number for (number,) in home.ask(query, kind)]
