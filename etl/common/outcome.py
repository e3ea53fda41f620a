"""The outcome of a run, in the few words that the ledger keeps: never a secret, never more than fits a screen."""

from __future__ import annotations

import re
from dataclasses import dataclass

from etl.common.errors import SluiceError, Stopped

# What stands around a worker's error: its traceback, and what PostgreSQL adds to what it says.
_BESIDE = ("Traceback", "JVM ", "CONTEXT: ", "DETAIL: ", "HINT: ", "QUERY: ")
LONGEST = 500  # characters
# A user and password within an address, a value that is named as a secret, an AWS key's id.
_SECRETS = (
    (re.compile(r"(?<=://)[^\s/@]+@"), "***@"),
    (
        re.compile(
            r"""((?:password|passwd|secret|token|access.?key)\w*["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;)]+)""",
            re.IGNORECASE,
        ),
        r"\1***",
    ),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}"), "***"),
)


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """What became of a run."""

    outcome: str  # done, or the name of the error that ended it
    message: str | None = None  # what the error said
    remedy: str | None = None  # the next step that it named

    @classmethod
    def by(cls, error: BaseException | None) -> RunOutcome:
        """Make the ending that `error` led to; None means that the run came to its own end."""
        if error is None:
            return cls(outcome="done")
        outcome = type(error).__name__
        if isinstance(error, SluiceError):
            return cls(
                outcome=outcome, message=_one_safe_line(error.seen), remedy=_one_safe_line(error.remedy)
            )
        again = error.again if isinstance(error, Stopped) else None
        # Cut, or masked, it would be another command.
        if again is not None and again != _one_safe_line(again):
            again = None
        return cls(outcome=outcome, message=_one_safe_line(in_short(error)), remedy=again)


def in_short(error: BaseException) -> str:
    """Return the first line of the error's message.

    Of a worker's error, add the line that ends the worker's traceback.
    """
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    ends = [line for line in lines[1:] if not line[0].isspace() and not line.startswith(_BESIDE)]
    return f"{lines[0]} {ends[-1]}" if lines[0].endswith(":") and ends else lines[0]


def _one_safe_line(text: str) -> str:
    """Put the text on one line, cut, without secrets and without NUL, which PostgreSQL's text can't hold."""
    text = " ".join(without_secrets(text).replace("\0", "").split()).encode("utf-8", "replace").decode()
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def without_secrets(text: str) -> str:
    """Return the text with what looks like a password, a token or a key masked."""
    for secret, instead in _SECRETS:
        text = secret.sub(instead, text)
    return text
