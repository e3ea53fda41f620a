"""Draws the panels of a dashboard, run by an environment of its own: JSON on its standard input, which names the picture."""

from __future__ import annotations

import datetime as dt
import json
import math
import sys
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.dates import AutoDateLocator, DateFormatter
from matplotlib.ticker import EngFormatter, PercentFormatter

COLUMNS, COLUMN, ROW = 24, 0.53, 0.3  # of Grafana's grid; inches of a column and of a row
LEFT, TOP, BOTTOM = 1.3, 1.2, 1.3  # columns and rows around what a panel draws
LEGEND_COLUMNS = 2  # of the series' names
LEGEND_ROW = 0.09  # of a chart's height, which a row of names takes
UNITS = {"percentunit": PercentFormatter(1), "s": EngFormatter("s"), "bytes": EngFormatter("B")}


def main() -> None:
    job: dict[str, Any] = json.load(sys.stdin)
    rows = max(one["at"]["y"] + one["at"]["h"] for one in job["panels"])
    figure = pyplot.figure(figsize=(COLUMNS * COLUMN, rows * ROW))
    for one in job["panels"]:
        axes = figure.add_axes(inner(one["at"], rows))
        axes.set_title(one["title"], loc="left", fontsize=10, fontweight="bold")
        if one["type"] == "table":
            table(axes, one)
        else:
            chart(axes, one)
            axes.set_xlim(moment(job["start"]), moment(job["end"]))
    figure.savefig(job["to"], dpi=100, metadata={"Software": None})


def inner(at: dict[str, int], rows: int) -> tuple[float, float, float, float]:
    """Return where a panel of Grafana's grid draws, as shares of the picture: left, bottom, width, height."""
    left, bottom = at["x"] + LEFT, rows - at["y"] - at["h"] + BOTTOM
    width, height = at["w"] - LEFT - 0.5, at["h"] - TOP - BOTTOM
    return left / COLUMNS, bottom / rows, width / COLUMNS, height / rows


def moment(at: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(at, dt.UTC)


def table(axes: Any, panel: dict[str, Any]) -> None:
    """Draw the labels of each series, as the panel's transformation leaves them."""
    rows = [one["labels"] for one in panel["series"]]
    names = sorted({name for row in rows for name in row})
    axes.axis("off")
    cells = [[row.get(name, "") for name in names] for row in rows]
    drawn = axes.table(
        cells, colLabels=names, loc="upper left", cellLoc="left", colLoc="left", edges="horizontal"
    )
    drawn.scale(1, 1.5)


def chart(axes: Any, panel: dict[str, Any]) -> None:
    """Draw a line of each series; a panel without any says so, as Grafana does."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    for one in panel["series"]:
        moments, values = zip(*((moment(at), value) for at, value in one["values"]), strict=True)
        axes.plot(moments, values, label=one["name"], linewidth=1.2)
    if panel["series"]:
        highest = max(value for one in panel["series"] for _, value in one["values"])
        legend = math.ceil(len(panel["series"]) / LEGEND_COLUMNS) * LEGEND_ROW
        axes.set_ylim(0, highest / (0.95 - legend) or 1)
        axes.grid(axis="y", alpha=0.3)
        axes.yaxis.set_major_formatter(UNITS.get(panel["unit"], EngFormatter()))
        axes.xaxis.set_major_locator(AutoDateLocator(maxticks=6))
        axes.xaxis.set_major_formatter(DateFormatter("%H:%M:%S"))
        axes.legend(fontsize=7, loc="upper left", frameon=False, ncols=LEGEND_COLUMNS)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "No data", ha="center", va="center", transform=axes.transAxes, color="#888")


if __name__ == "__main__":
    main()
