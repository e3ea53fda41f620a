"""Which logs of Spark's JVMs are kept."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from etl.spark.launch import jvm_log


def written(folder: Path, name: str, age: int) -> Path:
    file = folder / name
    file.write_text("OutOfMemoryError\n")
    os.utime(file, (file.stat().st_mtime - age,) * 2)
    return file


def test_the_newest_logs_are_kept_and_any_that_is_still_written_to(tmp_path: Path) -> None:
    with jvm_log.opened(tmp_path) as log:
        living = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=log)
    oldest = jvm_log.current()
    assert oldest is not None
    moved = oldest.rename(tmp_path / "spark-20000101T000000-1.log")
    os.utime(moved, (0, 0))
    ended = [written(tmp_path, f"spark-{age}.log", age) for age in range(1, jvm_log.KEPT + 5)]
    other = written(tmp_path, "mine.log", 10**6)
    with jvm_log.opened(tmp_path):
        newest = jvm_log.current()
    assert set(tmp_path.iterdir()) == {moved, other, newest, *ended[: jvm_log.KEPT - 1]}
    living.communicate()
    with jvm_log.opened(tmp_path):
        pass
    assert not moved.exists()


def test_a_log_is_never_emptied(tmp_path: Path) -> None:
    for words in ("one\n", "two\n"):
        with jvm_log.opened(tmp_path) as log:
            subprocess.run(["echo", "-n", words], stdout=log, check=True)
    said = sorted(file.read_text() for file in tmp_path.glob("spark*.log"))
    assert "".join(said).split() == ["one", "two"]
