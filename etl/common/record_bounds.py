"""Bounds what one record may be, so that none holds a run or takes the memory of a task."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

KEPT_BYTES = 1 << 16  # of a record that is too long


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a record may have at most, each by the setting of the same name. What is beyond is malformed."""

    record_bytes: int = 1 << 26
    record_fields: int = 1_000_000  # members of objects and elements of arrays at all levels; values of CSV
    record_depth: int = 200  # levels of objects and arrays within each other
    number_digits: int = 1_000  # of a decimal, without zeros before the first other digit
    number_exponent: int = 999  # of a decimal, up or down

    def beyond(self, name: str, found: str) -> str:
        """Say that what was `found` is beyond the bound called `name`, and which setting sets it."""
        said = f"found {found}, wanted {getattr(self, name):,} at most (SLUICE_{name.upper()})"
        return f"{said}; the first {self._kept_bytes:,} are kept" if name == "record_bytes" else said

    def text(self, record: bytes, encoding: str = "utf-8") -> str:
        """Return what is kept of a malformed record: its text, or where it is too long the text's beginning."""
        if len(record) <= self.record_bytes:
            return record.decode(encoding, errors="backslashreplace")
        beginning = codecs.getincrementaldecoder(encoding)("backslashreplace")
        return beginning.decode(record[: self._kept_bytes])  # without the part of a character at its end

    @property
    def _kept_bytes(self) -> int:
        return min(KEPT_BYTES, self.record_bytes)


DEFAULT = Bounds()
