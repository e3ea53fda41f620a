"""Maps an expectation to a quality rule of a contract, and such a rule to expectations.

A metric of the standard's library is about the whole table. An expectation is about a batch, so it becomes a metric only
where what holds for each batch holds for the table; else it is written as it is, for Great Expectations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from etl.operations.contracts.document import parsed

NOT_NULL, UNIQUE = "expect_column_values_to_not_be_null", "expect_column_values_to_be_unique"
IN_SET, NOT_IN_SET = "expect_column_values_to_be_in_set", "expect_column_values_to_not_be_in_set"
REGEX, TOGETHER = "expect_column_values_to_match_regex", "expect_compound_columns_to_be_unique"
BETWEEN, LENGTHS = "expect_column_values_to_be_between", "expect_column_value_lengths_to_be_between"
ROWS, EXACT_ROWS = "expect_table_row_count_to_be_between", "expect_table_row_count_to_equal"
ENGINE = "greatExpectations"
BESIDE = "sluiceRule"  # the custom property of what an expectation has and no key of the standard
OWNER = "owner"  # the custom property of who is asked about a rule
FOREIGN = "odcs"  # in the meta of an expectation: what a contract says of it and no run asks for
OPERATORS = (
    *("mustBe", "mustNotBe", "mustBeGreaterThan", "mustBeGreaterOrEqualTo", "mustBeLessThan"),
    *("mustBeLessOrEqualTo", "mustBeBetween", "mustNotBeBetween"),
)
# What Great Expectations judges when the batch is staged: too late to hold a row, so a warning of these is refused.
_STABLE = re.compile(r"[A-Za-z0-9_-]+")  # what the standard takes as an id; another stays in the meta
TOO_LATE = {
    *(UNIQUE, TOGETHER, "expect_column_values_to_be_increasing", "expect_column_values_to_be_decreasing"),
    *("expect_column_value_z_scores_to_be_less_than", "expect_column_values_to_not_be_outliers"),
}
SEVERITIES = {
    **dict.fromkeys(("info", "low", "minor"), "info"),
    **dict.fromkeys(("warning", "warn", "medium", "major"), "warning"),
    **dict.fromkeys(("critical", "error", "high", "fatal", "blocker"), "critical"),
}
_READ = {  # the keys of a quality rule that an expectation has in its own way
    *("id", "name", "description", "severity", "dimension", "type", "metric", "rule", "arguments", "unit"),
    *("engine", "implementation", "query", "customProperties", *OPERATORS),
}


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a quality rule of a contract is here."""

    expectations: Sequence[dict[str, Any]] = ()
    notes: Sequence[str] = ()  # what of it is not as the contract says, a sentence each


def quality_of(expectation: Mapping[str, Any], *, whole: bool) -> dict[str, Any]:
    """Write an expectation as a quality rule; `whole`: each batch is the whole table."""
    kind, kwargs = expectation["type"], dict(expectation.get("kwargs") or {})
    meta = dict(expectation.get("meta") or {})
    foreign = dict(meta.pop(FOREIGN, {}))
    custom = foreign.pop("customProperties", [])
    notes = expectation.get("notes")
    said = {
        "id": meta.pop("id") if _STABLE.fullmatch(str(meta.get("id", ""))) else None,
        "name": meta.pop("name", None),
        "description": "\n".join(notes) if isinstance(notes, list) else notes,
        "dimension": meta.pop("dimension", None),
        "severity": expectation.get("severity") or "critical",
    }
    owner = meta.pop("owner", None)
    beside = {name: expectation[name] for name in ("id", "description") if expectation.get(name)}
    beside |= {"meta": meta} if meta else {}
    custom = [
        *custom,
        *([{"property": OWNER, "value": owner}] if owner else []),
        *([{"property": BESIDE, "value": beside}] if beside else []),
    ]
    said |= _metric(kind, kwargs, whole=whole) or {
        "type": "custom",
        "engine": ENGINE,
        "implementation": {"type": kind, "kwargs": kwargs},
    }
    said |= foreign | ({"customProperties": custom} if custom else {})
    return {name: value for name, value in said.items() if value is not None}


