"""The parts of the text that identifies which state a transform keeps."""

from __future__ import annotations

import re

COMPUTING = " computing "  # between an aggregate's keys and its figures
MODE = " mode"  # after an aggregate's output mode
# Of a column that Spark's JSON parser read, as long as it read JSON: that it was parsed, which is no part of a state.
_PARSED = re.compile(r" ?\([^()]* = (?:TRY_CAST\()?_parsed\.`[^`]*`(?: AS TINYINT\))?\)", re.IGNORECASE)


def without_parser(operator: str) -> str:
    """Return the text of an operator without what an earlier version told of a parser in it."""
    return _PARSED.sub("", operator).removesuffix(COMPUTING.rstrip())
