"""Checks decimals that are written as text before Spark parses them.

Spark's parser drops all commas of a decimal, so that 12,50 would be 1250.00; and for an exponent of millions it writes
every zero, so that one value keeps a core busy for minutes (Spark 4.3, tried). Such a text is no decimal here, and its
record is malformed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField, StructType

_DIGITS = "[0-9]{1,1000}+"
_PLAIN = rf"^[-+]?+(?:{_DIGITS}(?:\.(?:{_DIGITS})?+)?+|\.{_DIGITS})(?:[eE][-+]?+[0-9]{{1,3}}+)?+\z"
_EXPONENT = r"[-+]?+[0-9]{4}"
_HUGE = rf"[eE]{_EXPONENT}"
_STRINGS = r'"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+"'
# Which lines of JSON may have such a decimal, looked for behind the names of the decimals, or anywhere. Most of what a
# search costs is the characters that it can begin at.
_BEHIND_NAME = (
    r'["\\](?:(?:{names})"\s*+:\s*+(?:"[^"\\]*?(?:{wrong})|"[^"\\]{{1001}}|[-+.0-9]++{huge})|{escape})'
)
_DIGIT = r"[-+.eE\p{Nd}]"
_ANYWHERE = rf'["eE\\](?:(?<="){_DIGIT}{{1001}}|(?<=[eE]){_EXPONENT}|(?<=\\)u00)'
_COMMA_ANYWHERE = rf'|"(?:,{_DIGIT}|{_DIGIT}++,)'
# And what the decimals alone have in them: strings of JSON, no names.
_IS = rf'(?<=[:\[,])"[^"]*{_HUGE}[^"]*"(?!:)|"[^"]{{1001}}'
_HAS_COMMA = r'|(?<=[:\[,])"[^"]*,[^"]*"(?!:)'


def spelled(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Declare the decimals of CSV as texts; `decimal_of` makes decimals of them."""
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType(
        [StructField(one.name, StringType()) if _is_spelled(one, options) else one for one in schema.fields]
    )


def decimal_of(text: Column, field: StructField, options: Mapping[str, str]) -> Column:
    """Make a decimal of what `spelled` declares as text: null where it is none. Other fields stay as they are."""
    from pyspark.sql import functions as F

    return F.when(text.rlike(_PLAIN), text.try_cast(field.dataType)) if _is_spelled(field, options) else text


def no_decimal(text: Column, field: StructField, options: Mapping[str, str]) -> Column:
    """Tell whether `decimal_of` makes a null of a text."""
    from pyspark.sql import functions as F

    if not _is_spelled(field, options):
        return F.lit(False)
    return text.isNotNull() & decimal_of(text, field, options).isNull()


def has_no_decimal(
    line: Column, ended: Column, schema: StructType, options: Mapping[str, str], malformed: str
) -> Column:
    """Tell of a line of JSON whether a decimal of it is written as none, or with an exponent of four digits or more.

    In a line that may have one, any number with such an exponent is taken for a decimal. The parser is given the line as
    `ended`, and `malformed` is its column of the record. Only the few lines that may have such a decimal are parsed for it.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    texts = _texts(schema)
    if not isinstance(texts, StructType):
        return F.lit(False)
    commas = not _has_locale(options)
    whole = StructType([*texts.fields, StructField(malformed, StringType())])
    parsed = F.to_json(F.from_json(ended, whole, dict(options)))
    outside = F.regexp_replace(line, F.lit(_STRINGS), F.lit(""))
    wrong = rf'"{malformed}":|{_IS}{_HAS_COMMA if commas else ""}'
    wrong_decimal = outside.rlike(_HUGE) | F.coalesce(parsed.rlike(wrong), F.lit(False))
    # A CASE, for both sides of an AND may be evaluated for every line.
    return F.when(line.rlike(_suspicion(schema, commas=commas)), wrong_decimal).otherwise(F.lit(False))


def _suspicion(schema: StructType, *, commas: bool) -> str:
    """Make the regular expression of lines of JSON that may have a decimal which is written as none."""
    names = _names(schema)
    if names is None:
        return _ANYWHERE + (_COMMA_ANYWHERE if commas else "")
    one_of = "|".join(rf"\Q{json.dumps(name, ensure_ascii=False)[1:-1]}\E" for name in sorted(names))
    wrong = f",|{_HUGE}" if commas else _HUGE
    escape = "u00" if all(name.isascii() for name in names) else "u"  # of a letter of a name, or of a digit
    return _BEHIND_NAME.format(names=one_of, wrong=wrong, huge=_HUGE, escape=escape)


def _names(kind: DataType) -> set[str] | None:
    """Name the decimals within a type; None when some have no name, but are elements of arrays or maps."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    if isinstance(kind, ArrayType | MapType):
        return _names(kind.elementType if isinstance(kind, ArrayType) else kind.valueType)
    if isinstance(kind, DecimalType):
        return None
    names = set[str]()
    for one in kind.fields if isinstance(kind, StructType) else ():
        inner = {one.name} if isinstance(one.dataType, DecimalType) else _names(one.dataType)
        if inner is None:
            return None
        names |= inner
    return names


def _texts(kind: DataType) -> DataType | None:
    """Reduce a type to what holds decimals, with these as texts; None when nothing does."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructField, StructType

    if isinstance(kind, DecimalType):
        return StringType()
    if isinstance(kind, ArrayType):
        return (inner := _texts(kind.elementType)) and ArrayType(inner)
    if isinstance(kind, MapType):
        return (inner := _texts(kind.valueType)) and MapType(kind.keyType, inner)
    if not isinstance(kind, StructType):
        return None
    fields = [StructField(one.name, texts) for one in kind.fields if (texts := _texts(one.dataType))]
    return StructType(fields) if fields else None


def _is_spelled(field: StructField, options: Mapping[str, str]) -> bool:
    from pyspark.sql.types import DecimalType

    return isinstance(field.dataType, DecimalType) and not _has_locale(options)


def _has_locale(options: Mapping[str, str]) -> bool:
    """Tell whether Spark reads a decimal as another country writes it: by another parser, which drops no comma."""
    return options.get("locale", "en-US") != "en-US"
