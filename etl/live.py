"""Sources that can't be read again, rate and socket: what a run of them promises, and the stream that it begins.

Within a run each batch is in both sinks or in neither, and in none twice. No further: what the source gave and was
not delivered when a run dies is gone, or comes twice where it is sent again, for no input of it is on record. So
every run begins a stream of its own: what a checkpoint says of such a source means nothing to the next connection.
"""

from __future__ import annotations

import uuid

from etl import ledger
from etl.checkpoint import Checkpoint
from etl.database import session
from etl.declaration import Socket
from etl.errors import LedgerBehind, SetupError
from etl.ledger import StreamState
from etl.pipeline import Pipeline
from etl.preflight import Checkpoints, know_streams, unknown_streams
from etl.stay import Stay


def promise(pipeline: Pipeline) -> str:
    """What a person must know of such a pipeline, in one line."""
    after = (
        ", and that only if all is sent again: what was sent and not delivered is lost otherwise, and what was delivered"
        " comes twice"
        if isinstance(pipeline.live, Socket)
        else ": each run counts from 0, so values that were delivered come once more"
    )
    return (
        f"{pipeline.name} reads {pipeline.live.named}, which is not replayable: each batch is delivered exactly once"
        f" within a run, but after a crash no more than at least once is promised{after}"
    )


def run_command(pipeline: Pipeline) -> str:
    """What starts a run of the pipeline."""
    return f"sluice run {pipeline.name}{'' if pipeline.replayable or pipeline.follow else ' --follow'}"


def require_follow(pipeline: Pipeline, stay: Stay) -> None:
    """SetupError for a run to the end of what has no end: Spark's availableNow takes nothing of such a source."""
    if not pipeline.replayable and stay.every is None:
        raise SetupError(
            f"Pipeline {pipeline.name} reads {pipeline.live.named}, which has no end that a run could come to",
            remedy=f"`sluice run {pipeline.name} --follow`, and `sluice stop {pipeline.name}` when it is enough; or"
            " declare follow=True",
        )


def begun_stream(dsn: str, checkpoints: Checkpoints) -> str:
    """The id of the new stream of a run, the current one from now on. Raises LedgerBehind, having changed nothing."""
    if problem := went_back(dsn, checkpoints):
        raise problem
    return new_stream(dsn, checkpoints)


def new_stream(dsn: str, checkpoints: Checkpoints) -> str:
    """The same without a look; streams that the ledger has lost are known again, and behind it."""
    stream_id = str(uuid.uuid4())
    know_streams(dsn, checkpoints)
    with session(dsn) as cursor:
        uri = checkpoints.of(stream_id).uri
        ledger.register_stream(cursor, checkpoints.pipeline, stream_id, checkpoint=uri, first_batch=0)
    checkpoints.of(stream_id).create(stream_id)
    return stream_id


def went_back(dsn: str, checkpoints: Checkpoints) -> LedgerBehind | None:
    """Whether PostgreSQL went back in time: the lake may have deliveries that it has lost."""
    if problem := unknown_streams(dsn, checkpoints):
        return problem
    with session(dsn) as cursor:
        known = ledger.current_stream(cursor, checkpoints.pipeline)
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
