"""Reads the causes and messages of an error of Java."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def causes(error: Any) -> Iterator[str]:
    """Yield the first line of each Java exception, from the outermost to the cause of all."""
    return (message.splitlines()[0] for message in messages(error))


def messages(error: Any) -> Iterator[str]:
    """Yield all that each Java exception says, from the outermost to the cause of all.

    Of an error that holds no Java exception, yield its own text.
    """
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        yield str(error).strip() or type(error).__name__
    while java is not None:
        yield str(java.toString()).strip()
        java = java.getCause()
