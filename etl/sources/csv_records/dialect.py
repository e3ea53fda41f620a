"""How a source's CSV is written: what parts its values, quotes them, and stands for nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from etl.sources.json_records.values import Misfit

_BLANKS = " \t\r\n\ufeff"
_TRUE = "true"
_LINE = re.compile(r"([^\r\n]*)(?:\r\n|\n|\r|\Z)")


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How records are written. A value is in quotes as a whole, or does not begin with one."""

    sep: str = ","
    quote: str = '"'  # empty: there is none
    escape: str = '"'  # before a quote within quotes
    null: str = ""  # the text that stands for null, as an empty one does
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str = ""
    date_format: str = ""  # Spark's pattern; empty: ISO 8601
    timestamp_format: str = ""
    timestamp_ntz_format: str = ""
    trim_left: bool = False
    trim_right: bool = False
    line_sep: str = ""  # empty: any line break
    multiline: bool = False  # a value in quotes may have line breaks

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Dialect:
        """Take a dialect from the options of a declaration, which are checked before."""
        return cls(
            sep=options.get("sep", ",").replace("\\t", "\t"),
            quote=options.get("quote", '"'),
            escape=options.get("escape", options.get("quote", '"')),
            null=options.get("nullValue", ""),
            encoding=options.get("encoding", "utf-8").lower(),
            decimal=options.get("decimal", "."),
            thousands=options.get("thousands", ""),
            date_format=options.get("dateFormat", ""),
            timestamp_format=options.get("timestampFormat", ""),
            timestamp_ntz_format=options.get("timestampNTZFormat", ""),
            trim_left=options.get("ignoreLeadingWhiteSpace", "").lower() == _TRUE,
            trim_right=options.get("ignoreTrailingWhiteSpace", "").lower() == _TRUE,
            line_sep=options.get("lineSep", ""),
            multiline=options.get("multiLine", "").lower() == _TRUE,
        )

    @property
    def whole_files(self) -> bool:
        """Tell whether only a whole file shows where its records end."""
        return self.multiline or self.encoding.startswith("utf-16")

    @property
    def is_plain(self) -> bool:
        """Tell whether Arrow's parser knows such records."""
        return (
            len(self.sep) == 1 and self.sep.isascii() and self.escape == self.quote and self.quote.isascii()
        )

    @cached_property
    def in_quotes(self) -> str:
        """Return the pattern of a value in quotes, for RE2; of a plain dialect."""
        quote = _escaped(self.quote)
        return f"{quote}[^{quote}]*(?:{quote}{quote}[^{quote}]*)*{quote}"

    @cached_property
    def plainly_quoted(self) -> str:
        """Return the pattern of a record that has no quotes but those around values and within them, for RE2."""
        sep, quote = _escaped(self.sep), _escaped(self.quote)
        value = rf"(?:{self.in_quotes}|[^{sep}{quote}\r\n]*)"
        return rf"\A{value}(?:{sep}{value})*\z"

    def split(self, text: str) -> list[str]:
        """Part a record into its values, quotes taken off; raise Misfit where a quote does not end at a separator."""
        values: list[str] = []
        at = 0
        while True:
            found = self._at.match(text, at)
            end = found.end() if found else at
            if found is None or (end < len(text) and not text.startswith(self.sep, end)):
                raise Misfit.of(
                    text[at:], f"value {len(values) + 1} to have a quote at either end, or at none"
                )
            values.append(self._unquoted(found[0]))
            if end == len(text):
                return values
            at = end + len(self.sep)

    def records(self, text: str) -> Iterator[str]:
        """Part the text of a file into records, of which one may go over several lines; what is none goes line by line."""
        at = 0
        while at < len(text):
            found = self._line.match(text, at) or _LINE.match(text, at)
            assert found is not None, "matches any text"
            yield found[1]
            at = found.end()

    def is_record(self, line: str) -> bool:
        """Tell whether a line is a record: one of blanks alone is, if they part values."""
        return bool(line.strip(_BLANKS)) or self.sep in line

    @cached_property
    def blank(self) -> str:
        """Return the pattern of lines that `is_record` denies, for RE2."""
        others = "".join(_escaped(one) for one in _BLANKS if one.isascii() and one != self.sep)
        return rf"\A[{others}]*\z"

    @cached_property
    def _value(self) -> str:
        """Return the pattern of one value."""
        sep, end = _escaped(self.sep), r"\r\n" if self.whole_files else ""
        quote, escape = _escaped(self.quote), _escaped(self.escape)
        if len(self.sep) == 1:
            bare = f"(?:[^{sep}{quote}{end}][^{sep}{end}]*)?"
        else:
            bare = f"(?!{quote or sep})(?:(?!{sep}){f'[^{end}]' if end else '.'})*"
        if not self.quote:
            return bare
        if self.escape == self.quote:
            within = f"[^{quote}]*(?:{quote}{quote}[^{quote}]*)*"
        else:
            within = f"[^{quote}{escape}]*(?:{escape}.[^{quote}{escape}]*)*"
        return f"(?:{quote}{within}{quote}|{bare})"

    @cached_property
    def _at(self) -> re.Pattern[str]:
        return re.compile(self._value, re.DOTALL)

    @cached_property
    def _line(self) -> re.Pattern[str]:
        record = f"{self._value}(?:{_escaped(self.sep)}{self._value})*"
        return re.compile(rf"({record})(?:\r\n|\n|\r|\Z)", re.DOTALL)

    def _unquoted(self, value: str) -> str:
        if not self.quote or not value.startswith(self.quote):
            return value
        within = value[1:-1]
        if self.escape == self.quote:
            return within.replace(self.quote * 2, self.quote)
        return re.sub(f"{_escaped(self.escape)}(.)", r"\1", within, flags=re.DOTALL)


def _escaped(text: str) -> str:
    """Write a text for a pattern of either kind of regular expressions, within brackets as well."""
    return "".join(f"\\x{ord(char):02x}" if char.isascii() else char for char in text)
