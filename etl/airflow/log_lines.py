"""Marks the lines of a command's log with their levels, for the task that passes them on: light to import.

A line begins with its level as syslog's number in angle brackets, the way of sd-daemon(3); one without such a mark, as of
what a pipeline's file prints, is information. What is passed on commands no terminal and tells no secret.
"""

from __future__ import annotations

import logging
import re

from etl.common.outcome import without_secrets
from etl.common.wording import visible

WANTED = "_SLUICE_MARKED_LOG"  # in the environment of a command; no setting, nobody else writes it
_MARKS = {logging.ERROR: "<3>", logging.WARNING: "<4>", logging.INFO: "<6>", logging.DEBUG: "<7>"}
_LEVELS = {mark: level for level, mark in _MARKS.items()}
_MARKED = re.compile(r"<[3467]>")


def marked(level: int, line: str) -> str:
    """Return the line with the mark of its level, or of the next lower one that has a mark."""
    mark = next((mark for least, mark in _MARKS.items() if level >= least), "<7>")
    return f"{mark}{line}"


def read(line: str) -> tuple[int, str]:
    """Return the level of a line, and its text without the mark."""
    found = _MARKED.match(line)
    return (_LEVELS[found[0]], line[found.end() :]) if found else (logging.INFO, line)


def harmless(line: str) -> str:
    """Write a line without what could command a terminal, and with its secrets masked."""
    return visible(without_secrets(line.expandtabs()))


class LineFormatter(logging.Formatter):
    """Writes each line of a record harmless, and with the mark of its level where that is wanted."""

    def __init__(self, *, marks: bool) -> None:
        super().__init__("%(message)s")
        self.marks = marks

    def format(self, record: logging.LogRecord) -> str:
        lines = map(harmless, super().format(record).split("\n"))
        return "\n".join(marked(record.levelno, line) if self.marks else line for line in lines)
