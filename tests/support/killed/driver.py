"""A run without Spark, in processes that can be killed: a driver, and two workers that stage its tasks.

Started once, it reads a case from each line of its input, forks a driver for it, and says on the events' pipe
what happens: `driver <pid>`, `worker <pid>`, `reached <step> <batch> <pid>`, `ended <status>`. A process that
comes to the step where it is to be killed writes its marker, says so, and waits for its death.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import boto3  # noqa: F401 - each driver would import it anew
import psycopg2
import pyarrow as pa

from etl.common import steps
from etl.common.database import Cursor
from etl.common.errors import SluiceError
from etl.common.steps import Step, reached
from etl.delivery import copy_ahead
from etl.delivery.batch import Batch, DeliveryContext
from etl.delivery.correction import Correction
from etl.delivery.deliver import deliver, deliver_correction
from etl.delivery.row_filter import TaskReport
from etl.delivery.stage import StagedChanges, StageTask, stage, stage_log
from etl.delivery.withdrawal import NothingRead, Withdrawal
from etl.ledger.quarantine import RowSelection, held_rows
from etl.ledger.streams import register_stream
from etl.operations.audit.recount import parquet_rows
from etl.pipeline import Append, Sink, Upsert, day
from etl.runs.heartbeat import drop_leftover_staging
from etl.runs.replay.corrections import corrected_rows
from etl.sinks.columns import DELIVERY
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.parquet_writer import ObjectStore
from etl.sinks.warehouse import staging
from tests.support import oracle
from tests.support.arrow_driver import TASKS, ArrowBatch, of, pipeline, start, start_correction

PIPELINE = "events"
WORKERS = 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run, and where it is to be killed."""

    dsn: str
    warehouse: str  # s3://…
    endpoint: str | None
    region: str
    folder: str  # markers, and the marks of batches that are done, as in a checkpoint
    stream_id: str
    seed: int
    batches: int
    first_batch: int = 0  # of the stream
    act: str = "run"  # or replay, release or withdrawal
    sink: str = "append"  # or upsert, of rows that every batch has again
    step: str | None = None  # None: nobody is killed
    batch: int = 0

    @property
    def made(self) -> list[oracle.MadeBatch]:
        made = oracle.make(self.seed, batches=self.batches)
        return oracle.keyed(made) if self.sink == "upsert" else made

    @property
    def again(self) -> str:
        """Return the id of the stream that reads again what a withdrawal of this one takes out."""
        return str(uuid.uuid5(uuid.UUID(self.stream_id), "again"))

    @property
    def replayed(self) -> oracle.MadeBatch:
        """Return the rows that a replay of batches 0 and 1 brings; into an upsert sink, without every other id."""
        found = oracle.merged(self.made[:2])
        if self.sink == "upsert":
            found = replace(found, rows=tuple(row for row in found.rows if row.values[0] % 2))
        return found


SINKS: dict[str, Sink] = {
    "append": Append(partition_by=day("at")),
    "upsert": Upsert(keys=("id",), newest="at", partition_by=day("at")),
}


@dataclass(kw_only=True)
class Killable:
    """Stops this process at a step, so that it can be killed there."""

    case: Case
    events: int  # file descriptor
    batch: int = 0  # the one that is under way

    def __call__(self, step: Step) -> None:
        if step != self.case.step or self.batch != self.case.batch:
            return
        marker = Path(self.case.folder, f"{step}.{self.batch}.marker")
        if marker.exists():  # a task that is tried again in another worker goes through
            return
        with marker.open("w") as file:
            file.write(str(os.getpid()))
            file.flush()
            os.fsync(file.fileno())
        say(self.events, f"reached {step} {self.batch} {os.getpid()}")
        signal.sigwait({signal.SIGUSR1})  # which comes only to a zombie; to all others SIGKILL


def say(events: int, line: str) -> None:
    os.write(events, f"{line}\n".encode())


