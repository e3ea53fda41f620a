"""Finds what is below a table's folder on S3, which attempt wrote it, and which of it some metadata still needs."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pyiceberg.manifest import DataFile, ManifestFile, read_manifest_list
from pyiceberg.table.metadata import TableMetadata

from etl.common.database import Cursor
from etl.common.statements import Statements
from etl.sinks.lake.s3 import REQUESTS
from etl.sinks.lake.snapshots import drafted_by, drafting_run
from etl.sinks.lake.table import LakeTable

STATEMENTS = Statements(__name__)

A = TypeVar("A")
B = TypeVar("B")


_DATA = re.compile(r"/data/(?:.*/)?stream=([0-9a-f-]{36})/batch=(\d+)/(\d+)-[^/]+$")
_TORN = "(?:-[0-9a-f-]{36})?"  # S3Proxy leaves <key>-<uuid> when it is killed during a PUT
_MANIFEST = re.compile(rf"/deliveries/(\d+)-([0-9a-f]{{8}})\.json{_TORN}$")
_UUID = r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
_METADATA = re.compile(
    rf"/metadata/(?:\d+-{_UUID}\.metadata\.json|{_UUID}-m\d+\.avro|snap-\d+-\d+-{_UUID}\.avro){_TORN}$"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The attempt that an object's name says it belongs to; what the name leaves open is None."""

    delivery_id: int
    stream_id: str | None = None
    batch_id: int | None = None
    run: str | None = None  # the first 8 characters of the run's id


def owner_of(uri: str) -> Owner | None:
    """Name the owner of the data file, delivery manifest or draft at `uri`; None for every other object."""
    if match := _DATA.search(uri):
        return Owner(delivery_id=int(match[3]), stream_id=match[1], batch_id=int(match[2]))
    if match := _MANIFEST.search(uri):
        return Owner(delivery_id=int(match[1]), run=match[2])
    if match := _METADATA.search(uri):
        # Ten random bytes were once before the number: such a name is no run's, and its object stays.
        name = uuid.UUID(next(name for name in match.groups() if name))
        return Owner(delivery_id=drafted_by(name), run=drafting_run(name))
    return None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt as PostgreSQL knows it."""

    delivery_id: int
    stream_id: str
    batch_id: int
    run: str  # the first 8 characters of the run's id
    state: str  # open, how it ended, or what whoever asked makes of it, such as lost


def is_of(owner: Owner, attempt: Attempt) -> bool:
    """Tell whether the name means this attempt and not another one of the same number.

    The other may be of another database that shares the lake, or from before PostgreSQL went back in time.
    """
    said = (owner.run, attempt.run), (owner.stream_id, attempt.stream_id), (owner.batch_id, attempt.batch_id)
    return all(named in (None, known) for named, known in said)


def retained_pointers(
    cursor: Cursor, pipeline: str, tables: Sequence[LakeTable], horizon: dt.timedelta
) -> list[list[str]]:
    """Return, for each of the two tables, all metadata locations in force within the horizon, and now."""
    records = STATEMENTS.execute(cursor, "retained_pointers", pipeline=pipeline, horizon=horizon).fetchall()
    recorded = [{one[number] for one in records} for number in (0, 1)]
    now = [{pointer} if (pointer := table.pointer(cursor)) else set() for table in tables]
    return [sorted(then | current) for then, current in zip(recorded, now, strict=True)]


def recorded_manifests(cursor: Cursor, pipeline: str) -> frozenset[str]:
    """Return the URIs of the delivery manifests that the pipeline's ledger rows name."""
    return frozenset(uri for (uri,) in STATEMENTS.execute(cursor, "manifests", pipeline=pipeline))


def referenced(table: LakeTable, pointers: Iterable[str], *, whole: str | None = None) -> Iterator[str]:
    """Yield the URI of every object that a reader of the metadata at `pointers`, or at `whole`, may open.

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
    for metadata in _each(pool, table.lake.read_metadata, pointers, strict=strict):
        yield from (entry.metadata_file for entry in metadata.metadata_log)
        yield from (statistics.statistics_path for statistics in metadata.statistics)
        yield from (statistics.statistics_path for statistics in metadata.partition_statistics)
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
    """Yield what `read` makes of each item, several at a time; skip those that are gone, unless `strict`."""

    def one(item: A) -> B | None:
        try:
            return read(item)
        except FileNotFoundError:
            if strict:
                raise
            return None

    return (result for result in pool.map(one, items) if result is not None)


def _manifests(table: LakeTable, at: str) -> list[ManifestFile]:
    return list(read_manifest_list(table.lake.io.new_input(at)))


def _files(table: LakeTable, manifest: ManifestFile) -> list[str]:
    return [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.lake.io)]


def current_files(table: LakeTable, metadata: TableMetadata | None) -> dict[str, tuple[int, int]]:
    """Return (rows, bytes) of every data file in the current snapshot, by URI; raise NeedsPerson where it is not whole."""
    files = _data_files(table, metadata)
    return {one.file_path: (one.record_count, one.file_size_in_bytes) for one in files}


def columns_with_values(table: LakeTable, metadata: TableMetadata) -> set[str]:
    """Return the columns of which a data file in the current snapshot has a value, by the counts that Iceberg keeps.

    Raises NeedsPerson where the snapshot is not whole.
    """
    found = {
        number
        for one in _data_files(table, metadata)
        for number, values in (one.value_counts or {}).items()
        if values > (one.null_value_counts or {}).get(number, 0)
    }
    return {field.name for field in metadata.schema().fields if field.field_id in found}


def _data_files(table: LakeTable, metadata: TableMetadata | None) -> Iterator[DataFile]:
    """Yield every data file in the current snapshot; raise NeedsPerson where it is not whole."""
    snapshot = metadata.current_snapshot() if metadata else None
    if snapshot is None:
        return
    with table.whole(), ThreadPoolExecutor(REQUESTS) as pool:
        lists = snapshot.manifests(table.lake.io)
        entries = pool.map(lambda manifest: manifest.fetch_manifest_entry(table.lake.io), lists)
        yield from (one.data_file for manifest in entries for one in manifest)
