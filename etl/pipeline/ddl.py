"""Takes a declared schema, in Spark DDL, apart without Spark."""

from __future__ import annotations

import re


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
