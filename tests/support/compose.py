"""The set of docker-compose.yml as processes of this machine: no container, and no copy of what the file says.

Commands, environments, health checks and their order are the file's own. What a container engine would give is
given here: a service's name is 127.0.0.1, its port a free one, its volume a folder; the images' entry points are
the embedded PostgreSQL's binaries, VersityGW of the file's own tag, and this Python.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from etl.services import postgres
from etl.services.process import free_ports, lives
from tests.support.environment import REPOSITORY
from tests.support.processes import answers
from tests.support.waiting import until

FILE = REPOSITORY / "docker-compose.yml"
IMAGE_FOLDER = "/opt/sluice"  # where the image has the repository
HOST = "127.0.0.1"
STORES = ("postgres", "s3")
GRACE = 10  # seconds that the engine gives a container
PATIENCE = 120  # seconds; nothing is decided by it, a test that waits so long has failed
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """Interpolate as Compose does: `${NAME}`, `${NAME:-default}`, and `${NAME:?message}`, which raises if unset."""

    def value(found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        if variables.get(name):
            return variables[name]
        if kind == "-":
            return str(rest)
        raise KeyError(f"{name}: {rest}")

    return _VARIABLE.sub(value, text)


def compose_file(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the file with its anchors and variables resolved."""
    return dict(yaml.safe_load(interpolated(FILE.read_text(), variables)))


