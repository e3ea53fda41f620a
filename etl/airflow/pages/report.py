"""Reads the stored report of a batch: Great Expectations' own results, as far as they are there.

The text is data: a report of another version, or one that a person wrote, may lack anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etl.airflow.pages.formatting import as_json, cut

MOST_SAMPLES = 20
LONGEST_SAMPLE = 60  # characters
LONGEST_REASON = 300  # characters by which the statements of the pages know a rule
LONGEST_RESULT = 1_200  # characters of GX's own JSON shown for one expectation
SPOKEN_OF = ("column", "column_A", "column_B")  # kwargs that name a column
NO_OBSERVATIONS = frozenset(
    {"partial_unexpected_index_list", "unexpected_index_list", "partial_unexpected_counts", "details"}
)
CONDITION = "row_condition"


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What GX saw of one expectation."""

    reason: str = ""
    known_by: str = ""
    dimension: str | None = None
    owner: str | None = None
    kind: str = ""
    severity: str = ""
    success: bool | None = None
    element_count: int | None = None
    unexpected_count: int | None = None
    columns: tuple[str, ...] = ()
    arguments: str = ""  # its other kwargs
    notes: str = ""
    figures: tuple[tuple[str, str], ...] = ()  # GX's own names and values
    samples: tuple[str, ...] = ()  # values that break it
    raw: str = ""


@dataclass(frozen=True, kw_only=True)
class Decided:
    action: str
    who: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Report:
    by_number: Mapping[int, Observed] = field(default_factory=dict)
    decision: Decided | None = None

    def of(self, number: int) -> Observed:
        return self.by_number.get(number, Observed())


def read_report(text: str | None) -> Report:
    try:
        content = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return Report()
    results = content.get("results") if isinstance(content, dict) else None
    if not isinstance(results, list):
        return Report()
    return Report(
        by_number={number: _observed(_table(result)) for number, result in enumerate(results)},
        decision=_decision(_table(content.get("decision"))),
    )


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _decision(content: Mapping[str, Any]) -> Decided | None:
    if not content:
        return None
    action, who, why = (cut(content.get(name) or "", 500) for name in ("action", "who", "why"))
    return Decided(action=action, who=who, why=why)


def _observed(entry: Mapping[str, Any]) -> Observed:
    config, result = _table(entry.get("expectation_config")), _table(entry.get("result"))
    kwargs = {name: value for name, value in _table(config.get("kwargs")).items() if name != "batch_id"}
    listed = kwargs.get("column_list")
    columns = [kwargs[name] for name in SPOKEN_OF if name in kwargs]
    columns += listed if isinstance(listed, list) else []
    arguments = {name: value for name, value in kwargs.items() if name not in (*SPOKEN_OF, "column_list")}
    if CONDITION in arguments:
        arguments |= {CONDITION: _condition(arguments[CONDITION])}
        arguments.pop("condition_parser", None)
    samples = result.get("partial_unexpected_list")
    raw = as_json(result)
    kind, meta = str(config.get("type") or ""), _table(config.get("meta"))
    spoken = ", ".join(str(column) for column in columns)
    reason = str(meta.get("name") or (f"{kind}({spoken})" if spoken else kind))[:LONGEST_REASON]
    dimension, owner = (cut(meta[name], 100) if meta.get(name) else None for name in ("dimension", "owner"))
    return Observed(
        reason=reason,
        known_by=str(meta.get("id") or reason)[:LONGEST_REASON],
        dimension=dimension,
        owner=owner,
        kind=cut(kind, 200),
        severity=cut(str(config.get("severity") or "critical"), 20),
        success=bool(entry.get("success")),
        element_count=_whole(result.get("element_count")),
        unexpected_count=_whole(result.get("unexpected_count")),
        columns=tuple(str(name) for name in columns),
        arguments=", ".join(f"{name}: {cut(value)}" for name, value in list(arguments.items())[:10]),
        notes=_notes(config.get("notes")),
        figures=tuple(
            (str(name), cut(value, 60))
            for name, value in list(result.items())[:30]
            if not isinstance(value, Sequence | dict) or isinstance(value, str) or name == "observed_value"
            if name not in NO_OBSERVATIONS
        ),
        samples=tuple(dict.fromkeys(cut(value, LONGEST_SAMPLE) for value in samples[:MOST_SAMPLES]))
        if isinstance(samples, list)
        else (),
        raw=cut(raw, LONGEST_RESULT),
    )


def _condition(value: Any) -> str:
    """Write a row condition as text: GX keeps it as a tree, in the leaf of which is the text of one that was written so."""
    content = _table(value)
    parts, column = content.get("conditions"), _table(content.get("column")).get("name")
    if "pass_through_filter" in content:
        return cut(content["pass_through_filter"])
    if isinstance(parts, list):
        return cut(f" {str(content.get('type')).upper()} ".join(f"({_condition(part)})" for part in parts))
    if "is_null" in content:
        return cut(f"{column} IS {'NULL' if content['is_null'] else 'NOT NULL'}")
    if "operator" in content:
        return cut(f"{column} {content['operator']} {as_json(content.get('parameter'))}")
    return cut(value)


def _notes(notes: Any) -> str:
    lines = notes if isinstance(notes, list) else [notes] if notes else []
    return cut(" ".join(str(line) for line in lines), 500)
