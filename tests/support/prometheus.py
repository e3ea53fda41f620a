"""A real Prometheus, and what the panels of a dashboard of Grafana's ask it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from etl.services.process import HOST, free_ports
from tests.support.environment import REPOSITORY
from tests.support.waiting import until

DASHBOARD = REPOSITORY / "docs/grafana/sluice.json"
CONFIG = """
global: {{scrape_interval: {every}, scrape_timeout: {every}}}
scrape_configs: [{{job_name: sluice, static_configs: [{{targets: ["{target}"]}}]}}]
"""
PATIENCE = 60.0  # seconds

Series = Mapping[str, Any]  # `metric`: its labels; `value` or `values`: a moment and a number, or many


@dataclass(frozen=True, kw_only=True)
class Prometheus:
    """A server that scrapes one target."""

    address: str
    every: float  # seconds between two scrapes

    def ask(self, expression: str) -> list[Series]:
        """Return the series of an expression now."""
        return self._answer("query", query=expression)

    def ask_between(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """Return the series of an expression, a value each `step` seconds."""
        return self._answer("query_range", query=expression, start=start, end=end, step=step)

    def _answer(self, path: str, **parameters: str | float) -> list[Series]:
        answer = httpx.get(f"{self.address}/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", f"{parameters['query']}: {answer.get('error')}"
        found: list[Series] = answer["data"]["result"]
        return found

    def expression(self, written: str) -> str:
        """Return a panel's expression as Grafana sends it, with all pipelines chosen: its interval covers four scrapes."""
        return written.replace("$pipeline", ".*").replace("$__rate_interval", _duration(4 * self.every))


def panels() -> list[dict[str, Any]]:
    """Return the dashboard's panels."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


@contextmanager
def scraping(target: str, folder: Path, *, every: float) -> Iterator[Prometheus]:
    """Yield a server that scrapes HOST:PORT."""
    folder.mkdir()
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(target=target, every=_duration(every)))
    [port] = free_ports(1)
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, f"--web.listen-address={HOST}:{port}"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        found = Prometheus(address=f"http://{HOST}:{port}", every=every)
        until(lambda: _ready(found.address), (folder / "log").read_text, patience=PATIENCE)
        yield found
    finally:
        server.terminate()
        server.wait()


def _duration(seconds: float) -> str:
    return f"{1000 * seconds:.0f}ms"


def _ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/-/ready").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
