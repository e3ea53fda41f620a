"""Streams in the ledger: which one is current, where its checkpoint lies, and how far it was delivered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg2.extras import Json

from etl.common.database import Cursor, execute, row
from etl.pipeline.state_fingerprint import COMPUTING, MODE


@dataclass(frozen=True, kw_only=True)
class StreamState:
    """What the ledger knows of one stream."""

    stream_id: str
    pipeline: str
    checkpoint: str | None  # None: beside the stream
    first_batch: int
    state: list[str]  # the operators of its transform that keep state in the checkpoint
    last_batch: int | None  # the newest that was delivered; None: none yet

    @property
    def next_batch(self) -> int:
        return self.first_batch if self.last_batch is None else self.last_batch + 1

    @property
    def closes(self) -> bool:
        """Tell whether the stream keeps state that may fall due by the watermark.

        That is any state, but in complete mode none: that mode forgets nothing.
        """
        return bool(self.state) and f"complete{MODE}" not in self.state

    def goes_on_as(self, state: Sequence[str]) -> bool:
        """Tell whether the stream's checkpoint fits a transform that keeps `state`.

        A checkpoint from before aggregates' figures were recorded is compared by their keys alone.
        """
        return len(self.state) == len(state) and all(
            old in (new, new.partition(COMPUTING)[0]) for old, new in zip(self.state, state, strict=True)
        )


def register_stream(
    cursor: Cursor,
    pipeline: str,
    stream_id: str,
    *,
    checkpoint: str | None,
    first_batch: int,
    state: Sequence[str] = (),
) -> None:
    """Make `stream_id` the pipeline's current stream: from now on no other may commit.

    What stopped batches of other streams is forgotten.
    """
    values = {
        "pipeline": pipeline,
        "stream": stream_id,
        "checkpoint": checkpoint,
        "first_batch": first_batch,
        "state": list(state),
    }
    execute(cursor, "ledger", "register_stream", values)
    execute(cursor, "ledger", "forget_stops", values)


def note_topics(cursor: Cursor, stream_id: str, topics: Mapping[str, str]) -> dict[str, str]:
    """Record the ids of topics that the stream has not seen yet; return each topic's id at its first look."""
    found = execute(
        cursor, "ledger", "note_topics", {"stream": stream_id, "topics": Json(dict(topics))}
    ).fetchone()
    return dict(found[0]) if found else {}


def stream_state(cursor: Cursor, stream_id: str) -> StreamState | None:
    found = row(execute(cursor, "ledger", "stream_row", {"stream": stream_id}))
    return None if found is None else StreamState(**found)


def current_stream(cursor: Cursor, pipeline: str) -> StreamState | None:
    """Return the stream that the pipeline last ran on, or None before its first run."""
    found = row(execute(cursor, "ledger", "pipeline_row", {"pipeline": pipeline}))
    return stream_state(cursor, found["current_stream"]) if found and found["current_stream"] else None
