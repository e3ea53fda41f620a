"""Reads SQL from files of named statements, each under a line `-- name: …`; a module has its own in the file of its name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psycopg2.extensions
from psycopg2 import sql

from etl.common.shipped import shipped

SQL_FOLDER = shipped("sql")


@dataclass(frozen=True)
class Statements:
    """The statements of one module, from the file below `sql/` that its name leads to.

    Those of `etl.ledger.leases` are in `sql/ledger/leases.sql`, and no other module executes them.
    """

    module: str  # its __name__

    def execute(
        self, cursor: psycopg2.extensions.cursor, name: str, /, **values: Any
    ) -> psycopg2.extensions.cursor:
        """Execute the statement `name`, each `%(parameter)s` and `{placeholder}` filled with the value of its name.

        A placeholder takes what psycopg2.sql composes: an identifier, a literal, a list of either.
        """
        parts = {key: value for key, value in values.items() if isinstance(value, sql.Composable)}
        rest = {key: value for key, value in values.items() if key not in parts}
        cursor.execute(self.compose(name, **parts), rest or None)  # or a % of an identifier would be read
        return cursor

    def compose(self, name: str, /, **parts: sql.Composable) -> sql.Composed:
        """Return the statement `name`, to be executed otherwise or as a part of another, its `{placeholders}` filled."""
        return sql.SQL(_read(self.module)[name]).format(**parts)


@cache
def _read(module: str) -> dict[str, str]:
    text = file_of(module).read_text()
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def file_of(module: str) -> Path:
    """Return the file of a module's statements."""
    return SQL_FOLDER.joinpath(*module.split(".")[1:]).with_suffix(".sql")
