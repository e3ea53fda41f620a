"""What Sluice reads in a checkpoint is what Spark did, and Spark goes on from what Sluice writes there."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from etl.common.errors import CheckpointDamaged
from etl.common.paths import to_path
from etl.sources.evidence import look
from etl.spark.checkpoint.files import FileCheckpoint
from etl.spark.checkpoint.format import About, commit_text
from etl.spark.checkpoint.reader import LoggedFile, open_checkpoint

PATTERNS = ("*.jsonl", "*.txt")


def places(files: Iterable[LoggedFile]) -> list[str]:
    return sorted(to_path(file.uri) for file in files)


@dataclass(kw_only=True)
class Stream:
    """A real query of two file sources, and what its batches read."""

    spark: SparkSession
    landing: Path
    checkpoint: Path
    read: dict[int, list[str]] = field(default_factory=dict)

    def land(self, *names: str) -> None:
        for name in names:
            path = self.landing / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('{"id": 1}\n')

    def run(self, *, stop_in: int | None = None) -> None:
        def batch(frame: DataFrame, number: int) -> None:
            self.read[number] = sorted(to_path(row.path) for row in frame.select("path").distinct().collect())
            assert (
                places(
                    open_checkpoint(str(self.checkpoint), FileCheckpoint, sources=len(PATTERNS)).inputs(
                        number
                    )
                )
                == self.read[number]
            )
            if number == stop_in:
                raise RuntimeError("stopped")

        frames = [self._source(pattern) for pattern in PATTERNS]
        writer = frames[0].unionByName(frames[1]).writeStream.foreachBatch(batch)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        if stop_in is None:
            query.awaitTermination()
        else:
            with pytest.raises(Exception, match="stopped"):
                query.awaitTermination()

    def _source(self, pattern: str) -> DataFrame:
        reader = self.spark.readStream.format("text").option("pathGlobFilter", pattern)
        reader = reader.option("recursiveFileLookup", "true").option("maxFilesPerTrigger", "1")
        return reader.load(str(self.landing)).select(F.col("_metadata.file_path").alias("path"))

    def open(self) -> FileCheckpoint:
        return open_checkpoint(str(self.checkpoint), FileCheckpoint, sources=len(PATTERNS))

    def files(self) -> list[str]:
        return sorted(path for paths in self.read.values() for path in paths)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark=spark, landing=tmp_path / "landing of ü%20", checkpoint=tmp_path / "check point")


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    """Run a query for 12 batches: one source's log is compacted, the other's ended before."""
    root = tmp_path_factory.mktemp("ran")
    stream = Stream(spark=spark, landing=root / "landing", checkpoint=root / "checkpoint")
    stream.land(*(f"a/{n}.jsonl" for n in range(12)), *(f"b/{n}.txt" for n in range(3)))
    stream.run()
    return stream


@pytest.fixture
def copy(ran: Stream, tmp_path: Path) -> Stream:
    shutil.copytree(ran.checkpoint, tmp_path / "copy")
    return Stream(spark=ran.spark, landing=ran.landing, checkpoint=tmp_path / "copy")


def test_a_batchs_inputs_are_the_files_that_spark_read(ran: Stream) -> None:
    assert len(ran.read) == 12
    found = ran.open()
    assert found.damage() == [] and found.offsets == found.commits == tuple(range(12))
    for batch, paths in ran.read.items():
        assert places(found.inputs(batch)) == paths
    assert places(found.logged()) == ran.files()
    assert {file.source for file in found.inputs(0)} == {0, 1}
    assert {file.source for file in found.inputs(11)} == {0}


def test_a_logged_file_has_the_identity_and_time_that_the_file_has(stream: Stream) -> None:
    stream.land("x y%2.jsonl", "ü+&.txt")
    stream.run()
    logged = stream.open().inputs(0)
    seen = look([file.uri for file in logged], landing=str(stream.landing))
    assert [one.uri for one in seen] == [file.uri for file in logged]
    assert {one.path for one in seen} == {"x y%2.jsonl", "ü+&.txt"}
    assert [one.mtime_ms for one in seen] == [file.mtime_ms for file in logged]
    again = look(
        [str(stream.landing / "x y%2.jsonl"), str(stream.landing / "ü+&.txt")], landing=str(stream.landing)
    )
    assert sorted(one.uri for one in again) == sorted(one.uri for one in seen)


def test_spark_keeps_the_id_that_sluice_gave_a_new_checkpoint(stream: Stream) -> None:
    stream.open().create("5f0b9d1c-9a52-4f43-9a42-8d2f4a3f4a11")
    assert stream.open().damage() == [] and stream.open().exists
    stream.land("1.jsonl")
    stream.run()
    assert stream.open().stream_id == "5f0b9d1c-9a52-4f43-9a42-8d2f4a3f4a11"
    assert stream.read.keys() == {0}


def test_a_batch_that_failed_is_planned_and_not_done(stream: Stream) -> None:
    stream.land("1.jsonl", "2.jsonl", "1.txt")
    stream.run(stop_in=1)
    found = stream.open()
    assert found.offsets == (0, 1) and found.commits == (0,) and found.damage() == []
    planned = places(found.inputs(1))
    stream.land("0.jsonl")
    stream.run()
    assert stream.read[1] == planned
    assert len(stream.files()) == len(set(stream.files())) == 4


@pytest.mark.parametrize("more", [2, 12])
def test_a_seeded_checkpoint_goes_on_with_exactly_the_other_files(stream: Stream, more: int) -> None:
    spaced = "2 \u202f\u3000\u00a0.jsonl"
    stream.land("1.jsonl", spaced, "1.txt")
    paths = [str(stream.landing / name) for name in ("1.jsonl", spaced)]
    seeded = look(paths, landing=str(stream.landing), source=0)
    seeded += look([str(stream.landing / "1.txt")], landing=str(stream.landing), source=1)
    stream.open().seed(seeded, stream_id="8a2d0b8e-0b0c-4a8d-b6c1-2a1b6fb0a001")
    assert stream.open().damage() == []
    stream.land(*(f"new/{n}.jsonl" for n in range(more)), "new/0.txt")
    stream.run()
    found = stream.open()
    assert found.stream_id == "8a2d0b8e-0b0c-4a8d-b6c1-2a1b6fb0a001" and found.damage() == []
    assert set(stream.read) == set(range(1, more + 1))
    names = sorted(path.removeprefix(f"{stream.landing}/") for path in stream.files())
    assert names == sorted([*(f"new/{n}.jsonl" for n in range(more)), "new/0.txt"])
    assert len(found.logged()) == more + 4


def test_a_source_without_files_can_be_seeded(stream: Stream) -> None:
    stream.land("1.jsonl", "1.txt")
    seeded = look([str(stream.landing / "1.jsonl")], landing=str(stream.landing), source=0)
    stream.open().seed(seeded, stream_id="8a2d0b8e-0b0c-4a8d-b6c1-2a1b6fb0a002")
    stream.run()
    assert {n: [to_path(uri).rpartition("/")[2] for uri in uris] for n, uris in stream.read.items()} == {
        1: ["1.txt"]
    }


def test_what_is_there_is_never_overwritten(copy: Stream) -> None:
    for write in (lambda: copy.open().create("x"), lambda: copy.open().seed([], stream_id="x")):
        with pytest.raises(CheckpointDamaged, match="not empty"):
            write()


def test_an_unfinished_seeding_is_damage(stream: Stream) -> None:
    stream.open().seed([], stream_id="8a2d0b8e-0b0c-4a8d-b6c1-2a1b6fb0a003")
    (stream.checkpoint / "metadata").unlink()
    assert stream.open().damage() == ["metadata is missing"]


def test_a_checkpoint_that_is_not_there_has_nothing(stream: Stream) -> None:
    found = stream.open()
    assert not found.exists and found.stream_id is None and found.damage()


def _remove(name: str) -> Callable[[Path], None]:
    return lambda root: shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()


def _cut(name: str, length: int) -> Callable[[Path], None]:
    return lambda root: (root / name).write_bytes((root / name).read_bytes()[:length])


def _last_line_lost(root: Path) -> None:
    path = root / "sources/0/9.compact"
    path.write_text("\n".join(path.read_text().split("\n")[:-1]))


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (_remove("metadata"), "metadata is missing"),
    (_cut("metadata", 9), "metadata is torn"),
    (_cut("metadata", 0), "metadata is torn"),
    (_remove("offsets/5"), "offsets/5 is missing"),
    (_remove("offsets/10"), "offsets/10 is missing"),
    (_remove("offsets/11"), "commits/11 is there, and offsets end at 10"),
    (_remove("offsets"), "no offsets are"),
    (_cut("offsets/11", 0), "offsets/11 is torn"),
    (_cut("offsets/11", 50), "offsets/11 is torn"),
    (_remove("commits"), "commits/10 is missing"),
    (_remove("commits/4"), "commits/4 is missing"),
    (_cut("commits/11", 8), "commits/11 is torn"),
    (_remove("sources"), "sources/0/11 is missing"),
    (_remove("sources/1"), "sources/1/2 is missing"),
    (_remove("sources/0/10"), "sources/0/10 is missing"),
    (_remove("sources/0/9.compact"), "sources/0/9 is missing"),
    (_cut("sources/0/11", 30), "sources/0/11 is torn"),
    (_cut("sources/0/11", 2), "entry 11 is not in it"),
    (_last_line_lost, "sources/0/9.compact is torn: entry 9 is not in it"),
]


@pytest.mark.parametrize(("harm", "told"), DAMAGES, ids=[told for _, told in DAMAGES])
def test_missing_and_torn_parts_are_named(copy: Stream, harm: Callable[[Path], None], told: str) -> None:
    harm(copy.checkpoint)
    assert any(told in sentence for sentence in copy.open().damage())


def test_what_spark_itself_removes_is_no_damage(copy: Stream) -> None:
    for entry in range(9):
        (copy.checkpoint / "sources/0" / str(entry)).unlink()
        (copy.checkpoint / "offsets" / str(entry)).unlink()
        (copy.checkpoint / "commits" / str(entry)).unlink()
    found = copy.open()
    assert found.damage() == []
    assert len(found.inputs(10)) == 1 and len(found.logged()) == 15
    with pytest.raises(CheckpointDamaged, match="offsets/8 is missing"):
        found.inputs(9)


def test_a_listed_and_unplanned_file_is_no_damage(copy: Stream) -> None:
    entry = {"path": "file:///new.jsonl", "timestamp": 1, "batchId": 12}
    (copy.checkpoint / "sources/0/12").write_text("v1\n" + json.dumps(entry))
    assert copy.open().damage() == []
    assert [file.uri for file in copy.open().logged()][-4] == "file:///new.jsonl"


def planned_and_done(checkpoint: FileCheckpoint, batches: int) -> None:
    """Write the logs of a stream of one file per batch that has run for long, as Spark leaves them, with nothing removed."""
    checkpoint.create("5f0b9d1c-9a52-4f43-9a42-8d2f4a3f4a11")
    for batch in range(batches):
        file = LoggedFile(
            uri=f"file:///gone/{batch}.jsonl", mtime_ms=1_600_000_000_000, source=0, entry=batch
        )
        read = SimpleNamespace(files=[file], ranges=())
        checkpoint = open_checkpoint(checkpoint.uri, FileCheckpoint, sources=checkpoint.sources)
        checkpoint.plan(batch, read, times=1, about=About(watermark_ms=0, time_ms=1_600_000_000_000))
        checkpoint.folder.write(f"commits/{batch}", commit_text())


def test_few_copies_of_the_list_of_all_files_stay_and_older_ones_go_with_the_next_run(stream: Stream) -> None:
    planned_and_done(stream.open(), 300)
    logs = stream.checkpoint / "sources" / "0"
    assert len([*logs.glob("*.compact")]) == 30
    hours_ago = time.time() - 7200  # Spark leaves what is younger than ten minutes
    for file in logs.iterdir():
        os.utime(file, (hours_ago, hours_ago))
    stream.land(*(f"{n}.jsonl" for n in range(10)))
    stream.run()
    found = stream.open()
    assert found.damage() == []
    assert found.offsets[-1] == 309
    assert len(found.logged()) == 310
    assert len([*logs.glob("*.compact")]) <= 11
    assert len(found.offsets) <= 101
    stream.land("last.jsonl")
    stream.run()
    assert stream.read[310] == [str(stream.landing / "last.jsonl")]
