"""Every statement of SQL in the documentation is executed by PostgreSQL, over the tables as they are."""

from __future__ import annotations

import re
from contextlib import closing

import psycopg2

from tests.support.documented import blocks

DELIVERED = """
INSERT INTO sluice.pipeline (name, table_schema, table_name) VALUES ('flights', 'warehouse', 'flights');
CREATE SCHEMA warehouse;
CREATE TABLE warehouse.flights (origin text, scheduled_departure timestamptz, dep_delay float, _delivery_id bigint);
CREATE TABLE mine (LIKE warehouse.flights);
"""


def test_statements_of_the_documentation_are_executed(dsn: str) -> None:
    documented = blocks("sql")
    assert len(documented) > 5
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(DELIVERED)
        for block in documented:
            for statement in re.sub("--.*", "", block.text).split(";"):
                if statement.strip():
                    cursor.execute(statement)
