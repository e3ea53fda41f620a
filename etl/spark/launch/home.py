"""A home for Spark without its archive of PySpark: the Python that it starts imports the installed one.

Spark puts `python/lib/pyspark.zip` before all else on the path of each Python process that it starts. What comes from
each of them compiles an archive again, 0.4 s at a time, and Spark gives some of them ten seconds to call back.
The installed PySpark is the same, and compiled.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etl.services import spark_jars
from etl.services.process import only_one

_NEEDED = ("bin", "jars", "conf")  # by what launches a JVM


@contextmanager
def lean(folder: Path) -> Iterator[None]:
    """Point SPARK_HOME, within the block, to a home of Spark without its archive of PySpark.

    The home is made of links and stays in `folder`, for every run with this PySpark. Nothing changes where
    SPARK_HOME names a home already, nor where the workers' Python is another: it may have no PySpark but that
    archive.
    """
    if "SPARK_HOME" in os.environ or os.environ.get("PYSPARK_PYTHON") != sys.executable:
        yield
        return
    os.environ["SPARK_HOME"] = str(_home(folder))
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def is_lean(home: Path) -> bool:
    """Tell whether a home is one of those that `lean` makes."""
    return (home / "jars").is_symlink() and (home / "jars").resolve() == spark_jars().resolve()


def _home(folder: Path) -> Path:
    installed = spark_jars().parent
    home = folder / f"spark-{digest(installed)}"
    if home.exists():
        return home
    with only_one(folder), tempfile.TemporaryDirectory(dir=folder) as work:
        part = Path(work, "part")
        part.mkdir()
        for name in _NEEDED:
            (part / name).symlink_to(installed / name)
        if not home.exists():
            part.rename(home)
    return home


def digest(parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
