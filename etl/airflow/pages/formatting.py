"""Formats figures, timestamps and values for the pages: short, and cut where they do not fit."""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any

LONGEST_VALUE = 120  # characters of one value in a table


def number(value: float | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, float) and 1000 <= abs(value) < 1e15:
        value = round(value)  # four digits would be told by an exponent
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def rounded(value: float | None) -> str:
    return number(value if value is None or not math.isfinite(value) else round(value))


def share(value: float | None) -> str:
    """Write a part of one as per cent, to be read at a glance: never 0 % or 100 % unless it is."""
    if value is None:
        return "–"
    if 0 < value < 0.001:
        return "< 0.1 %"
    if 0.999 < value < 1:
        return "> 99.9 %"
    return f"{value:.0%}".replace("%", " %") if value in (0, 1) else f"{value:.1%}".replace("%", " %")


def ratio(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


def moment(value: dt.datetime | None) -> str:
    return value.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M UTC") if value else "–"


def day(value: dt.datetime) -> str:
    return value.astimezone(dt.UTC).strftime("%d %b %H:%M")


def span(length: dt.timedelta) -> str:
    """Write a duration in its largest two units."""
    minutes = int(max(length, dt.timedelta()).total_seconds() // 60)
    if minutes < 1:
        return "< 1 min"
    days, hours = divmod(minutes // 60, 24)
    if days >= 60:
        return f"{days:,} days"
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours and minutes % 60:
        return f"{hours} h {minutes % 60} min"
    return f"{hours} h" if hours else f"{minutes} min"


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if value < -0.5:
        return f"-{seconds(-value)}"
    return f"{abs(value):.0f} s" if value < 60 else span(dt.timedelta(seconds=value))


def briefly(value: float | None) -> str:
    """Write the seconds of a batch's phase, which may be a few hundredths of one."""
    return f"{value:.2f} s" if value is not None and value < 10 else seconds(value)


def size(value: int) -> str:
    amount, unit = float(value), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def sized(value: float | None) -> str:
    return "–" if value is None else size(round(value))


def cut(value: object, longest: int = LONGEST_VALUE) -> str:
    """Write a value as text, its end left out where it is long."""
    text = value if isinstance(value, str) else as_json(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def as_json(value: Any) -> str:
    return "null" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def name_of(kind: str | None, batch_id: int | None, delivery_id: int | None) -> str:
    """Name a batch by its number in its stream.

    What is beside the stream has no number of its own, and is named by its kind and delivery.
    """
    return str(batch_id) if kind in ("stream", None) else f"{kind} {delivery_id}"


def titled(kind: str, batch_id: int, delivery_id: int) -> str:
    name = name_of(kind, batch_id, delivery_id)
    return f"batch {name}" if kind == "stream" else name
