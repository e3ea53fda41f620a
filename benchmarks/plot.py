"""Draws bars of seconds, run by an environment of its own: JSON on its standard input, a picture at the path it names."""

from __future__ import annotations

import json
import sys
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot


def main() -> None:
    job: dict[str, Any] = json.load(sys.stdin)
    names, seconds = [way["name"] for way in job["ways"]], [way["seconds"] for way in job["ways"]]
    whiskers = [[middle - low for low, middle, _ in seconds], [high - middle for _, middle, high in seconds]]
    figure, axes = pyplot.subplots(figsize=(9, 0.5 * len(names) + 1), layout="constrained")
    colours = ["#2a7f62" if way["ours"] else "#9aa5b1" for way in job["ways"]]
    bars = axes.barh(names, [middle for _, middle, _ in seconds], xerr=whiskers, color=colours, ecolor="#444")
    axes.bar_label(bars, fmt="%.1f s", padding=14)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(job["title"])
    axes.margins(x=0.12)
    figure.savefig(job["to"], metadata={"Date": None})


if __name__ == "__main__":
    main()
