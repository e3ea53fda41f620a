"""An input of a batch as the ledger records it: a file, or a version of something read beside the batch."""

from __future__ import annotations

from dataclasses import dataclass

LOOKUP_SOURCE = -1  # the `source` of a lookup's files


@dataclass(frozen=True, kw_only=True)
class Input:
    """One file as it was seen."""

    path: str  # below the landing, with "/"; the whole place when it lies elsewhere
    uri: str  # file:///… or s3a://…, percent-encoded, as Spark writes it
    size: int  # bytes
    mtime_ms: int  # milliseconds since 1970, UTC; S3 gives whole seconds
    etag: str | None  # S3 only
    source: int  # position among the pipeline's sources; LOOKUP_SOURCE for a lookup's
