"""Renders a page: one template, every value escaped, no script."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from etl.airflow.pages import formatting
from etl.airflow.pages.records import MOST_COUNTED, PipelineRow, pipeline_rows
from etl.common.database import Cursor
from etl.common.wording import drifted, left_out, pluralize
from etl.pipeline.dag_names import replays_of

FOLDER = Path(__file__).parent / "templates"
HELD_LOOKED_AT = 10_000  # the newest held rows, of which the page of a pipeline counts the rules
LISTED = 20  # batches, files or inputs in a list
MOST_VERDICTS = 60  # expectations on a batch's page; the broken ones come first

STATES = {  # of a batch or a pipeline: the mark and what it says
    "good": ("✓", "Good"),
    "noted": ("✓", "Good, with remarks"),
    "held": ("◐", "Good, with rows held"),
    "flawed": ("▲", "Delivered with a broken rule"),
    "partial": ("△", "Delivered, with rows left out"),
    "interrupted": ("▽", "Interrupted"),
    "failing": ("■", "Failing"),
    "stopped": ("■", "Stopped"),
    "new": ("○", "Nothing delivered yet"),
}


PARTS = {  # of a batch's time, from the bottom of its bar up: each as it is called
    "stage": "read, write",
    "judge": "judge",
    "draft": "metadata",
    "transaction": "commit",
    "spark": "Spark's own",
}


class NotThere(Exception):
    """There is no such pipeline, batch or row; the argument says what was looked for."""


@dataclass(frozen=True, kw_only=True)
class Page:
    html: str
    nonce: str  # of its only style element


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What every page is drawn with."""

    airflow: str = ""  # path of Airflow's own UI, without a slash at its end
    up: str = ""  # from the page to the pipeline's folder of pages: "" or "../"
    # What the reader may: release, correct, discard, decide, acknowledge.
    decides: frozenset[str] = frozenset()
    declared: bool = True  # Airflow has a DAG of the pipeline


def no_dag(pipeline: str) -> str:
    return f"Airflow has no DAG of {pipeline}: its declaration is gone, or has a mistake"


def render(template: str, frame: Frame, **values: Any) -> Page:
    """Render the page that a template makes of these values, each of them escaped."""
    nonce = secrets.token_urlsafe(16)
    html = _environment().get_template(template).render(nonce=nonce, frame=frame, **values)
    return Page(html=html, nonce=nonce)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,  # templates of another version than the code would not fit it
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("number", "share", "moment", "day", "span", "briefly", "size", "cut", "as_json"):
        environment.filters[name] = getattr(formatting, name)
    environment.filters["left_out"] = left_out
    environment.filters["pluralize"] = pluralize
    environment.globals["drifted"] = drifted
    environment.globals["name_of"] = formatting.name_of
    environment.globals["titled"] = formatting.titled
    environment.globals["no_dag"] = no_dag
    environment.globals["replays_of"] = replays_of
    environment.globals["STATES"] = STATES
    environment.globals["PARTS"] = PARTS
    environment.globals["MOST_COUNTED"] = MOST_COUNTED
    environment.globals["LISTED"] = LISTED
    environment.globals["HELD_LOOKED_AT"] = HELD_LOOKED_AT
    environment.globals["MOST_VERDICTS"] = MOST_VERDICTS
    return environment


def pipeline_row(cursor: Cursor, name: str) -> PipelineRow:
    """Return where the pipeline stands. Raises NotThere when it never ran."""
    known = pipeline_rows(cursor, [name])
    if not known:
        raise NotThere(
            f"Nothing was delivered by {name} yet. If it is a pipeline, its first run makes its pages: sluice run {name}, or"
            " a run of its DAG. Other DAGs, such as sluice_maintenance, have none"
        )
    return known[0]
