"""The options of a source of CSV: how its files are written. They are called as Spark's, where Spark has the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations

from etl.common.wording import pluralize

PATTERNS = ("dateFormat", "timestampFormat", "timestampNTZFormat")
_FLAGS = ("multiLine", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace")
_SHORT = {
    "sep": (1, 8),
    "quote": (0, 1),
    "escape": (1, 1),
    "decimal": (1, 1),
    "thousands": (0, 1),
    "lineSep": (1, 8),
}
CSV_OPTIONS = frozenset({"encoding", "nullValue", *PATTERNS, *_FLAGS, *_SHORT})
ENCODINGS = ("utf-8", "utf-16", "utf-16le", "utf-16be", "iso-8859-1", "us-ascii", "windows-1252")
REMEDIES = {
    "locale": 'name its signs, such as {"decimal": ",", "thousands": "."}'
}  # of options that are no more
# The parts of a pattern for dates or moments; those of Spark's that have one meaning.
PARTS = {
    "yyyy": "(?P<year>[0-9]{4})",
    "MM": "(?P<month>[0-9]{2})",
    "M": "(?P<month>[0-9]{1,2})",
    "dd": "(?P<day>[0-9]{2})",
    "d": "(?P<day>[0-9]{1,2})",
    "HH": "(?P<hour>[0-9]{2})",
    "H": "(?P<hour>[0-9]{1,2})",
    "mm": "(?P<minute>[0-9]{2})",
    "ss": "(?P<second>[0-9]{2})",
    **{"S" * digits: f"(?P<fraction>[0-9]{{{digits}}})" for digits in range(1, 10)},
    "XXX": "(?P<zone>Z|[-+][0-9]{2}:[0-9]{2})",
}
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z]")


def option_problems(options: Mapping[str, str]) -> list[str]:
    """Say what is wrong with the values of options of CSV, which are all known and texts."""
    found = []
    if (encoding := options.get("encoding", "utf-8")).lower() not in ENCODINGS:
        found.append(
            f"encoding {encoding!r} not among {', '.join(ENCODINGS)}: convert the files to UTF-8 before they land"
        )
    for name, (least, most) in _SHORT.items():
        if name in options and not least <= len(options[name]) <= most:
            found.append(f"{name} {options[name]!r} must be {least} to {pluralize(most, 'character')} long")
    flags = {name: options[name] for name in _FLAGS if name in options}
    found += [
        f"{name} {value!r} must be 'true' or 'false'"
        for name, value in flags.items()
        if value.lower() not in ("true", "false")
    ]
    patterns = {name: options[name] for name in PATTERNS if name in options}
    found += [
        f"{name} {value!r}: {wrong}"
        for name, value in patterns.items()
        if (wrong := _pattern_problem(value, zoned=name == "timestampFormat"))
    ]
    found += _clashes({"sep": ",", "quote": '"', "decimal": "."} | dict(options))
    if "lineSep" in options and options.get("multiLine", "").lower() == "true":
        found.append("lineSep and multiLine are both set: with multiLine any line break ends a record")
    return found


def _clashes(signs: Mapping[str, str]) -> list[str]:
    """Say which signs can't be told apart; a number may have the separator in it, in quotes."""
    found = []
    for one, other in combinations(("sep", "quote", "escape", "lineSep", "decimal", "thousands"), 2):
        first, second = signs.get(one, ""), signs.get(other, "")
        number = {"decimal", "thousands"} & {one, other}
        if not first or not second or {one, other} == {"quote", "escape"} or (one == "sep" and number):
            continue
        if first == second:
            found.append(f"{one} and {other} are both {first!r}")
        elif not number and (first in second or second in first):
            found.append(f"{one} {first!r} and {other} {second!r}: one is in the other")
    return found + [
        f"{name} {signs[name]!r} has a line break, which ends a record"
        for name in ("sep", "quote", "escape")
        if not {"\r", "\n"}.isdisjoint(signs.get(name, ""))
    ]


def pattern_form(pattern: str) -> str:
    """Write a pattern for dates or moments as a regular expression with a group for each part."""

    def part(found: re.Match[str]) -> str:
        if found[1] is not None:
            return re.escape(found[1].replace("''", "'"))
        return PARTS[found[0]] if found[2] else re.escape(found[0])

    return _TOKEN.sub(part, pattern)


def _pattern_problem(pattern: str, *, zoned: bool) -> str:
    parts = [found[0] for found in _TOKEN.finditer(pattern) if found[2]]
    if unknown := [part for part in parts if part not in PARTS]:
        known = [part for part in PARTS if not part.startswith("SS")]
        return f"{unknown[0]} is none of {', '.join(known)}; declare string, and convert it in the transform"
    if len({part[0] for part in parts}) < len(parts):
        return "a part is there twice"
    if not {"yyyy", "M", "d"} <= {part if part == "yyyy" else part[0] for part in parts}:
        return "year, month and day are needed: yyyy, MM and dd"
    return "" if zoned or "XXX" not in parts else "XXX, a zone, is for timestampFormat alone"
