"""Records the progress that Spark reports of a run's micro-batches in the ledger: rates, phases, state, watermark.

No batch waits for it and no run fails by it: a thread of its own reads what the query has told since it last looked,
and writes it in transactions of its own; what can't be written is a warning. The last hundred batches are kept until
they are written, so that nothing is lost while PostgreSQL is away for a moment, nor at the query's end, after which it
is looked at once more. decisions/0014 says why it is asked and does not call.
"""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from psycopg2.extras import Json

from etl.common.database import Cursor, transaction
from etl.common.errors import SluiceError
from etl.common.statements import Statements
from etl.delivery.batch import Receipt
from etl.ledger.leases import Lease
from etl.runs.looks import looking

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

STATEMENTS = Statements(__name__)

log = logging.getLogger("sluice")

StreamingProgress = Mapping[str, Any]  # one StreamingQueryProgress, as its JSON

SECONDS = 2  # between two looks
RATES = ("inputRowsPerSecond", "processedRowsPerSecond")
LONGEST = 300  # characters of a source's name and end
_NO_WATERMARK = "1970-01-01T00:00:00.000Z"  # what Spark begins with
_FIRST, _LAST = "0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"  # moments that Python has


LEAST_KEPT = 100  # batches
AHEAD = timedelta(days=1)  # of a batch's own time: event time that is no zone's fault


