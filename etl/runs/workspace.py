"""The workspace of a pipeline: the settings, and the services that they lead to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyarrow import fs

from etl.common.database import transaction
from etl.common.paths import filesystem
from etl.common.settings import Settings, load_settings
from etl.ledger.names import first_name
from etl.pipeline import Pipeline
from etl.services import Services
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.parquet_writer import ObjectStore
from etl.sources.kinds.base import AnyCheckpoint, SourceKind
from etl.sources.kinds.declared import kind_of
from etl.spark.checkpoint.folder import Checkpoints
from etl.spark.checkpoint.reader import Checkpoint, open_checkpoint

if TYPE_CHECKING:
    from etl.runs.model_registry import ModelRegistry
    from etl.sources.base import Source


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Where a pipeline runs: the settings, and the services that they lead to."""

    settings: Settings
    services: Services

    @classmethod
    def open(cls, settings: Settings | None = None) -> Workspace:
        """Start what the settings (None: those in force) embed, and put its credentials where the AWS chain finds them."""
        from etl import services

        settings = settings or load_settings()
        running = services.up(settings)
        os.environ.update(running.environment)
        return cls(settings=settings, services=running)

    @property
    def lake(self) -> Lake:
        store = ObjectStore(endpoint=self.services.s3_endpoint, region=self.services.s3_region)
        return Lake(self.services.lake, store)

    @property
    def models(self) -> ModelRegistry:
        from etl.runs.model_registry import ModelRegistry

        return ModelRegistry(dsn=self.services.postgres, lake=self.lake)

    def checkpoints(self, pipeline: Pipeline) -> Checkpoints[Checkpoint]:
        """Return the pipeline's checkpoints: one folder for each stream, below `checkpoints`/<its first name>."""
        return self.checkpoints_of(kind_of(pipeline))

    def checkpoints_of(self, kind: SourceKind[Source, AnyCheckpoint]) -> Checkpoints[AnyCheckpoint]:
        """Return the checkpoints of a pipeline of this kind, as `checkpoints` does."""
        pipeline = kind.pipeline
        with transaction(self.services.postgres) as cursor:
            folder = self.checkpoints_folder(first_name(cursor, pipeline.name))
        return Checkpoints(
            pipeline=pipeline.name,
            of=lambda stream_id: open_checkpoint(
                f"{folder}/{stream_id}",
                kind.checkpoint,
                sources=len(pipeline.sources),
            ),
            present=lambda: _folders(folder),
        )

    def checkpoints_folder(self, first: str) -> str:
        """Return the folder of the checkpoints of a pipeline, by its first name: Spark's state names it, so it stays."""
        return f"{self.settings.checkpoints.rstrip('/')}/{first}"


def _folders(folder: str) -> list[str]:
    store, path = filesystem(folder)
    entries = store.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return sorted(one.base_name for one in entries if one.type == fs.FileType.Directory)
