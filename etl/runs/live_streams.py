"""Sources that can't be read again, rate and socket: what a run of them promises, and the stream that it begins.

Within a run each batch is in both sinks or in neither, and in none twice. No further: what the source gave and was
not delivered when a run dies is gone, or comes twice where it is sent again, for no input of it is on record. So
every run begins a stream of its own: what a checkpoint says of such a source means nothing to the next connection.
"""

from __future__ import annotations

import uuid

from etl.common.database import transaction
from etl.common.errors import LedgerBehind
from etl.ledger import streams
from etl.ledger.streams import StreamState
from etl.runs.preflight import know_streams, unknown_streams
from etl.spark.checkpoint.folder import Checkpoints
from etl.spark.checkpoint.reader import Checkpoint


def begun_stream(dsn: str, checkpoints: Checkpoints) -> str:
    """Begin a new stream for a run, the current one from now on, and return its id.

    Raises LedgerBehind, having changed nothing, where PostgreSQL went back in time.
    """
    if problem := went_back(dsn, checkpoints):
        raise problem
    return new_stream(dsn, checkpoints)


def new_stream(dsn: str, checkpoints: Checkpoints) -> str:
    """Register a new stream as the current one, create its checkpoint and return its id.

    Unlike `begun_stream`, it does not look whether PostgreSQL went back in time: streams that the ledger has
    lost are made known again, as earlier ones.
    """
    stream_id = str(uuid.uuid4())
    know_streams(dsn, checkpoints)
    with transaction(dsn) as cursor:
        uri = checkpoints.of(stream_id).uri
        streams.register_stream(cursor, checkpoints.pipeline, stream_id, checkpoint=uri, first_batch=0)
    checkpoints.of(stream_id).create(stream_id)
    return stream_id


def went_back(dsn: str, checkpoints: Checkpoints) -> LedgerBehind | None:
    """Return LedgerBehind where PostgreSQL went back in time, else None.

    The lake may then have deliveries that PostgreSQL has lost.
    """
    if problem := unknown_streams(dsn, checkpoints):
        return problem
    with transaction(dsn) as cursor:
        known = streams.current_stream(cursor, checkpoints.pipeline)
    if known and (ahead := _ahead(known, checkpoints.of(known.stream_id))):
        remedy = f"`sluice recover {checkpoints.pipeline}`, which puts back what the lake still has"
        return LedgerBehind(ahead, remedy=remedy)
    return None


def _ahead(known: StreamState, checkpoint: Checkpoint) -> str | None:
    done = max(checkpoint.commits, default=-1)
    if done < known.next_batch:
        return None
    return (
        f"Checkpoint {checkpoint.uri} of {known.pipeline} has finished batch {done}; the ledger's next is"
        f" {known.next_batch}: PostgreSQL went back in time"
    )
