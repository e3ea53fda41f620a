"""Runs a streaming query to its end, and turns what ended it early into an error that a person can act on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from etl.common.errors import (
    CheckpointDamaged,
    ServiceAway,
    SetupError,
    SluiceError,
    StateChanged,
)
from etl.common.outcome import in_short
from etl.runs.follow import RunControl
from etl.spark.java_errors import Cause, classify
from etl.spark.session import unlogged_analysis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger("sluice")

LOOK_SECONDS = 0.25
OnBatch = Callable[["DataFrame", int], None]


class BatchFailure:
    """The error that a batch ended with, as it was raised: of its way through Spark's JVM a text alone comes back."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._at_work = threading.Lock()

    def capturing(self, on_batch: OnBatch) -> OnBatch:
        """Return what Spark is to call for each batch: `on_batch`, whose error is kept."""

        def batch(frame: DataFrame, number: int) -> None:
            with self._at_work:
                try:
                    on_batch(frame, number)
                except BaseException as error:
                    self.error = error
                    raise

        return batch

    def await_end(self, seconds: float) -> bool:
        """Wait until no batch is at work: it may be at its commit, which needs no JVM. Return False if one still is."""
        if ended := self._at_work.acquire(timeout=seconds):
            self._at_work.release()
        return ended


def run_query(
    writer: DataStreamWriter,
    pipeline: str,
    failure: BatchFailure | None = None,
    control: RunControl | None = None,
    *,
    once: bool = False,
    raise_read_error: Callable[[Sequence[BaseException]], None] = lambda _: None,
    settled: Callable[[], bool] = lambda: True,
    exhausted: Callable[[], bool] = lambda: False,
    watched: Callable[[StreamingQuery], AbstractContextManager[object]] = nullcontext,
    ended_by: Callable[[], SluiceError | None] = lambda: None,
    caught_up: Callable[[], None] = lambda: None,
) -> None:
    """Run the query over all that is there, or as long as `control` says, or `once`: the batch that is planned alone.

    An error of a batch, kept in `failure`, is raised as itself. `settled` says whether every batch that Spark has
    planned has its mark, `exhausted` whether nothing more can come; `watched` is entered while the query runs, `ended_by`
    says why it has ended Spark's JVM, if it has; `caught_up` is called once of a run that stays, when it has read all
    that Spark found; `raise_read_error` is the sources' own word on why they did not give what was asked for.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import StreamingQueryException

    control = control or RunControl()
    query = _started(writer, pipeline, control, once=once)
    try:
        with watched(query), unlogged_analysis():
            _await(query, pipeline, control, settled, exhausted, caught_up)
    except (OSError, Py4JError) as error:
        _raise_end(ended_by(), error)
        raise
    except StreamingQueryException as error:
        _raise_end(ended_by(), error)
        raised = failure.error if failure else None
        errors = [error] if raised is None else [raised, error]
        _refuse_other_schema(pipeline, errors)
        _refuse_state(pipeline, errors)
        raise_read_error(errors)
        if raised is not None:
            raise raised from None
        _refuse_unreached(pipeline, error, control)
        raise SluiceError(
            f"Spark ended the query: {in_short(error)}",
            remedy="see Spark's message; the next run goes on from the ledger",
        ) from error
    else:  # a JVM on its way out may also end the query without an error
        _raise_end(ended_by(), None)


def _raise_end(ended: SluiceError | None, error: Exception | None) -> None:
    if ended is not None:
        raise ended from error


def _await(
    query: StreamingQuery,
    pipeline: str,
    control: RunControl,
    settled: Callable[[], bool],
    exhausted: Callable[[], bool],
    caught_up: Callable[[], None],
) -> None:
    """Wait for the query's end; stop it when the run is to end or its source has nothing more to come.

    Spark's `stop` breaks into a batch, so it is called between two; a batch that begins meanwhile refuses
    itself.
    """
    if control.every is None:
        query.awaitTermination()
        return
    log.info(
        "%s stays up and looks for more every %g s; Ctrl-C, SIGTERM or `sluice stop %s` ends it after the batch in flight",
        pipeline,
        control.every.total_seconds(),
        pipeline,
    )
    while not query.awaitTermination(LOOK_SECONDS):  # type: ignore[arg-type] # seconds may be a fraction
        status = query.status
        control.waiting = not status["isTriggerActive"]
        if control.waiting and not control.caught_up and _found_nothing(status):
            control.caught_up = True
            caught_up()
        # Not by `waiting`: a listing that takes longer than `every` leaves no moment of it.
        if control.over and settled():
            query.stop()
            control.require_lease(pipeline)
            control.heeded = True
        elif control.waiting and exhausted():
            log.info("%s: its source has ended; the run ends when all of it is delivered", pipeline)
            query.processAllAvailable()
            query.stop()


def _found_nothing(status: Mapping[str, Any]) -> bool:
    """Tell whether a trigger has ended and found nothing to read."""
    return not status["isDataAvailable"] and str(status["message"]).startswith("Waiting")


def _started(writer: DataStreamWriter, pipeline: str, control: RunControl, *, once: bool) -> StreamingQuery:
    from pyspark.errors import AnalysisException

    if once:
        writer = writer.trigger(once=True)
    elif control.every is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{control.every.total_seconds():g} seconds")
    try:
        return writer.start()
    except AnalysisException as error:
        raise SetupError(
            f"Spark can't run the transform of {pipeline} as a stream: {in_short(error)}",
            remedy="change the transform (such as a watermark for an aggregate that is appended), or declare"
            " another output_mode",
        ) from error


def _refuse_state(pipeline: str, errors: Sequence[BaseException]) -> None:
    """Raise CheckpointDamaged where Spark could not read what the transform keeps; `sluice recover` mends it.

    Raises ServiceAway where the storage of the state can't be reached.
    """
    for error in errors:
        causes = classify(error)
        if Cause.STATE not in causes:
            continue
        if Cause.STORAGE_AWAY in causes:
            raise ServiceAway(
                f"The state of {pipeline} can't be read or written now: {causes[Cause.STORAGE_AWAY]}",
                remedy=f"check that S3 is reachable (`sluice doctor`); then `sluice run {pipeline}`",
            ) from error
        if Cause.STATE_PASSING not in causes:
            raise CheckpointDamaged(
                f"Spark can't load the state of the transform of {pipeline}: {causes[Cause.STATE]}",
                remedy=f"`sluice recover {pipeline}` rebuilds the state from all that was delivered",
            ) from error


def _refuse_other_schema(pipeline: str, errors: Sequence[BaseException]) -> None:
    """Raise StateChanged where the transform keeps a state of another schema than its checkpoint holds.

    Spark alone knows a state's schema, once the transform's own code has run; its message names both schemas.
    """
    for error in errors:
        if schemas := classify(error).get(Cause.STATE_SCHEMA):
            raise StateChanged.of(
                pipeline,
                f"The transform of {pipeline} keeps a state of another schema than its checkpoint holds: {schemas}",
            ) from error


def _refuse_unreached(pipeline: str, error: BaseException, control: RunControl) -> None:
    """Raise ServiceAway where Spark could not reach what it connects to by itself, such as a socket's server."""
    if unreached := classify(error).get(Cause.SERVER_UNREACHED):
        raise ServiceAway(
            f"Spark could not connect to the source of {pipeline}: {unreached}",
            remedy=f"check that it listens there; then `sluice run {pipeline}{' --follow' if control.every else ''}`",
        ) from error
