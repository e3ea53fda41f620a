"""What of this machine, beside its services, may make a run fail: looked at by `sluice doctor`, and nothing is changed."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from etl.common.database import connect
from etl.common.errors import SetupError
from etl.common.settings import Settings, config_file
from etl.common.wording import first_few
from etl.pipeline import loadable
from etl.quality.rules import suite_path
from etl.quality.suite import suite_digest
from etl.spark.launch_faults import environment_faults, environment_in_use

LEAST_FREE = 1 << 30  # bytes of a disk: below it a batch's files and Spark's shuffles may not fit
MOST_APART = 30  # seconds that this clock and PostgreSQL's may differ


def spark_environment() -> str:
    """Say which variables Spark's launch goes by; raise SetupError for one that would make it fail."""
    for fault in environment_faults():
        raise fault
    return (
        ", ".join(f"{name}={value}" for name, value in environment_in_use().items()) or "no variable is set"
    )


def locale() -> str:
    """Say by which encoding this process has the names of files; raise SetupError where it is not UTF-8."""
    encoding = sys.getfilesystemencoding()
    if encoding.lower().replace("-", "") != "utf8":
        raise SetupError(
            f"names of files are {encoding} here (LC_ALL={os.environ.get('LC_ALL')}, LANG={os.environ.get('LANG')})",
            remedy="`export LC_ALL=C.UTF-8`",
        )
    return f"names of files are {encoding}"


def disks(settings: Settings) -> str:
    """Say how much is free where Sluice and Spark write; raise SetupError where it is next to nothing."""
    free = {place: shutil.disk_usage(_existing(place)).free for place in _written(settings)}
    told = [f"{size / 1e9:.1f} GB free in {place}" for place, size in free.items()]
    if short := [place for place, size in free.items() if size < LEAST_FREE]:
        raise SetupError(first_few(told), remedy=f"free some of the disk of {first_few(short)}")
    return first_few(told)


def writable(settings: Settings) -> str:
    """Require that this user may write where Sluice and Spark write, and read the landing."""
    refused = [
        f"{place} (mode {stat.S_IMODE(there.stat().st_mode):04o}, owner {there.stat().st_uid})"
        for place in _written(settings)
        if not os.access(there := _existing(place), os.W_OK | os.X_OK)
    ]
    landing = Path(settings.landing)
    if _is_local(settings.landing) and landing.exists() and not os.access(landing, os.R_OK | os.X_OK):
        refused.append(f"{landing}, to read it")
    if refused:
        raise SetupError(
            f"user {os.geteuid()} may not use {first_few(refused)}",
            remedy="give it the right, or name another place in the settings",
        )
    return f"user {os.geteuid()} may write to {first_few([str(one) for one in _written(settings)])}"


def open_to_others(settings: Settings) -> Iterator[str]:
    """Yield the files with secrets that other users of this machine may read."""
    for file in (config_file(), settings.kafka_properties):
        if file is not None and file.is_file() and (mode := stat.S_IMODE(file.stat().st_mode)) & 0o077:
            yield f"{file} is open to other users (mode {mode:04o}), and may hold passwords: `chmod 600 {file}`"


def clock(dsn: str) -> str:
    """Compare the clock with PostgreSQL's; raise SetupError where they are far apart: leases go by both."""
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        before = time.time()
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())")
        (there,) = cursor.fetchone() or (before,)
        apart = float(there) - (before + time.time()) / 2
    if abs(apart) > MOST_APART:
        raise SetupError(
            f"PostgreSQL's clock is {apart:+.0f} s from this machine's",
            remedy="set both by NTP: the times of batches, and what is late, go by them",
        )
    return f"{abs(apart):.1f} s from PostgreSQL's"


def suites(settings: Settings) -> str:
    """Require that each declared pipeline's suite is there, and is one; its rules are looked at by `try` and a run."""
    wrong = []
    named = {name: one for name, one in loadable(settings.pipelines).items() if one.suite}
    for pipeline in named.values():
        try:
            suite_digest(suite_path(pipeline, settings))
        except SetupError as error:
            wrong.append(error)
    if wrong:
        raise SetupError(first_few([one.seen for one in wrong]), remedy=wrong[0].remedy)
    return f"those of {', '.join(named)} are there" if named else "no pipeline has one"


def _written(settings: Settings) -> Iterable[Path]:
    temporary = Path(os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir())
    checkpoints = [Path(settings.checkpoints)] if _is_local(settings.checkpoints) else []
    return dict.fromkeys([settings.home, *checkpoints, temporary])


def _is_local(place: str) -> bool:
    return "://" not in place


def _existing(place: Path) -> Path:
    """Return the folder, or the first one above it that is there."""
    return next(one for one in (place, *place.parents) if one.exists())