@dataclass(kw_only=True)
class Worker:
    """A process that stages tasks, like an executor's."""

    connection: Connection
    lost: bool = False

    def stage(self, task: StageTask, part: Sequence[pa.RecordBatch], partition: int) -> TaskReport:
        self.connection.send((task, list(part), partition, next(TASKS)))
        answer = self.connection.recv()
        if isinstance(answer, BaseException):
            raise answer
        report: TaskReport = answer
        return report


@dataclass(kw_only=True)
class Workers:
    """Runs a task on the worker of its partition; on another one when that is dead, as Spark does."""

    all: list[Worker] = field(default_factory=list)

    def run(self, task: StageTask, part: Iterable[pa.RecordBatch], partition: int) -> TaskReport:
        chosen = self.all[partition % len(self.all)]
        try:
            if not chosen.lost:
                return chosen.stage(task, list(part), partition)
        except (EOFError, ConnectionError):
            chosen.lost = True
        other = next(worker for worker in self.all if not worker.lost)
        return other.stage(task, list(part), partition)


def fork_worker(case: Case, events: int, inherited: Sequence[Worker]) -> Worker:
    """Forked before the driver has any thread; every other one reports no rows and sends all of them to PostgreSQL."""
    ours, theirs = Pipe()
    pid = os.fork()
    if pid == 0:
        ours.close()
        for worker in inherited:  # or their end of file would never come
            worker.connection.close()
        if len(inherited) % 2:
            staging.REPORTED_BYTES = 0
        work(case, events, theirs)
        os._exit(0)
    theirs.close()
    say(events, f"worker {pid}")
    return Worker(connection=ours)


def work(case: Case, events: int, tasks: Connection) -> None:
    """Stage what is sent until the driver is gone."""
    while True:
        try:
            task, part, partition, number = tasks.recv()
        except EOFError:
            return
        stopping = Killable(case=case, events=events, batch=task.batch_id)
        try:
            tasks.send(stage(replace(task, on_step=stopping), iter(part), partition=partition, number=number))
        except (SluiceError, psycopg2.Error, pa.ArrowException, OSError) as error:
            tasks.send(error)


def drive(case: Case, events: int) -> None:
    """Deliver every batch that has no mark yet, as Spark would ask for them; what one worker sends is copied ahead."""
    copy_ahead.FIRST_LOOK = 0
    workers = Workers()
    for _ in range(WORKERS):
        workers.all.append(fork_worker(case, events, workers.all))
    stopping = Killable(case=case, events=events, batch=case.batch)
    steps.listen(stopping)
    lake = Lake(case.warehouse, ObjectStore(endpoint=case.endpoint, region=case.region))
    if case.act != "run":
        {"replay": replay, "release": release, "withdrawal": withdraw}[case.act](case, lake, workers)
        return
    run = start_stream(case, lake)
    reached(Step.LEASE_TAKEN)
    drop_leftover_staging(case.dsn, PIPELINE)
    for made in case.made:
        mark = Path(case.folder, f"{made.batch_id}.done")
        if mark.exists():
            continue
        stopping.batch = made.batch_id
        batch = of(made, partitions=WORKERS)
        batch.run_task = workers.run
        deliver(run, batch)
        mark.touch()


def start_stream(case: Case, lake: Lake) -> DeliveryContext:
    declared = pipeline(PIPELINE, SINKS[case.sink])
    return start(case.dsn, lake, declared, stream_id=case.stream_id, first_batch=case.first_batch)


def replay(case: Case, lake: Lake, workers: Workers) -> None:
    """Put one delivery in the place of batches 0 and 1, unless a try before did."""
    old = oracle.ask(
        case.dsn,
        "SELECT delivery_id, delivered FROM sluice.delivery WHERE live AND kind = 'stream' AND batch_id < 2",
    )
    if not old:
        return
    change = Correction(name="replay", **_taking_out(case, old))
    batch = of(case.replayed, partitions=WORKERS)
    batch.run_task = workers.run
    _deliver_correction(case, lake, change, batch)


