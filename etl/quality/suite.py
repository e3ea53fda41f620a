"""Loads a suite from GX's own JSON and finds every mistake in it then, none while a batch waits."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etl.common.wording import HALF_SURROGATE, meant, pluralize
from etl.quality.gx import registered
from etl.quality.suite_file import digest, read_json
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
OF_OBJECTS = frozenset({"result_format", "quantile_ranges"})  # arguments that may be one without a parameter
DIMENSIONS = (  # of quality, as the Open Data Contract Standard names them
    *("accuracy", "completeness", "conformity", "consistency", "coverage", "timeliness", "uniqueness"),
)
LONGEST_ID = 300  # characters by which pages know a rule
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
    rule_id: str | None = None  # what it is known by over its names; None: its reason
    dimension: str | None = None  # what of quality it is about
    owner: str | None = None  # who is asked about it; None: whoever is about the pipeline

    @property
    def known_by(self) -> str:
        """Return the name by which the rule's history is kept."""
        return self.rule_id or self.reason

    @property
    def named(self) -> str:
        """Return what messages call the rule: its place, counted from 1, and its reason."""
        return f"expectation {self.number + 1} ({self.reason})"


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
    document = read_json(source)
    problems = [
        f"unknown key {key!r} in the suite{meant(key, SUITE_KEYS)}"
        for key in sorted(set(document) - SUITE_KEYS)
    ]
    if document.get("suite_parameters"):
        problems.append("suite_parameters are not supported: write the values into the expectations")
    rules: list[DeclaredRule] = []
    for number, entry in enumerate(document["expectations"]):
        if (text := next(_unstorable(entry), None)) is not None:
            problems.append(
                f"expectation {number + 1}: it has {text!r}, and PostgreSQL holds no text with NUL or half a surrogate"
            )
            continue
        if (digits := next(_unbounded(entry), None)) is not None:
            problems.append(
                f"{_called(number, entry)}: it has a number of {pluralize(digits, 'digit')}, and no double is so large:"
                " write a smaller one, or leave it out"
            )
            continue
        try:
            rules.append(_declared(number, entry))
        except ValueError as wrong:
            problems.append(f"{_called(number, entry)}: {wrong}")
    problems += _reasons_in_conflict(rules)
    return DeclaredSuite(
        name=document["name"], digest=digest(document), rules=tuple(rules), problems=tuple(problems)
    )


def _unstorable(part: Any) -> Iterator[str]:
    """Yield the texts within a part of a suite that PostgreSQL, in which reports and reasons are, can't hold."""
    if isinstance(part, str) and ("\0" in part or HALF_SURROGATE.search(part)):
        yield part
    elif isinstance(part, Mapping):
        for name, value in part.items():
            yield from (*_unstorable(name), *_unstorable(value))
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _unstorable(value)


def _unbounded(part: Any) -> Iterator[int]:
    """Yield how many digits each whole number within a part of a suite has that is beyond a double, which GX makes of it."""
    if isinstance(part, int) and abs(part) > sys.float_info.max:
        yield 1 + int(math.log10(abs(part)))
    elif isinstance(part, Mapping | list | tuple):
        for value in part.values() if isinstance(part, Mapping) else part:
            yield from _unbounded(value)


def _called(number: int, entry: Any) -> str:
    """Return what messages call an entry of a suite that is no rule: by its name and its type, as far as it has them."""
    meta, kind = (entry.get("meta"), entry.get("type")) if isinstance(entry, Mapping) else (None, None)
    name = meta.get("name") if isinstance(meta, Mapping) else None
    called = f"expectation {number + 1}{f' ({name or kind})' if name or kind else ''}"
    return f"{called}: {kind}" if name and kind else called


