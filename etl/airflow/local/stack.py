"""The local Airflow: four processes on 127.0.0.1 that share secrets which nobody else knows.

`up` returns when it is healthy; `stop` leaves none of its processes, whoever was killed before. Each component is a
session of its own, noted by pid and start time; every process below it has a mark in its environment, by which the last
ones are found.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil
import psycopg2
from psycopg2 import sql

from etl import services
from etl.airflow.api import heartbeats
from etl.airflow.local.environment import (
    BASE_URL,
    DATABASE,
    EXECUTION_URL,
    MARK,
    URL_VARIABLE,
    environment,
    write_secrets,
)
from etl.airflow.local.installation import Airflow, note_of
from etl.common.database import create_database
from etl.common.errors import ServiceAway, SetupError
from etl.common.settings import Settings, same_place
from etl.services import Services
from etl.services.process import (
    choose_port,
    have_ended,
    make_folder,
    only_one,
    recall,
    remember,
    tail,
    tell,
)

DAG_PROCESSOR = "dag-processor"
COMPONENTS = {  # name: its command
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "triggerer": ("triggerer", "--skip-serve-logs"),
    DAG_PROCESSOR: ("dag-processor",),
    "api-server": ("api-server",),
}
SUPERVISOR = "supervisor"
FOLDERS = ("SLUICE_PIPELINES", "SLUICE_SUITES", "SLUICE_DAGS")  # what runs, and what judges it
_AIRFLOW = (sys.executable, "-P", "-m", "airflow")  # -P: no folder called airflow is in the way
HEALTHY_WITHIN = 180  # seconds
TASKS_END_WITHIN = 20  # seconds; a task's own on_kill has 5
ENDS_WITHIN = 15  # seconds
SUPERVISOR_ENDS_WITHIN = TASKS_END_WITHIN + ENDS_WITHIN + 25  # seconds


def up(settings: Settings, *, supervised: bool = False) -> Airflow:
    """Start Airflow and the services it needs where they do not run, and return it healthy.

    Raises SetupError or ServiceAway.
    """
    _require_airflow()
    _check(settings)
    running_services = services.up(settings)
    folder = make_folder(settings.home / "airflow", 0o700)
    with only_one(folder):
        if (port := _running_port(folder)) is not None:
            return _already_running(settings, folder, port)
        _stop(folder)  # what a crash left
        airflow = _airflow(settings, folder, choose_port("airflow", settings.airflow_port, folder / "port"))
        if supervised:
            remember(airflow.note(SUPERVISOR), psutil.Process(), airflow.port)
        try:
            _launch(airflow, settings, running_services)
        except BaseException:
            # not left behind half started; also when the wait was interrupted
            _stop(folder)
            raise
    return airflow


def running(settings: Settings) -> Airflow | None:
    """Return the Airflow of these settings if all of its components run, else None; start nothing."""
    folder = settings.home / "airflow"
    port = _running_port(folder)
    return None if port is None else _airflow(settings, folder, port, was_running=True)


def require_running(settings: Settings) -> Airflow:
    """Return the Airflow of these settings. Raises SetupError where it does not run."""
    airflow = running(settings)
    if airflow is None:
        _check_ours(settings)
        raise SetupError(
            "Airflow does not run", remedy="`sluice airflow --detach`, then run the same command again"
        )
    return airflow


def require_same_folders(settings: Settings) -> None:
    """Raise SetupError where the running Airflow was started with other folders than the settings name by now.

    It keeps its settings, and would run another pipeline, or judge by another suite, than this command knows.
    """
    noted = recall(note_of(settings.home / "airflow", DAG_PROCESSOR))
    if noted is None:
        return
    try:
        had, wanted = noted[0].environ(), same_place(settings)
    except psutil.Error:  # another user's process does not tell, nor does one that has just ended
        return
    others = [
        f"{name} {had[name]}, the settings want {wanted[name]}"
        for name in FOLDERS
        if had.get(name, wanted[name]) != wanted[name]
    ]
    if others:
        raise SetupError(
            f"Airflow runs with {'; with '.join(others)}",
            remedy="`sluice down`, then `sluice airflow --detach`, and run the same command again",
        )


def command(settings: Settings, arguments: Sequence[str]) -> int:
    """Run Airflow's own command line over the Airflow of these settings, and return its exit code.

    Raises SetupError where that Airflow does not run.
    """
    airflow = require_running(settings)
    variables = environment(airflow, settings, services.up(settings))
    return subprocess.run([*_AIRFLOW, *arguments], env=variables, check=False).returncode


def follow(airflow: Airflow, begun: Callable[[], object]) -> None:
    """Wait until a signal asks to end. Raises ServiceAway when a component ends by itself.

    `begun` is called once signals are heeded: whoever hears of it may send one.
    """
    end_requested = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda *_: end_requested.set())
    begun()
    while not end_requested.wait(1):
        _require(airflow)


def stop(settings: Settings) -> tuple[str, ...]:
    """Stop Airflow and every process of it; return the names of the components that ran.

    Where none ran but a crash had left processes, the only name says so.
    """
    folder = settings.home / "airflow"
    if not folder.is_dir():
        return ()
    ran = tuple(component for component in COMPONENTS if recall(note_of(folder, component)))
    _end_supervisor(folder)
    with only_one(folder):
        killed = _stop(folder)
    return ran or (("what a crash of Airflow left",) if killed else ())


def _check(settings: Settings) -> None:
    """Raise SetupError for what can't work, before anything is started."""
    if not settings.dags.is_dir():
        raise SetupError(
            f"there is no folder {settings.dags}, from which Airflow would load its DAGs",
            remedy="name yours in SLUICE_DAGS",
        )
    _check_ours(settings)
    if not settings.embedded_postgres and not _own_database():
        raise SetupError(
            "SLUICE_POSTGRES is a server of your own, and Sluice creates no database for Airflow on it",
            remedy=f"create one, and name it in {URL_VARIABLE} (postgresql+psycopg2://…)",
        )


