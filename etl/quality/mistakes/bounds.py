"""Reads the bounds of a rule, and tells which of them can be compared."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

from etl.quality.suite import DeclaredRule

BOUNDS = ("min_value", "max_value")


def bounds_of(rule: DeclaredRule) -> dict[str, Any]:
    """Return the bounds that a rule has, by their names."""
    bounds = {name: getattr(rule.expectation, name, None) for name in BOUNDS}
    return {name: value for name, value in bounds.items() if value is not None}


def word(value: Any) -> str:
    """Return what messages call the kind of a bound."""
    if isinstance(value, dt.datetime):
        return "moment"
    return "day" if isinstance(value, dt.date) else "number"


def has_zone(value: Any) -> bool:
    return isinstance(value, dt.datetime) and value.tzinfo is not None


def is_plain(value: Any) -> bool:
    """Tell whether a value is a number that compares with others."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
