"""`sluice train`: models that transforms score rows with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from etl.command import AsJson, PipelineName, here, load, print_json, shown, who


def train(name: PipelineName, as_json: AsJson = False) -> None:
    """Fit the pipeline's models to delivered rows, and tell how good they are; its next batch scores with them.

    Where neither the rows nor the declaration have changed, the version in force stays.
    """
    from etl.train import train as train_pipeline

    place = here()
    found = train_pipeline(place, load(name, place.settings), who=who())
    if as_json:
        print_json([one.json() for one in found])
        return
    out = Console(soft_wrap=True)
    for one in found:
        report = one.report
        done = "made now" if one.new else "in force; nothing that it is made of has changed since"
        out.print(shown(f"{name}: model {report['model']}, version {one.version}, {done}"))
        _show(out, report)
        out.print(shown(f"  {one.location}"))
    out.print(f"next: `sluice run {name}`")


def _show(out: Console, report: Mapping[str, Any]) -> None:
    held, labels = report["held_out"], report["held_out"]["labels"]
    table = Table("", "", box=SIMPLE, show_header=False)
    lines = {
        "learned from": f"{report['rows_fitted']:,} of {report['rows_there']:,} rows of {report['trained_on']}",
        "lacking a value": f"{report['rows_without']:,} of {report['rows_drawn']:,} rows drawn",
        **{
            feature: f"{one['least']:g} to {one['greatest']:g}, median {one['median']:g}"
            for feature, one in report["features"].items()
        },
        "threshold": f"{report['threshold']:.4f}",
        "held out": f"{held['rows']:,} rows, {held['flagged']:,} of them above the threshold",
        "their scores": ", ".join(f"{name} {score:.4f}" for name, score in held["scores"].items()),
    }
    if labels:
        lines["known anomalies"] = f"{labels['anomalies']:,} of {labels['rows']:,} rows with a label"
        lines["precision"] = _share(labels["precision"], labels["both"], labels["flagged"], "flagged")
        lines["recall"] = _share(labels["recall"], labels["both"], labels["anomalies"], "anomalies")
    for title, text in lines.items():
        table.add_row(shown(title), shown(text))
    out.print(table)


def _share(share: float | None, part: int, whole: int, noun: str) -> str:
    return f"none {noun}" if share is None else f"{share:.3f} ({part:,} of {whole:,} {noun})"
