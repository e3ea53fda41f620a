from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


def make_env(folder: Path) -> subprocess.CompletedProcess[str]:
    """`make compose-env` in a folder that has what it reads."""
    for name in ("Makefile", "docker-compose.yml"):
        shutil.copy(REPOSITORY / name, folder)
    return subprocess.run(
        ["make", "--silent", "compose-env"], cwd=folder, capture_output=True, text=True, check=False
    )


def variables_of(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text().splitlines())


@pytest.fixture(scope="session")
def made_env(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("env")
    made = make_env(folder)
    assert made.returncode == 0, made.stderr
    return folder / ".env"
