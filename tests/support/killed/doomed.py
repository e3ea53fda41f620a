"""Deliveries that any process can make, and processes that are killed while they make them.

Started once, it reads an order and a step at a time, and forks for each: the fork sends itself SIGKILL when it comes to
the step. It answers with how the fork ended.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from etl.airflow.command.tries import recorded
from etl.airflow.task_try import TaskTry
from etl.common import steps
from etl.common.database import transaction
from etl.common.outcome import RunOutcome
from etl.common.steps import Listener, Step, reached
from etl.delivery.batch import Receipt
from etl.delivery.correction import Correction
from etl.delivery.deliver import deliver, deliver_correction
from etl.ledger import leases
from etl.services import Services
from etl.sinks.lake.lake import Lake
from tests.support.arrow_driver import ArrowBatch, pipeline, start, start_correction
from tests.support.environment import REPOSITORY

PIPELINE = "events"


@dataclass(frozen=True, kw_only=True)
class Order:
    """One delivery: the next of a stream, or one beside it."""

    dsn: str
    lake: Lake
    batch: ArrowBatch
    stream_id: str
    change: Correction | None = None  # beside the stream
    asked: TaskTry | None = None  # None: by a person, with a command


def done(order: Order, on_step: Listener | None = None) -> Receipt:
    """Deliver it as a run of its own, which gives its lease back however it ends, unless it is killed."""
    asked, declared = order.asked, pipeline(PIPELINE)
    with recorded(order.dsn, PIPELINE, asked) if asked else nullcontext(lambda _: None) as became:
        if order.change is None:
            run = start(order.dsn, order.lake, declared, stream_id=order.stream_id)
        else:
            run = start_correction(order.dsn, order.lake, declared, order.change)
        steps.listen(on_step)
        try:
            became(run.lease.run_id)
            reached(Step.LEASE_TAKEN)
            run = replace(
                run, on_step=on_step
            )  # or the tasks, which run in this process, would listen no more
            return deliver(run, order.batch) if order.change is None else deliver_correction(run, order.batch)
        finally:
            steps.listen(None)
            with transaction(order.dsn) as cursor:
                leases.end_run(cursor, run.lease, RunOutcome(outcome="done"))
                leases.give_lease_back(cursor, run.lease)


@dataclass(frozen=True, kw_only=True)
class Doomed:
    """The process that forks those which are to be killed."""

    process: subprocess.Popen[bytes]

    def killed(self, order: Order, at: Step) -> bool:
        """Make the delivery in a process that is killed at the step; False: it never came there, and has made it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump((order, at), self.process.stdin)
        self.process.stdin.flush()
        ended = int(self.process.stdout.readline())
        assert ended in (0, -signal.SIGKILL), "it ended by an error"
        return ended != 0


@contextmanager
def doomed_processes(services: Services) -> Iterator[Doomed]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed.doomed"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **services.environment},
        cwd=REPOSITORY,
    )
    with process:  # which closes its input: it ends
        yield Doomed(process=process)


def _die(order: Order, at: Step) -> None:
    def listener(step: Step) -> None:
        if step == at:
            os.kill(os.getpid(), signal.SIGKILL)

    done(order, listener)


def main() -> None:
    while True:
        try:
            order, at = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pid = os.fork()  # of a process that has neither threads nor connections
        if pid == 0:
            _die(order, at)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