def _metric(kind: str, kwargs: Mapping[str, Any], *, whole: bool) -> dict[str, Any] | None:
    """Return the library's metric of an expectation with its limit; None where none says the same."""
    given = {name: value for name, value in kwargs.items() if name not in ("column", "mostly")}
    limit = _limit(kwargs.get("mostly", 1))
    match kind, sorted(given):
        case ("expect_column_values_to_not_be_null", []):
            return {"metric": "nullValues", **limit}
        case ("expect_column_values_to_be_in_set", ["value_set"]):
            return {"metric": "invalidValues", "arguments": {"validValues": given["value_set"]}, **limit}
        case ("expect_column_values_to_match_regex", ["regex"]):
            return {"metric": "invalidValues", "arguments": {"pattern": given["regex"]}, **limit}
    if not whole or kwargs.get("mostly", 1) != 1:
        return None
    match kind, sorted(given):
        case ("expect_column_values_to_be_unique", []):
            return {"metric": "duplicateValues", "mustBe": 0}
        case ("expect_compound_columns_to_be_unique", ["column_list"]):
            return {
                "metric": "duplicateValues",
                "arguments": {"properties": given["column_list"]},
                "mustBe": 0,
            }
        case ("expect_table_row_count_to_equal", ["value"]):
            return {"metric": "rowCount", "mustBe": given["value"]}
        case ("expect_table_row_count_to_be_between", ["max_value"]):
            return {"metric": "rowCount", "mustBeLessOrEqualTo": given["max_value"]}
        case ("expect_table_row_count_to_be_between", ["min_value"]):
            return {"metric": "rowCount", "mustBeGreaterOrEqualTo": given["min_value"]}
        case ("expect_table_row_count_to_be_between", ["max_value", "min_value"]):
            low, high = given["min_value"], given["max_value"]
            return {"metric": "rowCount", "mustBeBetween": [low, high]} if low < high else None
    return None


def _limit(mostly: float) -> dict[str, Any]:
    """Write how many rows may break a rule of which `mostly` must keep it."""
    if mostly == 1:
        return {"mustBe": 0}
    percent = (1 - Decimal(str(mostly))) * 100
    return {"mustBeLessOrEqualTo": float(percent), "unit": "percent"}


def read_quality(rule: Mapping[str, Any], column: str | None, *, whole: bool) -> Expected:
    """Read a quality rule of a column, or of the table (None), as expectations; name all that none of them says."""
    called = _called(rule, column)
    kind = rule.get("type") or "library"
    if kind == "custom":
        found = _of_engine(rule, column)
    elif kind == "library" or "metric" in rule:
        found = _of_metric(rule, column, whole=whole)
    elif kind == "text":
        found = Expected(notes=[f"it is a text, and no rule: {rule.get('description') or 'without words'}"])
    elif kind == "sql":
        found = Expected(
            notes=["it is a query of a database, and rules judge a batch before a database has it"]
        )
    else:
        found = Expected(notes=[f"its type {kind!r} is not known here"])
    several = len(found.expectations) > 1
    entries, notes = [], [f"{called}: {note}" for note in found.notes]
    for number, entry in enumerate(found.expectations, 1):
        dressed, doubt = _dressed(entry, rule, number if several else None)
        entries.append(dressed)
        if doubt and number == 1:
            notes.append(f"{called}: {doubt}")
    return Expected(expectations=entries, notes=notes)


def _called(rule: Mapping[str, Any], column: str | None) -> str:
    name = rule.get("name") or rule.get("id") or rule.get("metric") or rule.get("rule") or rule.get("type")
    return f"quality rule {name!r} of {column or 'the table'}"


