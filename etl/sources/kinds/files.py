"""The kind of sources that are landed files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etl.common.errors import SluiceError
from etl.common.settings import Settings
from etl.ledger.inputs import Input
from etl.pipeline import Files
from etl.sources.kinds.base import SourceKind
from etl.sources.landing import listed_path
from etl.spark.checkpoint.files import FileCheckpoint

if TYPE_CHECKING:
    from etl.sources.files import FileSource


@dataclass(frozen=True, kw_only=True)
class FileKind(SourceKind["FileSource", FileCheckpoint]):
    """Landed files, which stay as they are: what a checkpoint counts as read can be told file by file."""

    files: Sequence[Files]

    @property
    def checkpoint(self) -> type[FileCheckpoint]:
        return FileCheckpoint

    def listed(self, landing: str) -> Sequence[str]:
        where = f"pipeline {self.pipeline.name}"
        return [listed_path(files, landing, where) for files in self.files]

    def source(self, settings: Settings, paths: Sequence[str], **common: Any) -> FileSource:  # noqa: ARG002
        from etl.sources.files import FileSource

        return FileSource(**common, files=self.files, paths=paths)

    def raise_read_error(self, errors: Sequence[BaseException], retry: str) -> None:  # noqa: ARG002
        from etl.sources.unreadable import refuse_colon

        if not any(isinstance(error, SluiceError) for error in errors):  # a batch's own
            for error in errors:
                refuse_colon(self.pipeline.name, error)

    def foretold(self, inputs: Sequence[Input]) -> dict[str, str]:
        from etl.sources.foretold import foretold

        return foretold(self.pipeline, self.files, inputs)
