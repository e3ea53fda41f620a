"""`sluice init`: makes a project of one's own, which passes `sluice check` and its own tests, and runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from etl.common.errors import SetupError
from etl.common.shipped import shipped
from etl.common.wording import first_few
from etl.operations.projects.writing import write_all

TEMPLATE = Path(__file__).parent / "template"
ELSEWHERE = {  # where a file of the template goes whose name would mean something where the template is
    "gitignore": ".gitignore",
    "settings.toml": "sluice.toml",
    "workflows/check.yml": ".github/workflows/check.yml",
}
# Of the shipped ones those of any project.
DAGS = ("pipelines.py", "declarations.py", "maintenance.py", "alerts.py")
NOT_IN_THE_WAY = {".git", ".venv"}  # what is often made before


def create(folder: Path) -> list[Path]:
    """Make a project in the folder; return its files, relative to it.

    Raises SetupError where something is in the way: nothing is written then.
    """
    _require_room(folder)
    files = _files(folder.resolve().name)
    try:
        write_all({folder / name: text for name, text in files.items()})
    except OSError as error:
        raise SetupError(
            f"The project can't be written: {error}", remedy="correct that, or name another folder"
        ) from error
    return sorted(files)


def _require_room(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise SetupError(f"{folder} is no folder", remedy="name another one, or one that is not there yet")
    if there := sorted(one.name for one in folder.iterdir() if one.name not in NOT_IN_THE_WAY):
        raise SetupError(
            f"{folder} is not empty, and nothing was written: there is {first_few(there)}",
            remedy="name an empty folder, or one that is not there yet",
        )


def _files(project: str) -> Mapping[Path, str]:
    """Return the text of each file of the project, by its name within it."""
    found = {}
    for file in TEMPLATE.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            name = str(file.relative_to(TEMPLATE))
            found[Path(ELSEWHERE.get(name, name))] = file.read_text(encoding="utf-8")
    for name in DAGS:
        found[Path("dags", name)] = (shipped("dags") / name).read_text(encoding="utf-8")
    readme = Path("README.md")
    found[readme] = found[readme].replace("# PROJECT\n", f"# {project}\n")
    return found
