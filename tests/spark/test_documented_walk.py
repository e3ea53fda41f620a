"""docs/walk.md, word for word: its commands in a shell, in a folder that has nothing of Sluice but .venv."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from etl.common.settings import Settings
from tests.support.environment import FOREIGN, REPOSITORY

BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "=== the next block ==="


@pytest.fixture
def folder(short_home: Path) -> Iterator[Path]:
    """Make a folder that PostgreSQL's system user may enter: its data stays within, and is removed with it."""
    found = short_home / "walk"
    found.mkdir(mode=0o711)
    (found / ".venv").symlink_to(sys.prefix)
    (found / "sluice.toml").touch()  # so that none further up is found
    yield found
    bash("PATH=.venv/bin sluice down", found, {})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_answer_is_the_one_on_the_page(folder: Path, settings: Settings) -> None:
    blocks = BLOCK.findall((REPOSITORY / "docs" / "walk.md").read_text())
    commands = [text for kind, text in blocks if kind == "sh"]
    done = bash(f"\necho '{MARK}'\n".join(commands), folder, {"SLUICE_JARS": str(settings.jars)})
    assert done.returncode == 0, done.stderr
    printed = iter(done.stdout.replace(str(folder / ".sluice" / "landing"), "…").split(f"{MARK}\n"))
    compared, last = 0, ""
    for kind, text in blocks:
        if kind == "sh":
            last = next(printed)
        else:
            compared += 1
            assert plain(last).endswith(plain(text)), last
    assert compared == 8


def plain(text: str) -> str:
    """Remove what an editor would remove: blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def bash(script: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    without = (*FOREIGN, "PYICEBERG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(REPOSITORY), "PYTHONUTF8": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=420,
    )
