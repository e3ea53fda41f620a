"""Pointers: which metadata of a lake table is current, a row that the commit swaps."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping

from etl.common.database import Cursor
from etl.common.statements import Statements

STATEMENTS = Statements(__name__)

CATALOG = "sluice"


def pointer(cursor: Cursor, namespace: str, table: str) -> str | None:
    """Return where the table's current metadata is; None when there is no table."""
    STATEMENTS.execute(cursor, "pointer", catalog=CATALOG, namespace=namespace, table=table)
    found = cursor.fetchone()
    return None if found is None else found[0]


def create_pointer(cursor: Cursor, namespace: str, table: str, *, location: str) -> None:
    """Give the table its first metadata, and pyiceberg its namespace; change nothing where they are there."""
    STATEMENTS.execute(cursor, "create_namespace", catalog=CATALOG, namespace=namespace)
    STATEMENTS.execute(
        cursor, "create_pointer", catalog=CATALOG, namespace=namespace, table=table, location=location
    )


def swap_pointer(cursor: Cursor, namespace: str, table: str, *, location: str, base: str) -> bool:
    """Publish new metadata under every name that the table has; return False when it is no longer at its base."""
    STATEMENTS.execute(
        cursor,
        "swap_pointer",
        catalog=CATALOG,
        namespace=namespace,
        table=table,
        location=location,
        base=base,
    )
    return cursor.rowcount == 1


def catalog_uri(dsn: Mapping[str, str]) -> str:
    """Return SQLAlchemy's URI of the catalog, with all that `dsn` says, the search path being `sluice`."""
    values = {**dsn, "options": f"{dsn.get('options', '')} -c search_path=sluice".strip()}
    return f"postgresql+psycopg2:///?{urllib.parse.urlencode(values, quote_via=urllib.parse.quote)}"
