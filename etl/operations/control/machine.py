"""What of this machine, beside its services, may make a run fail: looked at by `sluice doctor`, and nothing is changed."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from psycopg2.extensions import parse_dsn

from etl.alerts.destinations import named
from etl.common.database import connect
from etl.common.errors import SetupError
from etl.common.paths import temporary_folder
from etl.common.settings import Settings, config_file
from etl.common.wording import first_few
from etl.pipeline import Pipeline, loadable
from etl.quality.mistakes.arguments import mistakes
from etl.quality.suite import read_suite
from etl.quality.suite_file import suite_path
from etl.services import JarSet
from etl.spark.launch import class_data
from etl.spark.launch.faults import environment_faults, environment_in_use
from etl.spark.launch.worker_python import require_worker_python

LEAST_FREE = 1 << 30  # bytes of a disk: below it a batch's files and Spark's shuffles may not fit
HOSTS = (("hostaddr", "PGHOSTADDR"), ("host", "PGHOST"))  # of libpq, by which it looks first
SLOTS = "AIRFLOW__CORE__PARALLELISM"  # Airflow's tasks at once
LOCAL_SLOTS = 4  # of the local Airflow
MOST_APART = 30  # seconds that this clock and PostgreSQL's may differ


def spark_environment(settings: Settings) -> str:
    """Say which variables Spark's launch goes by; raise SetupError for one that would make it fail.

    A Python that a person has chosen for the workers of a local Spark is run.
    """
    for fault in environment_faults():
        raise fault
    if settings.spark_master.startswith("local"):
        require_worker_python(settings.spark_conf)
    return (
        ", ".join(f"{name}={value}" for name, value in environment_in_use().items()) or "no variable is set"
    )


def slow_start(settings: Settings) -> Iterator[str]:
    """Yield what makes each start of a local Spark take longer than it need: no archive of its classes for this Java."""
    folder = settings.jars / JarSet.SPARK
    with suppress(SetupError):  # of a Java that is missing, which is told by itself
        if settings.spark_master.startswith("local") and not (folder.is_dir() and class_data.option(folder)):
            yield (
                f"{settings.jars} has no archive of Spark's classes for this Java, and each run starts many seconds later:"
                f" `{sys.executable} -m etl.spark.launch.class_data` makes it"
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


def unencrypted(settings: Settings) -> Iterator[str]:
    """Yield the services on other machines to which what is sent may be read, or taken by another, on its way.

    What Kafka's clients are told of encryption is theirs to read: a file that says nothing of it means none.
    """
    if settings.postgres is not None:
        given = parse_dsn(settings.postgres.get_secret_value())
        mode = str(given.get("sslmode") or os.environ.get("PGSSLMODE") or "prefer")
        places = (given.get(name) or os.environ.get(variable) for name, variable in HOSTS)
        hosts = [one for one in str(next(filter(None, places), "")).split(",") if _is_elsewhere(one)]
        if hosts and mode not in ("verify-ca", "verify-full"):
            yield (
                f"PostgreSQL at {first_few(hosts)}: with sslmode={mode} nobody looks who answers, or whether it is"
                " encrypted at all; put sslmode=verify-full (and sslrootcert) into SLUICE_POSTGRES"
            )
    for name in () if settings.embedded_s3 else ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        address = _address(name)
        if address.scheme == "http" and _is_elsewhere(address.hostname or ""):
            yield f"S3 at {address.hostname}: {name} is http, and nothing is encrypted; use its https address"
    file = settings.kafka_properties
    said = file.read_text(errors="replace") if file is not None and file.is_file() else ""
    brokers = [one for one in (settings.kafka or "").split(",") if _is_elsewhere(one.rpartition(":")[0])]
    if brokers and not re.search(r"^\s*security\.protocol\s*[=:]\s*(?:SASL_)?SSL\s*$", said, re.MULTILINE):
        yield (
            f"Kafka at {first_few(brokers)}: nothing is encrypted; set security.protocol to SSL or SASL_SSL in the file"
            " that SLUICE_KAFKA_PROPERTIES names"
        )


def _address(name: str) -> SplitResult:
    """Return the address that a variable of the environment has. Raises SetupError where it has another text."""
    text = os.environ.get(name, "")
    try:
        return urlsplit(text)
    except ValueError as error:
        raise SetupError(f"{name}={text} is no address: {error}", remedy=f"correct {name}") from error


def _is_elsewhere(host: str) -> bool:
    """Tell whether a host is another machine; a folder of a socket, and nothing, are this one."""
    return (
        bool(host) and not host.startswith(("/", "@", "127.")) and host not in ("localhost", "::1", "[::1]")
    )


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
    """Require that each declared pipeline's suite is there and has no mistake that can be seen without its columns.

    Whether the rules fit the transform's output `try` and a run look at.
    """
    named = {name: one for name, one in loadable(settings.pipelines).items() if one.suite}
    wrong: list[str] = []
    for name, pipeline in named.items():
        try:
            file = suite_path(pipeline, settings)
            wrong += [f"{file}: {problem}" for problem in mistakes(read_suite(file))]
        except SetupError as error:
            wrong.append(f"{error.seen} ({name})")
    if wrong:
        raise SetupError(
            "; ".join(dict.fromkeys(wrong)),
            remedy="correct these: no run of such a pipeline delivers anything",
        )
    return f"those of {', '.join(named)} are there" if named else "no pipeline has one"


def no_slot_left(settings: Settings) -> Iterator[str]:
    """Yield what keeps Airflow from any other task: as many runs that are kept up as it does tasks at once."""
    told = os.environ.get(SLOTS, "")
    slots = int(told) if told.isdecimal() else LOCAL_SLOTS
    kept_up = [name for name, one in loadable(settings.pipelines).items() if one.follow]
    if kept_up and len(kept_up) >= slots:
        of = "the environment's" if told.isdecimal() else "the local Airflow's"
        yield (
            f"{first_few(kept_up)} are kept up (follow=True), and each has one of Airflow's slots for as long as it is up:"
            f" of {slots} ({of} {SLOTS}) none is left for other runs and replays; set it to {len(kept_up) + 1} or more, as"
            " memory allows"
        )


def _written(settings: Settings) -> Iterable[Path]:
    checkpoints = [Path(settings.checkpoints)] if _is_local(settings.checkpoints) else []
    return dict.fromkeys([settings.home, *checkpoints, Path(temporary_folder())])


def _is_local(place: str) -> bool:
    return "://" not in place


def _existing(place: Path) -> Path:
    """Return the folder, or the first one above it that is there."""
    return next(one for one in (place, *place.parents) if one.exists())


def untold(settings: Settings, pipelines: Iterable[Pipeline]) -> Iterator[str]:
    """Say which alerts reach nobody: by what is declared or named, and what is missing to send it."""
    if settings.alert_email and settings.alert_smtp is None and not _has_mail_by_airflow():
        yield (
            "SLUICE_ALERT_EMAIL is set, and nothing here sends mail: set SLUICE_ALERT_SMTP, or install"
            " apache-airflow-providers-smtp where Airflow runs"
        )
    watched = [one.name for one in pipelines if one.freshness is not None or one.volume is not None]
    if watched and not named(settings):
        yield (
            f"{first_few(watched)}: freshness or volume is declared, and the settings name nobody to tell; docs/alerts.md"
        )


def _has_mail_by_airflow() -> bool:
    try:
        return find_spec("airflow.providers.smtp") is not None
    except ModuleNotFoundError:  # there is no Airflow here
        return False
