"""Writes a command's log as JSON, one object a line, for whoever collects logs; tells no secret.

Every line has the same keys: when, how grave, a stable `action`, the message, and the pipeline, run, batch and delivery that
the process is at work on, each null where there is none. Further keys are of the action.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import logging
from collections.abc import Mapping
from typing import IO, Any

from etl.common import steps
from etl.common.outcome import without_secrets
from etl.common.wording import of_json, visible

TOLD = "told"  # the action of a line that nothing else is known of
KEYS = ("pipeline", "run", "batch", "delivery")
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "action", "taskName"}


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object; what a caller gave as `extra` is in it."""

    def format(self, record: logging.LogRecord) -> str:
        extra = {name: value for name, value in vars(record).items() if name not in _OWN}
        at_work = steps.at_work()
        message = record.getMessage()
        if record.exc_info:
            extra["traceback"] = self.formatException(record.exc_info)
        content: dict[str, Any] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": logging.getLevelName(_level(record)).lower(),
            "action": getattr(record, "action", TOLD),
            "message": visible(without_secrets(message).replace("\n", "; ")),
            **{key: at_work.get(key) for key in KEYS},
            **_masked(extra),
        }
        return json.dumps(of_json(content), default=str, allow_nan=False)


def _masked(value: Any) -> Any:
    """Return a value with what looks like a secret in its texts masked; dictionaries, lists and tuples are looked into."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, Mapping):
        return {name: _masked(inner) for name, inner in value.items()}
    return [_masked(inner) for inner in value] if isinstance(value, list | tuple) else value


def _level(record: logging.LogRecord) -> int:
    """Return the level of a record; one of an action is information though a text for people leaves it out."""
    return max(record.levelno, logging.INFO) if hasattr(record, "action") else record.levelno


class JsonHandler(logging.StreamHandler[IO[str]]):
    """Writes records as JSON: actions, and what people are told; details where they are wanted."""

    verbose = False

    def filter(self, record: logging.LogRecord) -> bool:
        return (self.verbose or _level(record) >= logging.INFO) and bool(super().filter(record))


class JsonStream(io.TextIOBase):
    """Turns what is written as text into lines of the log."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._begun = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in filter(str.strip, lines):
            self._log.info("%s", line.strip())
        return len(text)


def write_json(stream: IO[str]) -> tuple[JsonHandler, JsonStream]:
    """Return a handler that writes records to `stream` as JSON, and a stream whose lines become such records."""
    handler = JsonHandler(stream)
    handler.setFormatter(JsonFormatter())
    return handler, JsonStream(logging.getLogger("sluice"))


def of_batch(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a line tells of a batch: its figures, under the keys of every line where they are those."""
    figures = dict(receipt)
    figures["batch"], figures["delivery"] = figures.pop("batch_id"), figures.pop("delivery_id")
    return figures
