"""Writes values as Java reads them from a .properties file."""

from __future__ import annotations

import re


def java_property(value: object) -> str:
    """Write a value of a .properties file, which is Latin-1 and has escapes; a blank before it would be passed over."""
    text = re.sub(r"[^ -~]", _escaped, str(value).replace("\\", r"\\"))
    return f"\\{text}" if text.startswith(" ") else text


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex(" ", 2).split()
    return "".join(f"\\u{unit}" for unit in units)
