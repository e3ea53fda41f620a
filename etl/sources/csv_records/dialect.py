"""How a source's CSV is written: what parts its values, quotes them, and stands for nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from etl.sources.json_records.values import Misfit

STAND_IN = "\x1f"  # for a separator of several characters, in records that do not have it
_BOM = "\ufeff"
_BLANKS = f" \t\r\n{_BOM}"
_SPACES = " \t\v\f\r\n"  # that are taken off around values where the dialect says so
_TRUE = "true"
_LINE = re.compile(r"[^\r\n]*")
_BREAK = re.compile(r"\r\n|\n|\r|\Z")


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
        signs = self.sep + self.quote + self.escape
        return len(self.sep) == 1 and signs.isascii() and "\0" not in signs

    @cached_property
    def of_one_sign(self) -> Dialect:
        """Return the dialect with STAND_IN between values, where several characters are."""
        alone = len(self.sep) == 1 or STAND_IN in self.quote + self.escape
        return self if alone else replace(self, sep=STAND_IN)

    @cached_property
    def in_quotes(self) -> str:
        """Return the pattern of a value in quotes, for RE2; of a plain dialect."""
        quote, escape = _escaped(self.quote), _escaped(self.escape)
        if escape != quote:  # one within quotes is not plain
            return f"{quote}[^{quote}{escape}]*{quote}"
        return f"{quote}[^{quote}]*(?:{quote}{quote}[^{quote}]*)*{quote}"

    @cached_property
    def plainly_quoted(self) -> str:
        """Return the pattern of a record that has no quotes but those around values and within them, for RE2."""
        sep, quote = _escaped(self.sep), _escaped(self.quote)
        value = rf"(?:{self.in_quotes}|[^{sep}{quote}\r\n]*)"
        return rf"\A{value}(?:{sep}{value})*\z"

    def split(self, text: str, most: int | None = None) -> list[str]:
        """Part a record into its values, quotes taken off; raise Misfit where a quote does not end at a separator.

        Of a record of more values than `most` it is the first ones, one more than that.
        """
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
            if end == len(text) or len(values) - 1 == most:
                return values
            at = end + len(self.sep)

    def decoded(self, data: bytes, errors: str) -> str:
        """Decode a file, or its beginning, without its byte order mark."""
        if not self.encoding.startswith("utf-16"):
            data = data.removeprefix(_BOM.encode())  # which ISO 8859 would take for three letters
        return data.decode(self.encoding, errors).removeprefix(_BOM)

    def records(self, text: str) -> Iterator[str]:
        """Part the text of a file into records; with `multiline` what is none goes line by line."""
        if not self.multiline:
            yield from re.split(re.escape(self.line_sep) or r"\r\n|\n|\r", text)
            return
        at, endless, last = 0, set[int](), -1
        while at < len(text):
            if at > last and (found := self._record.match(text, at)):
                end = found.end()
            else:
                end, tried = self._end(text, at, endless)
                last = max(last, tried)
            yield text[at:end]
            at = _end_of(_BREAK, text, end)

    def _end(self, text: str, at: int, endless: set[int]) -> tuple[int, int]:
        """Return where a record ends, or its first line if it does not; and where its last value begins.

        Where a value begins after which no record ends goes to `endless`: a file of open quotes is not read once a line.
        """
        line, tried = _end_of(_LINE, text, at), []
        while at not in endless:
            tried.append(at)
            found = self._at.match(text, at)
            end = found.end() if found else at
            if found and (end == len(text) or text[end] in "\r\n"):
                return end, at
            if found is None or not text.startswith(self.sep, end):
                break
            at = end + len(self.sep)
        endless.update(tried)
        return line, at

    def is_record(self, line: str) -> bool:
        """Tell whether a line is a record: one of blanks alone is, if they part values."""
        return bool(line.strip(self._blanks))

    @cached_property
    def blank(self) -> str:
        """Return the pattern of lines, as bytes, that `is_record` denies, for RE2."""
        return rf"\A(?:\xef\xbb\xbf)?[{_escaped(self._blanks.removesuffix(_BOM))}]*\z"

    @cached_property
    def _blanks(self) -> str:
        return "".join(one for one in _BLANKS if one not in self.sep)

    @cached_property
    def _value(self) -> str:
        """Return the pattern of one value."""
        sep, end = _escaped(self.sep), r"\r\n" if self.multiline else ""
        quote, escape = _escaped(self.quote), _escaped(self.escape)
        bare = f"(?:(?!{sep}){f'[^{end}]' if end else '.'})*+"
        if len(self.sep) == 1:  # the same, faster
            bare = f"[^{sep}{end}]*+"
        if not self.quote:
            return bare
        if self.escape == self.quote:
            within = f"[^{quote}]*+(?:{quote}{quote}[^{quote}]*+)*+"
        else:
            within = f"[^{quote}{escape}]*+(?:{escape}.[^{quote}{escape}]*+)*+"
        others = f"{self.sep}\r\n" if end else self.sep
        spaces = "".join(_escaped(one) for one in _SPACES if one not in others)
        before, after = (f"[{spaces}]*+" if trim else "" for trim in (self.trim_left, self.trim_right))
        return f"(?:{before}{quote}{within}{quote}{after}|(?!{before}{quote}){bare})"

    @cached_property
    def _at(self) -> re.Pattern[str]:
        return re.compile(self._value, re.DOTALL)

    @cached_property
    def _record(self) -> re.Pattern[str]:
        """Return the pattern of a record up to the line break, or the end, after it."""
        record = f"{self._value}(?:{_escaped(self.sep)}{self._value})*+"
        return re.compile(rf"{record}(?=[\r\n]|\Z)", re.DOTALL)

    def _unquoted(self, value: str) -> str:
        bare = value.lstrip(_SPACES) if self.trim_left else value
        if not self.quote or not bare.startswith(self.quote):
            return value
        within = (bare.rstrip(_SPACES) if self.trim_right else bare)[1:-1]
        if self.escape == self.quote:
            return within.replace(self.quote * 2, self.quote)
        quote, escape = _escaped(self.quote), _escaped(self.escape)
        return re.sub(f"{escape}([{quote}{escape}])", r"\1", within)


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found is not None, "matches any text"
    return found.end()


def _escaped(text: str) -> str:
    """Write a text for a pattern of either kind of regular expressions, within brackets as well."""
    return "".join(f"\\x{ord(char):02x}" if char.isascii() else char for char in text)
