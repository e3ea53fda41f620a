"""Reads one line, or one value of a topic, as the JSON object that it is to be."""

from __future__ import annotations

import json
import re

from etl.sources.json_records.values import Constant, Members, Misfit, Number

BLANK = " \t\r\n\ufeff"  # around a record
_ARRAY = 'a file that is one array is format="json-array"'
DEEPEST = 200  # levels of objects and arrays within each other: Python has frames for some 300
_TEXT_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
_DECODER = json.JSONDecoder(
    object_pairs_hook=Members, parse_int=Number, parse_float=Number, parse_constant=Constant
)


def members_of(line: bytes) -> Members:
    """Return the members of a record, which is to be one whole object in UTF-8; raise Misfit where it is not."""
    return _parsed(_decoded(line))


def _decoded(line: bytes) -> str:
    try:
        return line.decode().strip(BLANK)
    except UnicodeDecodeError as error:
        raise Misfit.of_bytes(error, "UTF-8") from error


def _parsed(text: str) -> Members:
    if text.count("{") + text.count("[") > DEEPEST and (found := _depth(text)) > DEEPEST:
        raise Misfit(f"found {found} levels within each other, wanted {DEEPEST} at most")
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        seen = error.msg.removesuffix(" at")
        where = (
            f"character {error.pos + 1}" if error.pos < len(text) else f"its end, after character {len(text)}"
        )
        hint = f"; {_ARRAY}" if text.startswith("[") else ""
        raise Misfit(f"no JSON: {seen} at {where}{hint}") from error
    if not isinstance(value, Members):
        raise Misfit.of(
            value, f"one JSON object a line; {_ARRAY}" if isinstance(value, list) else "a JSON object"
        )
    return value


def _depth(text: str) -> int:
    """Count the levels of objects and arrays within each other, brackets within texts not counted."""
    level = deepest = 0
    for found in _TEXT_OR_BRACKET.finditer(text):
        level += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        deepest = max(deepest, level)
    return deepest
