"""Parses and writes ranges of delivery numbers, such as `4..7,9`, and limits how large a number may be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from etl.common.errors import SetupError

NumberRange = tuple[int, int]  # the first number and the last
MOST = 2**63 - 1  # PostgreSQL's greatest number
LISTED = 100  # numbers of a list that are written one by one
WIDEST = 1_000_000  # numbers that one range may stand for where they are taken one by one


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


def shortened(numbers: Iterable[int]) -> list[int | str]:
    """Write a long list of numbers with each that follows on the one before it in a range, such as `"4..7"`.

    The order is kept. A list of up to LISTED numbers stays as it is.
    """
    given = list(numbers)
    if len(given) <= LISTED:
        return list(given)
    return [first if first == last else f"{first}..{last}" for first, last in consecutive(given)]


def consecutive(numbers: Iterable[int]) -> list[NumberRange]:
    """Return the ranges of numbers that follow on each other, in the order that they have."""
    ranges: list[NumberRange] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ranges


def numbers_of(what: str, items: Iterable[int | str]) -> Iterator[int]:
    """Yield each number of a list that `shortened` wrote. Raises SetupError where a range is none, or too wide."""
    for item in items:
        if not isinstance(item, str):
            yield item
            continue
        first, last = first_and_last(what, item)
        if last - first >= WIDEST:
            raise SetupError(
                f"{what} {item} is more than {WIDEST:,} numbers", remedy=f"{what} of narrower ranges"
            )
        yield from range(first, last + 1)


def format_ranges(numbers: Iterable[int]) -> str:
    """Write exactly these numbers as `parse_ranges` reads them, such as `4..7,9`."""
    return ",".join(in_ranges(numbers))


def in_ranges(numbers: Iterable[int]) -> list[str]:
    """Write numbers in their order, those that follow on each other as a range, such as `4..7`."""
    ranges = consecutive(sorted(numbers))
    return [str(first) if first == last else f"{first}..{last}" for first, last in ranges]
