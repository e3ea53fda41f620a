"""Starts and finds servers that outlive their command, by pid and start time, never by pid alone."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import random
import signal
import socket
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil

from etl.common.errors import SetupError

HOST = "127.0.0.1"
DYNAMIC = range(49_152, 65_536)  # the ports that are registered for no service
KERNELS_OWN = Path("/proc/sys/net/ipv4/ip_local_port_range")
_claims: list[socket.socket] = []  # of ports that this process has chosen


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: a second `up` or `down` waits here for the first."""
    make_folder(folder)
    with (folder / "services.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make_folder(folder: Path, mode: int = 0o700) -> Path:
    """Create the folder for this user alone, and its parents; one that is there keeps its mode.

    Raises SetupError, which says in one line why that can't be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
    except OSError as error:
        raise SetupError(
            f"the folder {folder} can't be made: {error.strerror} ({error.filename})",
            remedy="make it writable, or name another one in SLUICE_HOME",
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SetupError(
            f"the folder {folder} is not writable", remedy="make it so, or name another one in SLUICE_HOME"
        )
    return folder


def write_secret(path: Path, text: str) -> None:
    """Replace the file as a whole; at no moment can anyone but its owner read it."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    part.replace(path)


def port_is_free(port: int) -> bool:
    return _trouble(port) is None


def _trouble(port: int) -> OSError | None:
    """Return the error that keeps anybody from listening on the port now; None where one can listen."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error
    return None


def free_ports(count: int) -> list[int]:
    """Choose ports that nobody listens on and that nobody else is given while this process lives.

    The kernel's own ports, of which it gives one to each connection, are avoided: such a port could be gone
    before a server that is told of it listens. Raises SetupError where too few are free.
    """
    low, high = map(int, KERNELS_OWN.read_text().split())
    ports = [port for port in DYNAMIC if not low <= port <= high] or DYNAMIC
    free = (port for port in random.sample(ports, len(ports)) if port_is_free(port) and _claim(port))
    taken = list(itertools.islice(free, count))
    if len(taken) < count:
        raise SetupError(
            f"of {len(ports)} ports of {HOST} from {ports[0]} on fewer than {count} are free",
            remedy="stop what uses them",
        )
    return taken


def _claim(port: int) -> bool:
    """Claim the port for this process, until it ends; return False where another process has chosen it.

    The claim is a socket's name in the network's namespace.
    """
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0sluice-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


def listens(port: int) -> bool:
    """Tell whether something on this machine takes connections on a port."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def choose_port(service: str, wanted: int, memory: Path) -> int:
    """Choose the port to listen on: the one the settings want, else the remembered one, else any free one.

    A newly chosen port is remembered in the file `memory`.
    """
    if wanted:
        _check_port(service, wanted)
        return wanted
    remembered = _remembered(memory)
    if remembered and port_is_free(remembered):
        return remembered
    [port] = free_ports(1)
    memory.write_text(str(port))
    return port


def _check_port(service: str, port: int) -> None:
    trouble = _trouble(port)
    seen, setting = f"port {port} on {HOST}, wanted for {service}", f"SLUICE_{service.upper()}_PORT"
    if isinstance(trouble, PermissionError):
        raise SetupError(
            f"{seen}, may not be opened by this user: {trouble.strerror}",
            remedy=f"set {setting} to one from 1024 on",
        )
    if trouble is not None:
        raise SetupError(f"{seen}, is in use", remedy=f"stop what uses it, or set {setting} to another one")


def _remembered(memory: Path) -> int:
    """Read the port in the file; 0 where there is none, as in a file that a full disk cut short."""
    try:
        port = int(memory.read_text())
    except (FileNotFoundError, ValueError):
        return 0
    return port if 0 < port <= 65535 else 0


def by_no_proxy() -> dict[str, str]:
    """Return NO_PROXY, in both spellings, with our 127.0.0.1 in it, which a proxy, were one set, can't reach."""
    named = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    hosts = dict.fromkeys([*filter(None, named.split(",")), HOST, "localhost"])
    return dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(hosts))


def remember(path: Path, process: psutil.Process, port: int) -> None:
    path.write_text(json.dumps({"pid": process.pid, "started": process.create_time(), "port": port}))


def lives(process: psutil.Process) -> bool:
    """Return True if the process has not ended.

    One that has ended and whose exit code nobody has asked for yet does not live.
    """
    try:
        # a JVM that is killed shows its first thread's end, and lets its port go with the last one's
        ended = process.status() == psutil.STATUS_ZOMBIE and process.num_threads() < 2
        return process.is_running() and not ended
    except psutil.NoSuchProcess:
        return False


def tell(process: psutil.Process, number: signal.Signals) -> None:
    """Send the process a signal, unless it has ended meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def have_ended(processes: Collection[psutil.Process], within: float) -> bool:
    """Wait until none of the processes lives; return False when one still does after `within` seconds."""
    deadline = time.monotonic() + within
    while any(lives(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def recall(path: Path) -> tuple[psutil.Process, int] | None:
    """Return the process noted in `path` with its port, if that very process still runs; else None."""
    try:
        note = json.loads(path.read_text())
        process = psutil.Process(note["pid"])
        if process.create_time() == note["started"] and lives(process):
            return process, int(note["port"])
    except (FileNotFoundError, json.JSONDecodeError, KeyError, psutil.NoSuchProcess):
        # an unreadable note is that of a start which died while writing it: nothing runs
        return None
    return None


def tail(log: Path, lines: int = 3) -> str:
    text = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    return " | ".join(line.strip() for line in text[-lines:]) or "its log is empty"
