"""Sends a commit's objects to S3 side by side, while pyiceberg takes each for written as soon as it is whole."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from threading import BoundedSemaphore
from types import TracebackType
from typing import Self

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from etl.common.errors import raise_first
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.s3 import REQUESTS


class Uploads(FileIO):
    """pyiceberg's way to the lake within a `with` block, which ends once all is on S3 that was written in it, or raises.

    None of these objects names what nobody has written, so that their order on S3 does not matter: each is of an attempt
    that is on record, and nobody reads one before a commit refers to it.
    """

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake.properties())
        self._lake = lake
        self._pool = ThreadPoolExecutor(REQUESTS)
        self._room = BoundedSemaphore(2 * REQUESTS)  # what waits to be sent is in memory
        self._sent: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all that was sent; of several errors the first is raised, and tells of the others."""
        self._pool.shutdown()
        raise_first(error, self._sent)

    def send(self, uri: str, content: bytes) -> Future[None]:
        """Begin to write a whole object; the future ends when it is on S3, or has the error."""
        self._lake.keep_written(uri, content)
        self._room.acquire()
        sent = self._pool.submit(self._lake.write_bytes, uri, content)
        sent.add_done_callback(lambda _: self._room.release())
        self._sent.append(sent)
        return sent

    def new_output(self, location: str) -> OutputFile:
        """Return an object to be written, which is sent when it is closed."""
        return _Written(location, self.send)

    def new_input(self, location: str) -> InputFile:
        """Return an object to be read: from memory where this process has written it of late."""
        content = self._lake.written(location)
        return self._lake.io.new_input(location) if content is None else _Kept(location, content)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove an object."""
        self._lake.io.delete(location)


class _Kept(InputFile):
    """An object whose content is in memory."""

    def __init__(self, location: str, content: bytes) -> None:
        super().__init__(location)
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002 - pyiceberg's
        return BytesIO(self._content)


class _Written(OutputFile):
    """An object that is written in memory, and sent whole."""

    def __init__(self, location: str, send: Callable[[str, bytes], object]) -> None:
        super().__init__(location)
        self._send = send
        self._content = b""

    def __len__(self) -> int:
        return len(self._content)

    def exists(self) -> bool:
        """Return False: its name is new, and random."""
        return False

    def to_input_file(self) -> InputFile:
        return _Kept(self.location, self._content)

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002 - pyiceberg's
        return _Buffer(self._closed)

    def _closed(self, content: bytes) -> None:
        self._content = content
        self._send(self.location, content)


class _Buffer(BytesIO):
    """A buffer that gives away what was written into it when it is closed."""

    def __init__(self, closed: Callable[[bytes], None]) -> None:
        super().__init__()
        self._give = closed

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            self._give(content)
