"""Checks one by one what a machine, its settings and its services must have; has the DBA's script."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg2.extensions import parse_dsn

from etl.common.database import connect, lacks_rights, require_version
from etl.common.errors import ServiceAway, SluiceError
from etl.common.outages import service_error, writes_refused
from etl.common.settings import Settings, load_settings
from etl.common.statements import SQL_FOLDER, Statements
from etl.operations.control import machine
from etl.pipeline import load_pipelines, loadable
from etl.services import java

if TYPE_CHECKING:
    from etl.runs.workspace import Workspace

STATEMENTS = Statements(__name__)

ANSWERS_WITHIN = 5  # seconds, of one broker


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    what: str
    good: bool
    seen: str
    doubt: bool = False  # nothing fails by it, here and now

    def line(self) -> str:
        mark = "WARNING" if self.doubt else "ok     " if self.good else "WRONG  "
        return f"{mark} {self.what}: {self.seen}"


def examine() -> list[Finding]:
    """Return all findings; what stands on a failed one is left out."""
    return list(_examine())


def _examine() -> Iterator[Finding]:
    yield _check("Python", lambda: f"{sys.version.split()[0]} at {sys.executable}")
    yield _check("Java", lambda: str(java()))
    settings: list[Settings] = []
    yield _check("settings", lambda: _read(settings))
    if not settings:
        return
    yield from open_to_others(settings[0].home)
    yield from remote_warnings(settings[0])
    yield _check("Spark", lambda: machine.spark_environment(settings[0]))
    yield from _doubts("start", machine.slow_start(settings[0]))
    yield _check("locale", machine.locale)
    yield _check("disk", lambda: machine.disks(settings[0]))
    yield _check("rights", lambda: machine.writable(settings[0]))
    yield from _doubts("secrets", machine.open_to_others(settings[0]))
    yield from _doubts("encryption", machine.unencrypted(settings[0]))
    yield _check("pipelines", lambda: ", ".join(load_pipelines(settings[0].pipelines)) or "none declared")
    yield _check("suites", lambda: machine.suites(settings[0]))
    yield from _doubts("slots", machine.no_slot_left(settings[0]))
    yield from _doubts("alerts", machine.untold(settings[0], loadable(settings[0].pipelines).values()))
    workspaces: list[Workspace] = []
    if settings[0].lacks_home:
        seen = f"there is none, {settings[0].home}: `sluice up` makes it, and starts what is embedded there"
        yield Finding(what="home", good=True, seen=seen, doubt=True)
    else:
        yield _check("services", lambda: _up(settings[0], workspaces))
    yield from _answering(settings[0], workspaces[0] if workspaces else None)
    if brokers := settings[0].kafka:
        yield _check("Kafka", lambda: kafka(brokers))
    yield _check("memory", lambda: f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB")


def _answering(settings: Settings, workspace: Workspace | None) -> Iterator[Finding]:
    """Yield what PostgreSQL and the lake answer; without a workspace, a PostgreSQL of the user's own alone."""
    own = settings.postgres.get_secret_value() if settings.postgres else None
    if dsn := workspace.services.postgres if workspace else own:
        postgres = _check("PostgreSQL", lambda: _postgres(settings, dsn))
        yield postgres
        if postgres.good:
            yield _check("clock", lambda: machine.clock(dsn))
    if workspace:
        yield _check("lake", lambda: _lake(workspace))


def open_to_others(home: Path) -> Iterator[Finding]:
    """Yield a warning where others may enter the home: its landing, checkpoints and logs are for them to read.

    A group that may pass through and read nothing is that of the embedded PostgreSQL's system user.
    """
    if home.is_dir() and (mode := home.stat().st_mode & 0o777) & 0o067:
        seen = f"{home} is open to other users of this machine (mode {mode:04o}): `chmod 0700 {home}`"
        if os.geteuid() == 0 and (home / "postgres").is_dir() and not (home / "postgres").is_symlink():
            seen = seen.replace("chmod 0700", f"chgrp {(home / 'postgres').group()} {home} && chmod 0710")
        yield Finding(what="home", good=True, seen=seen, doubt=True)


