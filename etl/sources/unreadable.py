"""Finds the files that can't be read to their end, and why; or why a folder can't be listed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from etl.common.errors import InputsChanged, ServiceAway, SetupError
from etl.common.outages import raising_service_errors
from etl.common.paths import filesystem, to_path
from etl.common.wording import pluralize, visible
from etl.spark.java_errors import FILE, UNFIT, Cause, causes, classify, messages, paths_in, raised

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_OBJECT = re.compile(r"@[0-9a-f]{4,16}\b")  # Java's number of an object
_LZ4_FRAME = b"\x04\x22\x4d\x18"  # the first bytes, by the LZ4 frame format
LONGEST_REASON = 300  # characters of why a file can't be read


class FileUnfit(Exception):
    """A file, or what is left of it, is not of its format or of its schema, so that its records are not known."""

    def of(self, uri: str) -> FileUnfit:
        """Name the file, for a task's error."""
        return FileUnfit(f"{self}{FILE}{uri}")


class FileUnread(Exception):
    """A task could not read a file now, for a reason that is not its content."""

    @classmethod
    def of(cls, uri: str, error: OSError) -> FileUnread:
        """Say what the storage said, and name the file."""
        return cls(f"{type(error).__name__}: {error}{FILE}{uri}")


def unreadable(
    uris: Sequence[str],
    read: Callable[[Sequence[str]], DataFrame],
    *,
    at_once: Callable[[Sequence[str]], dict[str, str]] | None = None,
) -> dict[str, str]:
    """Return the files that can't be read to their end, each with the reason; `read` gives all of some files.

    Where their own reader tells all of them `at_once`, that is one job. Where it can't, a job over all tells one that
    fails, and the rest is looked through by halves: with k of them it takes at most 2k + 1 jobs, however many files
    there are, and none is read more often than the halves are deep. Where Spark names no file it takes more.

    Raises InputsChanged for a file that is gone and ServiceAway when the storage did not answer.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if not uris:
        return {}
    if at_once is not None:
        with suppress(PySparkException, Py4JJavaError):  # of a file that is gone, or can't be read now
            return at_once(uris)
    try:
        read(uris).write.format("noop").mode("overwrite").save()
    except (PySparkException, Py4JJavaError) as error:
        failed = uris[0] if len(uris) == 1 else _named(error, uris)
        found = _blamed(error, failed, len(uris))
    else:
        return {}
    rest = [uri for uri in uris if uri != failed]
    half = len(rest) // 2
    for some in (rest[:half], rest[half:]):
        found |= unreadable(some, read)
    return found


def _blamed(error: Exception, failed: str | None, count: int) -> dict[str, str]:
    """Return why a file `failed`, by the error of a job over `count` files; nothing where it is not known which."""
    known_causes = classify(error)
    if Cause.FILE_GONE in known_causes:
        if failed is None:
            return {}
        raise InputsChanged(f"{failed} is gone", remedy="put it back, then run again") from error
    if Cause.FILE_DAMAGED in known_causes:
        return {} if failed is None else {failed: _said(error)}
    if not known_causes.keys() & {Cause.FILE_UNREAD, Cause.STORAGE_AWAY}:
        raise error
    *_, root = causes(error)
    raise ServiceAway(
        f"{failed or 'One of ' + pluralize(count, 'file')} can't be read now: {root}",
        remedy="check that its storage is reachable, then run again; if it is, land the file again in its place",
    ) from error


def _named(error: Exception, uris: Sequence[str]) -> str | None:
    """Return the one of the files that Spark names in its error; None where it names none."""
    by_path = {to_path(uri): uri for uri in uris}
    return next((by_path[path] for path in map(to_path, paths_in(error)) if path in by_path), None)


def _said(error: Any) -> str:
    """Return all that the cause of all says, in one line, without what differs each time."""
    *_, last = messages(error)
    return short(_OBJECT.sub("", re.sub(UNFIT, "", raised(last))))


def short(reason: str) -> str:
    """Return why a file can't be read in one line, cut at LONGEST_REASON, with control characters written out.

    The file that it names is left out, for it is known.
    """
    return visible(" ".join(reason.partition(FILE)[0].split()))[:LONGEST_REASON]


def lz4_frames(uris: Sequence[str]) -> dict[str, str]:
    """Return the LZ4 frames among files of text, each with the reason: Hadoop 3.5 finds no record in them, and no fault."""
    found = {}
    for uri in (one for one in uris if one.endswith(".lz4")):
        store, path = filesystem(to_path(uri))
        with raising_service_errors(), store.open_input_file(path) as file:
            if file.read(len(_LZ4_FRAME)) == _LZ4_FRAME:
                found[uri] = (
                    "it is an LZ4 frame, and Spark reads LZ4 as Hadoop writes it: compress it with gzip or zstd"
                )
    return found


def refuse_colon(pipeline: str, error: BaseException) -> None:
    """Raise SetupError if Spark could not list a folder for a glob because a name in it has a colon."""
    found = classify(error)
    if (line := found.get(Cause.NAME_REFUSED)) and Cause.FILE_UNREAD not in found:
        raise SetupError(
            f"Spark can't list a folder for a pattern of {pipeline}, whatever else is in it: a name with a colon is no"
            f" name for Hadoop: {line}",
            remedy=f"rename it, also where {pipeline} would not read it",
        ) from error
