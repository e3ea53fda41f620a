"""Words counts and lists for messages and reports."""

from __future__ import annotations

import datetime as dt
import difflib
import math
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WHY = "--why WHY"  # as commands are printed that need a reason: the command takes WHY for none
HALF_SURROGATE = re.compile("[\ud800-\udfff]")  # which no UTF-8 has
NO_NUMBERS = ("NaN", "Infinity", "-Infinity")  # what JSON has no number for, as reports and --json write it


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


def moment_of_ms(since_1970: int) -> str:
    """Write a moment, given in milliseconds since 1970, to the second in UTC; outside of Python's years as it is given."""
    try:
        return f"{dt.datetime.fromtimestamp(since_1970 / 1000, dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError):
        return f"{since_1970:,} ms since 1970"


def left_out(count: int) -> str:
    """Say how many rows Spark's operators left out.

    Of an aggregate each may be a group of many records.
    """
    one = count == 1
    rows, are = ("row, or group of rows,", "is") if one else ("rows, or groups of rows,", "are")
    return f"{count:,} {rows} came behind the watermark and {are} in neither sink"


def malformed_or_late(count: int) -> str:
    """Write how many records are held that never became rows."""
    return pluralize(count, "malformed or late record")


def records_read(records: int, *, rows_in: int, malformed: int) -> str:
    """Write what was read beside what came out of it, of a transform that keeps state; empty where each record is a row."""
    if records == rows_in:
        return ""
    never = f" + {malformed_or_late(malformed)}" if malformed else ""
    return f"{pluralize(records, 'record')} read; {pluralize(rows_in - malformed, 'row')} out{never}"


def drifted(unknown: Mapping[str, int], missing: Mapping[str, int]) -> list[str]:
    """Say which fields records have beyond the schema, and which of its columns files lack: up to two sentences."""
    told = {
        "fields that the schema does not name": unknown,
        "columns of the schema that files do not have": missing,
    }
    return [f"{what}: {visible(_by_count(counts))}" for what, counts in told.items() if counts]


def _by_count(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return first_few([f"{name} ({pluralize(records, 'record')})" for name, records in ordered])


def first_few(items: Sequence[object], most: int = 5) -> str:
    """Join the first `most` items into one sentence, and tell how many more there are."""
    return "; ".join(map(str, items[:most])) + (
        f"; and {len(items) - most:,} more" if len(items) > most else ""
    )


def meant(name: str, known: Iterable[str]) -> str:
    """Ask whether the known name that is nearest was meant, as the end of a sentence; empty where none is near."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def of_json(content: Any) -> Any:
    """Return content with NaN and the infinities as text, in whatever it nests them."""
    if isinstance(content, Mapping):
        return {name: of_json(value) for name, value in content.items()}
    if isinstance(content, list | tuple | set):
        return [of_json(value) for value in content]
    # numpy's short floats are no Python floats; whole numbers may be too great to be looked at as one
    if (
        not isinstance(content, numbers.Real)
        or isinstance(content, numbers.Rational)
        or math.isfinite(content)
    ):
        return content
    nan, infinite, least = NO_NUMBERS
    return nan if math.isnan(content) else infinite if float(content) > 0 else least


def is_utf8_text(value: bytes) -> bool:
    """Tell whether bytes are a text in UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
