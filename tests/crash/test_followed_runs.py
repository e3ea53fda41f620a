"""A run that stays up, killed with SIGKILL again and again and started anew, while files land before and beside it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.data.orders import Landed, orders
from tests.support.forked import Forked
from tests.support.home import Home
from tests.support.killed.runs import PATIENCE, Runs, assert_none_left, kill, processes_of
from tests.support.waiting import until

WAITING = "waiting"  # no step: it has delivered all there is, and waits for more
# (step, how many batches it delivers before): one run each, in their order
KILLS = (
    ("committed", 0),  # in both sinks, and Spark has not marked it
    (WAITING, 0),
)
MORE_KILLS = (
    ("attempt-opened", 0),
    ("committed", 1),  # in both sinks, and Spark has not marked it
    (WAITING, 0),
    ("rows-encoded", 0),  # on an executor
    ("batch-done", 0),
    ("pointer-swapped", 1),  # its transaction is under way
    ("lease-taken", 0),  # before it has a query
    (WAITING, 0),
    ("judged", 0),
    ("pipeline-locked", 1),
)


def land(home: Home, number: int) -> Landed:
    """Land one file, with a row to be held and a malformed record."""
    start = number * 100
    return home.land(f"orders/{number}.jsonl", orders(start, 9, negative=[start + 4]), ["{broken"])


def wait_for_deliveries(runs: Runs, process: Forked, count: int) -> None:
    def delivered() -> bool:
        assert process.poll() is None, runs.log
        return runs.home.ask("SELECT count(*) FROM sluice.delivery") == [(count,)]

    until(delivered, lambda: f"{count} deliveries: {runs.log}", patience=PATIENCE)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [KILLS, MORE_KILLS], ids=["two", "ten"])
def test_a_followed_run_killed_again_and_again_delivers_exactly_once(
    runs: Runs, kills: Sequence[tuple[str, int]]
) -> None:
    home, landed, files = runs.home, Landed(), 0
    home.make_folder("orders")
    for step, passes in kills:
        if files % 2:
            landed += land(home, files)
        process = runs.start(step, passes, how="follow")
        if not files % 2:
            landed += land(home, files)  # beside it
        files += 1
        if step == WAITING:
            wait_for_deliveries(runs, process, files)
            kill(process, process.pid)
        else:
            kill(process, runs.wait_for_step(process))
        runs.forget()
    assert len(runs.started) == files == len(kills)
    last = runs.start("none", 0, how="follow")
    wait_for_deliveries(runs, last, files)
    landed += land(home, files)
    wait_for_deliveries(runs, last, files + 1)
    stopped = home.sluice("stop", "orders")
    assert (stopped.returncode, last.wait(PATIENCE)) == (0, 0), (stopped, runs.log)
    assert_none_left(processes_of(last))
    home.assert_holds(landed)
    assert home.ask("SELECT batch_id FROM sluice.delivery ORDER BY commit_seq") == [
        (number,) for number in range(files + 1)
    ]
    home.assert_clean()
