"""Asks a Prometheus what the panels of docs/grafana/sluice.json ask it, and has the answers drawn."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.environments import python_with
from tests.support.prometheus import Prometheus, Series, panels


def draw(seen: Prometheus, picture: Path, *, start: float, end: float, folder: Path) -> None:
    """Draw the dashboard's panels over a span of time, by an environment with matplotlib below `folder`."""
    answered = [_answered(one, seen, start, end) for one in panels()]
    job = {"to": str(picture), "start": start, "end": end, "panels": answered}
    command = [python_with("plot", folder), Path(__file__).with_name("panels.py")]
    subprocess.run(command, input=json.dumps(job), text=True, check=True)


def _answered(panel: dict[str, Any], seen: Prometheus, start: float, end: float) -> dict[str, Any]:
    """Return a panel with the series of its expressions, as Grafana asks for them."""
    left_out = {name for one in panel.get("transformations", ()) for name in one["options"]["excludeByName"]}
    series = []
    for target in panel["targets"]:
        expression = seen.expression(target["expr"])
        found = (
            seen.ask(expression)
            if target.get("instant")
            else seen.ask_between(expression, start, end, seen.every)
        )
        series += [_named(one, target["legendFormat"], left_out) for one in found]
    return {
        "title": panel["title"],
        "type": panel["type"],
        "at": panel["gridPos"],
        "unit": panel["fieldConfig"]["defaults"]["unit"],
        "series": series,
    }


def _named(series: Series, legend: str, left_out: set[str]) -> dict[str, Any]:
    labels = series["metric"]
    return {
        "name": re.sub(r"{{(\w+)}}", lambda one: labels.get(one[1], ""), legend),
        "labels": {name: value for name, value in labels.items() if name not in left_out},
        "values": [(float(at), float(value)) for at, value in series.get("values", ())],
    }
