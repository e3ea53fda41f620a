"""Turns the text of a CSV value into its declared type, or says why it is none.

The types take what they take in JSON, without the quotes; docs/reading.md names what is different.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pyarrow as pa

from etl.common.record_bounds import DEFAULT, Bounds
from etl.pipeline.csv_options import pattern_form
from etl.sources.csv_records.dialect import Dialect
from etl.sources.json_records import values as json_values
from etl.sources.json_records.values import DECIMAL, Beyond, Convert, Misfit, Number, name_of

_INTEGER = re.compile(r"[+-]?[0-9]++")
_CALENDAR = ("year", "month", "day", "hour", "minute", "second")
_BOOLEANS = {"true": True, "false": False}


def converter(kind: pa.DataType, dialect: Dialect, bounds: Bounds = DEFAULT) -> Convert | None:
    """Return what turns a text that is not empty into the type, raising Misfit; None where CSV has no such values."""
    json = json_values.converter(kind, bounds)
    if pa.types.is_nested(kind) or json is None:
        return None
    if kind == pa.string():
        return json
    if kind == pa.binary():
        return _bytes
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_signed_integer(kind):
        return _as_number(json, _INTEGER, dialect.thousands, "")
    if pa.types.is_floating(kind) or pa.types.is_decimal128(kind):
        return _as_number(json, DECIMAL, dialect.thousands, dialect.decimal)
    pattern = date_pattern(kind, dialect)
    return _by_pattern(kind, pattern) if pattern else json


def date_pattern(kind: pa.DataType, dialect: Dialect) -> str:
    """Return the pattern that the dialect has for dates or moments of a type; empty where it has none."""
    if pa.types.is_date32(kind):
        return dialect.date_format
    return dialect.timestamp_format if kind.tz else dialect.timestamp_ntz_format


def _bytes(text: Any) -> bytes:
    """Take the text's bytes in UTF-8."""
    return str(text).encode()


def _boolean(text: Any) -> bool:
    if text.lower() not in _BOOLEANS:
        raise Misfit.of(text, "boolean: true or false")
    return _BOOLEANS[text.lower()]


def _as_number(json: Convert, form: re.Pattern[str], thousands: str, decimal: str) -> Convert:
    """Give JSON's converter a number as JSON writes it; what is none it refuses."""
    fraction = rf"(?:{re.escape(decimal)}[0-9]*)?" if decimal else ""
    groups = (
        re.compile(rf"[+-]?[0-9]{{1,3}}(?:{re.escape(thousands)}[0-9]{{3}})+{fraction}")
        if thousands
        else None
    )

    def convert(text: Any) -> Any:
        plain = text
        if groups and groups.fullmatch(plain):
            plain = plain.replace(thousands, "")
        if decimal not in ("", "."):
            plain = plain.replace(".", "\0").replace(decimal, ".")
        try:
            return json(Number(plain.removeprefix("+")) if form.fullmatch(plain) else plain)
        except Beyond:
            raise
        except Misfit as misfit:
            raise Misfit.of(text, misfit.problem.rpartition(", wanted ")[2]) from None

    return convert


def _by_pattern(kind: pa.DataType, pattern: str) -> Convert:
    form, wanted = re.compile(pattern_form(pattern)), f"a {name_of(kind)} as {pattern}"

    def convert(text: Any) -> Any:
        found = form.fullmatch(text)
        if found is None:
            raise Misfit.of(text, wanted)
        part = {name: value or "" for name, value in found.groupdict().items()}
        try:
            year, month, day, hour, minute, second = (int(part.get(name, "0")) for name in _CALENDAR)
            micros = int(part.get("fraction", "0").ljust(6, "0")[:6])
            zone = dt.datetime.strptime(part.get("zone", "Z"), "%z").tzinfo
            moment = dt.datetime(year, month, day, hour, minute, second, micros, tzinfo=zone)
            return moment.date() if pa.types.is_date32(kind) else json_values.micros_of(moment)
        except (ValueError, OverflowError) as error:
            raise Misfit.of(text, f"{wanted}: {error}") from error

    return convert
