"""What is below a table's folder on S3, which attempt wrote it, and which of it some metadata still needs."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.table.metadata import TableMetadata

from etl.database import Cursor, run
from etl.drafts import drafted_by, drafting_run
from etl.errors import ServiceAway, SetupError, SluiceError
from etl.lake import LakeTable
from etl.objects import ObjectStore
from etl.places import aws_environment

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

A = TypeVar("A")
B = TypeVar("B")

REQUESTS = 8  # to S3 at a time
_DATA = re.compile(r"/data/(?:.*/)?stream=([0-9a-f-]{36})/batch=(\d+)/(\d+)-[^/]+$")
_TORN = "(?:-[0-9a-f-]{36})?"  # S3Proxy leaves <key>-<uuid> when it is killed during a PUT
_MANIFEST = re.compile(rf"/deliveries/(\d+)-([0-9a-f]{{8}})\.json{_TORN}$")
_UUID = r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
_METADATA = re.compile(
    rf"/metadata/(?:\d+-{_UUID}\.metadata\.json|{_UUID}-m\d+\.avro|snap-\d+-\d+-{_UUID}\.avro){_TORN}$"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """An object on S3."""

    uri: str  # s3://…
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The attempt that an object's name says it belongs to; what the name leaves open is None."""

    delivery_id: int
    stream_id: str | None = None
    batch_id: int | None = None
    run: str | None = None  # the first 8 characters of the run's id


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """A multipart upload that was begun and not finished; a listing of objects does not show it."""

    uri: str
    upload_id: str


def owner_of(uri: str) -> Owner | None:
    """Whose the data file, delivery manifest or draft at `uri` is; None for every other object."""
    if found := _DATA.search(uri):
        return Owner(delivery_id=int(found[3]), stream_id=found[1], batch_id=int(found[2]))
    if found := _MANIFEST.search(uri):
        return Owner(delivery_id=int(found[1]), run=found[2])
    if found := _METADATA.search(uri):
        # Ten random bytes were once before the number: such a name is no run's, and its object stays.
        name = uuid.UUID(next(name for name in found.groups() if name))
        return Owner(delivery_id=drafted_by(name), run=drafting_run(name))
    return None


def is_of(owner: Owner, attempt: Mapping[str, Any]) -> bool:
    """Whether the name means this attempt and not another one of the same number: of another database that
    shares the lake, or from before PostgreSQL went back in time."""
    said = {"run": owner.run, "stream_id": owner.stream_id, "batch_id": owner.batch_id}
    return all(value is None or value == attempt[name] for name, value in said.items())


def s3_client(store: ObjectStore) -> S3Client:
    """A client of this store, which several threads may use; credentials come from the standard AWS chain."""
    return _client(store, aws_environment())


@lru_cache(maxsize=4)
def _client(
    store: ObjectStore,
    environment: tuple[tuple[str, str], ...],  # noqa: ARG001 - of another one is another client
) -> S3Client:
    """Made once: it takes a tenth of a second and more."""
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


def bucket_of(uri: str) -> tuple[str, str]:
    """(bucket, key) of an s3:// URI."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def translated(error: BotoCoreError | ClientError, uri: str) -> SluiceError:
    """What a failed request means for a person."""
    status = status_of(error)
    if status in (401, 403):
        remedy = "check the AWS credentials and what they may do there"
        return SetupError(f"S3 refused access to {uri}: {error}", remedy=remedy)
    if status == 404:
        remedy = "create the bucket, or set SLUICE_LAKE to another"
        return SetupError(f"There is no bucket for {uri}: {error}", remedy=remedy)
    remedy = "see that it runs (`sluice doctor`); then do it again"
    return ServiceAway(f"S3 did not answer for {uri}: {error}", remedy=remedy)


def status_of(error: BotoCoreError | ClientError) -> int | None:
    """The HTTP status of a failed request, where there was an answer."""
    if not isinstance(error, ClientError):
        return None
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")


def stored(client: S3Client, folder: str) -> Iterator[Stored]:
    """Every object below `folder`, page by page."""
    bucket, prefix = bucket_of(folder.rstrip("/") + "/")
    try:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for one in page.get("Contents", []):
                uri = f"s3://{bucket}/{one['Key']}"
                yield Stored(uri=uri, bytes=one["Size"])
    except (BotoCoreError, ClientError) as error:
        raise translated(error, folder) from error


def unfinished(client: S3Client, folder: str) -> list[Upload] | None:
    """Every unfinished upload below `folder`; None where the store can't list them."""
    bucket, prefix = bucket_of(folder.rstrip("/") + "/")
    try:
        pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix)
        begun = [one for page in pages for one in page.get("Uploads", [])]
    except ClientError as error:
        if status_of(error) in (400, 405, 501):
            return None
        raise translated(error, folder) from error
    except BotoCoreError as error:
        raise translated(error, folder) from error
    return [
        Upload(uri=f"s3://{bucket}/{one['Key']}", upload_id=one["UploadId"])
        for one in begun
        if one["Key"].startswith(prefix)
    ]