def _declared(number: int, entry: Any) -> DeclaredRule:
    """Read one entry of a suite as a rule; raise ValueError that says what is wrong with it."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("type"), str):
        raise ValueError("it has no type")
    if unknown := sorted(set(entry) - EXPECTATION_KEYS):
        keys = ", ".join(f"{key!r}{meant(key, EXPECTATION_KEYS)}" for key in unknown)
        raise ValueError(f"it has unknown keys {keys}")
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
        rule_id=_text_of(meta, "id", longest=LONGEST_ID),
        dimension=_dimension(meta),
        owner=_text_of(meta, "owner", longest=100),
    )


def _text_of(meta: Mapping[str, Any], key: str, *, longest: int) -> str | None:
    given = meta.get(key)
    if given is None or (isinstance(given, str) and 0 < len(given.strip()) <= longest):
        return given
    raise ValueError(f"its meta.{key} is {given!r}, and no text of 1 to {pluralize(longest, 'character')}")


def _dimension(meta: Mapping[str, Any]) -> str | None:
    given = meta.get("dimension")
    if given is None or given in DIMENSIONS:
        return given
    raise ValueError(
        f"its meta.dimension is {given!r}{meant(str(given), DIMENSIONS)}, and none of {', '.join(DIMENSIONS)}"
    )


def _expectation(entry: Mapping[str, Any]) -> Any:
    registered()
    from great_expectations.exceptions.exceptions import ExpectationNotFoundError, GreatExpectationsError
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
    from great_expectations.expectations.registry import (
        get_expectation_impl,
        list_registered_expectation_implementations,
    )

    kind = entry["type"]
    kwargs = entry.get("kwargs") or {}
    if not isinstance(kwargs, Mapping):
        raise ValueError(f"kwargs is {kwargs!r}; write its arguments as an object, by name")
    if parameters := [
        name for name, value in kwargs.items() if isinstance(value, dict) and "$PARAMETER" in value
    ]:
        raise ValueError(f"it takes {', '.join(parameters)} from suite parameters, which are not supported")
    given = {key: entry[key] for key in ("meta", "notes", "description", "severity", "id") if entry.get(key)}
    try:
        fields = get_expectation_impl(kind).__fields__
        if told := [*_without_a_value(fields, kwargs), *_made_another(fields, kwargs)]:
            raise ValueError("; ".join(told))
        return ExpectationConfiguration(type=kind, kwargs=dict(kwargs), **given).to_domain_obj()
    except ExpectationNotFoundError as wrong:
        known = list_registered_expectation_implementations()
        raise ValueError(f"there is no such type{meant(kind, known)}") from wrong
    except (GreatExpectationsError, ValueError, TypeError) as wrong:
        errors = getattr(wrong, "errors", None)  # Pydantic's
        text = _in_words(errors(), kind, kwargs) if errors else "; ".join(str(wrong).split("\n"))
        raise ValueError(text) from wrong


def _without_a_value(fields: Mapping[str, Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Say of which arguments GX would make a suite parameter that names none, as it does of "", [] and {}."""
    return [
        f"{name} is {json.dumps(value, default=str)}, and that is no value: write one, or leave {name} out"
        for name, value in kwargs.items()
        if name in fields and name not in OF_OBJECTS and _is_parameter_alone(fields[name], value)
    ]


