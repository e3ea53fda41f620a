"""Loads a suite from GX's own JSON and finds every mistake in it then, none while a batch waits."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etl.common.errors import SetupError
from etl.common.wording import pluralize
from etl.quality.gx import registered
from etl.quality.trend_rules import Across
from etl.quality.verdict import Severity

SUITE_KEYS = frozenset({"name", "expectations", "meta", "notes", "id", "suite_parameters"})
EXPECTATION_KEYS = frozenset(
    {
        "type",
        "kwargs",
        "meta",
        "notes",
        "description",
        "severity",
        "id",
        "rendered_content",
        "expectation_context",
    }
)
# Of a suite that GX before 1.0 wrote.
_RENAMED = {"expectation_suite_name": "name", "evaluation_parameters": "suite_parameters"}
_GONE = ("data_asset_type", "ge_cloud_id")
RESERVED_REASONS = frozenset({"malformed", "late", "future"})


@dataclass(frozen=True, kw_only=True)
class DeclaredRule:
    """One expectation of a suite file."""

    number: int  # its position in the file
    reason: str
    kind: str  # GX's snake case type
    severity: Severity
    columns: tuple[str, ...]  # the columns it speaks of, in GX's order; none for a rule about the table
    expectation: Any  # GX's Expectation
    across: Across | None = None  # compared with the batches before


@dataclass(frozen=True, kw_only=True)
class DeclaredSuite:
    name: str
    digest: str  # SHA-256 of the canonical JSON
    rules: tuple[DeclaredRule, ...]
    problems: tuple[str, ...] = field(default=())  # with them the suite must not be used


def read_suite(source: Path | Mapping[str, Any]) -> DeclaredSuite:
    """Read the suite's rules and all that is wrong with them.

    Raises SetupError only for a file that can't be read or is no suite at all.
    """
    document = _document(source)
    problems = [f"unknown key {key!r} in the suite" for key in sorted(set(document) - SUITE_KEYS)]
    if document.get("suite_parameters"):
        problems.append("suite_parameters are not supported: write the values into the expectations")
    rules: list[DeclaredRule] = []
    for number, entry in enumerate(document["expectations"]):
        try:
            rules.append(_declared(number, entry))
        except ValueError as wrong:
            problems.append(f"expectation {number}: {wrong}")
    problems += _reasons_in_conflict(rules)
    return DeclaredSuite(
        name=document["name"], digest=_digest(document), rules=tuple(rules), problems=tuple(problems)
    )


def suite_digest(source: Path | Mapping[str, Any]) -> str:
    """Return the digest that `read_suite` gives the suite, without a look at its rules."""
    return _digest(_document(source))


def _document(source: Path | Mapping[str, Any]) -> Mapping[str, Any]:
    where = str(source) if isinstance(source, Path) else "the suite"
    remedy = "give the path of a suite that GX wrote (ExpectationSuite.to_json_dict)"
    try:
        document = json.loads(source.read_text(encoding="utf-8-sig")) if isinstance(source, Path) else source
    except (OSError, ValueError) as wrong:
        raise SetupError(f"{where} can't be read as a suite: {wrong}", remedy=remedy) from wrong
    if isinstance(document, Mapping) and (older := _of_older_gx(document)):
        raise SetupError(
            f"{where} is a suite of an older Great Expectations: {older}",
            remedy="rename it so, or write the suite again with GX 1",
        )
    if not (
        isinstance(document, Mapping)
        and isinstance(document.get("name"), str)
        and isinstance(document.get("expectations"), list)
    ):
        raise SetupError(f"{where} is no suite: it needs a name and a list of expectations", remedy=remedy)
    return document


def _of_older_gx(document: Mapping[str, Any]) -> str | None:
    """Say what GX before 1.0 has named otherwise in a suite; None where there is nothing of it."""
    told = [f"`{old}` is `{new}` now" for old, new in _RENAMED.items() if old in document]
    told += [f"`{name}` is no more" for name in _GONE if name in document]
    entries = document.get("expectations")
    old = [
        number
        for number, entry in enumerate(entries if isinstance(entries, list) else [])
        if isinstance(entry, Mapping) and "expectation_type" in entry and "type" not in entry
    ]
    if old:
        several = f" in {pluralize(len(old), 'expectation')}"
        told.append(f"`expectation_type` is `type` now{several}")
    return "; ".join(told) if old or document.keys() & _RENAMED.keys() else None


def _digest(document: Mapping[str, Any]) -> str:
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _declared(number: int, entry: Any) -> DeclaredRule:
    """Read one entry of a suite as a rule; raise ValueError that says what is wrong with it."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("type"), str):
        raise ValueError("it has no type")
    if unknown := sorted(set(entry) - EXPECTATION_KEYS):
        raise ValueError(f"{entry['type']} has unknown keys {', '.join(unknown)}")
    expectation = _expectation(entry)
    columns = _columns(expectation)
    meta = entry.get("meta") or {}
    reason = str(meta.get("name") or entry["type"] + (f"({', '.join(columns)})" if columns else ""))
    across = meta.get("across")
    column = columns[0] if columns else ""
    return DeclaredRule(
        number=number,
        across=None
        if across is None
        else Across.of(entry["type"], column, entry.get("kwargs") or {}, across),
        reason=reason,
        kind=entry["type"],
        severity=Severity(expectation.severity.value),
        columns=columns,
        expectation=expectation,
    )


def _expectation(entry: Mapping[str, Any]) -> Any:
    registered()
    from great_expectations.exceptions.exceptions import GreatExpectationsError
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    kind = entry["type"]
    kwargs = entry.get("kwargs") or {}
    if not isinstance(kwargs, Mapping):
        raise ValueError(f"{kind}: kwargs is {kwargs!r}; write its arguments as an object, by name")
    if parameters := [
        name for name, value in kwargs.items() if isinstance(value, dict) and "$PARAMETER" in value
    ]:
        raise ValueError(
            f"{kind} takes {', '.join(parameters)} from suite parameters, which are not supported"
        )
    given = {key: entry[key] for key in ("meta", "notes", "description", "severity", "id") if entry.get(key)}
    try:
        return ExpectationConfiguration(type=kind, kwargs=dict(kwargs), **given).to_domain_obj()
    except (GreatExpectationsError, ValueError, TypeError) as wrong:
        text = "; ".join(str(wrong).split("\n"))
        raise ValueError(f"{kind}: {text}") from wrong


def _columns(expectation: Any) -> tuple[str, ...]:
    if (pair := getattr(expectation, "column_A", None)) is not None:
        return (str(pair), str(expectation.column_B))
    if (several := getattr(expectation, "column_list", None)) is not None and isinstance(
        several, list | tuple
    ):
        return tuple(str(name) for name in several)
    one = getattr(expectation, "column", None)
    return () if one is None else (str(one),)


def _reasons_in_conflict(rules: list[DeclaredRule]) -> list[str]:
    counted = Counter(rule.reason for rule in rules)
    doubled = [
        f"{times} expectations have the reason {reason!r}: give each its own meta.name"
        for reason, times in counted.items()
        if times > 1
    ]
    reserved = [
        f"expectation {rule.number}: the reason {rule.reason!r} is Sluice's own, choose another meta.name"
        for rule in rules
        if rule.reason in RESERVED_REASONS
    ]
    return doubled + reserved
