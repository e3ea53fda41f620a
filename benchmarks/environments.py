"""Environments beside the project's own, for what only a benchmark needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.ground import HERE


def python_with(name: str, folder: Path) -> Path:
    """Return the Python of an environment with requirements-NAME.txt, which is made below `folder` if it is not there."""
    made, locked = folder / name, HERE / f"requirements-{name}.txt"
    python, whole = made / "bin" / "python", made / "whole"
    if not whole.exists() or whole.read_text() != locked.read_text():
        uv = shutil.which("uv") or HERE.parent / ".tools" / "bin" / "uv"
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, made], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", locked]
        subprocess.run(install, check=True)
        whole.write_text(locked.read_text())
    return python
