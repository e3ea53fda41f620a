"""Takes a declared schema, in Spark DDL, apart without Spark."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from etl.common.outcome import in_short

_AT = re.compile(r"\(line (\d+), pos (\d+)\)")  # of Spark's parser: the line from 1, the place from 0
_BEFORE = 40  # characters that are shown of what stands before a mistake


def ddl_columns(schema: str) -> list[str]:
    """Return the top-level column names of a Spark DDL schema, without parsing the types."""
    return [name for name, _ in ddl_parts(schema)]


def ddl_parts(schema: str) -> list[tuple[str, str]]:
    """Return the top-level columns of a Spark DDL schema: the name, and what is written after it."""
    columns, depth, start, quote = [], 0, 0, ""
    for at, char in enumerate(schema):
        if quote:
            quote = "" if char == quote else quote
        elif char in "`'\"":
            quote = char
        elif char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
        elif char == "," and depth == 0:
            columns.append(schema[start:at])
            start = at + 1
    columns.append(schema[start:])
    named = (re.match(r"\s*(?:`((?:[^`]|``)*)`|([^\s:`]+))", column) for column in columns)
    return [
        (m[1].replace("``", "`") if m[1] is not None else m[2], m.string[m.end() :].strip(" \t\r\n:"))
        for m in named
        if m
    ]


def ddl_mistake(error: Exception, schema: str) -> str:
    """Return in a line what Spark's parser says of a DDL schema, and behind what it says so."""
    why = in_short(error).partition(" SQLSTATE: ")[0].rstrip(".")
    if (at := _AT.search(str(error))) is None:
        return why
    before = "".join(schema.splitlines(keepends=True)[: int(at[1]) - 1])
    end = len(before) + int(at[2])
    behind = (
        f"behind {' '.join(schema[:end].split())[-_BEFORE:]!r}"
        if schema[:end].strip()
        else "at its beginning"
    )
    return f"{why}, {behind} (character {end + 1})"


def ddl_place(said: str, schema: str, file: Path | None) -> str:
    """Name the Python file that a DDL schema is written in, and the line of its mistake, where one text has it all."""
    if file is None:
        return ""
    written = ast.walk(ast.parse(file.read_bytes()))
    one = next((node for node in written if isinstance(node, ast.Constant) and node.value == schema), None)
    if one is None:
        return f"{file}: "
    at = _AT.search(said)
    spans = (one.end_lineno or one.lineno) - one.lineno == schema.count("\n")  # else "\n" is escaped
    return f"{file}, line {one.lineno + (int(at[1]) - 1 if at and spans else 0)}: "
