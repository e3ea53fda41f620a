"""Takes a declared schema, in Spark DDL, apart without Spark."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from etl.common.outcome import in_short

# Spark's types, by the words that they begin with in DDL.
TYPES = frozenset(
    {
        *("boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint"),
        *(
            "float",
            "real",
            "double",
            "dec",
            "decimal",
            "numeric",
            "string",
            "char",
            "character",
            "varchar",
            "binary",
        ),
        *("date", "time", "timestamp", "timestamp_ltz", "timestamp_ntz", "interval"),
        *("array", "map", "struct", "variant", "void", "geography", "geometry"),
    }
)
# What is quoted stays, and comments go.
_UNREAD = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\r\n]*|/\*.*?\*/", re.DOTALL)
_TYPE = re.compile(r"\s*([A-Za-z_]\w*)")
_AT = re.compile(r"\(line (\d+), pos (\d+)\)")  # of Spark's parser: the line from 1, the place from 0
_BEFORE = 40  # characters that are shown of what stands before a mistake


def ddl_name(name: str) -> str:
    """Write a name for Spark DDL, in backticks where it needs them."""
    return name if name.isidentifier() and name.isascii() else f"`{name.replace('`', '``')}`"


def ddl_columns(schema: str) -> list[str]:
    """Return the top-level column names of a Spark DDL schema, without parsing the types."""
    return [name for name, _ in ddl_parts(schema)]


def ddl_parts(schema: str) -> list[tuple[str, str]]:
    """Return the top-level columns of a Spark DDL schema: the name, and what is written after it."""
    parts = _parts(_UNREAD.sub(_kept, schema))
    named = (re.match(r"\s*(?:`((?:[^`]|``)*)`|([^\s:`]+))", column) for column in parts)
    return [
        (m[1].replace("``", "`") if m[1] is not None else m[2], m.string[m.end() :].strip(" \t\r\n:"))
        for m in named
        if m
    ]


def _kept(match: re.Match[str]) -> str:
    return match[0] if match[0][0] in "`'\"" else " "


def _parts(text: str) -> list[str]:
    """Part a text at the commas that are neither within brackets nor quoted."""
    parts, depth, start, quote, escaped = [], 0, 0, "", False
    for at, char in enumerate(text):
        if escaped:
            escaped = False
        elif quote:
            escaped = char == "\\" and quote != "`"
            quote = "" if char == quote else quote
        elif char in "`'\"":
            quote = char
        elif char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def unknown_types(schema: str) -> Iterator[tuple[str, str]]:
    """Yield each column that has no type, or one that Spark does not know: its name, and the word; empty: there is none.

    What else may be wrong with a schema Spark's parser says.
    """
    for name, written in ddl_parts(schema):
        yield from ((name, word) for word in _unknown(written))


def _unknown(written: str) -> Iterator[str]:
    """Yield the words of a column's type, at any depth, that name no type."""
    found = _TYPE.match(written)
    word = found[1].lower() if found else ""
    if word not in TYPES:
        yield found[1] if found else written.strip()
    inner = written[written.find("<") + 1 : written.rfind(">")] if found and "<" in written else ""
    if word == "struct" and inner:
        yield from (word for _, member in ddl_parts(inner) for word in _unknown(member))
    elif word in ("array", "map") and inner:
        yield from (word for part in _parts(inner) for word in _unknown(part))


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