def _require_airflow() -> None:
    """Raise SetupError where this environment has no Airflow."""
    if importlib.util.find_spec("airflow") is None:
        raise SetupError(
            f"Airflow is not installed beside Sluice in {sys.prefix}",
            remedy="install the extra `airflow` of Sluice's wheel, or add Sluice to an Airflow that you have"
            " (docs/projects.md)",
        )


def _check_ours(settings: Settings) -> None:
    """Raise SetupError where the machine's Airflow is another, such as that of Compose.

    A second Airflow would share its database.
    """
    others = [name for name in (EXECUTION_URL, BASE_URL) if os.environ.get(name)]
    if others and not settings.embedded_postgres and MARK not in os.environ:
        raise SetupError(
            f"this machine's Airflow is not Sluice's own: {' and '.join(others)} say where it is",
            remedy="use Airflow's own command, such as `airflow dags trigger NAME`; for one of Sluice's own,"
            f" with a database of its own in {URL_VARIABLE}: unset {' '.join(others)}",
        )


def _own_database() -> bool:
    return any(os.environ.get(URL_VARIABLE + way) for way in ("", "_CMD", "_SECRET"))


def _running_port(folder: Path) -> int | None:
    processes = [recall(note_of(folder, component)) for component in COMPONENTS]
    ports = {one[1] for one in processes if one is not None}
    return ports.pop() if all(processes) and len(ports) == 1 else None


def _airflow(settings: Settings, folder: Path, port: int, *, was_running: bool = False) -> Airflow:
    login = settings.home / "credentials" / "airflow-login.json"
    return Airflow(folder=folder, port=port, login=login, was_running=was_running)


def _already_running(settings: Settings, folder: Path, port: int) -> Airflow:
    if settings.airflow_port not in (0, port):
        raise SetupError(
            f"Airflow runs on port {port}, the settings want {settings.airflow_port}",
            remedy="`sluice down`, then run the same command again",
        )
    require_same_folders(settings)
    airflow = _airflow(settings, folder, port, was_running=True)
    _wait_until_healthy(airflow, datetime.min.replace(tzinfo=UTC))
    return airflow


def _launch(airflow: Airflow, settings: Settings, running_services: Services) -> None:
    make_folder(airflow.folder / "logs", 0o700)
    write_secrets(airflow)
    variables = environment(airflow, settings, running_services)
    if settings.embedded_postgres:
        _migrate_embedded(airflow, running_services.postgres, variables)
    else:
        _migrate(airflow, variables)
    since = datetime.now(UTC)
    others = [component for component in COMPONENTS if component != "scheduler"]
    for component in others:
        _start(component, airflow, variables)
    # before the scheduler, which starts at once what waits: while no api-server answers, a task's try is lost
    _wait_until_healthy(airflow, since, others)
    _start("scheduler", airflow, variables)
    _wait_until_healthy(airflow, since)


def _start(component: str, airflow: Airflow, variables: Mapping[str, str]) -> None:
    child = _airflow_process(COMPONENTS[component], variables, airflow.log(component))
    child.returncode = 0  # it may outlive this command: no warning when the handle is dropped
    remember(airflow.note(component), psutil.Process(child.pid), airflow.port)


