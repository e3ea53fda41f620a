"""What a sink writes as objects: folders of partitions, sizes, memory, and what is refused before anything is written."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil
import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etl.common.errors import TableRefused
from etl.delivery import stage
from etl.delivery.deliver import deliver
from etl.delivery.row_filter import TaskReport
from etl.delivery.stage import StageTask
from etl.pipeline import Append, Partition, Upsert, day, hour, identity, month
from etl.quality.verdict import StageRule
from etl.sinks.lake import parquet_writer
from etl.sinks.lake.lake import Lake
from tests.support import oracle
from tests.support.arrow_driver import ArrowBatch, batch_of, delivered, here, pipeline, reader, rows, start

pytestmark = pytest.mark.long

PARTITIONED = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("on", pa.date32()),
        ("name", pa.string()),
        ("ok", pa.bool_()),
    ]
)


@pytest.mark.parametrize(
    "by",
    [
        day("at"),
        hour("at"),
        month("at"),
        day("on"),
        month("on"),
        identity("id"),
        identity("name"),
        identity("ok"),
    ],
)
def test_partitions_hold_what_their_name_says(dsn: str, lake: Lake, by: Partition) -> None:
    run = start(dsn, lake, pipeline("parted", Append(partition_by=by)), columns=PARTITIONED)
    hours = [0, 23, 24, 24 * 31, -1, None]
    batch = batch_of(
        PARTITIONED,
        [1, 1, 2, 3, -4, None],
        [None if h is None else h * 3_600_000_000 for h in hours],
        [None if h is None else h // 24 for h in hours],
        ["a", "a", "", "b/c=d %", "null", None],
        [True, False, True, None, None, None],
    )
    assert delivered(run, 0, batch).delivered == 6
    assert reader(run).in_postgres(system=()) == reader(run).on_lake(system=()) == rows(batch)
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        table = run.sinks.table.at(run.sinks.table.pointer(cursor) or "")
    for name in PARTITIONED.names:  # a reader that leaves out files by partition still finds every row
        assert table.scan(row_filter=f"{name} is null").count() == batch.column(name).null_count
    assert table.scan(row_filter="id = 1 and name = 'a'").count() == 2
    assert table.scan(row_filter="at >= '1970-01-02T00:00:00+00:00'").count() == 2


@pytest.mark.parametrize("by", [identity("at"), hour("on"), day("name"), identity("none")])
def test_what_makes_no_partitions_is_refused(dsn: str, lake: Lake, by: Partition) -> None:
    with pytest.raises(TableRefused, match="partition"):
        start(dsn, lake, pipeline("parted", Append(partition_by=by)), columns=PARTITIONED)


@pytest.mark.parametrize("taken", ["stream", "BATCH", "at_day", "At_Day"])
def test_a_column_named_as_a_folder_of_its_objects_is_refused(dsn: str, lake: Lake, taken: str) -> None:
    columns = pa.schema([("At", pa.timestamp("us", "UTC")), (taken, pa.int64())])
    with pytest.raises(TableRefused, match=f"{taken} is named as a folder of its objects"):
        start(dsn, lake, pipeline("parted", Append(partition_by=day("At"))), columns=columns)


def test_a_partition_of_any_name_is_one_folder(dsn: str, lake: Lake) -> None:
    name = "a/b=c d?é"
    columns = pa.schema([("id", pa.int64()), (name, pa.string())])
    run = start(dsn, lake, pipeline("parted", Append(partition_by=identity(name))), columns=columns)
    batch = batch_of(columns, [1, 2], ["x/y", None])
    delivered(run, 0, batch)
    assert reader(run).in_postgres(system=()) == reader(run).on_lake(system=()) == rows(batch)
    folders = sorted(path.split("/data/")[1].split("/stream=")[0] for path in reader(run).files("parted"))
    quoted = "a%2Fb%3Dc%20d%3F%C3%A9"
    assert folders == [f"{quoted}=__HIVE_DEFAULT_PARTITION__", f"{quoted}=x%2Fy"]


def test_keys_that_the_transform_does_not_put_out_are_refused_together(dsn: str, lake: Lake) -> None:
    with pytest.raises(TableRefused) as refused:
        start(dsn, lake, pipeline("keyed", Upsert(keys=("no", "id"), newest="never")), columns=PARTITIONED)
    assert "'no'" in str(refused.value)
    assert "'never'" in str(refused.value)


@pytest.mark.parametrize("row_group", [32_000_000, 2_000])
def test_a_partition_is_one_object_however_its_rows_are_strewn(
    dsn: str, lake: Lake, row_group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_BYTES", row_group)
    columns = pa.schema([("id", pa.int64()), ("part", pa.int32())])
    run = start(dsn, lake, pipeline("many", Append(partition_by=identity("part"))), columns=columns)
    parts = [None, *range(2 * parquet_writer.OPEN_WRITERS)]
    strewn = [batch_of(columns, list(range(n, n + len(parts))), parts) for n in range(0, 5000, 100)]
    # Some fill row groups by themselves, before and after others of theirs were strewn.
    large = [batch_of(columns, list(range(n, n + 200)), [n // 1000] * 200) for n in (10_000, 20_000)]
    batches = [large[0], *strewn, *large]
    receipt = delivered(run, 0, *batches)
    assert receipt.files == len(parts)
    wanted = sum((rows(batch) for batch in batches), Counter())
    assert reader(run).in_postgres(system=()) == reader(run).on_lake(system=()) == wanted


def test_a_partition_that_was_closed_for_others_has_its_later_rows_in_one_more_object(
    dsn: str, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "PIECE_BYTES", 5_000)  # a large batch
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_BYTES", 2_000)
    monkeypatch.setattr(parquet_writer, "OPEN_WRITERS", 2)
    columns = pa.schema([("id", pa.int64()), ("part", pa.int32())])
    run = start(dsn, lake, pipeline("closed", Append(partition_by=identity("part"))), columns=columns)
    large = [batch_of(columns, list(range(n, n + 200)), [n // 200] * 200) for n in range(0, 1000, 200)]
    strewn = [batch_of(columns, list(range(n, n + 5)), list(range(5))) for n in range(5000, 7000, 100)]
    receipt = delivered(run, 0, *large, *strewn)
    assert receipt.files == 5 + 3
    wanted = sum((rows(batch) for batch in (*large, *strewn)), Counter())
    assert reader(run).in_postgres(system=()) == reader(run).on_lake(system=()) == wanted


def test_objects_of_many_partitions_are_completed_side_by_side(
    dsn: str, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    many, columns = parquet_writer.COMPLETED_AT_ONCE, pa.schema([("id", pa.int64())])
    all_begun = threading.Barrier(many)

    class Pool(ThreadPoolExecutor):
        def submit(self, complete: Callable[[], None]) -> Future[None]:  # type: ignore[override]
            def together() -> None:
                all_begun.wait(30)
                complete()

            return super().submit(together)

    monkeypatch.setattr(parquet_writer, "ThreadPoolExecutor", Pool)
    run = start(dsn, lake, pipeline("aside", Append(partition_by=identity("id"))), columns=columns)
    batch = batch_of(columns, list(range(2 * many)))
    assert delivered(run, 0, batch).files == 2 * many
    assert reader(run).in_postgres(system=()) == reader(run).on_lake(system=()) == rows(batch)


def test_an_object_that_can_not_be_completed_fails_its_task(dsn: str, lake: Lake) -> None:
    columns = pa.schema([("id", pa.int64())])
    run = start(dsn, lake, pipeline("lost", Append()), columns=columns)

    def to_nowhere(task: StageTask, batches: Iterable[pa.RecordBatch], partition: int) -> TaskReport:
        nowhere = replace(task.data, prefix="s3://there-is-none/data")
        return here(replace(task, data=nowhere), batches, partition)

    with pytest.raises(OSError, match="there-is-none"):
        deliver(run, ArrowBatch(batch_id=0, parts=[[batch_of(columns, [1])]], run_task=to_nowhere))
    assert reader(run).in_postgres() == reader(run).on_lake() == Counter()


def test_a_task_that_fails_leaves_nothing_on_its_disk(
    dsn: str, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "PIECE_BYTES", 2_000)  # a batch
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_BYTES", 2_000)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    columns = pa.schema([("id", pa.int64()), ("part", pa.int32())])
    run = start(dsn, lake, pipeline("failed", Append(partition_by=identity("part"))), columns=columns)

    def stream() -> Iterator[pa.RecordBatch]:
        for number in range(0, 5000, 100):
            yield batch_of(columns, list(range(number, number + 100)), list(range(100)))
        spilled = [*Path("/proc/self/fd").iterdir()]
        assert [one for one in spilled if one.is_symlink() and str(one.readlink()).startswith(str(tmp_path))]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        deliver(run, ArrowBatch(batch_id=0, parts=[stream()]))
    assert reader(run).in_postgres() == reader(run).on_lake() == Counter()
    left = [one for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    assert not [one for one in left if str(one.readlink()).startswith(str(tmp_path))]


def test_rows_in_the_order_of_their_partitions_are_written_as_they_come(
    dsn: str, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_BYTES", 2_000)
    monkeypatch.setattr(parquet_writer, "_Spill", None)  # nothing may wait on a disk
    columns = pa.schema([("id", pa.int64()), ("part", pa.int32())])
    run = start(dsn, lake, pipeline("ordered", Append(partition_by=identity("part"))), columns=columns)
    parts = 2 * parquet_writer.OPEN_WRITERS
    batches = [
        batch_of(columns, list(range(n, n + 200)), [n // 200] * 200) for n in range(0, 200 * parts, 200)
    ]
    assert delivered(run, 0, *batches).files == parts
    wanted = sum((rows(batch) for batch in batches), Counter())
    assert reader(run).in_postgres(system=()) == reader(run).on_lake(system=()) == wanted


def test_small_batches_make_no_small_row_groups(dsn: str, lake: Lake) -> None:
    columns = pa.schema([("id", pa.int64())])
    run = start(dsn, lake, pipeline("groups", Append()), columns=columns)
    delivered(run, 0, *[batch_of(columns, list(range(100))) for _ in range(20)])
    [path] = reader(run).files("groups")
    with reader(run).store.open_input_file(path.removeprefix("s3://")) as source:
        assert pq.read_metadata(source).num_row_groups == 1


def test_objects_roll_over_by_size(dsn: str, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "PIECE_BYTES", 60_000)  # a batch
    monkeypatch.setattr(parquet_writer, "OBJECT_BYTES", 100_000)
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_BYTES", 50_000)
    columns = pa.schema([("id", pa.int64()), ("noise", pa.binary())])
    run = start(dsn, lake, pipeline("large", Append()), columns=columns)
    noise = np.random.default_rng(1)
    batches = [batch_of(columns, list(range(50)), [noise.bytes(1000) for _ in range(50)]) for _ in range(10)]
    receipt = delivered(run, 0, *batches)
    assert receipt.files == 5
    sizes = oracle.ask(dsn, "SELECT bytes, rows FROM sluice.delivered_file")
    assert all(100_000 <= size < 170_000 for size, _ in sizes)
    assert sum(count for _, count in sizes) == 500
    assert reader(run).in_postgres(system=()) == reader(run).on_lake(system=())


WIDE = pa.schema([("id", pa.int64()), ("text", pa.string()), ("noise", pa.binary())])
WIDE_BATCHES = 240  # of a megabyte


def measured(task: StageTask, partition: int) -> tuple[TaskReport, list[int]]:
    """Run a task; return its report, and the bytes that its process held before each of its batches."""
    process, held, noise = psutil.Process(), [], np.random.default_rng(1)

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(WIDE_BATCHES):
            held.append(process.memory_info().rss)
            ids, blobs = range(1000), [noise.bytes(500) for _ in range(1000)]
            yield batch_of(WIDE, ids, ["x" * 500] * 1000, blobs, flags=number % 2)

    return here(task, batches(), partition), held


@pytest.mark.slow
def test_a_task_needs_no_more_memory_for_more_rows(dsn: str, lake: Lake) -> None:
    rule = StageRule(number=0, reason="r", broken=0, columns=("id",), quarantines=True)
    run = start(dsn, lake, pipeline("stream", Append()), columns=WIDE, rules=(rule,))
    held: list[int] = []

    def alone(task: StageTask, _: Iterable[pa.RecordBatch], partition: int) -> TaskReport:
        """Run in a process that held nothing before, as Spark's workers are: what ran earlier is not measured."""
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            report, bytes_held = process.submit(measured, task, partition).result()
        held.extend(bytes_held)
        return report

    receipt = deliver(run, ArrowBatch(batch_id=0, parts=[[]], run_task=alone))
    assert receipt.delivered + receipt.quarantined == WIDE_BATCHES * 1000
    # It rises to a full row group and falls, by 80 MB: peaks are compared, the first ones of both writers with the last.
    grown = max(held[WIDE_BATCHES // 2 :]) - max(held[: WIDE_BATCHES // 2])
    assert grown < 40_000_000, f"{grown} bytes more for {WIDE_BATCHES // 2 * 1_000_000} bytes of rows more"


def test_an_error_among_the_rows_is_raised_as_itself(dsn: str, lake: Lake) -> None:
    columns = pa.schema([("id", pa.int64())])
    run = start(dsn, lake, pipeline("broken", Append()), columns=columns)

    def stream() -> Iterator[pa.RecordBatch]:
        yield batch_of(columns, [1])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        deliver(run, ArrowBatch(batch_id=0, parts=[stream()]))
    assert reader(run).in_postgres() == reader(run).on_lake() == Counter()
