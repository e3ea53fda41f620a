"""Streams in the ledger: which one is current, where its checkpoint lies, and how far it was delivered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg2.extras import Json

from etl.common.database import Cursor, row_as
from etl.common.errors import Fenced
from etl.common.statements import Statements
from etl.ledger.pipelines import pipeline_row
from etl.ledger.stops import forget_stops
from etl.pipeline.state_fingerprint import COMPUTING, MODE, without_parser

STATEMENTS = Statements(__name__)


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
        begun = map(without_parser, self.state)
        return len(self.state) == len(state) and all(
            old in (new, new.partition(COMPUTING)[0]) for old, new in zip(begun, state, strict=True)
        )


def register_stream(
    cursor: Cursor,
    pipeline: str,
    run_id: str,
    stream_id: str,
    *,
    checkpoint: str | None,
    first_batch: int,
    state: Sequence[str] = (),
) -> None:
    """Make `stream_id` the pipeline's current stream: from now on no other may commit.

    What stopped batches of other streams is forgotten. Raises Fenced where another run has the lease by now.
    """
    STATEMENTS.execute(
        cursor,
        "register_stream",
        pipeline=pipeline,
        run=run_id,
        stream=stream_id,
        checkpoint=checkpoint,
        first_batch=first_batch,
        state=list(state),
    )
    if cursor.rowcount != 1:
        raise Fenced.of(pipeline)
    forget_stops(cursor, pipeline)


def unknown_streams(cursor: Cursor, streams: Sequence[str]) -> list[str]:
    """Return those of `streams` that PostgreSQL does not know."""
    STATEMENTS.execute(cursor, "known_streams", streams=list(streams))
    known = {stream for (stream,) in cursor.fetchall()}
    return [one for one in streams if one not in known]


def know_stream(
    cursor: Cursor,
    pipeline: str,
    stream_id: str,
    *,
    checkpoint: str,
    first_batch: int = 0,
    state: Sequence[str] = (),
) -> None:
    """Record a stream that is not the pipeline's current one: no longer, or not yet.

    What is recorded stays as it is when the stream becomes the current one.
    """
    STATEMENTS.execute(
        cursor,
        "know_stream",
        pipeline=pipeline,
        stream=stream_id,
        checkpoint=checkpoint,
        first_batch=first_batch,
        state=list(state),
    )


def note_topics(cursor: Cursor, stream_id: str, topics: Mapping[str, str]) -> dict[str, str]:
    """Record the ids of topics that the stream has not seen yet; return each topic's id at its first look."""
    found = STATEMENTS.execute(cursor, "note_topics", stream=stream_id, topics=Json(dict(topics))).fetchone()
    return dict(found[0]) if found else {}


def stream_state(cursor: Cursor, stream_id: str) -> StreamState | None:
    return row_as(STATEMENTS.execute(cursor, "stream_row", stream=stream_id), StreamState)


def current_stream(cursor: Cursor, pipeline: str) -> StreamState | None:
    """Return the stream that the pipeline last ran on, or None before its first run."""
    found = pipeline_row(cursor, pipeline)
    return stream_state(cursor, found.current_stream) if found and found.current_stream else None
