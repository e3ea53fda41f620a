"""A file that a reader of ours can't read as what is declared."""

from __future__ import annotations

FILE = "\nfile: "  # in a task's error, before the URI of the file


class FileUnfit(Exception):
    """A file, or what is left of it, is not of its format or of its schema, so that its records are not known."""

    def of(self, uri: str) -> FileUnfit:
        """Name the file, for a task's error."""
        return FileUnfit(f"{self}{FILE}{uri}")
