"""Killed at any step of any batch and run again, each row is in both sinks once, or in quarantine once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil
import pytest

from etl.common.settings import Settings
from etl.common.steps import Step
from etl.operations.audit.audit import audit
from etl.runs.workspace import Workspace
from etl.services import Services
from etl.services.process import have_ended
from tests.support import oracle
from tests.support.arrow_driver import pipeline
from tests.support.databases import database_name, new_database
from tests.support.environment import REPOSITORY
from tests.support.killed.driver import PIPELINE, SINKS, Case, line_of
from tests.support.waiting import until

BATCHES = 3
PATIENCE = 60  # seconds; nothing is decided by it, a test that waits so long has failed

BEFORE_ANY_BATCH = ("lease-taken",)
ON_THE_DRIVER = (
    "attempt-opened",
    "rows-copied",
    "staged",
    "judged",
    "manifest-written",
    "pointer-drafted",
    "pipeline-locked",
    "delivery-inserted",
    "inputs-inserted",
    "rows-merged",
    "quarantine-merged",
    "quality-inserted",
    "pointer-swapped",
    "committed",
    "batch-done",
)
SWAP = ("staged", "rows-merged", "committed")
MORE_SWAP = ("pipeline-locked", "pointer-swapped")
ON_EXECUTORS = ("object-opened", "rows-encoded", "rows-staged", "task-committed")

FIRST, MIDDLE = 0, 1
STEPS = (*ON_THE_DRIVER, *ON_EXECUTORS)
# each step once, in the one batch or the other
CASES = [
    *((step, FIRST) for step in BEFORE_ANY_BATCH),
    *((step, (FIRST, MIDDLE)[number % 2]) for number, step in enumerate(STEPS)),
]
MORE_CASES = [(step, batch) for step in STEPS for batch in (FIRST, MIDDLE) if (step, batch) not in CASES]


def long(cases: Sequence[tuple[str, ...] | tuple[str, int]]) -> list[Any]:
    """Mark the cases that belong to the long form alone."""
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


STAGES = ("rows-encoded", "rows-staged")
IN_A_TASK = [*STAGES, *long([(step,) for step in ON_EXECUTORS if step not in STAGES])]


def test_every_step_of_the_code_has_its_case() -> None:
    assert sorted(step for step, _ in CASES) == sorted(str(step) for step in Step)


@dataclass(kw_only=True)
class Seen:
    """What the processes of one run have said so far."""

    driver: int = 0
    workers: list[int] = field(default_factory=list)
    reached: tuple[str, int, int] | None = None  # step, batch, pid
    ended: int | None = None


@dataclass(kw_only=True)
class Launcher:
    """The process that forks drivers, and the pipe on which all of them speak."""

    process: subprocess.Popen[bytes]
    events: int
    unread: bytes = b""

    def start(self, case: Case) -> Seen:
        assert self.process.stdin is not None
        self.process.stdin.write(line_of(case))
        self.process.stdin.flush()
        return Seen()

    def follow(self, seen: Seen, *, until_ended: bool) -> None:
        """Read events until a process waits to be killed, or the driver has ended."""
        while seen.ended is None and (until_ended or seen.reached is None):
            word, *rest = self._line().split()
            if word == "driver":
                seen.driver = int(rest[0])
            elif word == "worker":
                seen.workers.append(int(rest[0]))
            elif word == "reached":
                seen.reached = rest[0], int(rest[1]), int(rest[2])
            else:
                seen.ended = int(rest[0])

    def _line(self) -> str:
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self.unread:
            assert wait([self.events], max(0, deadline - time.monotonic())), "no process said anything"
            self.unread += os.read(self.events, 65536)
        line, _, self.unread = self.unread.partition(b"\n")
        return line.decode()


@pytest.fixture(scope="module")
def launcher(services: Services) -> Iterator[Launcher]:
    here, there = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed.driver", str(there)],
        stdin=subprocess.PIPE,
        pass_fds=[there],
        env={**os.environ, **services.environment},
        cwd=REPOSITORY,
    )
    os.close(there)
    yield Launcher(process=process, events=here)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENCE) == 0
    os.close(here)


def case_of(dsn: str, services: Services, folder: Path) -> Case:
    """Make a stream of its own, into a folder of its own on the lake; its seed is drawn from the folder's name."""
    return Case(
        dsn=dsn,
        warehouse=f"{services.lake}/tests/{uuid.uuid4().hex[:12]}",
        endpoint=services.s3_endpoint,
        region=services.s3_region,
        folder=str(folder),
        stream_id=str(uuid.uuid4()),
        seed=int.from_bytes(folder.name.encode()[:8]),
        batches=BATCHES,
    )


