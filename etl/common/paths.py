"""Paths of files and folders: a URI as Spark writes it, the path it means, and how to open that.

A URI is percent-encoded and has a scheme. A place is `/absolute/path` or `s3a://bucket/key`, decoded once:
decoding it again would name another file, so the two are kept apart.
"""

from __future__ import annotations

import os
import tempfile
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import fs

from etl.common.errors import SetupError
from etl.common.wording import first_few

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

REQUESTS = 16  # to S3 at a time

_UNQUOTED = "/:@!$&'()*+,;=~-._"


def to_path(uri: str) -> str:
    """Return the place that a URI, decoded, or a local path means: `/absolute/path` or `s3a://bucket/key`.

    Raises SetupError for a URI of another scheme.
    """
    if uri.startswith("file:"):
        return unquote("/" + uri.removeprefix("file:").lstrip("/"))
    if uri.startswith("s3a://"):
        return "s3a://" + unquote(uri.removeprefix("s3a://"))
    if "://" in uri:
        raise SetupError(f"{uri} is neither a local path nor s3a://", remedy="use one of these two")
    return os.path.abspath(uri)  # noqa: PTH100 - resolve() would follow links, which Spark does not


def to_uri(place: str) -> str:
    """Return the URI of a place, percent-encoded as java.net.URI does it.

    Beyond ASCII that encodes spaces and control characters alone.
    """
    scheme = "s3a://" if place.startswith("s3a://") else "file://"
    path = place.removeprefix("s3a://")
    return scheme + "".join(quote(char, safe=_UNQUOTED) if _is_quoted(char) else char for char in path)


def _is_quoted(char: str) -> bool:
    return char.isascii() or unicodedata.category(char) in ("Zs", "Zl", "Zp", "Cc")


def temporary_folder() -> str:
    """Return the folder for files that a process needs for a while: where Spark has its own, else the system's."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()


def is_utf8(path: str) -> bool:
    """Return True if Java can name the path.

    Bytes of a local file's name that are no UTF-8 are lone surrogates in Python.
    """
    return shown(path) == path


def path_array(paths: Iterable[str]) -> pa.StringArray:
    """Return paths as an Arrow array, in their order, without pandas, which `pyarrow.array` imports at its first list."""
    builder = pa.lib.StringBuilder()
    builder.append_values(paths)
    return builder.finish()


def require_utf8(paths: Iterable[str]) -> None:
    """Raise SetupError when Java can't name one of the paths."""
    if unnamed := [shown(path) for path in paths if not is_utf8(path)]:
        raise SetupError(
            f"Java can't read a file whose name is no UTF-8: {first_few(unnamed)}", remedy="rename it"
        )


def shown(path: str) -> str:
    """Return a path as text, with bytes that are no UTF-8 as `\\xNN`."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def spark_path(folder: str | Path) -> str:
    """Name a local folder for Spark, whatever Spark's own default file system is.

    It is not percent-encoded, for Spark's readers take a path and not a URI.
    """
    return f"file://{folder}"


def landing_path(landing: str) -> str:
    """Return the landing as a place without a trailing slash; here percent signs mean themselves.

    That differs from `to_path`.
    """
    if landing.startswith("s3a://"):
        return landing.rstrip("/")
    return to_path(landing).rstrip("/") or "/"


def s3_client() -> S3Client:
    """Return a client with endpoint, region and credentials of the AWS chain; several threads may use it."""
    return _client(aws_environment())


def aws_environment() -> tuple[tuple[str, str], ...]:
    """Return the AWS_* variables, which the AWS chain reads: a kept client is used with these alone."""
    return tuple(sorted(one for one in os.environ.items() if one[0].startswith("AWS_")))


@lru_cache(maxsize=4)
def _client(environment: tuple[tuple[str, str], ...]) -> S3Client:  # noqa: ARG001 - of another one is another client
    """Make the client of this AWS environment once, and keep it.

    Making one takes a tenth of a second, and a batch asks for it several times.
    """
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=5, read_timeout=20, max_pool_connections=REQUESTS, retries={"total_max_attempts": 3}
    )
    session = boto3.Session()  # not the default session, which keeps the first credentials it found
    client = session.client("s3", config=config)
    if ".amazonaws." in client.meta.endpoint_url:
        return client
    # Other stores seldom answer to a bucket's name in front of their own.
    return session.client("s3", config=config.merge(Config(s3={"addressing_style": "path"})))


def filesystem(place: str) -> tuple[fs.FileSystem, str]:
    """Return the file system that opens `to_path`, and the path in its terms.

    S3's endpoint and region are those of the AWS chain.
    """
    if not place.startswith("s3a://"):
        return fs.LocalFileSystem(), place.rstrip("/") or "/"
    return _s3(aws_environment()), place.removeprefix("s3a://").rstrip("/")


@lru_cache(maxsize=4)
def _s3(environment: tuple[tuple[str, str], ...]) -> fs.S3FileSystem:
    """Open S3 for this AWS environment once, and keep it: each opening asks for credentials, and connects anew."""
    client = _client(environment).meta
    endpoint = client.endpoint_url
    return fs.S3FileSystem(
        region=client.region_name,
        endpoint_override=None if ".amazonaws.com" in endpoint else endpoint,
        force_virtual_addressing=False,
        connect_timeout=5,
        request_timeout=30,
        allow_delayed_open=True,  # a small object in one request, not three
    )
