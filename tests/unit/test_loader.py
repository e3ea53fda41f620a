"""Declarations are loaded from their files, and all mistakes in them are told together, each with its line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from etl.common.errors import SetupError
from etl.pipeline import load_pipeline, load_pipelines

GOOD = """
from etl.pipeline import Append, Files, Pipeline

def same(df):
    return df

PIPELINE = Pipeline(name="{name}", sources=(Files("{name}/**/*.jsonl"),), schema="id bigint",
                    transform=same, sink=Append({sink}))
"""


def write(folder: Path, name: str, *, sink: str = "", file: str | None = None) -> Path:
    path = folder / f"{file or name}.py"
    path.write_text(GOOD.format(name=name, sink=sink))
    return path


def test_loading_needs_no_pyspark(tmp_path: Path) -> None:
    write(tmp_path, "events")
    code = (
        "import sys; from pathlib import Path; from etl.pipeline import load_pipelines\n"
        f"load_pipelines([Path({str(tmp_path)!r}), Path('etl/pipelines')])\n"
        "heavy = {'pyspark', 'sklearn', 'onnx', 'onnxruntime'}\n"
        "sys.exit(any(n.partition('.')[0] in heavy for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_loaded_pipeline_knows_its_file(tmp_path: Path) -> None:
    file = write(tmp_path, "events")
    first = load_pipeline("events", [tmp_path])
    assert first.file == file and first.table == "warehouse.events"


def test_a_declaration_that_changed_within_a_second_and_kept_its_size_is_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As files of archives do whose times are all alike; Python's own cache would give the old one."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for table in ("warehouse.a", "warehouse.b"):
        os.utime(write(tmp_path, "events", sink=f'table="{table}"'), (1, 1))
        assert load_pipeline("events", [tmp_path]).table == table
    assert [file.name for file in tmp_path.iterdir()] == ["events.py"], "and no cache lies beside it"


def test_all_broken_files_are_reported_together_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nraise ValueError('no luck')\n")
    (tmp_path / "b.py").write_text("x = (\n")
    (tmp_path / "c.py").write_text("x = 1\n")
    (tmp_path / "d.py").write_text("import pyspark.sql\n" + GOOD.format(name="D", sink=""))
    (tmp_path / "_shared.py").write_text("raise SystemExit(1)\n")
    with pytest.raises(SetupError) as caught:
        load_pipelines([tmp_path])
    for part in ("a.py: line 2: ValueError: no luck", "b.py: line 1", "c.py: declares no PIPELINE",
                 "d.py: line 1: imports pyspark", "d.py: name:"):  # fmt: skip
        assert part in caught.value.seen


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("Pipeline(sorces=(), name='a')", "Pipeline has no field 'sorces'; did you mean sources?"),
        ("Append(colour='red')", "Append has no field 'colour'; it has partition_by, table"),
        ("Files('a/*.csv', max_file=3)", "Files has no field 'max_file'; did you mean max_files?"),
        ("day(colum='at')", "day has no field 'colum'; did you mean column?"),
        ("Upsert(keys=('a',))", "Upsert lacks 'newest'"),
        ("Socket()", "Socket lacks 'host' and 'port'"),
        ("Upsert(('a',), 'b')", "Upsert takes all its fields by name, such as table=…"),
        ("month('a', 'b')", "month takes column alone"),
        ("Files('a/*.csv', 'csv')", "Files takes all its fields but pattern by name, such as options=…"),
        ("len(a=1)", "TypeError: len() takes no keyword arguments"),
    ],
)
def test_a_call_that_a_declaration_gets_wrong_is_told_in_its_own_words(
    tmp_path: Path, written: str, told: str
) -> None:
    (tmp_path / "a.py").write_text(f"from etl.pipeline import *\n\nPIPELINE = {written}\n")
    with pytest.raises(SetupError) as caught:
        load_pipelines([tmp_path])
    assert caught.value.seen.endswith(f"a.py: line 3: {told}")


def test_one_table_belongs_to_one_pipeline(tmp_path: Path) -> None:
    write(tmp_path, "events")
    write(tmp_path, "other", sink='table="warehouse.events"')
    write(tmp_path, "events_quarantine")
    write(tmp_path, "events", file="again")
    write(tmp_path, "fine")
    with pytest.raises(SetupError) as caught:
        load_pipelines([tmp_path])
    assert "warehouse.events belongs to pipeline 'events'" in caught.value.seen
    assert "warehouse.events_quarantine belongs to pipeline" in caught.value.seen
    assert "'events' is declared in" in caught.value.seen
    with pytest.raises(SetupError):
        load_pipeline("other", [tmp_path])
    write(tmp_path, "wrong", sink='table=["warehouse", "events"]')
    assert load_pipeline("fine", [tmp_path]).name == "fine"


def test_an_unknown_name_suggests_near_ones(tmp_path: Path) -> None:
    write(tmp_path, "flights")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    for name in ("None", "5"):
        unnamed = GOOD.replace('"{name}",', f"{name},", 1).format(name="it", sink="")
        (tmp_path / f"called_{name}.py").write_text(unnamed)
    with pytest.raises(SetupError, match="did you mean flights"):
        load_pipeline("fligths", [tmp_path])
    with pytest.raises(SetupError, match="ZeroDivisionError"):
        load_pipeline("broken", [tmp_path])


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="nowhere"):
        load_pipelines([tmp_path / "nowhere"])
