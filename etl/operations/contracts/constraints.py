"""Maps what rules promise of each delivered row to the constraints of a contract's columns, and these to rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from etl.operations.contracts.quality_rules import BETWEEN, LENGTHS, NOT_NULL, REGEX, UNIQUE

LENGTH = "expect_column_value_lengths_to_equal"
REQUIRED, BOUNDS = "required", ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_ALONE = frozenset({"column", "mostly"})
_TAKEN = frozenset({*BOUNDS, "minLength", "maxLength", "pattern", "timezone"})


def constraints_of(expectations: Sequence[Mapping[str, Any]], column: str) -> dict[str, Any]:
    """Return what no delivered row breaks, by the keys of a contract.

    A rule that judges all rows, and is not of severity info, holds each row that breaks it.
    """
    found: dict[str, Any] = {}
    for one in expectations:
        kwargs = one.get("kwargs") or {}
        if kwargs.get("column") == column and one.get("severity") != "info":
            for name, value in _promised(one["type"], kwargs):
                found.setdefault(name, value)
    return found


def _promised(kind: str, kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    given = {name: value for name, value in kwargs.items() if name not in _ALONE and value is not None}
    if kind == NOT_NULL and not given:
        yield REQUIRED, True
    elif kind == REGEX and given.keys() == {"regex"}:
        yield "pattern", given["regex"]
    elif kind == LENGTH and given.keys() == {"value"}:
        yield from (("minLength", given["value"]), ("maxLength", given["value"]))
    elif kind == LENGTHS and given.keys() <= {"min_value", "max_value"}:
        names = {"min_value": "minLength", "max_value": "maxLength"}
        yield from ((names[name], value) for name, value in given.items())
    elif kind == BETWEEN and given.keys() <= {"min_value", "max_value", "strict_min", "strict_max"}:
        for word, side in (("min", "Minimum"), ("max", "Maximum")):
            if (value := given.get(f"{word}_value")) is not None:
                yield (f"exclusive{side}" if given.get(f"strict_{word}") else side.lower()), value


def fitting(constraints: Mapping[str, Any], logical: str) -> dict[str, Any]:
    """Return the constraints that the standard has as options of a logical type."""
    of_type = {
        **dict.fromkeys(("integer", "number"), (BOUNDS, (int, float))),
        **dict.fromkeys(("date", "timestamp"), (BOUNDS, (str,))),
        "string": (("minLength", "maxLength", "pattern"), (int, str)),
    }
    names, kinds = of_type.get(logical, ((), ()))
    return {
        name: value
        for name, value in constraints.items()
        if name in names and isinstance(value, kinds) and (name != "pattern" or isinstance(value, str))
    }


def rules_of_column(
    described: Mapping[str, Any], column: str, ruled: Sequence[Mapping[str, Any]], *, held: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the expectations that a column's own constraints are, but for those that a rule of the contract has already.

    `held`: rows without it are held whatever the suite says.
    """
    there = constraints_of(ruled, column)
    unique = any(one["type"] == UNIQUE and one["kwargs"].get("column") == column for one in ruled)
    options = dict(described.get("logicalTypeOptions") or {})
    if (size := _size(described)) is not None:
        options.setdefault("maxLength", size)
    left = {name: value for name, value in options.items() if there.get(name) != value}
    required = described.get(REQUIRED) or described.get("primaryKey")
    if required and not held and REQUIRED not in there:
        yield _rule(NOT_NULL, column, "is given", {})
    if described.get("unique") and not unique:
        yield _rule(UNIQUE, column, "is unique", {}, severity="info")
    if bounds := _bounds(left):
        yield _rule(BETWEEN, column, "is within its bounds", bounds)
    lengths = {"min_value": left.get("minLength"), "max_value": left.get("maxLength")}
    if given := {name: value for name, value in lengths.items() if value is not None}:
        yield _rule(LENGTHS, column, "is of a right length", given)
    if pattern := left.get("pattern"):
        yield _rule(REGEX, column, "has its pattern", {"regex": pattern})


def untaken(described: Mapping[str, Any]) -> list[str]:
    """Return the options of a column's type that no rule is made of."""
    options = described.get("logicalTypeOptions") or {}
    of_size = described.get("logicalType") in ("integer", "number") or options.get("format") == "binary"
    return sorted(options.keys() - _TAKEN - ({"format"} if of_size else set()))


def _size(described: Mapping[str, Any]) -> int | None:
    """Return how many characters a column of texts takes by its type in the database, such as varchar(20)."""
    word, _, size = str(described.get("physicalType") or "").lower().rstrip(") ").partition("(")
    return int(size) if "char" in word and size.strip().isdigit() else None


def _bounds(options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word, side in (("min", "Minimum"), ("max", "Maximum")):
        if (value := options.get(side.lower())) is not None:
            found[f"{word}_value"] = value
        elif (value := options.get(f"exclusive{side}")) is not None:
            found |= {f"{word}_value": value, f"strict_{word}": True}
    return found


def _rule(
    kind: str, column: str, says: str, given: Mapping[str, Any], severity: str = "warning"
) -> dict[str, Any]:
    return {
        "type": kind,
        "kwargs": {"column": column, **given},
        "meta": {"name": f"{column} {says}"},
        "severity": severity,
    }