def kept_batches(horizon: timedelta) -> int:
    """Return how many batches of a stream stay in the ledger: one a minute of the backup horizon, at least 100."""
    return max(LEAST_KEPT, int(horizon.total_seconds() // 60))


class ProgressRecorder:
    """The keeper of one query's progress; `keep` is how many batches of its stream stay in the ledger.

    `observations` name what the query observes of its records, for each of its streams.
    """

    def __init__(
        self, dsn: str, lease: Lease, stream_id: str, *, keep: int, observations: Collection[str]
    ) -> None:
        self._dsn, self._keep, self._observations = dsn, keep, observations
        self._run, self._stream = lease.run_id, stream_id
        self._name = lease.pipeline
        self._phases: dict[int, Mapping[str, int]] = {}  # of deliveries that Spark has not told of yet
        self._looked = ""  # when the trigger began that was looked at last
        self._unwritten: deque[StreamingProgress] = deque(maxlen=LEAST_KEPT)
        self._failed = False
        self._warned = False  # of event time that is ahead of the clock

    def delivered(self, receipt: Receipt) -> None:
        """Note the phases of a batch, within its foreachBatch: Spark tells of the batch later."""
        self._phases[receipt.batch_id] = receipt.phases

    def watching(self, query: StreamingQuery) -> AbstractContextManager[None]:
        """Record the query's progress while the block runs, and once more when it has ended."""
        return looking(lambda: self._look(query), every=SECONDS, name="progress")

    def _look(self, query: StreamingQuery) -> None:
        from py4j.protocol import Py4JError

        try:
            for one in _since(query, self._looked):
                self._unwritten.append(_progress(one, self._observations))
                self._looked = self._unwritten[-1]["timestamp"]
                self._warn_of_the_future(self._unwritten[-1])
            self._write([one for one in self._unwritten if "addBatch" in one["durationMs"]])
            self._unwritten.clear()
        except (OSError, Py4JError) as error:  # its JVM is gone, which the run itself tells
            log.debug("the query of %s can't be asked for its progress: %s", self._name, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, no run ends by it
            if not self._failed:
                told = error.seen if isinstance(error, SluiceError) else repr(error)
                log.warning("the progress of the batches of %s could not be recorded: %s", self._name, told)
            self._failed = True
        else:
            self._failed = False

    def _warn_of_the_future(self, batch: StreamingProgress) -> None:
        """Log a warning, once a run, of a batch whose newest event time is ahead of the clock: the watermark follows it."""
        newest = batch.get("eventTime", {}).get("max")
        if self._warned or newest is None or _moment(newest) - _moment(batch["timestamp"]) < AHEAD:
            return
        self._warned = True
        log.warning(
            "batch %s of %s read a record of %s, which is ahead of the clock: the watermark follows it, and all that comes"
            " behind it is late. `not_after=` in the declaration holds such records; docs/state.md says how to go back",
            batch["batchId"],
            self._name,
            newest,
        )

    def _write(self, batches: Sequence[StreamingProgress]) -> None:
        if not batches:
            return
        oldest = batches[-1]["batchId"] - self._keep
        with transaction(self._dsn) as cursor:
            STATEMENTS.execute(cursor, "begin")
            for one in batches:
                phases = self._phases.get(one["batchId"], {})
                _insert(cursor, self._stream, self._run, one, phases)
            STATEMENTS.execute(cursor, "forget_progress", stream=self._stream, batch=oldest)
        for one in batches:
            self._phases.pop(one["batchId"], None)


def _moment(told: str) -> datetime:
    return datetime.fromisoformat(_within_years(told))


def _within_years(told: str) -> str:
    """Return a moment as Java writes it; of one before the year 1 or after 9999 the nearest that Python has."""
    if told.startswith(("-", "0000")):
        return _FIRST
    return _LAST if told.startswith("+") else told


def _since(query: StreamingQuery, looked: str) -> list[Any]:
    """Return what the query told after the trigger that began at `looked`, oldest first: StreamingQueryProgress of Java."""
    # PySpark's own property would fetch and parse all hundred, each time.
    recent = query._jsq.recentProgress()
    newest_first: list[Any] = []
    for index in reversed(range(len(recent))):
        if recent[index].timestamp() == looked:  # none is earlier than another because a clock was set back
            break
        newest_first.append(recent[index])
    return newest_first[::-1]


def _progress(told: Any, observations: Collection[str]) -> StreamingProgress:
    """Return the progress of one batch, its input counted in records, and let Spark forget what it observed.

    Where tasks open the files, the rows that Spark counts are parts of files. Its JSON has rates to one decimal: a file in
    30 seconds would be no rows. What it observed has malformed records in it, and it keeps a hundred of these.
    """
    # Python's own walk over a Java map, as `clear` takes it, ends with an exception: PySpark asks 80 times what that is.
    from py4j.java_gateway import get_method

    observed = told.observedMetrics()
    rows_of = (observed.get(name) for name in observations)
    counts = [of_source.getAs("rows") for of_source in rows_of if of_source is not None]
    get_method(observed, "clear")()
    progress: StreamingProgress = json.loads(told.json())
    rows = progress["numInputRows"]
    records = sum(counts) if counts and rows else rows

    def rate(name: str) -> float | None:
        of_rows: float = getattr(told, name)()
        return of_rows * records / (rows or 1) if math.isfinite(of_rows) else None

    return {**progress, **{name: rate(name) for name in RATES}, "numInputRows": records}


def _insert(
    cursor: Cursor, stream_id: str, run_id: str, progress: StreamingProgress, phases: Mapping[str, int]
) -> None:
    operators = [_operator(one) for one in progress["stateOperators"]]
    times = {name: _within_years(told) for name, told in progress.get("eventTime", {}).items()}
    watermark = times.get("watermark")
    rows, rate = progress["numInputRows"], progress["inputRowsPerSecond"]

    def total(name: str) -> int | None:
        return _sum(one.get(name) for one in operators)

    STATEMENTS.execute(
        cursor,
        "insert_progress",
        stream=stream_id,
        run=run_id,
        batch=progress["batchId"],
        triggered_at=progress["timestamp"],
        input_rows=rows,
        input_rate=None if rows and not rate else rate,  # of a query's first batch Spark says 0
        processed_rate=progress["processedRowsPerSecond"],
        durations_ms=Json(progress["durationMs"]),
        phases_ms=Json(dict(phases)),
        watermark=None if watermark == _NO_WATERMARK else watermark,
        latest=times.get("max"),
        operators=Json(operators),
        state_rows=total("rows"),
        state_bytes=total("bytes"),
        dropped=total("dropped"),
        doubles=total("doubles"),
        behind=_sum(map(_behind, progress["sources"])),
        ends=[_end(source) for source in progress["sources"]],
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    """Sum the counts that are there; return None if there are none."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _operator(operator: StreamingProgress) -> dict[str, Any]:
    doubles = operator.get("customMetrics", {}).get("numDroppedDuplicateRows")
    return ({} if doubles is None else {"doubles": doubles}) | {
        "name": operator["operatorName"],
        "rows": operator["numRowsTotal"],
        "updated": operator["numRowsUpdated"],
        "removed": operator["numRowsRemoved"],
        "bytes": operator["memoryUsedBytes"],
        "dropped": operator["numRowsDroppedByWatermark"],
    }


def _behind(source: StreamingProgress) -> int | None:
    """Return how many records of the source's topics the batch has not reached; None if it reads no topics."""
    latest, end = source.get("latestOffset"), source.get("endOffset")
    if not isinstance(latest, dict) or not isinstance(end, dict):
        return None
    if not all(isinstance(partitions, dict) for partitions in (*latest.values(), *end.values())):
        return None  # of files it is a number of their log
    unread = [
        int(offset) - int(end.get(topic, {}).get(partition, offset))
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    ]
    return sum(unread)


def _end(source: StreamingProgress) -> str:
    """Name a source and how far it was read: a log's offset, or the offsets of partitions."""
    end = source.get("endOffset")
    text = f"{source['description']}: {end if isinstance(end, str) else json.dumps(end)}"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
