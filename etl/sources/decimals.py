"""Checks decimals of CSV before Spark parses them.

Spark's parser drops all commas of a decimal, so that 12,50 would be 1250.00; and for an exponent of millions it writes
every zero, so that one value keeps a core busy for minutes (Spark 4.3, tried). Such a text is no decimal here, and its
record is malformed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructField, StructType

_DIGITS = "[0-9]{1,1000}+"
# A decimal as a text, for Java's regular expressions and for Python's.
DECIMAL = rf"[-+]?+(?:{_DIGITS}(?:\.(?:{_DIGITS})?+)?+|\.{_DIGITS})(?:[eE][-+]?+[0-9]{{1,3}}+)?+"
_PLAIN = rf"^{DECIMAL}\z"


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


def _is_spelled(field: StructField, options: Mapping[str, str]) -> bool:
    from pyspark.sql.types import DecimalType

    return isinstance(field.dataType, DecimalType) and not _has_locale(options)


def _has_locale(options: Mapping[str, str]) -> bool:
    """Tell whether Spark reads a decimal as another country writes it: by another parser, which drops no comma."""
    return options.get("locale", "en-US") != "en-US"