def _of_engine(rule: Mapping[str, Any], column: str | None) -> Expected:
    engine = str(rule.get("engine") or "")
    if engine.lower().replace("-", "").replace("_", "") != ENGINE.lower():
        return Expected(notes=[f"it is for {engine or 'no engine'}, and only Great Expectations' run here"])
    given = rule.get("implementation")
    if isinstance(given, str):
        given = parsed(given)
    if not isinstance(given, Mapping) or not isinstance(given.get("type"), str):
        return Expected(notes=["its implementation is no expectation with a type and kwargs"])
    kwargs = dict(given.get("kwargs") or {})
    if column is not None and given["type"].startswith("expect_column_") and "column_A" not in kwargs:
        kwargs.setdefault("column", column)
    beside = {name: given[name] for name in ("severity", "notes", "meta") if given.get(name)}
    return Expected(expectations=[{"type": given["type"], "kwargs": kwargs, **beside}])


def _of_metric(rule: Mapping[str, Any], column: str | None, *, whole: bool) -> Expected:
    metric = str(rule.get("metric") or rule.get("rule") or "")
    arguments = rule.get("arguments") or {}
    if metric == "rowCount":
        return _of_rows(rule, whole=whole)
    if metric == "duplicateValues":
        return _of_duplicates(rule, column, arguments, whole=whole)
    if metric not in ("nullValues", "missingValues", "invalidValues"):
        return Expected(notes=[f"its metric {metric!r} is not known here"])
    if column is None:
        return Expected(notes=[f"{metric} is of a column, and it stands at the table"])
    found = list(_of_values(metric, arguments))
    if not found:
        return Expected(notes=[f"its arguments say nothing of which values are meant: {dict(arguments)}"])
    unknown = sorted(arguments.keys() - {"validValues", "pattern", "missingValues"})
    notes = [f"its argument {name!r} is not known here" for name in unknown]
    mostly = _mostly(rule)
    if mostly is None:
        limit = next((f"{name} {rule[name]}" for name in OPERATORS if name in rule), "none")
        notes.append(f"its limit ({limit}) is no share of a batch's rows: the rule tells of each (info)")
    share = {} if mostly in (None, 1) else {"mostly": mostly}
    silent = {"severity": "info"} if mostly is None else {}
    return Expected(
        expectations=[
            {"type": kind, "kwargs": {"column": column, **given, **share}, **silent} for kind, given in found
        ],
        notes=notes,
    )


