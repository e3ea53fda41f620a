"""Writes the files that a project begins with, or gains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_all(files: Mapping[Path, str]) -> None:
    """Write new files, all of them or none, with their folders; raise OSError where one can't be written, or is there."""
    written: list[Path] = []
    try:
        for path, text in files.items():
            encoded = text.encode()
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as sink:
                written.append(path)
                sink.write(encoded)
    except OSError:
        for path in written:
            path.unlink()
        raise