@dataclass(kw_only=True)
class Native:
    """One start of the set; `root` holds its volumes and logs."""

    root: Path
    services: dict[str, dict[str, Any]]
    ports: dict[str, str]  # of a container: of this machine
    started: dict[str, psutil.Popen] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path, variables: Mapping[str, str]) -> Native:
        services = compose_file(variables)["services"]
        listening = [
            str(port).rpartition(":")[2]
            for service in services.values()
            for port in (*service.get("ports", ()), *service.get("expose", ()))
        ]
        assert len(listening) == len(set(listening)), "on one machine two services can't have one port"
        ports = free_ports(len(listening))
        return cls(root=root, services=services, ports=dict(zip(listening, map(str, ports), strict=True)))

    def folder(self, service: str, target: str) -> Path:
        """Return the folder that stands for a volume: one below `root` for a named one, the host's own folder else."""
        sources = dict(reversed(one.split(":")[:2]) for one in self.services[service]["volumes"])
        source = sources[target]
        if source.startswith(("/", ".")):
            return (REPOSITORY / source).resolve()
        found = self.root / "volumes" / source
        found.mkdir(parents=True, exist_ok=True)
        return found

    def here(self, service: str, text: str) -> str:
        """Return the text with names, ports and folders of this machine."""
        names = "|".join(self.services)
        text = re.sub(rf"(?<![\w.-])({names})(?=:\d|\"|$)", HOST, text)
        text = re.sub(r"\b\d{4}\b", lambda found: self.ports.get(found[0], found[0]), text)
        folders = {IMAGE_FOLDER: REPOSITORY}
        for volume in self.services[service].get("volumes", ()):
            target = volume.split(":")[1]
            folders[target] = self.folder(service, target)
        for target, folder in folders.items():
            text = re.sub(rf"(?<![\w/]){target}(?![\w-])", str(folder), text)
        return text

    def environment(self, service: str) -> dict[str, str]:
        """Return the environment that the container would have; of this process' own it has only the paths of programs."""
        given = {name: self.here(service, str(value)) for name, value in self._given(service).items()}
        programs = (Path(sys.executable).parent, self._gateway().parent, _postgres_binaries(self.root))
        path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
        java = {"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}
        return {"PATH": path, "HOME": str(self.root), "LANG": "C.UTF-8", **java, **given}

    def _given(self, service: str) -> dict[str, str]:
        own = self.services[service].get("environment", {})
        return (_image_environment() if self.services[service]["image"].startswith("sluice:") else {}) | own

    def _gateway(self) -> Path:
        tag = self.services["s3"]["image"].rpartition(":")[2]
        return REPOSITORY / ".tools" / f"versitygw-{tag}" / "versitygw"

    def log(self, service: str) -> Path:
        return self.root / f"{service}.log"

    def up(self) -> None:
        """Start all services in the file's order of dependencies, each as healthy as its dependents want it, then all."""
        waiting = dict(self.services)
        while waiting:
            ready = [name for name, one in waiting.items() if not waiting.keys() & one.get("depends_on", {})]
            for name in ready:
                for other, wanted in waiting.pop(name).get("depends_on", {}).items():
                    self.wait(other, wanted["condition"])
                self.start(name)
        for name, service in self.services.items():
            if "healthcheck" in service:
                self.wait(name, "service_healthy")

    def start(self, service: str) -> None:
        command = [self.here(service, str(word)) for word in self.services[service]["command"]]
        identity: dict[str, Any] = {}
        if service == "postgres":
            command, identity = self._postgres(command)
        elif service == "s3":
            command = [str(self._gateway()), *command]
        with self.log(service).open("a") as log:
            self.started[service] = psutil.Popen(
                command,
                env=self.environment(service),
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **identity,
            )

    def _postgres(self, words: list[str]) -> tuple[list[str], dict[str, Any]]:
        """Do what the image's entry point does: create a cluster with the user, password and database of the environment."""
        server = postgres.cluster(self.root, 0)
        identity, given = postgres._identity(server), self._given("postgres")
        data = self.folder("postgres", "/var/lib/postgresql")
        password = self.root / "password"
        password.write_text(given["POSTGRES_PASSWORD"])
        if server.user:
            for path in (data, password):
                shutil.chown(path, server.user)
        password.chmod(0o600)
        binaries, data = _postgres_binaries(self.root), data / "18"
        options = ["-U", given["POSTGRES_USER"], f"--pwfile={password}", "--auth=scram-sha-256", "-E", "UTF8"]
        create = f"CREATE DATABASE {given['POSTGRES_DB']}"
        for command, text in (
            ([f"{binaries}/initdb", "-D", str(data), "--locale=C.UTF-8", *options], None),
            ([f"{binaries}/postgres", "--single", "-D", str(data), "postgres"], create),
        ):
            done = subprocess.run(
                command, input=text, text=True, capture_output=True, cwd="/", env={}, check=False, **identity
            )
            assert done.returncode == 0, done.stderr
        own = {"listen_addresses": HOST, "port": self.ports["5432"], "unix_socket_directories": ""}
        settings = [word for name, value in own.items() for word in ("-c", f"{name}={value}")]
        return [f"{binaries}/postgres", "-D", str(data), *settings, *words], identity

    def wait(self, service: str, condition: str) -> None:
        """Return once the condition of a `depends_on` holds."""
        until(
            lambda: self._holds(service, condition),
            lambda: f"{condition} of {service}: {self.said(service)}",
            patience=PATIENCE,
            every=0.2,
        )

    def _holds(self, service: str, condition: str) -> bool:
        code = self.started[service].poll()
        if condition == "service_completed_successfully":
            assert code in (None, 0), f"{service} ended with {code}: {self.said(service)}"
            return code == 0
        assert code is None, f"{service} ended with {code}: {self.said(service)}"
        return condition == "service_started" or self.is_healthy(service)

    def is_healthy(self, service: str) -> bool:
        """Tell whether the service is healthy, by its own health check."""
        kind, *words = (self.here(service, word) for word in self.services[service]["healthcheck"]["test"])
        command = {"CMD": words, "CMD-SHELL": ["sh", "-c", *words]}[kind]
        looked = subprocess.run(
            command, env=self.environment(service), capture_output=True, timeout=20, check=False
        )
        return looked.returncode == 0

    def said(self, service: str) -> str:
        return self.log(service).read_text(errors="replace")[-3000:]

    def processes(self, of: Iterable[psutil.Popen] | None = None) -> list[psutil.Process]:
        """Return every process of these services that runs, by default of all: each service has a session of its own."""
        sessions = {process.pid for process in (self.started.values() if of is None else of)}
        theirs = answers(psutil.process_iter(), lambda one: (one, os.getsid(one.pid)))
        return [process for process, session in theirs if session in sessions and lives(process)]

    def down(self) -> None:
        """Stop the services as the engine does: SIGTERM to each container, the stores last, then SIGKILL."""
        services = [name for name in self.started if name not in STORES]
        for wave in (services, STORES):
            first = [self.started[name] for name in wave if name in self.started]
            for process in first:
                if process.poll() is None:
                    process.terminate()
            psutil.wait_procs(first, timeout=GRACE)
            answers(self.processes(of=first), psutil.Process.kill)


def _postgres_binaries(home: Path) -> Path:
    return postgres._binaries(postgres.cluster(home, 0))


def _image_environment() -> dict[str, str]:
    lines = (REPOSITORY / "Dockerfile").read_text().splitlines()
    return dict(line.removeprefix("ENV ").split("=", 1) for line in lines if line.startswith("ENV "))


def make_env(folder: Path) -> subprocess.CompletedProcess[str]:
    """`make compose-env` in a folder that has what it reads."""
    for name in ("Makefile", "docker-compose.yml"):
        shutil.copy(REPOSITORY / name, folder)
    return subprocess.run(
        ["make", "--silent", "compose-env"], cwd=folder, capture_output=True, text=True, check=False
    )


def variables_of(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text().splitlines())
