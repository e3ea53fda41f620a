"""Asks S3 what is stored and which uploads are unfinished; distinguishes errors by their status."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from etl.common.errors import ServiceAway, SetupError, SluiceError
from etl.common.outages import service_error
from etl.common.paths import aws_environment
from etl.sinks.lake.parquet_writer import ObjectStore

if TYPE_CHECKING:
    from botocore.exceptions import BotoCoreError, ClientError
    from mypy_boto3_s3 import S3Client


REQUESTS = 8  # to S3 at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """An object on S3."""

    uri: str  # s3://…
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """A multipart upload that was begun and not finished; a listing of objects does not show it."""

    uri: str
    upload_id: str


def s3_client(store: ObjectStore) -> S3Client:
    """Return a client of this store for several threads; its credentials come from the standard AWS chain."""
    return _client(store, aws_environment())


@lru_cache(maxsize=4)
def _client(
    store: ObjectStore,
    environment: tuple[tuple[str, str], ...],  # noqa: ARG001 - of another one is another client
) -> S3Client:
    """Make a client, once for each store and environment: it takes a tenth of a second and more."""
    import boto3
    from botocore.config import Config

    return boto3.Session().client(  # not the default session, which keeps the first credentials it found
        "s3",
        endpoint_url=store.endpoint,
        region_name=store.region,
        config=Config(
            connect_timeout=5,
            read_timeout=30,
            max_pool_connections=2 * REQUESTS,
            retries={"total_max_attempts": 3},
            s3={"addressing_style": "path" if store.endpoint else "auto"},
        ),
    )


def failures() -> tuple[type[BotoCoreError], type[ClientError]]:
    """Return what a failed request raises, for an `except`: imported where one has failed, for most commands make none."""
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError


def bucket_of(uri: str) -> tuple[str, str]:
    """Split an s3:// URI into (bucket, key)."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def translated(error: BotoCoreError | ClientError, uri: str) -> SluiceError:
    """Return the error that tells a person what a failed request means."""
    if isinstance(settings := service_error(error), SetupError):
        return settings
    status = status_of(error)
    if status in (401, 403):
        remedy = "check the AWS credentials and what they may do there"
        return SetupError(f"S3 refused access to {uri}: {error}", remedy=remedy)
    if status == 404:
        remedy = "create the bucket, or set SLUICE_LAKE to another"
        return SetupError(f"There is no bucket for {uri}: {error}", remedy=remedy)
    remedy = "check that it is running (`sluice doctor`); then run the same command again"
    return ServiceAway(f"S3 did not answer for {uri}: {error}", remedy=remedy)


def status_of(error: BotoCoreError | ClientError) -> int | None:
    """Return the HTTP status of a failed request; None where there was no answer."""
    _, of_answers = failures()
    if not isinstance(error, of_answers):
        return None
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")


def get(store: ObjectStore, uri: str) -> bytes | None:
    """Read a small object with one request; return None where there is none."""
    bucket, key = bucket_of(uri)
    try:
        return s3_client(store).get_object(Bucket=bucket, Key=key)["Body"].read()
    except failures() as error:
        if status_of(error) == 404:
            return None
        raise translated(error, uri) from error


def put(store: ObjectStore, uri: str, content: bytes) -> None:
    """Write a small object with one request."""
    bucket, key = bucket_of(uri)
    try:
        s3_client(store).put_object(Bucket=bucket, Key=key, Body=content)
    except failures() as error:
        raise translated(error, uri) from error


def delete(store: ObjectStore, uri: str) -> None:
    """Remove an object with one request; do nothing where there is none."""
    bucket, key = bucket_of(uri)
    try:
        s3_client(store).delete_object(Bucket=bucket, Key=key)
    except failures() as error:
        raise translated(error, uri) from error


def stored(client: S3Client, folder: str) -> Iterator[Stored]:
    """Yield every object below `folder`, page by page."""
    bucket, prefix = bucket_of(folder.rstrip("/") + "/")
    try:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for one in page.get("Contents", []):
                uri = f"s3://{bucket}/{one['Key']}"
                yield Stored(uri=uri, bytes=one["Size"])
    except failures() as error:
        raise translated(error, folder) from error


def folders(client: S3Client, folder: str) -> list[str]:
    """List the folders right below `folder`, as URIs."""
    bucket, prefix = bucket_of(folder.rstrip("/") + "/")
    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, Delimiter="/")
        found = [one["Prefix"] for page in pages for one in page.get("CommonPrefixes", [])]
    except failures() as error:
        raise translated(error, folder) from error
    return [f"s3://{bucket}/{one.rstrip('/')}" for one in found]


def unfinished(client: S3Client, folder: str) -> list[Upload] | None:
    """Return every unfinished upload below `folder`; None where the store can't list them."""
    bucket, prefix = bucket_of(folder.rstrip("/") + "/")
    try:
        pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix)
        begun = [one for page in pages for one in page.get("Uploads", [])]
    except failures() as error:
        if status_of(error) in (400, 405, 501):
            return None
        raise translated(error, folder) from error
    return [
        Upload(uri=f"s3://{bucket}/{one['Key']}", upload_id=one["UploadId"])
        for one in begun
        if one["Key"].startswith(prefix)
    ]