def _airflow_process(
    arguments: tuple[str, ...], variables: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with log.open("w") as output:
        return subprocess.Popen(
            [*_AIRFLOW, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )


def _migrate_embedded(airflow: Airflow, dsn: str, variables: Mapping[str, str]) -> None:
    """Create and migrate Airflow's database unless its comment says that this very version did."""
    done = f"migrated by apache-airflow {version('apache-airflow')}"
    connection = psycopg2.connect(dsn)
    connection.autocommit = True  # CREATE DATABASE can't run in a transaction
    with contextlib.closing(connection), connection.cursor() as cursor:
        create_database(cursor, DATABASE)
        cursor.execute(
            "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = %s", (DATABASE,)
        )
        if cursor.fetchone() != (done,):
            _migrate(airflow, variables)
            comment = sql.SQL("COMMENT ON DATABASE {} IS {}")
            cursor.execute(comment.format(sql.Identifier(DATABASE), sql.Literal(done)))


def _migrate(airflow: Airflow, variables: Mapping[str, str]) -> None:
    log = airflow.log("migrate")
    if _airflow_process(("db", "migrate"), variables, log).wait() != 0:
        raise SetupError(f"Airflow's database could not be migrated: {tail(log)}", remedy=f"look into {log}")


def _wait_until_healthy(
    airflow: Airflow, since: datetime, components: Collection[str] = tuple(COMPONENTS)
) -> None:
    """Wait until each of the components has given a sign of life after `since`. Raises ServiceAway."""
    deadline = time.monotonic() + HEALTHY_WITHIN
    while True:
        _require(airflow, components)
        beats = heartbeats(airflow.address)  # as the api-server says, which has none of its own
        late = [name for name in components if name != "api-server" and not _beats(beats, name, since)]
        if not late:
            return
        if time.monotonic() > deadline:
            raise ServiceAway(
                f"Airflow's {', '.join(late)} did not become healthy within {HEALTHY_WITHIN} s",
                remedy=f"look into {airflow.folder / 'logs'}, then `sluice down`, and run the same command again",
            )
        time.sleep(0.25)


def _beats(beats: Mapping[str, datetime], component: str, since: datetime) -> bool:
    # the last heartbeat of a killed stack is called healthy for 30 s
    beat = beats.get(component.replace("-", "_"))
    return beat is not None and beat >= since


def _require(airflow: Airflow, components: Collection[str] = tuple(COMPONENTS)) -> None:
    for component in components:
        if recall(airflow.note(component)) is None:
            log = airflow.log(component)
            raise ServiceAway(
                f"Airflow's {component} ended by itself: {tail(log)}",
                remedy=f"look into {log}, then run the same command again",
            )


def _end_supervisor(folder: Path) -> None:
    """Have the command that follows Airflow stop it, so that it does not call that a failure."""
    supervisor = recall(note_of(folder, SUPERVISOR))
    if supervisor is None or supervisor[0].pid == os.getpid():
        return
    tell(supervisor[0], signal.SIGTERM)
    if not have_ended([supervisor[0]], within=SUPERVISOR_ENDS_WITHIN):
        tell(supervisor[0], signal.SIGKILL)


def _stop(folder: Path) -> bool:
    """End all processes of Airflow, in order; return True when something ran."""
    remembered = {component: recall(note_of(folder, component)) for component in COMPONENTS}
    live = {component: note[0] for component, note in remembered.items() if note is not None}
    scheduler = live.pop("scheduler", None)
    if scheduler is not None:  # first: while its tasks end, they report to the api-server
        with contextlib.suppress(ProcessLookupError):
            os.killpg(scheduler.pid, signal.SIGTERM)
        have_ended([scheduler], within=TASKS_END_WITHIN)
    for process in live.values():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    have_ended(live.values(), within=ENDS_WITHIN)
    killed = _kill_the_rest(folder)
    for component in (*COMPONENTS, SUPERVISOR):
        note_of(folder, component).unlink(missing_ok=True)
    return bool(scheduler or live or killed)


def _kill_the_rest(folder: Path) -> bool:
    deadline = time.monotonic() + ENDS_WITHIN
    killed = False
    while survivors := list(_marked(folder)):  # again, since one may have forked meanwhile
        killed = True
        for process in survivors:
            tell(process, signal.SIGKILL)
        have_ended(survivors, within=1)
        if time.monotonic() > deadline:
            raise ServiceAway(
                f"processes of Airflow do not end: {', '.join(str(process.pid) for process in survivors)}",
                remedy="sluice down again",
            )
    return killed


def _marked(folder: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["environ", "status"]):
        bears = (process.info["environ"] or {}).get(MARK) == str(folder)  # None: another user's process
        if bears and process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE:
            yield process
