"""Keeps how the last audit and the last sweep of a pipeline came out: alerts of them go by it."""

from __future__ import annotations

import logging
from typing import Literal

import psycopg2

from etl.common.database import transaction
from etl.common.errors import SluiceError
from etl.common.statements import Statements

STATEMENTS = Statements(__name__)
log = logging.getLogger("sluice")


def note(dsn: str, pipeline: str, command: Literal["audit", "sweep"], *, differences: int = 0) -> None:
    """Put on record that an audit or a sweep has come to its end, and how many differences it found.

    Warns where that can't be written: what the command has found or done is worth more.
    """
    try:
        with transaction(dsn) as cursor:
            STATEMENTS.execute(cursor, "note", pipeline=pipeline, command=command, differences=differences)
    except (psycopg2.Error, SluiceError) as error:
        log.warning("alerts of the %s of %s are as they were before it: %s", command, pipeline, error)