@pytest.fixture
def case(dsn: str, services: Services, tmp_path: Path) -> Case:
    return case_of(dsn, services, tmp_path)


@pytest.fixture(scope="module", params=["append"])
def delivered(
    request: pytest.FixtureRequest,
    launcher: Launcher,
    services: Services,
    template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Case]:
    """Make a stream with each of its batches in both sinks."""
    with new_database(services.postgres, template=template) as dsn:
        found = replace(case_of(dsn, services, tmp_path_factory.mktemp("delivered")), sink=request.param)
        run_to_the_end(launcher, found)
        wait_until_alone(found)
        yield found


@pytest.fixture
def stream(delivered: Case, services: Services, tmp_path: Path) -> Iterator[Case]:
    """Copy the delivered stream's database; the copies share the lake, where each goes on from the same snapshot.

    No copy has what another delivered, so the lake does not say which delivery was the last.
    """
    eyes = oracle.Reader(
        dsn=delivered.dsn, endpoint=delivered.endpoint, region=delivered.region, pipeline=PIPELINE
    )
    last = f"{delivered.warehouse}/warehouse/{PIPELINE}/deliveries/LAST".removeprefix("s3://")
    if eyes.store.get_file_info(last).is_file:
        eyes.store.delete_file(last)
    marks = shutil.copytree(delivered.folder, tmp_path / "marks")
    with new_database(services.postgres, template=database_name(delivered.dsn)) as dsn:
        yield replace(delivered, dsn=dsn, folder=str(marks))


def kill(pids: list[int]) -> None:
    """SIGKILL to each process, one by one, and wait until it is dead."""
    killed = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            killed.append(psutil.Process(pid))
            killed[-1].kill()
    assert have_ended(killed, PATIENCE), killed


def stop_at(launcher: Launcher, case: Case, step: str, batch: int) -> Seen:
    """Run until a process waits at `step`; fails unless its marker was seen."""
    seen = launcher.start(replace(case, step=step, batch=batch))
    launcher.follow(seen, until_ended=False)
    assert seen.reached is not None, f"the driver ended with {seen.ended} and never came to {step}"
    assert seen.reached[:2] == (step, batch)
    assert int(Path(case.folder, f"{step}.{batch}.marker").read_text()) == seen.reached[2]
    assert (seen.reached[2] in seen.workers) == (step in ON_EXECUTORS)
    return seen


def wait_until_alone(case: Case) -> None:
    """Wait until PostgreSQL has noticed that the dead are dead; a run that meets their locks leaves their tables."""
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    until(lambda: oracle.ask(case.dsn, others) == [(0,)], "all to leave", patience=PATIENCE, every=0.02)


def killed_at(launcher: Launcher, case: Case, step: str, batch: int) -> None:
    """SIGKILL to the driver at the step, then to its workers; PostgreSQL has noticed."""
    seen = stop_at(launcher, case, step, batch)
    kill([seen.driver])
    launcher.follow(seen, until_ended=True)
    assert seen.ended == -signal.SIGKILL
    kill(seen.workers)
    wait_until_alone(case)


def run_to_the_end(launcher: Launcher, case: Case) -> None:
    seen = launcher.start(case)
    launcher.follow(seen, until_ended=True)
    assert seen.ended == 0


def difference(case: Case) -> str:
    eyes = oracle.Reader(dsn=case.dsn, endpoint=case.endpoint, region=case.region, pipeline=PIPELINE)
    return eyes.difference(wanted_of(case, case.batches))


