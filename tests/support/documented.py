"""The pages of the documentation, and the code blocks in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.environment import REPOSITORY

FENCED = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A code block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return every page for users and developers, but the decisions, which are of their time."""
    found = [*(REPOSITORY / "docs").glob("*.md"), *(REPOSITORY / "docs/cookbook").glob("*.md")]
    return [*sorted(found), REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]


def blocks(*languages: str) -> list[Block]:
    """Return the code blocks of all pages; of these languages, where some are named."""
    return [
        Block(page=page.name, line=text.count("\n", 0, one.start()) + 1, language=one[2], text=one[3])
        for page in pages()
        for text in [page.read_text()]
        for one in FENCED.finditer(text)
        if not languages or one[2] in languages
    ]


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return FENCED.sub("", page.read_text())
