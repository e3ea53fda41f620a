"""Finds the Python that runs a local Spark's workers, and says why one that a person has chosen can't."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from etl.common.errors import SetupError
from etl.common.wording import visible

_SETTING, _VARIABLE = "spark.pyspark.python", "PYSPARK_PYTHON"
_TELLS = "import sys, pyarrow, etl; print(*sys.version_info[:2])"
_SECONDS = 120  # that a slow disk may take for these imports


def worker_python(configuration: Mapping[str, str]) -> str:
    """Return the Python of the workers: the setting's, the environment's, or this one.

    Spark's own default is whatever python3 is on PATH, and it takes its setting for spark-submit alone.
    """
    return configuration.get(_SETTING) or os.environ.get(_VARIABLE) or sys.executable


def require_worker_python(configuration: Mapping[str, str]) -> str:
    """Return the Python of a local Spark's workers; raise SetupError for one of a person's that can't run them.

    It is run, unless it is this one: it has to be there, of this version, and to have what the workers import.
    """
    python = worker_python(configuration)
    found = shutil.which(python)
    if found and Path(found).absolute() == Path(sys.executable).absolute():
        return python
    name = f"{_SETTING}, of SLUICE_SPARK_CONF or --conf," if configuration.get(_SETTING) else _VARIABLE
    if (why := _unfit(found)) is not None:
        raise SetupError(
            f"{name} is {visible(python)}, and that can't run Spark's workers: {why}",
            remedy=f"leave it out: they run in Sluice's own Python, {sys.executable}",
        )
    return python


def _unfit(python: str | None) -> str | None:
    """Return why a Python can't run the workers; None where it can."""
    if python is None:
        return "no such program is there"
    try:
        said = subprocess.run(
            [python, "-c", _TELLS], capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return visible(str(error))
    own = list(map(str, sys.version_info[:2]))
    if said.returncode or not said.stdout.strip():
        lines = said.stderr.strip().splitlines() or [
            f"it ended with exit code {said.returncode} and said nothing"
        ]
        return visible(lines[-1])
    found = said.stdout.split()
    return None if found == own else f"it is Python {'.'.join(found)}, and this one is {'.'.join(own)}"
