"""Finds rules of one suite of which not both can hold, before a batch meets them."""

from __future__ import annotations

import datetime as dt
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from etl.quality.mistakes.bounds import bounds_of, has_zone, is_plain, word
from etl.quality.suite import DeclaredRule
from etl.quality.verdict import Severity

IN_SET, NOT_IN_SET = "expect_column_values_to_be_in_set", "expect_column_values_to_not_be_in_set"
NULL, NOT_NULL = "expect_column_values_to_be_null", "expect_column_values_to_not_be_null"
REGEX, NO_REGEX = "expect_column_values_to_match_regex", "expect_column_values_to_not_match_regex"
BETWEEN = "expect_column_values_to_be_between"  # by Spark, in the pass; those of others by GX, in Python
LEAST, GREATEST = "expect_column_min_to_be_between", "expect_column_max_to_be_between"
MEAN, MEDIAN = "expect_column_mean_to_be_between", "expect_column_median_to_be_between"
# What a rule holds to its bounds, by its type: two rules of one figure are held against each other.
FIGURES = {
    "expect_column_value_lengths_to_be_between": "length",
    "expect_column_value_lengths_to_equal": "length",
    "expect_table_row_count_to_be_between": "rows",
    "expect_table_row_count_to_equal": "rows",
    "expect_table_column_count_to_be_between": "columns",
    "expect_table_column_count_to_equal": "columns",
    BETWEEN: "value",
}
# None of these figures of a column is beyond one that follows, or beyond its values' own bounds.
_IN_ORDER = ((LEAST,), (MEAN, MEDIAN), (GREATEST,))
_CONDITIONS = ("row_condition", "condition_parser", "filter_conditions")
# Texts that a cast makes numbers, days, moments or truth values of, so that two of them may be one value.
_OF_OTHERS = {"t", "true", "y", "yes", "f", "false", "n", "no", "inf", "infinity", "nan"}
_WORD = re.compile(r"[^\W\d_].*", re.DOTALL)

TAKE_OUT = "take one out"
CORRECT = "take one out, or correct a bound"


def contradictions(rules: Sequence[DeclaredRule]) -> list[str]:
    """Say of which two rules not both can hold, whatever a batch has, but for one without such values.

    They are of one column and one condition, and neither is about information alone: those stop and hold nothing.
    """
    judging = [rule for rule in rules if rule.severity is not Severity.INFO]
    return [
        f"{one.named} and {other.named} contradict each other{_where(one)}: {why}"
        for one, other in combinations(judging, 2)
        if _domain(one) == _domain(other) and (why := _contradict(one, other))
    ]


def _where(rule: DeclaredRule) -> str:
    return f" over {', '.join(rule.columns)}" if rule.columns else ""


def _domain(rule: DeclaredRule) -> tuple[Any, ...]:
    return (rule.columns, *(repr(getattr(rule.expectation, name, None)) for name in _CONDITIONS))


def _contradict(one: DeclaredRule, other: DeclaredRule) -> str | None:
    """Say why two rules over the same rows can't both hold, each for as many of them as its `mostly` asks."""
    if sum(getattr(each.expectation, "mostly", 1) for each in (one, other)) <= 1:
        return None
    return next(filter(None, (ask(*each) for ask in _ASKED for each in ((one, other), (other, one)))), None)


def _nulls(one: DeclaredRule, other: DeclaredRule) -> str | None:
    if (one.kind, other.kind) == (NULL, NOT_NULL):
        return f"no value is both null and not null; {TAKE_OUT}"
    return None


def _patterns(one: DeclaredRule, other: DeclaredRule) -> str | None:
    if (one.kind, other.kind) == (REGEX, NO_REGEX) and one.expectation.regex == other.expectation.regex:
        return f"no text both matches {one.expectation.regex!r} and does not; {TAKE_OUT}"
    return None


def _exclusions(one: DeclaredRule, other: DeclaredRule) -> str | None:
    if (one.kind, other.kind) != (IN_SET, NOT_IN_SET):
        return None
    allowed, excluded = one.expectation.value_set, other.expectation.value_set
    if allowed and all(value in excluded for value in allowed):
        return "the one excludes all that the other allows; take values out of one, or one of them"
    return None


def _sets(one: DeclaredRule, other: DeclaredRule) -> str | None:
    if one.kind != IN_SET or other.kind != IN_SET or one.number > other.number:
        return None
    sets = one.expectation.value_set, other.expectation.value_set
    told = next((told for told in map(_told_apart, (_numbers, _words)) if told(*sets)), None)
    if told is not None:
        return f"no value is in both of their sets; {TAKE_OUT}, or make one set of both"
    return None


def _told_apart(read: Callable[[Sequence[Any]], set[Any]]) -> Callable[..., bool]:
    """Return what tells whether two sets have no value in common, read as `read` does; a set that it can't read is empty."""

    def apart(*sets: Sequence[Any]) -> bool:
        here, there = map(read, sets)
        return bool(here and there) and not here & there

    return apart


