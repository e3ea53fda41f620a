"""The pages of the documentation, the code blocks in them, and what recipes say becomes of a file."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.environment import REPOSITORY

FENCED = re.compile(r'^( *)```(\S*)(?: title="(.*?)")?\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)
ROW = re.compile(r"^\| ?(.*?) ?\|$", re.MULTILINE)
DECLARES = "PIPELINE = "

# What a block need not say again: a declaration's `...` stands for the fields that it leaves out.
BEGINS = """
import datetime as dt
from datetime import timedelta
from etl.pipeline import *

def transform(df):
    return df

"""
LEFT_OUT = {
    "name": '"orders"',
    "sources": '(Files("orders/*.jsonl"),)',
    "schema": '"id bigint, at timestamp"',
    "sink": "Append()",
    "transform": "transform",
}


@dataclass(frozen=True, kw_only=True)
class Block:
    """A code block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A declaration of a page, files that land, and the table of what is delivered of them."""

    page: str
    declaration: str
    files: Mapping[str, str]  # by their paths below the landing
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        return f"{self.page}: {', '.join(self.files)}"


def pages() -> list[Path]:
    """Return every page for users and developers, but the decisions, which are of their time."""
    found = [*(REPOSITORY / "docs").glob("*.md"), *(REPOSITORY / "docs/cookbook").glob("*.md")]
    return [*sorted(found), REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]


def blocks(*languages: str) -> list[Block]:
    """Return the code blocks of all pages; of these languages, where some are named."""
    return [
        Block(page=page.name, line=text.count("\n", 0, one.start()) + 1, language=one[2], text=one[4])
        for page in pages()
        for text in [page.read_text()]
        for one in FENCED.finditer(text)
        if not languages or one[2] in languages
    ]


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return FENCED.sub("", page.read_text())


def whole_declaration(block: str) -> str:
    """Return a block with a declaration as a file that can be loaded."""
    tree = ast.parse(block)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.args) == "...":
            call.args = []
            given = {keyword.arg for keyword in call.keywords}
            call.keywords += [
                ast.keyword(arg=name, value=ast.parse(value, mode="eval").body)
                for name, value in LEFT_OUT.items()
                if name not in given
            ]
    return BEGINS + ast.unparse(tree)


def recipes() -> list[Recipe]:
    """Return all recipes that say what becomes of a file: a declaration, titled blocks, then a table."""
    return [one for page in pages() for one in _recipes(page.name, page.read_text())]


def _recipes(page: str, text: str) -> list[Recipe]:
    found: list[Recipe] = []
    declaration, files = "", dict[str, str]()
    starts = [one.start() for one in FENCED.finditer(text)]
    for one, following in zip(FENCED.finditer(text), [*starts, len(text)][1:], strict=True):
        if DECLARES in one[4]:
            declaration, files = whole_declaration(one[4]), {}
        if one[3]:
            files = files | {one[3]: one[4]}
            if table := TABLE.search(text, one.end(), following):
                columns, _, *rows = (
                    [cell.strip() for cell in row.split("|")] for row in ROW.findall(table[0])
                )
                found.append(
                    Recipe(page=page, declaration=declaration, files=files, columns=columns, rows=rows)
                )
    return found