def _made_another(fields: Mapping[str, Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Say of which arguments Pydantic would make another value: a number or a text of true, a whole number of 1.5."""
    told = []
    for name in (name for name in kwargs if name in fields):
        value = kwargs[name]
        types = [one.outer_type_ for one in fields[name].sub_fields or [fields[name]]]
        takes = next(
            (base for base in (bool, float, int, str) if any(_is_of(one, base) for one in types)), None
        )
        cut = takes is int and isinstance(value, float) and not value.is_integer()
        if takes and (cut or (isinstance(value, bool) and takes is not bool)):
            told.append(f"{name} is {json.dumps(value)}, and not {_WORDS[takes]}")
    return told


def _is_of(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def _is_parameter_alone(field: Any, value: Any) -> bool:
    """Tell whether, of all types that Pydantic has for an argument, only that of a suite parameter takes the value."""
    types = field.sub_fields or []
    taking = [one.outer_type_ for one in types if not one.validate(value, {}, loc=field.name)[1]]
    return len(types) > 1 and taking == [dict]


_WORDS = {float: "a number", int: "a whole number", str: "a text"}
_TAKEN = {  # by Pydantic's name of the error
    "type_error.float": "a number",
    "type_error.integer": "a whole number",
    "type_error.str": "a text",
    "type_error.list": "a list",
    "type_error.sequence": "a list",
    "type_error.bool": "true or false",
    "value_error.number.not_le": "at most {limit_value:g}",
    "value_error.number.not_ge": "at least {limit_value:g}",
}


def _in_words(errors: Sequence[Mapping[str, Any]], kind: str, kwargs: Mapping[str, Any]) -> str:
    """Say what Pydantic found wrong with the arguments of an expectation."""
    from great_expectations.expectations.registry import get_expectation_impl

    takes = {name for name in get_expectation_impl(kind).__fields__ if name not in EXPECTATION_KEYS}
    unknown = {str(error["loc"][0]) for error in errors if error["type"] == "value_error.extra"}
    told = [f"it has no argument {name!r}{meant(name, takes)}" for name in sorted(unknown)]
    wrong: dict[str, list[Mapping[str, Any]]] = {}
    for error in errors:
        if (name := str(error["loc"][0])) not in unknown:
            wrong.setdefault(name, []).append(error)
    whole = wrong.pop("__root__", [])  # often no more than what the others bring about
    for name, found in wrong.items():
        if name in kwargs:
            told.append(f"{name} is {json.dumps(kwargs[name], default=str)}{_taken(found)}")
        elif not any(name in sentence for sentence in told):
            told.append(f"it lacks {name}")
    return "; ".join(told or [str(error["msg"]) for error in whole])


def _taken(errors: Sequence[Mapping[str, Any]]) -> str:
    """Say what an argument takes instead; a suite parameter, which each takes too, is not supported."""
    takes = [
        _TAKEN[error["type"]].format(**error.get("ctx", {})) for error in errors if error["type"] in _TAKEN
    ]
    if takes:
        return f", and not {' or '.join(dict.fromkeys(takes))}"
    return f": {'; '.join(str(error['msg']) for error in errors)}"


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
        f"{pluralize(times, 'expectation')} have the reason {reason!r}: give each its own meta.name"
        for reason, times in counted.items()
        if times > 1
    ]
    reserved = [
        f"{rule.named}: the reason is Sluice's own, choose another meta.name"
        for rule in rules
        if rule.reason in RESERVED_REASONS
    ]
    known = Counter(rule.known_by for rule in rules)
    shared = [
        f"{rule.named}: its meta.id {rule.rule_id!r} is what another rule is known by, by its id or its name: take another"
        for rule in rules
        if rule.rule_id is not None and known[rule.rule_id] > 1
    ]
    return doubled + reserved + shared


def wrong_json_schema(schema: Any) -> str | None:
    """Say what is wrong with the JSON Schema of a rule; None where nothing is.

    What it refers to must be in it, or be one of JSON Schema's own: each task would fetch anything else, row by row.
    """
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY

    if isinstance(schema, Mapping) and not isinstance(schema.get("$schema", ""), str):
        return f"its json_schema is no JSON Schema: its $schema is {schema['$schema']!r}, and no text"
    validator = validator_for(schema)
    try:
        validator.check_schema(schema)
        if (nowhere := next(_refers_nowhere(schema, validator), None)) is not None:
            return f"its json_schema has {nowhere}, and no schema of that name is in it: define it there"
        for text in ("null", "true", "0", '""', "[]", "{}"):
            validator(schema, registry=REGISTRY).is_valid(json.loads(text))
    except SchemaError as wrong:
        return f"its json_schema is no JSON Schema, at {wrong.json_path}: {wrong.message}"
    except RecursionError:
        return "its json_schema has a $ref that leads back to itself without end: take it out"
    return None


_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}  # the words of a JSON Schema that refer to another one


def _refers_nowhere(schema: Any, validator: Any) -> Iterator[str]:
    """Yield each reference, of the schema or of what it refers to, that leads to no schema which is at hand."""
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    of = specification_with(validator.META_SCHEMA["$schema"])
    root = of.create_resource(schema)
    left, seen = [(REGISTRY.resolver_with_root(root), root)], set[int]()
    while left:
        resolver, part = left.pop()
        if id(part.contents) in seen:
            continue
        seen.add(id(part.contents))
        left += [(resolver.in_subresource(one), one) for one in part.subresources()]
        for word in _REFERENCES & part.contents.keys() if isinstance(part.contents, Mapping) else ():
            ref = part.contents[word]
            try:
                found = resolver.lookup(ref) if isinstance(ref, str) else None
            except Unresolvable:
                found = None
            if found is None or not isinstance(found.contents, Mapping | bool):
                yield f"{word} {ref!r}"
            else:
                left.append((found.resolver, of.create_resource(found.contents)))
