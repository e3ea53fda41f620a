"""`sluice airflow` as a process that goes on, in a home of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import psutil

from etl.airflow.local import stack
from etl.airflow.local.installation import Airflow
from etl.common.settings import Settings
from tests.support.processes import answers

ENDS_WITHIN = 120  # seconds


@dataclass(frozen=True, kw_only=True)
class Command:
    """`sluice airflow` as a process that goes on."""

    process: subprocess.Popen[str]
    airflow: Airflow

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(ENDS_WITHIN)

    def ended(self) -> tuple[int, str]:
        """Return the command's exit code and what it printed since Airflow was healthy."""
        out, err = self.process.communicate(timeout=ENDS_WITHIN)
        return self.process.returncode, out + err


@dataclass(frozen=True, kw_only=True)
class AirflowHome:
    """One home of Sluice and the commands in it."""

    settings: Settings
    vault: Path  # Connections of a secrets backend, as JSON

    @property
    def environment(self) -> dict[str, str]:
        found = {
            f"SLUICE_{name.upper()}": str(getattr(self.settings, name)) for name in ("home", "jars", "dags")
        }
        found["SLUICE_CONFIG"] = str(self.settings.home.parent / "sluice.toml")
        found["SLUICE_CONNECTIONS"] = '{"webhook": "alerts"}'
        found["AIRFLOW__SECRETS__BACKEND"] = "airflow.secrets.local_filesystem.LocalFilesystemBackend"
        found["AIRFLOW__SECRETS__BACKEND_KWARGS"] = json.dumps({"connections_file_path": str(self.vault)})
        return os.environ | found

    def sluice(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "etl.cli", *words]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=240
        )

    def start(self) -> Command:
        """Return when it says where Airflow is: then it is healthy."""
        process = subprocess.Popen(
            [sys.executable, "-m", "etl.cli", "airflow"],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        found = stack.running(self.settings)
        assert found is not None, line + process.stderr.read()
        assert found.address in line
        return Command(process=process, airflow=found)

    def processes(self) -> list[psutil.Process]:
        """Return every process that was given this home, by its environment or its command line."""
        home, found = str(self.settings.home), []
        for process in psutil.process_iter(["environ", "cmdline", "status"]):
            words = [*(process.info["environ"] or {}).values(), *(process.info["cmdline"] or ())]
            if any(home in word for word in words) and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def sockets(self) -> list[Any]:
        """Return every IP socket of every process of this home."""
        return [*chain(*answers(self.processes(), lambda one: one.net_connections("inet")))]
