"""Words counts and lists for messages and reports."""

from __future__ import annotations

from collections.abc import Sequence


def pluralize(count: int, one: str, more: str | None = None) -> str:
    """Write the count with its noun in the right number: `1 batch`, `2 batches`.

    `more` is `one` with an s, if not given.
    """
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def visible(text: str) -> str:
    """Write a text with each control character as Python escapes it: PostgreSQL takes no NUL, and a terminal obeys."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def left_out(count: int) -> str:
    """Say how many rows Spark's operators left out.

    Of an aggregate each may be a group of many records.
    """
    one = count == 1
    rows, are = ("row, or group of rows,", "is") if one else ("rows, or groups of rows,", "are")
    return f"{count:,} {rows} came behind the watermark and {are} in neither sink"


def first_few(items: Sequence[object], most: int = 5) -> str:
    """Join the first `most` items into one sentence, and tell how many more there are."""
    return "; ".join(map(str, items[:most])) + (
        f"; and {len(items) - most:,} more" if len(items) > most else ""
    )
