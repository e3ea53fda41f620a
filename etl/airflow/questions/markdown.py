"""Writes values of others as Markdown that shows them as they are: light to import."""

from __future__ import annotations

import re

from etl.common.wording import visible

_MEANT = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~&:@^$=])")


def escaped(text: str, most: int | None = None) -> str:
    """Write a text of others on one line, cut to `most` characters, so that none of it is markup, a link or HTML."""
    line = " ".join(visible(" ".join(text.split())).split())
    if most is not None and len(line) > most:
        line = line[: most - 1] + "…"
    return _MEANT.sub(r"\\\1", line)
