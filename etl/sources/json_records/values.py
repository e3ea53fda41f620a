"""Turns the value of a JSON member into its declared type, or says why it is none.

What each type takes is the contract of docs/reading.md. A value is never rounded, wrapped, guessed or cut, but for the
two losses that the contract names: a number becomes the nearest `float` or `double`, and digits beyond microseconds are
dropped.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from etl.common.record_bounds import DEFAULT, Bounds
from etl.common.wording import HALF_SURROGATE, pluralize

Convert = Callable[[Any], Any]

LONGEST_SHOWN = 60  # characters of a value in a message
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

DECIMAL = re.compile(r"[-+]?(?=\.?[0-9])([0-9]*+)\.?([0-9]*+)(?:[eE][-+]?([0-9]++))?")
_INTEGER = re.compile(r"(-?)0*+([0-9]{0,19})")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(
    rf"{_DATE.pattern}(?:[T ][0-9]{{2}}(?::[0-9]{{2}}(?::[0-9]{{2}}(?:\.[0-9]{{1,9}})?)?)?"
    r"(Z|[-+](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)?)?"
)
_MICROSECOND = dt.timedelta(microseconds=1)
_JSON = json.JSONEncoder(ensure_ascii=False)
_EXACT = Context(prec=40)  # digits; more than a type can have


class Number(str):
    """A JSON number, as the record writes it."""

    __slots__ = ()


class Constant(str):
    """`NaN`, `Infinity` or `-Infinity`, which are no JSON but what many writers write."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """A JSON object: its members in their order, doubled ones too."""


class Misfit(ValueError):
    """A record, or a part of it, is not what is declared.

    `problem` says what was found and what was wanted, `path` where.
    """

    def __init__(self, problem: str, path: str = "") -> None:
        path = path.encode(errors="backslashreplace").decode()  # half a surrogate pair is no text
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem, self.path = problem, path

    @classmethod
    def of(cls, found: Any, wanted: str) -> Misfit:
        """Say that a value was found where another type is wanted."""
        shown = (
            json_text(found).encode(errors="backslashreplace").decode()
        )  # half a surrogate pair is no text
        cut = f"{shown[:LONGEST_SHOWN]}…" if len(shown) > LONGEST_SHOWN else shown
        return cls(f"found {cut}, wanted {wanted}")

    @classmethod
    def of_bytes(cls, error: UnicodeDecodeError, encoding: str) -> Misfit:
        """Say which byte of a record is none of its encoding."""
        seen = error.object[error.start]
        return cls(f"found byte {seen:#04x} at byte {error.start + 1}, wanted {encoding.upper()}")

    def within(self, outer: str) -> Misfit:
        """Say where, from one level further out: a member's name or an element's number in brackets."""
        joint = "" if not self.path or self.path.startswith("[") else "."
        return Misfit(self.problem, f"{outer}{joint}{self.path}")


class Beyond(Misfit):
    """A record, or a number in it, has more of something than the setting `name` allows."""

    def __init__(self, bounds: Bounds, name: str, found: str) -> None:
        super().__init__(bounds.beyond(name, found))


def json_text(value: Any) -> str:
    """Write a value as compact JSON, with every number as the record writes it."""
    if isinstance(value, Number | Constant):
        return str(value)
    if isinstance(value, Members):
        return "{" + ",".join(f"{json_text(name)}:{json_text(inner)}" for name, inner in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    return _JSON.encode(value)


def converter(kind: pa.DataType, bounds: Bounds = DEFAULT) -> Convert | None:
    """Return what turns a value that is not null into the type, raising Misfit; None where JSON has no such values.

    Moments become microseconds since 1970, maps lists of pairs, all else what Arrow makes the type of.
    """
    if pa.types.is_struct(kind):
        return _struct(kind, bounds)
    if pa.types.is_list(kind):
        return _list(kind, bounds)
    if pa.types.is_map(kind):
        return _map(kind, bounds)
    if pa.types.is_signed_integer(kind):
        return _integer(kind)
    if pa.types.is_floating(kind):
        return _floating(kind)
    if pa.types.is_decimal128(kind):
        return _decimal(kind, bounds)
    if pa.types.is_timestamp(kind):
        return _moment(kind)
    return _PLAIN.get(kind)


def name_of(kind: pa.DataType) -> str:
    """Name a type as a declaration does."""
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return _NAMES.get(kind, str(kind))


def text_of(value: Any) -> str:
    """Take a text as it is; of any other value the JSON text."""
    if isinstance(value, Constant):
        raise Misfit.of(value, "string")
    text = value if type(value) is str else json_text(value)
    if text.isascii():
        return text
    if (half := HALF_SURROGATE.search(text)) is not None:
        raise Misfit(f"found half of a surrogate pair, \\u{ord(half[0]):x}, wanted Unicode")
    return text


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Misfit.of(value, "boolean")
    return value


def _date(value: Any) -> dt.date:
    try:
        if type(value) is str and _DATE.fullmatch(value):
            return dt.date.fromisoformat(value)
    except ValueError as error:
        raise Misfit.of(value, f"a date: {error}") from error
    raise Misfit.of(value, "a date, such as 2026-01-31")


def _binary(value: Any) -> bytes:
    try:
        if type(value) is str:
            return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise Misfit.of(value, f"binary, in base64: {error}") from error
    raise Misfit.of(value, "binary, in base64")


def _integer(kind: pa.DataType) -> Convert:
    highest = 2 ** (kind.bit_width - 1) - 1
    lowest = -highest - 1
    wanted = f"{name_of(kind)}, from {lowest} to {highest}"

    def convert(value: Any) -> int:
        form = _INTEGER.fullmatch(value) if isinstance(value, Number) else None
        if form and lowest <= (number := int(f"{form[1]}{form[2] or 0}")) <= highest:
            return number
        raise Misfit.of(value, wanted)

    return convert


def _floating(kind: pa.DataType) -> Convert:
    wanted, single = name_of(kind), kind == pa.float32()

    def convert(value: Any) -> float:
        if type(value) is Number:
            nearest = float(value)
            if single:  # which a double would be rounded to once more
                [nearest] = pa.array([str(value)]).cast(kind).to_pylist()
            if math.isinf(nearest):
                raise Misfit.of(value, f"a number within the range of {wanted}")
            return nearest
        if type(value) in (str, Constant) and value in ("NaN", "Infinity", "-Infinity"):
            return float(value)
        raise Misfit.of(value, wanted)

    return convert


def _decimal(kind: pa.DataType, bounds: Bounds) -> Convert:
    wanted, step = name_of(kind), Decimal(1).scaleb(-kind.scale)
    whole = kind.precision - kind.scale

    def convert(value: Any) -> Decimal:
        form = DECIMAL.fullmatch(value) if type(value) in (str, Number) else None
        if form:
            _require_within(form, bounds)
            number = Decimal(value)
            if not number or number.adjusted() < whole:
                exact = number.quantize(step, context=_EXACT)
                if exact == number:
                    return exact
        raise Misfit.of(value, wanted)

    return convert


def _require_within(form: re.Match[str], bounds: Bounds) -> None:
    """Raise Beyond for a number that DECIMAL takes, and that has too many digits or too large an exponent."""
    digits = len(f"{form[1]}{form[2]}".lstrip("0"))
    if digits > bounds.number_digits:
        raise Beyond(bounds, "number_digits", pluralize(digits, "digit"))
    exponent = (form[3] or "").lstrip("0") or "0"
    if len(exponent) > 18:  # Python makes no int of thousands of digits
        raise Beyond(bounds, "number_exponent", f"an exponent of {pluralize(len(exponent), 'digit')}")
    if int(exponent) > bounds.number_exponent:
        raise Beyond(bounds, "number_exponent", f"an exponent of {int(exponent):,}")


def _moment(kind: pa.DataType) -> Convert:
    wanted = f"a {name_of(kind)}, such as 2026-01-31T23:59:59.123456{'Z' if kind.tz else ''}"

    def convert(value: Any) -> int:
        form = _MOMENT.fullmatch(value) if type(value) is str else None
        if form is None or (form[1] and not kind.tz):
            raise Misfit.of(value, wanted)
        try:
            return _micros(value)
        except (ValueError, OverflowError) as error:
            raise Misfit.of(value, f"a {name_of(kind)}: {error}") from error

    return convert


def _micros(text: str) -> int:
    """Count the microseconds since 1970 of a moment, which is in UTC where it names no zone.

    Raises ValueError or OverflowError for a moment that there is not, or that is not within the years 1 to 9999 of UTC.
    """
    return micros_of(dt.datetime.fromisoformat(text))


def micros_of(moment: dt.datetime) -> int:
    """Count the microseconds since 1970 of a moment, which is in UTC where it has no zone. Raises OverflowError."""
    in_utc = moment.astimezone(dt.UTC) if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return (in_utc - _EPOCH) // _MICROSECOND


def _struct(kind: pa.DataType, bounds: Bounds) -> Convert | None:
    if any(b"variant" in (field.metadata or {}) for field in kind):
        return None
    fields = {field.name: converter(field.type, bounds) for field in kind}
    if None in fields.values():
        return None
    converters: dict[str, Any] = fields

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, Members):
            raise Misfit.of(value, "an object")
        row: dict[str, Any] = dict.fromkeys(converters)
        seen = set[str]()
        name = ""
        try:  # as `_within`, of which eight calls cost as much as parsing their record
            for name, inner in value:
                if name not in converters:
                    continue
                if name in seen:
                    raise Misfit("found twice")
                seen.add(name)
                if inner is not None:
                    row[name] = converters[name](inner)
        except Misfit as misfit:
            raise misfit.within(name) from None
        return row

    return convert


def _list(kind: pa.DataType, bounds: Bounds) -> Convert | None:
    if (element := converter(kind.value_type, bounds)) is None:
        return None

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list) or isinstance(value, Members):
            raise Misfit.of(value, "an array")
        return [_within(f"[{number}]", element, inner) for number, inner in enumerate(value)]

    return convert


def _map(kind: pa.DataType, bounds: Bounds) -> Convert | None:
    item = converter(kind.item_type, bounds)
    if item is None or kind.key_type != pa.string():
        return None

    def convert(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, Members):
            raise Misfit.of(value, "an object")
        names = Counter(text_of(name) for name, _ in value)
        if len(names) < len(value):
            raise Misfit("found twice", names.most_common(1)[0][0])
        return [(name, _within(name, item, inner)) for name, inner in value]

    return convert


def _within(where: str, convert: Convert, value: Any) -> Any:
    """Convert what is within a value; null stays null, and a Misfit says where."""
    try:
        return None if value is None else convert(value)
    except Misfit as misfit:
        raise misfit.within(where) from None


_PLAIN: dict[pa.DataType, Convert] = {
    pa.string(): text_of,
    pa.bool_(): _boolean,
    pa.date32(): _date,
    pa.binary(): _binary,
}
_NAMES = {
    pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint", pa.float32(): "float",
    pa.float64(): "double", pa.bool_(): "boolean", pa.date32(): "date",
}  # fmt: skip