def retained_pointers(
    cursor: Cursor, pipeline: str, tables: Sequence[LakeTable], horizon: dt.timedelta
) -> list[list[str]]:
    """For each of the two tables, every metadata location that was in force within the horizon, and now."""
    values = {"pipeline": pipeline, "horizon": horizon}
    found = run(cursor, "sweep", "retained_pointers", values).fetchall()
    recorded = [{one[number] for one in found} for number in (0, 1)]
    now = [{pointer} if (pointer := table.pointer(cursor)) else set() for table in tables]
    return [sorted(then | current) for then, current in zip(recorded, now, strict=True)]


def referenced(table: LakeTable, pointers: Iterable[str], *, whole: str | None = None) -> Iterator[str]:
    """The URI of every object that a reader of the metadata at one of `pointers`, or at `whole`, may open.

    Each is read once. What is gone references nothing any more, but FileNotFoundError is raised when a reader
    of `whole` would miss it. The metadata files that each of them followed are named as well: a table's first
    one is in no ledger row.
    """
    seen: set[str] = set()
    with ThreadPoolExecutor(REQUESTS) as pool:
        if whole:
            yield from _walk(table, pool, [whole], seen, strict=True)
        yield from _walk(table, pool, sorted({*pointers} - {whole}), seen, strict=False)


def _walk(
    table: LakeTable, pool: Executor, pointers: Sequence[str], seen: set[str], *, strict: bool
) -> Iterator[str]:
    yield from pointers
    lists: set[str] = set()
    for metadata in _each(pool, table.load, pointers, strict=strict):
        yield from (entry.metadata_file for entry in metadata.metadata_log)
        yield from (found.statistics_path for found in metadata.statistics)
        yield from (found.statistics_path for found in metadata.partition_statistics)
        lists |= {snapshot.manifest_list for snapshot in metadata.snapshots} - seen
    yield from lists
    manifests: dict[str, ManifestFile] = {}
    for listed in _each(pool, partial(_manifests, table), sorted(lists), strict=strict):
        manifests |= {one.manifest_path: one for one in listed if one.manifest_path not in seen}
    yield from manifests
    seen |= lists | manifests.keys()
    for files in _each(pool, partial(_files, table), list(manifests.values()), strict=strict):
        yield from files


def _each(pool: Executor, read: Callable[[A], B], items: Sequence[A], *, strict: bool) -> Iterator[B]:
    """What `read` makes of each item, several at a time; without those that are gone, unless `strict`."""

    def one(item: A) -> B | None:
        try:
            return read(item)
        except FileNotFoundError:
            if strict:
                raise
            return None

    return (found for found in pool.map(one, items) if found is not None)


def _manifests(table: LakeTable, at: str) -> list[ManifestFile]:
    return list(read_manifest_list(table.lake.io.new_input(at)))


def _files(table: LakeTable, manifest: ManifestFile) -> list[str]:
    return [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.lake.io)]


def current_files(table: LakeTable, metadata: TableMetadata | None) -> dict[str, tuple[int, int]]:
    """(rows, bytes) of every data file in the current snapshot, by URI."""
    snapshot = metadata.current_snapshot() if metadata else None
    found: dict[str, tuple[int, int]] = {}
    if snapshot is None:
        return found
    with ThreadPoolExecutor(REQUESTS) as pool:
        lists = snapshot.manifests(table.lake.io)
        for entries in pool.map(lambda manifest: manifest.fetch_manifest_entry(table.lake.io), lists):
            found |= {
                entry.data_file.file_path: (entry.data_file.record_count, entry.data_file.file_size_in_bytes)
                for entry in entries
            }
    return found
