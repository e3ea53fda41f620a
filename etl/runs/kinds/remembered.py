"""What a run had compared when it found nothing left to read, which the next run need not compare again.

It is one hidden file in the checkpoint's folder, and lasts as long as the checkpoint. A run goes by it only while all that
was compared is as it was; one that can't be read is no memory.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from etl.common.errors import ServiceAway
from etl.common.paths import landing_path
from etl.ledger.deliveries import Commit
from etl.pipeline import Pipeline, intervals, patterns
from etl.sources import cutoff, evidence, landing
from etl.sources.listing import closing, files, folder_states
from etl.sources.listing.folder_states import Clock, Folders, LandingLook
from etl.spark.checkpoint.files import FileCheckpoint
from etl.spark.checkpoint.format import Folder, Torn

NAME = ".compared"
# They say which files patterns mean, and which of them a start takes: what another release compared is compared again.
_RULES = (patterns, intervals, evidence, landing, cutoff, files, closing, folder_states)
# It is not there, can't be read, is no JSON, or is of another form.
_NO_MEMORY = (
    Torn,
    ServiceAway,
    ValueError,
    RecursionError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
)


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """What was compared, and the folders in which every file that the stream takes is in one of its batches."""

    compared: str
    folders: Folders
    began: dt.datetime  # when the run began that left nothing unread

    @classmethod
    def read(cls, folder: Folder, clock: Clock) -> Self | None:
        """Return what is remembered beside a checkpoint; no folders where the clock was set since, or the kernel booted."""
        with suppress(*_NO_MEMORY):
            content = json.loads(folder.read(NAME))
            then = Clock(**content["clock"])
            folders = _folders(content["folders"]) if then.went_on(clock) else {}
            began = dt.datetime.fromisoformat(content["began"])
            return cls(compared=str(content["compared"]), folders=folders, began=began)
        return None

    def write(self, folder: Folder, clock: Clock) -> None:
        """Write it beside a checkpoint. Raises ServiceAway."""
        told = {**asdict(self), "began": self.began.isoformat(), "clock": asdict(clock)}
        folder.write(NAME, json.dumps(told, separators=(",", ":")))


@dataclass(kw_only=True)
class Begun:
    """What a run began with."""

    checkpoint: FileCheckpoint
    commit: Commit | None = None  # of the pipeline's newest delivery, from before anything was compared
    remembered: Remembered | None = None  # None: it is to be compared
    clock: Clock = field(default_factory=Clock.now)
    at: dt.datetime = field(default_factory=partial(dt.datetime.now, dt.UTC))
    look: LandingLook = field(default_factory=LandingLook)


def _folders(content: Mapping[str, Mapping[str, list[int] | None]]) -> Folders:
    return {
        pattern: {folder: tuple(map(int, state)) if state else None for folder, state in known.items()}
        for pattern, known in content.items()
    }


def compared(pipeline: Pipeline, where: str, checkpoint: FileCheckpoint, newest: Commit | None) -> str:
    """Return what differs once the declaration, the landing, the checkpoint or the ledger is another.

    Each commit of the pipeline makes a delivery, and only a commit changes which inputs are live.
    """
    told = [
        [(seen.st_size, seen.st_mtime_ns) for one in _RULES if (seen := Path(str(one.__file__)).stat())],
        landing_path(where),
        [source.patterns for source in pipeline.sources],
        pipeline.start,
        pipeline.interval,
        checkpoint.uri,
        checkpoint.fingerprint,
        newest,
    ]
    return hashlib.sha256(repr(told).encode()).hexdigest()