def _numbers(values: Iterable[Any]) -> set[Any]:
    values = list(values or ())
    return set(values) if all(map(is_plain, values)) else set()


def _words(values: Iterable[Any]) -> set[Any]:
    """Read texts as the loosest collation does; none where one is no mere word: "1" and "1.0" are one value of a number."""
    read = {_folded(value) if isinstance(value, str) else "" for value in values or ()}
    return read if all(_WORD.fullmatch(one) and one not in _OF_OTHERS for one in read) else set()


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text)
    return "".join(char for char in plain if not unicodedata.combining(char)).casefold().strip()


def _values_and_bounds(one: DeclaredRule, other: DeclaredRule) -> str | None:
    """Hold the values of a set against the bounds of the same column's values, or of its least or greatest."""
    if one.kind != IN_SET or other.kind not in (BETWEEN, LEAST, GREATEST) or not (span := Span.of(other)):
        return None
    if other.kind != BETWEEN and one.expectation.mostly != 1:
        return None
    values = one.expectation.value_set or ()
    if span.kind == ("day", False):
        values = list(_days(values))
    elif not all(map(is_plain, values)):
        return None
    if values and not any(span.has(value) for value in values):
        return f"no value of the set is within {span}; take one out, or correct a bound or the set"
    return None


def _days(values: Iterable[Any]) -> Iterator[dt.date]:
    """Yield the days that texts are; none where one is no day."""
    try:
        yield from [dt.date.fromisoformat(value) for value in values]
    except (TypeError, ValueError):
        return


@dataclass(frozen=True, kw_only=True)
class Span:
    """What a rule holds a figure to."""

    low: Any = None  # None: it has no bound
    high: Any = None
    strict_low: bool = False
    strict_high: bool = False

    @classmethod
    def of(cls, rule: DeclaredRule) -> Span | None:
        """Return the span of a rule; None where it has no bound."""
        expectation, bounds = rule.expectation, bounds_of(rule)
        if is_plain(value := getattr(expectation, "value", None)):
            return cls(low=value, high=value)
        if not bounds:
            return None
        return cls(
            low=bounds.get("min_value"),
            high=bounds.get("max_value"),
            strict_low=bool(getattr(expectation, "strict_min", False)),
            strict_high=bool(getattr(expectation, "strict_max", False)),
        )

    def __str__(self) -> str:
        low = "" if self.low is None else f"{'more than' if self.strict_low else 'at least'} {self.low}"
        high = "" if self.high is None else f"{'less than' if self.strict_high else 'at most'} {self.high}"
        return " and ".join(filter(None, (low, high)))

    @property
    def kind(self) -> tuple[str, bool]:
        """Return the kind of values that the bounds compare with, and whether these have a zone."""
        bound = self.high if self.low is None else self.low
        return word(bound), has_zone(bound)

    def has(self, value: Any) -> bool:
        """Tell whether a value of the bounds' kind is within them."""
        return not (
            self.ends_below(Span(low=value, high=value)) or Span(low=value, high=value).ends_below(self)
        )

    def ends_below(self, other: Span) -> bool:
        """Tell whether the whole span is below the other's lower bound."""
        if self.high is None or other.low is None or self.kind != other.kind:
            return False
        strict = self.strict_high or other.strict_low
        return bool(self.high < other.low or (strict and self.high == other.low))


def _figures(one: DeclaredRule, other: DeclaredRule) -> str | None:
    """Hold two rules of one figure against each other: one's bounds are below the other's."""
    figures = FIGURES.get(one.kind, one.kind), FIGURES.get(other.kind, other.kind)
    here, there = Span.of(one), Span.of(other)
    if figures[0] != figures[1] or here is None or there is None or not here.ends_below(there):
        return None
    return f"nothing is within the bounds of both, {here} and {there}; {CORRECT}"


def _order(one: DeclaredRule, other: DeclaredRule) -> str | None:
    """Hold the least, the mean, the median and the greatest of a column against one another and its values' bounds."""
    here, there = Span.of(one), Span.of(other)
    if here is None or there is None:
        return None
    places = {kind: place for place, kinds in enumerate(_IN_ORDER) for kind in kinds}
    if one.kind == BETWEEN and other.kind in places and getattr(one.expectation, "mostly", 1) == 1:
        if here.ends_below(there) or there.ends_below(here):
            return f"all values are {here}, so no figure of them is {there}; {CORRECT}"
    elif places.get(one.kind, 0) > places.get(other.kind, len(places)) and here.ends_below(there):
        return f"what is {here} is below what is {there}, and it never is; {CORRECT}"
    return None


_ASKED = (_nulls, _patterns, _exclusions, _sets, _values_and_bounds, _figures, _order)
