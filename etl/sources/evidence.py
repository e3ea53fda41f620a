"""The inputs of a batch: which file each was, and the evidence that it is still the same.

A file's identity is its path below the landing. Size, modification time and etag are evidence beside it:
looked at when the batch starts and again before it commits.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from etl.common.errors import ServiceAway, SetupError
from etl.common.paths import REQUESTS, landing_path, path_array, s3_client, to_path, to_uri
from etl.common.wording import pluralize
from etl.ledger.inputs import Input
from etl.sources.listing.files import refuse_no_file

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from pyspark.sql import Column


class Listed(Protocol):
    """A file of one of the pipeline's sources."""

    @property
    def uri(self) -> str: ...

    @property
    def source(self) -> int: ...


def path_of(uri: str, landing: str) -> str:
    """Return the identity of the file at `uri`: its path below `landing` when it lies there, else its place."""
    return identity(to_path(uri), landing)


def paths_of(uris: pa.ChunkedArray, landing: str) -> pa.ChunkedArray:
    """Return the identities of the files at many URIs: what `path_of` returns of each."""
    import pyarrow.compute as pc

    root = landing_path(landing).rstrip("/") + "/"
    below = root if root.startswith("s3a://") else f"file://{root}"

    def paths(some: pa.StringArray) -> pa.StringArray:
        plain = pc.and_(pc.starts_with(some, below), pc.invert(pc.match_substring(some, "%")))
        others = [path_of(uri, landing) for uri in some.filter(pc.invert(plain)).to_pylist()]
        rest = pc.utf8_slice_codeunits(some, len(below))
        return pc.replace_with_mask(rest, pc.invert(plain), path_array(others))

    return pa.chunked_array([paths(chunk) for chunk in uris.chunks], pa.string())


def identity(path: str, landing: str) -> str:
    """Return the identity of the file at `path`: its path below `landing` when it lies there, else `path` itself."""
    return path.removeprefix(landing_path(landing).rstrip("/") + "/")


def path_column(uri: Column, landing: str) -> Column:
    """Return the identity of a file within Spark, of its URI: what `path_of` returns."""
    from pyspark.sql import functions as F

    decoded = F.try_url_decode(F.replace(uri, F.lit("+"), F.lit("%2B")))  # it takes a plus for a blank
    path = F.regexp_replace(decoded, "^file:/+", "/")
    root = landing_path(landing).rstrip("/") + "/"
    return F.when(path.startswith(root), F.substr(path, F.lit(len(root) + 1))).otherwise(path)


def place_at(path: str, landing: str) -> str:
    """Return the place of the file of this identity, below the landing as it is now."""
    outside = path.startswith(("/", "s3a://"))
    return path if outside else f"{landing_path(landing).rstrip('/')}/{path}"


def uri_at(path: str, landing: str) -> str:
    """Return the URI of the file of this identity, below the landing as it is now."""
    return to_uri(place_at(path, landing))


def look(uris: Iterable[str], *, landing: str, source: int = 0) -> list[Input]:
    """Look at files, in the order of `uris`, and return each as it is now; one that is gone is left out.

    Raises ServiceAway when S3 doesn't answer: a file that can't be looked at is not a file that is gone.
    Raises SetupError when it may not be read, and for what is no file, such as a named pipe.
    """
    named = [uri if "://" in uri else to_uri(to_path(uri)) for uri in uris]
    client = s3_client() if any(uri.startswith("s3a://") for uri in named) else None
    with ThreadPoolExecutor(REQUESTS) as pool:
        seen = pool.map(lambda uri: _look(uri, landing, source, client), named)
        return [one for one in seen if one is not None]


def look_again(files: Iterable[Listed], *, landing: str) -> list[Input]:
    """Look at files again, source by source, and return each that is there as it is now.

    Raises what `look` raises.
    """
    uris: dict[int, list[str]] = {}
    for file in files:
        uris.setdefault(file.source, []).append(file.uri)
    return [one for source in sorted(uris) for one in look(uris[source], landing=landing, source=source)]


def _look(uri: str, landing: str, source: int, client: S3Client | None) -> Input | None:
    if client is not None and uri.startswith("s3a://"):
        return _look_s3(uri, landing, source, client)
    try:
        seen = Path(to_path(uri)).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    refuse_no_file(to_path(uri), seen.st_mode)
    return Input(
        path=path_of(uri, landing),
        uri=uri,
        size=seen.st_size,
        mtime_ms=seen.st_mtime_ns // 1_000_000,
        etag=None,
        source=source,
    )


def _look_s3(uri: str, landing: str, source: int, client: S3Client) -> Input | None:
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, key = to_path(uri).removeprefix("s3a://").partition("/")
    try:
        seen = client.head_object(Bucket=bucket, Key=key)
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status == 404:
            return None
        if status in (401, 403):
            remedy = "check the AWS credentials and their rights"
            raise SetupError(f"{uri} may not be read: {error}", remedy=remedy) from error
        raise ServiceAway(f"S3 did not answer for {uri}: {error}", remedy="run again") from error
    except BotoCoreError as error:
        raise ServiceAway(f"S3 did not answer for {uri}: {error}", remedy="run again") from error
    return Input(
        path=path_of(uri, landing),
        uri=uri,
        size=seen["ContentLength"],
        mtime_ms=int(seen["LastModified"].timestamp() * 1000),
        etag=seen["ETag"].strip('"'),
        source=source,
    )


def changed(before: Iterable[Input], after: Iterable[Input]) -> list[str]:
    """Name what is different between two looks, one sentence a file, in the order of `before`.

    The list is empty when the inputs are the same. Where both have an etag it decides: the same bytes put
    there again are the same input.
    """
    now = {(one.source, one.path): one for one in after}
    changes = []
    for was in before:
        seen = now.pop((was.source, was.path), None)
        if seen is None:
            changes.append(f"{was.path} is gone")
        elif difference := other_content(was, seen):
            changes.append(f"{was.path} {difference}")
        elif (was.etag is None or seen.etag is None) and seen.mtime_ms != was.mtime_ms:
            changes.append(
                f"{was.path} was written again ({_time(seen.mtime_ms)}, was {_time(was.mtime_ms)})"
            )
    return changes + [f"{path} is new" for _, path in now]


def other_content(was: Input, now: Input) -> str | None:
    """Say what shows for sure that a file has other content, whenever it was written: its size, or its etag on S3."""
    if now.size != was.size:
        return f"has {pluralize(now.size, 'byte')} and had {was.size}"
    if was.etag is not None and now.etag is not None and now.etag != was.etag:
        return f"has other content (etag {now.etag}, was {was.etag})"
    return None


def _time(mtime_ms: int) -> str:
    return dt.datetime.fromtimestamp(mtime_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")
