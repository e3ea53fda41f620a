"""Finds out why a file can't be read to its end, or a folder not be listed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from etl.common.errors import InputsChanged, ServiceAway, SetupError
from etl.common.wording import visible
from etl.sources.unfit import FILE
from etl.spark.java_errors import UNFIT, Cause, causes, classify, messages, raised

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_OBJECT = re.compile(r"@[0-9a-f]{4,16}\b")  # Java's number of an object
LONGEST_REASON = 300  # characters of why a file can't be read


def reading_fails(uri: str, read: Callable[[], DataFrame]) -> str | None:
    """Tell why a file can't be read to its end, all of which `read` gives; None: it can.

    Raises InputsChanged for a file that is gone and ServiceAway when the storage did not answer.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        read().write.format("noop").mode("overwrite").save()
    except (PySparkException, Py4JJavaError) as error:
        known_causes = classify(error)
        if Cause.FILE_GONE in known_causes:
            raise InputsChanged(f"{uri} is gone", remedy="put it back, then run again") from error
        if Cause.FILE_DAMAGED in known_causes:
            return _said(error)
        if not known_causes.keys() & {Cause.FILE_UNREAD, Cause.STORAGE_AWAY}:
            raise
        *_, root = causes(error)
        raise ServiceAway(
            f"{uri} can't be read now: {root}",
            remedy="check that its storage is reachable, then run again; if it is, land the file again in its place",
        ) from error
    return None


def _said(error: Any) -> str:
    """Return all that the cause of all says, in one line, without what differs each time.

    The file that it names is left out, for it is known; what is longer than LONGEST_REASON is cut. Control
    characters of the file are written out.
    """
    *_, last = messages(error)
    said = re.sub(UNFIT, "", raised(last)).partition(FILE)[0]
    return visible(" ".join(_OBJECT.sub("", said).split()))[:LONGEST_REASON]


def refuse_colon(pipeline: str, error: BaseException) -> None:
    """Raise SetupError if Spark could not list a folder for a glob because a name in it has a colon."""
    found = classify(error)
    if (line := found.get(Cause.NAME_REFUSED)) and Cause.FILE_UNREAD not in found:
        raise SetupError(
            f"Spark can't list a folder for a pattern of {pipeline}, whatever else is in it: a name with a colon is no"
            f" name for Hadoop: {line}",
            remedy=f"rename it, also where {pipeline} would not read it",
        ) from error