def withdraw(case: Case, lake: Lake, workers: Workers) -> None:
    """Take all from batch 1 on out, and give the pipeline a stream that begins with it, unless a try before did."""
    old = oracle.ask(
        case.dsn,
        "SELECT delivery_id, delivered FROM sluice.delivery WHERE live AND batch_id >= 1 AND stream_id = %s",
        (case.stream_id,),
    )
    if not old:
        return
    run = start_stream(case, lake)

    def go_on(cursor: Cursor) -> None:
        lease = run.lease
        register_stream(cursor, lease.pipeline, lease.run_id, case.again, checkpoint="memory", first_batch=1)

    change = Withdrawal(go_on=go_on, **_taking_out(case, old))
    _deliver_correction(case, lake, change, NothingRead(suite_digest=run.suite_digest, gone=list))


def _taking_out(case: Case, old: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return what a correction must know of the deliveries that it takes out, of their numbers and rows."""
    numbers = [number for number, _ in old]
    files = oracle.ask(
        case.dsn, "SELECT kind, path FROM sluice.delivery_file WHERE delivery_id = ANY(%s)", [numbers]
    )
    return {
        "supersedes": tuple(numbers),
        "removed": sum(count for _, count in old),
        "files": {k: frozenset(path for of, path in files if of == k) for k in ("data", "quarantine")},
        "who": "tests",
        "why": "",
    }


def release(case: Case, lake: Lake, workers: Workers) -> None:
    """Let the nameless rows of batch 1 out of quarantine, under a name."""
    nameless = [
        one
        for one in held_rows(case.dsn, PIPELINE, RowSelection(reason=oracle.UNNAMED))
        if one.batch_id == 1 and one.reasons == [oracle.UNNAMED]
    ]
    if not nameless:
        return
    ids = tuple(one.quarantine_id for one in nameless)
    named = {number: {"name": oracle.MENDED} for number in ids}
    rows = corrected_rows(nameless, named, oracle.COLUMNS)
    rows = rows.append_column("_flags0", pa.array([0] * len(ids), pa.int64()))
    change = Correction(
        name="release", files={}, released_from=nameless[0].delivery_id, rows=ids, who="tests", why="mended"
    )
    halves = rows.slice(0, len(ids) // 2), rows.slice(len(ids) // 2)
    batch = ArrowBatch(batch_id=0, parts=[half.to_batches() for half in halves], files=())
    batch.run_task = workers.run
    _deliver_correction(case, lake, change, batch)


@dataclass(frozen=True, kw_only=True)
class ArrowLog:
    """The change log, read from the lake without Spark."""

    lake: Lake
    replaced: Sequence[str]
    lost: bool = False

    def stage(self, task: StageTask, files: Sequence[str], keys: pa.Table | None) -> list[StagedChanges]:
        assert keys is None or keys.num_rows, "it is not asked for none"
        columns = pa.schema([*task.row_filter.columns, pa.field(DELIVERY, pa.int64())])
        rows = [batch for file in files for batch in parquet_rows(self.lake, file, task.row_filter.columns)]
        changes = pa.Table.from_batches(rows).select(columns.names)
        if keys is not None:  # else those of all that is replaced
            changes = changes.join(keys, keys.column_names, join_type="left semi")
        batches = iter(changes.to_batches())
        return [stage_log(task.tables, columns, batches, partition=0, number=next(TASKS))]


def _deliver_correction(case: Case, lake: Lake, change: Correction, batch: Batch) -> None:
    run = start_correction(case.dsn, lake, pipeline(PIPELINE, SINKS[case.sink]), change)
    if case.sink == "upsert":
        run = replace(run, change_log=ArrowLog(lake=lake, replaced=sorted(change.files["data"])))
    drop_leftover_staging(case.dsn, PIPELINE)
    deliver_correction(run, batch)


def main() -> None:
    events = int(sys.argv[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    for line in sys.stdin:
        case = Case(**json.loads(line))
        pid = os.fork()
        if pid == 0:
            drive(case, events)
            return
        say(events, f"driver {pid}")
        _, status = os.waitpid(pid, 0)
        say(events, f"ended {os.waitstatus_to_exitcode(status)}")


def line_of(case: Case) -> bytes:
    return json.dumps(asdict(case)).encode() + b"\n"


if __name__ == "__main__":
    main()
