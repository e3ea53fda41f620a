"""Others that load the same events, each in an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from configparser import ConfigParser
from dataclasses import dataclass

from psycopg2.extensions import parse_dsn

from benchmarks.environments import python_with
from benchmarks.ground import CORES, HERE, Ground, password


@dataclass(frozen=True)
class Dlt:
    """dlt, of the versions in requirements-dlt.txt, with a process for each core."""

    ground: Ground

    def deliver(self) -> float:
        """Load the events to both destinations; return the seconds, without those of the imports."""
        state = self.ground.folder / "dlt-state"
        shutil.rmtree(state, ignore_errors=True)
        keys = ConfigParser()
        keys.read(os.environ["AWS_SHARED_CREDENTIALS_FILE"])
        at = parse_dsn(self.ground.dsn)
        job = {
            "files": [str(path) for path in self.ground.events],
            "folder": str(state),
            "postgres": {
                "host": at["host"],
                "port": int(at["port"]),
                "database": at["dbname"],
                "username": at["user"],
                "password": password(self.ground.dsn),
            },
            "lake": f"{self.ground.place.services.lake}/bench/dlt",
            "s3": {**keys["default"], "endpoint_url": self.ground.place.services.s3_endpoint},
        }
        workers = {f"{phase}__WORKERS": str(CORES) for phase in ("EXTRACT", "NORMALIZE", "LOAD")}
        environment = {**os.environ, **workers, "RUNTIME__DLTHUB_TELEMETRY": "false"}
        done = subprocess.run(
            [python_with("dlt", self.ground.folder), HERE / "dlt_job.py"],
            input=json.dumps(job),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return float(done.stdout.splitlines()[-1])
