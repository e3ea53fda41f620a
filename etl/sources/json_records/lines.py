"""Reads one line, or one value of a topic, as the JSON object that it is to be."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

from etl.common.record_bounds import DEFAULT, Bounds
from etl.common.wording import pluralize
from etl.sources.json_records.values import Beyond, Constant, Members, Misfit, Number

BLANK = " \t\r\n\ufeff"  # around a record
_ARRAY = 'a file that is one array is format="json-array"'
_GOES_ON = "cut off, or an object over several lines, of which each record has one (`jq -c .` writes it so)"
TEXT = r'"(?:[^"\\]++|\\.)*+"'
_TEXT_OR_FIELD = re.compile(
    rf"{TEXT}?|,|[\[{{](?![ \t\r\n]*+[\]}}])", re.DOTALL
)  # the first of each by its bracket
_TEXT_OR_BRACKET = re.compile(rf"{TEXT}?|[\[\]{{}}]", re.DOTALL)
_DECODER = json.JSONDecoder(
    object_pairs_hook=Members, parse_int=Number, parse_float=Number, parse_constant=Constant
)


def members_of(line: bytes, bounds: Bounds = DEFAULT) -> Members:
    """Return the members of a record, which is to be one whole object in UTF-8; raise Misfit where it is not."""
    if len(line) > bounds.record_bytes:
        raise Beyond(bounds, "record_bytes", f"{pluralize(len(line), 'byte')} or more")
    text = _decoded(line)
    _require_within(text, bounds)
    return _parsed(text)


def _decoded(line: bytes) -> str:
    try:
        return line.decode().strip(BLANK)
    except UnicodeDecodeError as error:
        raise Misfit.of_bytes(error, "UTF-8") from error


def value_of(text: str, bounds: Bounds = DEFAULT) -> Any:
    """Parse one JSON value, each number as it is written; raise Misfit where the text is none, or is beyond the bounds."""
    _require_within(text, bounds)
    try:
        return _DECODER.decode(text.strip(BLANK))
    except json.JSONDecodeError as error:
        raise Misfit(_no_json(error)) from error


def _parsed(text: str) -> Members:
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        hint = f"; {_ARRAY}" if text.startswith("[") else ""
        if text.startswith("{") and error.pos >= len(text):
            hint = f"; {_GOES_ON}"
        raise Misfit(f"{_no_json(error)}{hint}") from error
    if not isinstance(value, Members):
        raise Misfit.of(
            value, f"one JSON object a line; {_ARRAY}" if isinstance(value, list) else "a JSON object"
        )
    return value


def _no_json(error: json.JSONDecodeError) -> str:
    """Say where a text is no JSON."""
    at_end = error.pos >= len(error.doc)
    where = f"its end, after character {len(error.doc)}" if at_end else f"character {error.pos + 1}"
    return f"no JSON: {error.msg.removesuffix(' at')} at {where}"


def _require_within(text: str, bounds: Bounds) -> None:
    """Raise Beyond for a record of too many fields, or levels: before its values take memory, or frames of Python."""
    brackets, most = text.count("{") + text.count("["), bounds.record_fields
    if brackets + text.count(",") > most and _has_more_fields(text, most):
        raise Beyond(bounds, "record_fields", f"{pluralize(most + 1, 'field')} or more")
    if brackets > bounds.record_depth and (found := _depth(text)) > bounds.record_depth:
        raise Beyond(bounds, "record_depth", f"{found:,} levels within each other")


def _has_more_fields(text: str, most: int) -> bool:
    """Tell whether there are more members of objects and elements of arrays, at all levels together."""
    signs = (found.start() for found in _TEXT_OR_FIELD.finditer(text))
    fields = (at for at in signs if text[at] != '"')
    return next(islice(fields, most, None), None) is not None


def _depth(text: str) -> int:
    """Count the levels of objects and arrays within each other, brackets within texts not counted."""
    level = deepest = 0
    for found in _TEXT_OR_BRACKET.finditer(text):
        level += {"[": 1, "{": 1, "]": -1, "}": -1}.get(text[found.start()], 0)
        deepest = max(deepest, level)
    return deepest
