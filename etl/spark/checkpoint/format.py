"""The files of Spark 4.3's checkpoint: writes each, and reads them whole or not at all.

    metadata                  {"id": "<stream id>"}
    offsets/<batch>           v1 | a line of JSON about the batch | for each source {"logOffset": <n>} or -
    commits/<batch>           v1 | a line of JSON
    sources/<i>/<n>           v1 | for each file of log entry n {"path", "timestamp", "batchId": n}
    sources/<i>/<n>.compact   the same for all entries up to n
    state/                    what the transform keeps, in a format of Spark's own

The `batchId` of a source's log counts that log's entries: a batch in which one source had nothing new does
not move it, so it is no id of a micro-batch.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyarrow import fs

from etl.common.errors import ServiceAway
from etl.common.wording import pluralize

COMPACT = ".compact"
COMPACTED = 10  # every so many entries Spark writes a compacted one: spark.sql.streaming.fileSource.log.compactInterval
LOGS = ("offsets", "commits", "sources")
NO_ENTRY = -1  # the offset of a source that has given nothing yet
VOID_OFFSET = "-"

LOG = pa.schema([("uri", pa.string()), ("mtime_ms", pa.int64()), ("entry", pa.int64())])  # a LoggedFile a row
NO_FILES = pa.Table.from_batches([], LOG)

_LOGGED = pa.schema(zip(("path", "timestamp", "batchId"), LOG.types, strict=True))  # as Spark names them
_VERSION = "v1"
_ANY_VERSION = re.compile(r"v\d+")


class Torn(Exception):
    """A file of the checkpoint is missing or unreadable; the text says which, and how."""


class Missing(Torn):
    """A file of the checkpoint is not there."""


class FileLike(Protocol):
    """What a file must tell to be written into a source's log."""

    @property
    def uri(self) -> str: ...
    @property
    def mtime_ms(self) -> int: ...
    @property
    def source(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class LoggedFile:
    """One file as Spark logged it when it listed it."""

    uri: str  # percent-encoded
    mtime_ms: int  # as listed
    source: int  # position among the query's sources
    entry: int  # of that source's log


@dataclass(frozen=True, kw_only=True)
class About:
    """What a batch began with, besides its inputs."""

    watermark_ms: int  # since 1970, as the batches before had left it
    time_ms: int  # its own, since 1970: what current_timestamp() is
    pinned: Mapping[str, Any] = field(default_factory=dict)  # settings that the state depends on

    @property
    def as_logged(self) -> dict[str, Any]:
        return {"batchWatermarkMs": self.watermark_ms, "batchTimestampMs": self.time_ms, "conf": self.pinned}


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A checkpoint's folder, local or on S3."""

    uri: str
    store: fs.FileSystem = field(repr=False)
    root: str  # in the store's terms

    def files(self) -> dict[str, fs.FileInfo]:
        """List the files at the root and in Spark's logs, by their paths below the root.

        Files hidden from Spark (a dot begins their name) and those of the state are left out.
        """
        entries = self._list("", recursive=False)
        for folder in LOGS:
            entries += self._list(folder, recursive=True)
        seen = (one for one in entries if one.type == fs.FileType.File and not one.base_name.startswith("."))
        return {one.path.removeprefix(self.root).lstrip("/"): one for one in seen}

    def has(self, folder: str) -> bool:
        """Tell whether there is anything in the folder; nothing deeper is listed."""
        return bool(self._list(folder, recursive=False))

    def _list(self, folder: str, *, recursive: bool) -> list[fs.FileInfo]:
        path = f"{self.root}/{folder}".rstrip("/")
        try:
            entries = self.store.get_file_info(
                fs.FileSelector(path, recursive=recursive, allow_not_found=True)
            )
            return list(entries)
        except OSError as error:
            seen = f"Checkpoint {self.uri} can't be listed: {error}"
            raise ServiceAway(seen, remedy="run again") from error

    def read(self, name: str) -> str:
        """Return the text of a file. Raises Torn when the file is missing or is no text."""
        return decoded(name, self.read_bytes(name))

    def read_bytes(self, name: str) -> pa.Buffer:
        """Return the content of a file. Raises Missing where there is none."""
        try:
            with self.store.open_input_file(f"{self.root}/{name}") as file:
                return file.read_buffer()
        except FileNotFoundError:
            raise Missing(f"{name} is missing") from None
        except OSError as error:
            seen = f"Checkpoint {self.uri}: {name} can't be read: {error}"
            raise ServiceAway(seen, remedy="run again") from error

    def write(self, name: str, text: str) -> None:
        """Write a file, which appears only when it is whole."""
        path = f"{self.root}/{name}"
        try:
            if not isinstance(self.store, fs.LocalFileSystem):
                with self.store.open_output_stream(path) as out:  # S3 shows an object once it is complete
                    out.write(text.encode())
                return
            folder, _, last = path.rpartition("/")
            draft = f"{folder}/.{last}.{secrets.token_hex(4)}"
            self.store.create_dir(folder, recursive=True)
            with self.store.open_output_stream(draft) as out:
                out.write(text.encode())
            self._delete(f"{folder}/.{last}.crc")  # Hadoop's sum of what was there
            self.store.move(draft, path)
        except OSError as error:
            seen = f"Checkpoint {self.uri}: {name} can't be written: {error}"
            raise ServiceAway(seen, remedy="run again") from error

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        folder, _, last = f"{self.root}/{name}".rpartition("/")
        try:
            self._delete(f"{folder}/{last}")
            self._delete(f"{folder}/.{last}.crc")
        except OSError as error:
            seen = f"Checkpoint {self.uri}: {name} can't be removed: {error}"
            raise ServiceAway(seen, remedy="run again") from error

    def _delete(self, path: str) -> None:
        if self.store.get_file_info(path).type != fs.FileType.NotFound:
            self.store.delete_file(path)


def parse_metadata(text: str) -> str:
    """Return the stream's id from the text of `metadata`. Raises Torn when it names none."""
    metadata = _object("metadata", text)
    if not isinstance(metadata.get("id"), str):
        raise Torn("metadata is torn: it names no stream")
    return str(metadata["id"])


def offset_lines(name: str, text: str) -> list[str]:
    """Return what a batch reads, a line for each source in the source's own form. Raises Torn without any."""
    lines = _lines(name, text)
    if len(lines) < 2:
        raise Torn(f"{name} is torn: it names no source")
    _object(name, lines[0])
    return lines[1:]


def parse_offsets(name: str, text: str) -> tuple[int, ...]:
    """Return the last log entry that a batch reads of each source of files.

    Raises Torn when the text does not tell it.
    """
    ends = []
    for line in offset_lines(name, text):
        end = NO_ENTRY if line == VOID_OFFSET else _object(name, line).get("logOffset")
        if not isinstance(end, int):
            raise Torn(f"{name} is torn: {line[:60]!r} is no offset of a file source")
        ends.append(end)
    return tuple(ends)


def parse_about(name: str, text: str) -> About:
    fields = _object(name, (_lines(name, text) or [""])[0])
    about = About(
        watermark_ms=fields.get("batchWatermarkMs", 0),
        time_ms=fields.get("batchTimestampMs", 0),
        pinned=fields.get("conf", {}),
    )
    if not isinstance(about.watermark_ms, int) or not isinstance(about.time_ms, int):
        raise Torn(f"{name} is torn: {text[:60]!r} is no batch's time")
    return about


def parse_commit(name: str, text: str) -> int:
    """Return the watermark after a batch, in ms since 1970. Raises Torn when the text does not tell it.

    The file's version differs with the state store's, so any version is taken.
    """
    version, *lines = text.split("\n")
    if not _ANY_VERSION.fullmatch(version) or len(lines) != 1:
        raise Torn(f"{name} is torn: it has {pluralize(len(lines), 'line')} after {version[:20]!r}")
    watermark = _object(name, lines[0]).get("nextBatchWatermarkMs", 0)
    if not isinstance(watermark, int):
        raise Torn(f"{name} is torn: {watermark!r} is no watermark")
    return watermark


def parse_log(name: str, content: pa.Buffer) -> pa.Table:
    """Return the files of one log file, plain or compacted, in Spark's order, as a table of LOG.

    A compacted one has all files ever read, so Arrow parses it; one that Arrow refuses goes line by line. Raises Torn
    when a line names no file.
    """
    from pyarrow import json as arrow_json

    begin = len(_VERSION) + 1
    lines = content.slice(begin) if content.size > begin else None
    if lines is not None and content.slice(0, begin).to_pybytes().decode(errors="replace") == f"{_VERSION}\n":
        options = arrow_json.ParseOptions(explicit_schema=_LOGGED, unexpected_field_behavior="error")
        with suppress(pa.ArrowInvalid):
            files = arrow_json.read_json(pa.BufferReader(lines), parse_options=options)
            files["path"].validate(full=True)  # as UTF-8, which the parser does not look at
            if len(files) == _line_count(lines) and not any(column.null_count for column in files.columns):
                return files.rename_columns(LOG.names)
    return _parse_lines(name, decoded(name, content))


def _line_count(lines: pa.Buffer) -> int:
    """Count the lines; 0 where the last one is empty, which names no file."""
    ends = np.frombuffer(lines, np.uint8) == ord("\n")
    return 0 if ends[-1] else int(np.count_nonzero(ends)) + 1


def _parse_lines(name: str, text: str) -> pa.Table:
    files = []
    for line in _lines(name, text):
        value = _object(name, line)
        try:
            uri, mtime_ms, entry = str(value["path"]), int(value["timestamp"]), int(value["batchId"])
            uri.encode()
            if max(abs(mtime_ms), abs(entry)) >= 2**63:
                raise ValueError
        except (KeyError, ValueError, TypeError):
            raise Torn(f"{name} is torn: {line[:60]!r} names no file") from None
        files.append({"uri": uri, "mtime_ms": mtime_ms, "entry": entry})
    return pa.Table.from_pylist(files, LOG)


def metadata_text(stream_id: str) -> str:
    return _json({"id": stream_id})


def offsets_text(ends: Iterable[int], about: About) -> str:
    return lines_text([VOID_OFFSET if end == NO_ENTRY else _json({"logOffset": end}) for end in ends], about)


def lines_text(offsets: Iterable[str], about: About) -> str:
    return "\n".join([_VERSION, _json(about.as_logged), *offsets])


def commit_text() -> str:
    return "\n".join([_VERSION, _json({"nextBatchWatermarkMs": 0})])


def log_text(entries: Mapping[int, Iterable[FileLike]]) -> str:
    """Return the text of a log file that lists the files of each entry."""
    lines = [
        _json({"path": one.uri, "timestamp": one.mtime_ms, "batchId": entry})
        for entry, files in entries.items()
        for one in files
    ]
    return "\n".join([_VERSION, *lines])


def decoded(name: str, content: pa.Buffer) -> str:
    """Return the text of a file's content. Raises Torn when it is none."""
    try:
        return bytes(content).decode()
    except UnicodeDecodeError:
        raise Torn(f"{name} is torn: it is no text") from None


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _lines(name: str, text: str) -> list[str]:
    """Return the lines after the line of the version. Raises Torn when that is not v1."""
    version, *lines = text.split("\n")
    if version != _VERSION:
        raise Torn(f"{name} is torn, or of another version than {_VERSION}: it begins with {version[:20]!r}")
    return lines


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Torn(f"{name} is torn: {text[:60]!r}")
    return value