def _of_values(metric: str, arguments: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the types of expectations, and the arguments, that a metric of a column's values is."""
    missing = arguments.get("missingValues", [None]) if metric == "missingValues" else []
    if metric == "nullValues" or None in missing:
        yield NOT_NULL, {}
    if others := [value for value in missing if value is not None]:
        yield NOT_IN_SET, {"value_set": others}
    if metric == "invalidValues" and arguments.get("validValues"):
        yield IN_SET, {"value_set": [value for value in arguments["validValues"] if value is not None]}
    if metric == "invalidValues" and arguments.get("pattern"):
        yield REGEX, {"regex": arguments["pattern"]}


def _mostly(rule: Mapping[str, Any]) -> float | None:
    """Return which share of the rows must keep a rule by its limit of rows that break it; None where that is no share."""
    percent = rule.get("unit") == "percent"
    match {name: rule[name] for name in OPERATORS if name in rule}:
        case {"mustBe": 0} | {"mustBeLessOrEqualTo": 0}:
            return 1
        case {"mustBeLessThan": int(most)} if most == 1 and not percent:
            return 1
        case {"mustBeLessThan": most} | {"mustBeLessOrEqualTo": most} | {"mustBeBetween": [0, most]} if (
            percent
        ):
            return float(1 - Decimal(str(most)) / 100)
    return None


def _of_rows(rule: Mapping[str, Any], *, whole: bool) -> Expected:
    batch = [] if whole else ["it counts the rows of a batch here, not of the table: it is told of (info)"]
    silent = {} if whole else {"severity": "info"}
    if rule.get("unit") not in (None, "rows"):
        return Expected(notes=[f"a count of rows has no unit {rule['unit']!r}"])
    match {name: rule[name] for name in OPERATORS if name in rule}:
        case {"mustBe": value}:
            return Expected(
                expectations=[{"type": EXACT_ROWS, "kwargs": {"value": value}, **silent}], notes=batch
            )
        case {"mustBeBetween": [low, high]}:
            bounds = {"min_value": low, "max_value": high}
        case {"mustBeGreaterOrEqualTo": low}:
            bounds = {"min_value": low}
        case {"mustBeGreaterThan": low}:
            bounds = {"min_value": low + 1}
        case {"mustBeLessOrEqualTo": high}:
            bounds = {"max_value": high}
        case {"mustBeLessThan": high}:
            bounds = {"max_value": high - 1}
        case _:
            return Expected(notes=["a count of rows is held to a number, a least or a most, or both"])
    return Expected(expectations=[{"type": ROWS, "kwargs": bounds, **silent}], notes=batch)


def _of_duplicates(
    rule: Mapping[str, Any], column: str | None, arguments: Mapping[str, Any], *, whole: bool
) -> Expected:
    notes = [] if whole else ["it sees duplicates within a batch, not over the table"]
    if _mostly(rule) != 1:
        notes.append("how many duplicates it allows is not kept: it tells of each (info)")
    kind, kwargs = UNIQUE, dict[str, Any](column=column)
    if columns := arguments.get("properties"):
        kind, kwargs = TOGETHER, {"column_list": list(columns)}
    elif column is None:
        return Expected(notes=["it does not name the columns that have no duplicates together"])
    silent = {} if whole and _mostly(rule) == 1 else {"severity": "info"}
    return Expected(expectations=[{"type": kind, "kwargs": kwargs, **silent}], notes=notes)


def _dressed(
    entry: Mapping[str, Any], rule: Mapping[str, Any], number: int | None
) -> tuple[dict[str, Any], str | None]:
    """Give an expectation what a quality rule says beside its condition, and say what of that is doubtful."""
    custom = {one.get("property"): one.get("value") for one in rule.get("customProperties") or ()}
    owner, beside = custom.pop(OWNER, None), custom.pop(BESIDE, None) or {}
    foreign = {name: value for name, value in rule.items() if name not in _READ}
    if custom:
        foreign["customProperties"] = [
            one for one in rule["customProperties"] if one.get("property") not in (OWNER, BESIDE)
        ]
    said = {
        "name": rule.get("name") and (rule["name"] if number is None else f"{rule['name']} ({number})"),
        "id": rule.get("id") and (rule["id"] if number is None else f"{rule['id']}-{number}"),
        "dimension": rule.get("dimension"),
        "owner": owner,
        FOREIGN: foreign or None,
    }
    meta = {**(entry.get("meta") or {}), **(beside.get("meta") or {})}
    meta |= {name: value for name, value in said.items() if value is not None}
    given = rule.get("severity")
    severity, doubt = entry.get("severity"), None
    if severity is None:
        severity = SEVERITIES.get(str(given or "warning").lower(), "warning")
        if given is None and entry["type"] in TOO_LATE:
            severity, doubt = "info", "it is judged when rows can't be held any more: it is told of (info)"
        if given is not None and str(given).lower() not in SEVERITIES:
            doubt = f"its severity {given!r} is not known here: it is a warning"
    dressed = {
        "type": entry["type"],
        "kwargs": entry["kwargs"],
        "meta": meta,
        "notes": rule.get("description") or entry.get("notes"),
        "severity": severity,
        **{name: beside[name] for name in ("id", "description") if name in beside},
    }
    return {name: value for name, value in dressed.items() if value is not None}, doubt
