"""Parses and writes ranges of delivery numbers, such as `4..7,9`, and limits how large a number may be."""

from __future__ import annotations

import re
from collections.abc import Iterable

from etl.common.errors import SetupError

NumberRange = tuple[int, int]  # the first number and the last
MOST = 2**63 - 1  # PostgreSQL's greatest number


def first_and_last(what: str, text: str) -> NumberRange:
    """Read `A..B` or `A`, which a person wrote for `what`. Raises SetupError where it is neither."""
    match = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", text)
    if match is None:
        raise SetupError(f"{what} {text!r} is neither A..B nor a number", remedy=f"such as {what} 4..7")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise SetupError(f"{what} {text}: {last} comes before {first}", remedy=f"{what} {last}..{first}")
    return first, last


def parse_ranges(what: str, text: str) -> tuple[NumberRange, ...]:
    """Read several of `A..B` or `A`, with commas between. Raises SetupError where one is neither."""
    return tuple(first_and_last(what, one) for one in text.split(","))


def format_ranges(numbers: Iterable[int]) -> str:
    """Write exactly these numbers as `parse_ranges` reads them, such as `4..7,9`."""
    ranges: list[NumberRange] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ",".join(str(first) if first == last else f"{first}..{last}" for first, last in ranges)
