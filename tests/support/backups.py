"""A database that goes back in time."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.databases import clone


@dataclass(frozen=True, kw_only=True)
class Backup:
    """A copy of a home's database, which can be put back in its place."""

    server: str
    database: str
    name: str

    def take(self) -> None:
        clone(self.server, self.database, self.name)

    def restore(self) -> None:
        clone(self.server, self.name, self.database)