def remote_warnings(settings: Settings) -> Iterator[Finding]:
    """Yield what breaks when Spark's executors or Airflow's workers are on other machines than this one."""
    remote = not settings.spark_master.startswith("local")
    wants = (
        f"and {settings.spark_master} may run tasks elsewhere"
        if remote
        else "fine while every worker is this machine"
    )
    for name in ("landing", "checkpoints"):
        where = getattr(settings, name)
        if not where.startswith("s3a://"):
            seen = f"{where} is a folder of this machine, {wants}; share it, or name s3a://bucket/prefix"
            yield Finding(what=name, good=True, seen=seen, doubt=True)
    for service, on, name in (
        ("PostgreSQL", settings.embedded_postgres, "SLUICE_POSTGRES"),
        ("S3", settings.embedded_s3, "SLUICE_LAKE"),
    ):
        if on:
            seen = f"embedded, on 127.0.0.1 alone, {wants}; set {name} to one that they reach"
            yield Finding(what=service, good=True, seen=seen, doubt=True)


def _doubts(what: str, found: Iterator[str]) -> Iterator[Finding]:
    """Yield a warning for each doubt, and what keeps one from being looked into."""
    try:
        for seen in found:
            yield Finding(what=what, good=True, seen=seen, doubt=True)
    except (OSError, SluiceError) as error:
        yield Finding(what=what, good=False, seen=str(error))


def _check(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what=what, good=True, seen=look())
    except SluiceError as error:
        return Finding(what=what, good=False, seen=str(error))
    except OSError as error:
        return Finding(what=what, good=False, seen=str(service_error(error) or error))


def _read(into: list[Settings]) -> str:
    settings = load_settings()
    into.append(settings)
    embedded = [
        name for name, on in (("PostgreSQL", settings.embedded_postgres), ("S3", settings.embedded_s3)) if on
    ]
    return f"home {settings.home}, embedded: {' and '.join(embedded) or 'nothing'}"


def _up(settings: Settings, into: list[Workspace]) -> str:
    from etl import services
    from etl.runs.workspace import Workspace

    running = services.up(settings)
    os.environ.update(running.environment)
    into.append(Workspace(settings=settings, services=running))
    return f"lake {running.lake} at {running.s3_endpoint or 'AWS'}"


def _postgres(settings: Settings, dsn: str) -> str:
    declared = loadable(settings.pipelines).values()
    schemas = {"sluice", "sluice_stage", *(one.table_schema for one in declared)}
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        require_version(connection)  # before a session's own settings, of which older servers lack some
        cursor.execute("SELECT current_setting('server_version'), current_user")
        version, user = cursor.fetchone() or ("?", "?")
        read_only = writes_refused(cursor)
        missing = [name for (name,) in STATEMENTS.execute(cursor, "closed_schemas", schemas=sorted(schemas))]
    if read_only is not None:
        raise read_only
    if missing:
        raise lacks_rights(f"{version}, as {user}, who may not create tables in {', '.join(missing)}")
    return f"{version}, as {user}, who may create tables in {', '.join(sorted(schemas))}"


def _lake(workspace: Workspace) -> str:
    from etl.sinks.lake.bucket import look_at_bucket

    declared = loadable(workspace.settings.pipelines).values()
    schemas = {one.table_schema for one in declared}
    return look_at_bucket(workspace.services.lake, schemas or {"warehouse"})


def kafka(brokers: str) -> str:
    """Say which of the brokers take a connection; raise ServiceAway where none does.

    Who may read what is not asked here, but by a run.
    """
    silent = {one: why for one in brokers.split(",") if (why := _silent(one))}
    answer = [one for one in brokers.split(",") if one not in silent]
    refusals = [f"{one} does not: {why}" for one, why in silent.items()]
    if not answer:
        raise ServiceAway(
            f"no broker accepts connections; {'; '.join(refusals)}",
            remedy="check that it is running, and that SLUICE_KAFKA is right",
        )
    return "; ".join(
        [f"{', '.join(answer)} {'accept' if len(answer) > 1 else 'accepts'} connections", *refusals]
    )


def _silent(broker: str) -> str | None:
    host, _, port = broker.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS_WITHIN).close()
    except OSError as error:
        return str(error)
    return None


def rights_script(settings: Settings) -> str:
    """Return the SQL for a DBA: all that the role of the settings needs, no superuser and no extension."""
    dsn = settings.postgres.get_secret_value() if settings.postgres else "user=sluice dbname=sluice"
    known = parse_dsn(dsn)
    text = (SQL_FOLDER / "rights.sql").read_text()
    return text.format(
        role=_quoted(known.get("user", "sluice")), database=_quoted(known.get("dbname", "sluice"))
    )


def _quoted(name: str) -> str:
    """Quote an SQL identifier.

    psycopg2's own composition would need a connection, and this script is for before there is one.
    """
    return '"' + name.replace('"', '""') + '"'
