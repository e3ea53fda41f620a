"""Numbers files, so that each row can tell its own at the cost of a number: a path would cost a tenth of reading it."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


def origin(uri: str) -> int:
    """Return the number of a file, 32 bits; two files may have the same one."""
    return zlib.crc32(uri.encode())


def origin_column() -> Column:
    """Return the number of the file that Spark reads a row of."""
    from pyspark.sql import functions as F

    return F.crc32("_metadata.file_path")


def by_origin(uris: Iterable[str]) -> dict[int, str]:
    """Return files by their numbers, without those that have one in common."""
    numbered = {(origin(spelt), uri) for uri in uris for spelt in _spellings(uri)}
    files = Counter(number for number, _ in numbered)
    return {number: uri for number, uri in numbered if files[number] == 1}


def _spellings(uri: str) -> set[str]:
    """Return a local URI as logs have it, and as Spark's readers have it."""
    return {uri, uri.replace("file:///", "file:/", 1)}
