"""The lake below one place on S3, and where its tables are; what is in them is `table`'s.

Nothing of pyiceberg is imported before an object of a table is read or written: that takes two seconds, and most commands
need none.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

from pyarrow.fs import FileSelector, FileType, S3FileSystem

from etl.common.database import Cursor
from etl.ledger import pointers
from etl.sinks.lake.parquet_writer import ObjectStore

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata

READERS = 8  # objects asked for at a time
# In memory, since each commit reads what the last one wrote, of two tables:
KEPT_METADATA = 8  # of the tables' metadata
KEPT_OBJECTS, KEPT_BYTES = 16, 1 << 20  # of all that a commit wrote; larger ones are read again


class Lake:
    """The Iceberg tables below one place: `schema.name` is in the folder schema/name."""

    def __init__(self, root: str, store: ObjectStore) -> None:
        self.root = root  # s3://bucket[/prefix]
        self.store = store
        self._metadata: dict[str, TableMetadata] = {}  # by location, the newest last
        self._written: dict[str, bytes] = {}  # likewise

    def properties(self) -> dict[str, str]:
        """Return pyiceberg's settings for this store; credentials come from the AWS chain."""
        properties = {
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            "s3.region": self.store.region,
            "s3.force-virtual-addressing": "false",
            "s3.connect-timeout": "5",
            "s3.request-timeout": "30",
        }
        return properties | ({"s3.endpoint": self.store.endpoint} if self.store.endpoint else {})

    @cached_property
    def io(self) -> FileIO:
        """Return pyiceberg's way to objects, by our own client: it writes a small one in one request, not three."""
        from pyiceberg.io.pyarrow import PyArrowFileIO

        io = PyArrowFileIO(self.properties())
        io.fs_by_scheme = lambda *_: self._s3
        return io

    def write_text(self, uri: str, text: str) -> None:
        """Write `text` to a whole object, or write none."""
        self.write_bytes(uri, text.encode())

    def write_bytes(self, uri: str, content: bytes) -> None:
        """Write `content` to a whole object, or write none."""
        with self.io.new_output(uri).create(overwrite=True) as sink:
            sink.write(content)

    def read_text(self, uri: str) -> str:
        with self.open(uri) as source:
            return str(source.read().decode())

    def read(self, uri: str) -> bytes | None:
        """Read a small object; return None where there is none."""
        try:
            with self._s3.open_input_stream(uri.removeprefix("s3://")) as source:
                return bytes(source.read())
        except FileNotFoundError:
            return None

    def is_folder(self, path: str) -> bool:
        """Tell whether a bucket, or a folder in one, is there."""
        return bool(self._s3.get_file_info(path).type == FileType.Directory)

    def folders(self, path: str) -> list[str]:
        """List what is right below a bucket or a folder of one; nothing where that is not there."""
        return [one.path for one in self._s3.get_file_info(FileSelector(path, allow_not_found=True))]

    def open(self, uri: str) -> NativeFile:
        """Open an object to be read at random."""
        return self._s3.open_input_file(uri.removeprefix("s3://"))

    def size(self, uri: str) -> int | None:
        """Return the object's size in bytes, or None where there is no object."""
        info = self._s3.get_file_info(uri.removeprefix("s3://"))
        return info.size if info.type == FileType.File else None

    def gone(self, uris: Sequence[str]) -> list[str]:
        """Return those of `uris` where there is no object."""
        with ThreadPoolExecutor(READERS) as pool:
            return [uri for uri, size in zip(uris, pool.map(self.size, uris), strict=True) if size is None]

    @cached_property
    def _s3(self) -> S3FileSystem:
        return self.store.open()

    def read_metadata(self, location: str) -> TableMetadata:
        """Read a table's metadata, which may be gone: then FileNotFoundError is raised."""
        from pyiceberg.serializers import FromInputFile

        return FromInputFile.table_metadata(self.io.new_input(location))

    def metadata(self, location: str) -> TableMetadata:
        """Return a table's metadata, from memory where it was used of late: what a location has never changes."""
        found = self._metadata.pop(location, None) or self.read_metadata(location)
        self.keep_metadata(location, found)
        return found

    def keep_metadata(self, location: str, metadata: TableMetadata) -> None:
        """Keep what is at `location` in memory, and forget what was used longest ago."""
        self._metadata[location] = metadata
        for oldest in [*self._metadata][:-KEPT_METADATA]:
            self._metadata.pop(oldest, None)

    def written(self, uri: str) -> bytes | None:
        """Return what was written to an object of late; None where that is not in memory."""
        return self._written.get(uri)

    def keep_written(self, uri: str, content: bytes) -> None:
        """Keep what is written to an object of a name of its own in memory, and forget what was written longest ago."""
        if len(content) <= KEPT_BYTES:
            self._written[uri] = content
        for oldest in [*self._written][:-KEPT_OBJECTS]:
            self._written.pop(oldest, None)


@dataclass(frozen=True, kw_only=True)
class TableLocation:
    """Where an Iceberg table is: its folder on S3, and its pointer in PostgreSQL."""

    lake: Lake
    namespace: str
    name: str

    @classmethod
    def of(cls, lake: Lake, name: str) -> Self:
        """Return the table `schema.name`."""
        namespace, _, table = name.rpartition(".")
        return cls(lake=lake, namespace=namespace, name=table)

    @property
    def location(self) -> str:
        return f"{self.lake.root}/{self.namespace}/{self.name}"

    def pointer(self, cursor: Cursor) -> str | None:
        """Return where the table's current metadata is; None when there is no table."""
        return pointers.pointer(cursor, self.namespace, self.name)
