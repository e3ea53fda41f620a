"""`sluice init` makes a project that has no mistake, and writes over nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import etl
from etl.cli.app import app
from etl.common.errors import SetupError
from etl.common.settings import load_settings
from etl.common.shipped import shipped


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(folder: str) -> str:
    done = CliRunner().invoke(app, ["init", folder], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_a_project_is_in_force_in_its_folder_and_has_no_mistake(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = made("Ann's shop")
    assert said.endswith("\nnext: `cd 'Ann'\"'\"'s shop'`, then `sluice check`\n")
    project = here / "Ann's shop"
    files = {str(file.relative_to(project)) for file in project.rglob("*") if file.is_file()}
    assert files == {line.strip() for line in said.splitlines()[1:-1]}
    assert {"sluice.toml", ".gitignore", ".github/workflows/check.yml", "dags/pipelines.py"} <= files
    assert (project / "README.md").read_text().startswith("# Ann's shop\n")
    monkeypatch.chdir(project)
    settings = load_settings()
    assert (settings.pipelines, settings.suites) == ((project / "pipelines",), (project / "suites",))
    assert (settings.dags, settings.landing) == (project / "dags", str(project / "landing"))
    assert [(one.pipeline, one.rules, one.mistakes) for one in etl.check()] == [("orders", 2, ())]
    shipped_ones = [shipped("dags") / file.name for file in (project / "dags").iterdir()]
    assert {one.name for one in shipped_ones} == {
        "pipelines.py",
        "declarations.py",
        "maintenance.py",
        "alerts.py",
    }
    assert all(file.read_text() == (project / "dags" / file.name).read_text() for file in shipped_ones)


def test_a_folder_with_anything_in_it_is_left_as_it_is(here: Path) -> None:
    (here / "there").mkdir()
    (here / "there" / "notes.txt").write_text("mine")
    (here / "file").touch()
    with pytest.raises(
        SetupError, match=r"there is not empty, and nothing was written: there is notes\.txt"
    ) as refused:
        made("there")
    assert refused.value.exit_code == 2
    assert [path.name for path in (here / "there").iterdir()] == ["notes.txt"]
    with pytest.raises(SetupError, match="file is no folder"):
        made("file")


def test_what_is_often_made_before_is_not_in_the_way(here: Path) -> None:
    (here / ".git").mkdir()
    (here / ".venv").mkdir()
    assert made(".").endswith("next: `sluice check`\n")
    assert (here / "README.md").read_text().startswith(f"# {here.name}\n")


def test_a_folder_that_can_not_be_written_to_is_told(here: Path) -> None:
    (here / "file").touch()
    with pytest.raises(SetupError, match=r"The project can't be written: .*Not a directory"):
        made("file/below")
