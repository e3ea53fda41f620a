"""Environments beside the project's own, for what only a benchmark needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.ground import HERE


def python_with(name: str, folder: Path) -> Path:
    """Return the Python of an environment with requirements-NAME.txt, which is made below `folder` if it is not there."""
    made = folder / name
    python = made / "bin" / "python"
    if not python.exists():
        uv = shutil.which("uv") or HERE.parent / ".tools" / "bin" / "uv"
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, made], check=True)
        locked = ["--require-hashes", "-r", HERE / f"requirements-{name}.txt"]
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *locked], check=True)
    return python
