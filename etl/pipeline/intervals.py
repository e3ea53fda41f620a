"""Finds the interval of a landed file by its path: `dt={interval:%Y-%m-%d}` is a day, `{interval:%Y%m}` a month."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import cached_property

from etl.common.errors import SetupError

_TEMPLATE = re.compile(r"(?P<before>[^{}]*)\{interval:(?P<format>[^{}]+)\}(?P<after>[^{}]*)")
_DIGITS = {"Y": 4, "m": 2, "d": 2, "H": 2, "M": 2, "j": 3}
_FINEST = "MHdjmY"  # from the shortest span to the longest


def is_template(interval: str) -> bool:
    """Tell whether a declared interval is a path's template and no column."""
    return "{" in interval


def moment_of(start: dt.date | dt.datetime) -> dt.datetime:
    """Return a declared start as a moment; where it names no time zone, in UTC."""
    moment = start if isinstance(start, dt.datetime) else dt.datetime.combine(start, dt.time())
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def moment(option: str, text: str) -> dt.datetime:
    """Parse an ISO date or time, in UTC where it says nothing else. Raises SetupError that names the option."""
    try:
        return moment_of(dt.datetime.fromisoformat(text))
    except (ValueError, OverflowError) as error:  # in UTC it may be before the year 1, or after 9999
        raise SetupError(f"{option} {text}: {error}", remedy=f"such as {option} 2013-03-01") from error


def named_interval(option: str, start: str, end: str) -> tuple[dt.datetime, dt.datetime]:
    """Parse the two ends of an interval that a person wrote, the end exclusive.

    Raises SetupError that names the option, also for an interval that is empty.
    """
    interval = moment(option, start), moment(option, end)
    if interval[1] <= interval[0]:
        raise SetupError(
            f"{option} {start} {end} is empty", remedy="name a start before the end, which is exclusive"
        )
    return interval


@dataclass(frozen=True, kw_only=True)
class PathTemplate:
    """Where in a path its interval stands. ValueError, on being made, says what is wrong with it."""

    text: str

    def __post_init__(self) -> None:
        directives = re.findall("%(.)", self._declared["format"])
        unknown = sorted({f"%{one}" for one in directives if one not in _DIGITS})
        if unknown or "Y" not in directives or len(set(directives)) < len(directives):
            known = ", ".join(f"%{one}" for one in _DIGITS)
            raise ValueError(f"{self.text!r} must name the year by %Y, and may name each of {known} once")

    @cached_property
    def _declared(self) -> re.Match[str]:
        match = _TEMPLATE.fullmatch(self.text)
        if match is None:
            raise ValueError(
                f"{self.text!r} must hold {{interval:…}} once, such as 'dt={{interval:%Y-%m-%d}}'"
            )
        return match

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        declared = self._declared
        parts = re.split("%(.)", declared["format"])
        texts, directives = parts[::2], parts[1::2]
        around = [f"/{declared['before']}{texts[0]}", *texts[1:]]
        around[-1] += f"{declared['after']}/"
        moment = re.escape(texts[0]) + "".join(
            _digits(directive, around[n], around[n + 1]) + re.escape(texts[n + 1])
            for n, directive in enumerate(directives)
        )
        before, after = re.escape(declared["before"]), re.escape(declared["after"])
        end = "" if declared["after"] and not declared["after"][-1].isalnum() else "(?![0-9A-Za-z])"
        return re.compile(rf"(?<![^/]){before}(?P<moment>{moment}){after}{end}")

    @property
    def groups(self) -> tuple[str, list[str]]:
        """Return the pattern of a path as Java takes it, and which directive each of its groups is of."""
        return self._pattern.pattern.replace("(?P<moment>", "(?:"), re.findall(
            "%(.)", self._declared["format"]
        )

    @cached_property
    def beginnings(self) -> tuple[PathTemplate, ...]:
        """Return the templates of folders above the interval's own, with a slash behind: `%Y/%m/` of `%Y/%m/%d`.

        What is below has its time within theirs. A bare `%Y` is none of them, for a number of four digits may be anything.
        """
        before, parts = self._declared["before"], self._declared["format"].split("/")
        heads = [("/".join(parts[:n]), "/".join(parts[n:])) for n in range(1, len(parts))]
        return tuple(
            PathTemplate(text=f"{before}{{interval:{head}}}/")
            for head, rest in heads
            if "%Y" in head and _is_coarser(head, rest) and re.sub("%.", "", before + head)
        )

    def overlaps(self, path: str, interval: tuple[dt.datetime, dt.datetime]) -> bool:
        """Tell whether the path names a time within the interval, whose end is exclusive."""
        named = self.of(path)
        return named is not None and named[0] < interval[1] and named[1] > interval[0]

    def of(self, path: str) -> tuple[dt.datetime, dt.datetime] | None:
        """Return the start and the end, exclusive, of a path's interval in UTC; None when it names none."""
        match, declared = self._pattern.search(path), self._declared
        if match is None:
            return None
        try:
            start = dt.datetime.strptime(match["moment"], declared["format"]).replace(tzinfo=dt.UTC)
        except ValueError:  # a 31st of February
            return None
        unit = next(one for one in _FINEST if f"%{one}" in declared["format"])
        try:
            return start, _after(start, unit)
        except (ValueError, OverflowError):  # the last day of the calendar, which often stands for "no end"
            return start, dt.datetime.max.replace(tzinfo=dt.UTC)


def _digits(directive: str, left: str, right: str) -> str:
    """Return the group of a directive's digits, by the texts to its left and right.

    Zeros may be left out in front, as Spark and Hive do, where no other digit can stand beside it.
    """
    width = _DIGITS[directive]
    alone = left and right and not left[-1].isdigit() and not right[0].isdigit()
    return f"([0-9]{{1,{width}}})" if alone and directive != "Y" else f"([0-9]{{{width}}})"


def _is_coarser(head: str, rest: str) -> bool:
    """Tell whether each directive of one part of a format is of a longer span than all of another."""
    finest = min(_FINEST.index(one) for one in re.findall("%(.)", head))
    return all(_FINEST.index(one) < finest for one in re.findall("%(.)", rest))


def _after(start: dt.datetime, unit: str) -> dt.datetime:
    if unit == "Y":
        return start.replace(year=start.year + 1)
    if unit == "m":
        return (start.replace(day=1) + dt.timedelta(days=32)).replace(day=1)
    lengths = {"M": dt.timedelta(minutes=1), "H": dt.timedelta(hours=1)}
    return start + lengths.get(unit, dt.timedelta(days=1))