def assert_clean(case: Case) -> None:
    """Require a clean audit. (That the files never landed is no difference between the sinks.)"""
    services = Services(
        postgres=case.dsn,
        lake=case.warehouse,
        s3_endpoint=case.endpoint,
        s3_region=case.region,
        environment={},
    )
    place = Workspace(settings=Settings(home=Path(case.folder)), services=services)
    report = audit(place, pipeline(PIPELINE, SINKS[case.sink]))
    assert report.clean, list(report.lines())


def assert_delivered_once(case: Case) -> None:
    assert difference(case) == ""
    assert_clean(case)
    made = oracle.make(case.seed, batches=case.batches)
    ledger = oracle.ask(
        case.dsn,
        "SELECT batch_id, commit_seq, rows_in, delivered, quarantined, malformed,"
        " (SELECT count(*) FROM warehouse.events e WHERE e._delivery_id = d.delivery_id),"
        " (SELECT count(*) FROM sluice.quarantine q WHERE q.delivery_id = d.delivery_id)"
        " FROM sluice.delivery d ORDER BY batch_id",
    )
    wanted = [
        (
            one.batch_id,
            one.batch_id + 1,
            len(one.rows) + len(one.malformed),
            *(one.delivered.total(), one.held_in_postgres.total(), len(one.malformed)),
            *(one.delivered.total(), one.held_in_postgres.total()),
        )
        for one in made
    ]
    assert ledger == wanted
    assert (
        oracle.ask(case.dsn, "SELECT relname FROM pg_class WHERE relnamespace = 'sluice_stage'::regnamespace")
        == []
    )
    assert oracle.ask(case.dsn, "SELECT delivery_id FROM sluice.attempt WHERE closed_at IS NULL") == []


@pytest.mark.parametrize(("step", "batch"), [*CASES, *long(MORE_CASES)])
def test_killed_and_run_again(launcher: Launcher, case: Case, step: str, batch: int) -> None:
    killed_at(launcher, case, step, batch)
    run_to_the_end(launcher, case)
    assert_delivered_once(case)


@pytest.mark.parametrize("step", [*SWAP, *long([(step,) for step in STEPS if step not in SWAP])])
def test_killed_and_run_again_what_was_overwritten_is_the_newest(
    launcher: Launcher, case: Case, step: str
) -> None:
    """In a batch that overwrites rows of the one before, of an upsert sink."""
    keyed = replace(case, sink="upsert")
    killed_at(launcher, keyed, step, MIDDLE)
    run_to_the_end(launcher, keyed)
    assert difference(keyed) == ""
    assert_clean(keyed)
    assert {row[-1] for row in oracle.newest(keyed.made)} == set(range(BATCHES)), (
        "rows of every batch are in force"
    )


# every fourth step once, by the one act or the other
BESIDE = [(step, ("replay", "release")[number % 2]) for number, step in enumerate(STEPS[::4])]
MORE_BESIDE = [(step, act) for step in STEPS for act in ("replay", "release") if (step, act) not in BESIDE]


@pytest.mark.parametrize(("step", "act"), [*BESIDE, *long(MORE_BESIDE)])
def test_killed_beside_the_stream_nothing_is_changed_or_all_is(
    launcher: Launcher, stream: Case, step: str, act: str
) -> None:
    made = oracle.make(stream.seed, batches=stream.batches)
    before, after = oracle.expected(made), oracle.expected([oracle.merged(made[:2]), *made[2:]])
    if act == "release":
        after = replace(before, delivered=before.delivered + oracle.mended(made[1]))
    eyes = oracle.Reader(dsn=stream.dsn, endpoint=stream.endpoint, region=stream.region, pipeline=PIPELINE)
    beside = replace(stream, act=act)
    killed_at(launcher, beside, step, FIRST)
    committed = step in ("committed", "batch-done")
    assert eyes.difference(after if committed else before) == ""
    run_to_the_end(launcher, beside)
    assert eyes.difference(after) == ""
    assert oracle.ask(stream.dsn, "SELECT delivery_id FROM sluice.attempt WHERE closed_at IS NULL") == []
    run_to_the_end(launcher, stream)
    assert eyes.difference(after) == "", "the stream goes on as if nothing had been"
    assert_clean(stream)


