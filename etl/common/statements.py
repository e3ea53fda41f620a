"""SQL text lives in files: `sql/<room>.sql` holds named statements, each under a line `-- name: …`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from psycopg2 import sql

SQL_FOLDER = Path(__file__).resolve().parents[2] / "sql"


@cache
def _room(room: str) -> dict[str, str]:
    text = (SQL_FOLDER / f"{room}.sql").read_text()
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def statement(room: str, name: str, **identifiers: sql.Composable) -> sql.Composed:
    """Return statement `name` of `sql/<room>.sql`, its `{placeholders}` filled with quoted identifiers."""
    return sql.SQL(_room(room)[name]).format(**identifiers)
