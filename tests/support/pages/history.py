"""A ledger with a long past, seeded by one SQL file, and a cursor that counts what a page asks."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.extensions import cursor as Cursor

STATEMENTS = [
    part for part in (Path(__file__).parent / "history.sql").read_text().split(";\n") if part.strip()
]


def seed(dsn: str, name: str, *, batches: int, rules: int, first: int = 1) -> None:
    """Give `dsn` the pipeline `name`; its deliveries are numbered from `first`."""
    values = {"name": name, "stream": str(uuid.uuid4()), "batches": batches, "rules": rules, "first": first}
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            for statement in STATEMENTS:
                cursor.execute(statement, values)
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    finally:
        connection.close()


class Counting(Cursor):
    """Counts the statements that it executes."""

    executed = 0

    def execute(self, query: Any, values: Any = None) -> None:
        self.executed += 1
        super().execute(query, values)