@pytest.mark.parametrize("delivered", ["upsert"], indirect=True)
@pytest.mark.parametrize("step", [*SWAP, *long([(step,) for step in MORE_SWAP])])
def test_a_replay_killed_in_its_swap_leaves_each_key_its_newest_row(
    launcher: Launcher, stream: Case, step: str
) -> None:
    """Keys of an upsert sink that the replay does not bring again have the row that its deliveries had covered."""
    last = stream.made[-1]
    before, after = oracle.expected(stream.made), oracle.expected([stream.replayed, last])
    before = replace(before, current=oracle.newest(stream.made))
    after = replace(after, current=oracle.newest([last, stream.replayed]))
    back = {row[0] for row in after.current.elements()} - {row.values[0] for row in stream.replayed.rows}
    assert {row for row in after.current if row[0] in back} - {*before.current}, "rows that were covered"
    eyes = oracle.Reader(dsn=stream.dsn, endpoint=stream.endpoint, region=stream.region, pipeline=PIPELINE)
    replay = replace(stream, act="replay")
    killed_at(launcher, replay, step, FIRST)
    assert eyes.difference(after if step == "committed" else before) == ""
    run_to_the_end(launcher, replay)
    assert eyes.difference(after) == ""
    assert_clean(stream)


WITHDRAWN = [("append", "pointer-swapped"), ("upsert", "committed")]
MORE_WITHDRAWN = [(sink, step) for sink in SINKS for step in ON_THE_DRIVER if (sink, step) not in WITHDRAWN]


@pytest.mark.parametrize(("delivered", "step"), [*WITHDRAWN, *long(MORE_WITHDRAWN)], indirect=["delivered"])
def test_a_withdrawal_that_is_killed_has_changed_nothing_or_the_next_run_brings_all_again(
    launcher: Launcher, stream: Case, step: str
) -> None:
    before, after = wanted_of(stream, BATCHES), wanted_of(stream, 1)
    eyes = oracle.Reader(dsn=stream.dsn, endpoint=stream.endpoint, region=stream.region, pipeline=PIPELINE)
    withdrawal = replace(stream, act="withdrawal")
    killed_at(launcher, withdrawal, step, FIRST)
    if step not in ("committed", "batch-done"):
        assert eyes.difference(before) == ""
        run_to_the_end(launcher, stream)
        assert eyes.difference(before) == "", "the stream goes on as if nothing had been"
    run_to_the_end(launcher, withdrawal)
    assert eyes.difference(after) == ""
    assert oracle.ask(stream.dsn, "SELECT delivery_id FROM sluice.attempt WHERE closed_at IS NULL") == []
    for batch in range(1, BATCHES):
        Path(stream.folder, f"{batch}.done").unlink()
    run_to_the_end(launcher, replace(stream, stream_id=stream.again, first_batch=1))
    assert eyes.difference(before) == ""
    assert_clean(stream)


def wanted_of(case: Case, batches: int) -> oracle.Expected:
    """Return what is wanted of both sinks once the first batches are in them."""
    made = case.made[:batches]
    wanted = oracle.expected(made)
    return replace(wanted, current=oracle.newest(made)) if case.sink == "upsert" else wanted


@pytest.mark.parametrize("step", IN_A_TASK)
def test_only_the_worker_is_killed_and_its_task_runs_elsewhere(
    launcher: Launcher, case: Case, step: str
) -> None:
    seen = stop_at(launcher, case, step, MIDDLE)
    assert seen.reached is not None
    kill([seen.reached[2]])
    launcher.follow(seen, until_ended=True)
    assert seen.ended == 0
    assert_delivered_once(case)


@pytest.mark.parametrize("step", IN_A_TASK)
def test_a_worker_that_outlives_its_driver_changes_nothing(launcher: Launcher, case: Case, step: str) -> None:
    seen = stop_at(launcher, case, step, MIDDLE)
    kill([seen.driver])
    launcher.follow(seen, until_ended=True)
    run_to_the_end(launcher, case)
    assert difference(case) == ""
    assert seen.reached is not None
    zombie = psutil.Process(seen.reached[2])
    zombie.send_signal(signal.SIGUSR1)
    zombie.wait(PATIENCE)
    assert difference(case) == ""
    assert_clean(case)
