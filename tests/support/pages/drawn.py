"""A page as its tests draw and read it."""

from __future__ import annotations

import re
from collections.abc import Callable

import psycopg2

from etl.airflow.pages.render import Frame, Page
from tests.support.pages.history import Counting

TRANSACTION = 2  # BEGIN, and the bounds that a page sets itself
BELOW = Frame(up="../")

Make = Callable[[Counting], Page]


def draw(dsn: str, make: Make) -> tuple[Page, int]:
    """Draw the page; return it and how many statements it took."""
    connection = psycopg2.connect(dsn, cursor_factory=Counting)
    try:
        with connection.cursor() as cursor:
            assert isinstance(cursor, Counting)
            return make(cursor), cursor.executed + TRANSACTION
    finally:
        connection.close()


def shown(page: Page) -> str:
    """Return the text that a person reads on the page."""
    text = re.sub(r"<style.*?</style>", "", page.html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))
