"""A run that is held in the middle of a batch, within its transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import psycopg2

from tests.support.airflow.orders_stack import PATIENCE, Stack
from tests.support.data.orders import NAME
from tests.support.processes import answers
from tests.support.waiting import until


@contextmanager
def held_in_the_commit(stack: Stack, name: str = NAME) -> Iterator[None]:
    """Runs stop within their transaction, before the merge, until the block is left."""
    connection = psycopg2.connect(stack.home.dsn)
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLE warehouse.{name} IN SHARE MODE")
            yield
    finally:
        connection.close()


def wait_for_the_commit(stack: Stack) -> list[psutil.Process]:
    """Wait until a run waits within its transaction; return its processes, the driver first."""
    until_in_the_commit(stack)
    driver = stack.command()
    family = [driver, *driver.children(recursive=True)]
    assert "java" in answers(family, psutil.Process.name)
    assert any("pyspark.daemon" in words for words in answers(family, psutil.Process.cmdline))
    return family


def until_in_the_commit(stack: Stack) -> None:
    """Wait until a run waits within its transaction."""
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND query ~ '(LOCK TABLE|INSERT INTO) \"warehouse\"'"
    )
    until(
        lambda: stack.home.ask(query) != [(0,)], "a run to come to its commit", patience=PATIENCE, every=0.2
    )
