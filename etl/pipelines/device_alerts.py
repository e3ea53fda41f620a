"""What to look at among the devices: which went offline, came back, or does both over and over."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from etl.pipeline import Append, Pipeline
from etl.pipelines.device_events import SCHEMA, SOURCES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

PAUSE = 1800  # seconds
WHILE_FLAPPING = 6 * 3600  # seconds
OFTEN = 3


def device_alerts(df: DataFrame) -> DataFrame:
    """Tell which devices go offline, come back, or do both over and over.

    `offline` comes after half an hour without a reading, `recovered` with the next, `flapping` with the third
    pause in 6 hours. Nothing is told before the watermark has passed it, so the alerts are the same however
    the readings are cut into batches.
    """
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Processor(Device, StatefulProcessor):
        """A `Device` as Spark takes it: pyspark is not imported where the declaration is loaded."""

    devices = df.withWatermark("at", "3 hours").groupBy("device")
    columns = "device string, alert string, at timestamp"
    return devices.transformWithState(Processor(), columns, "append", "EventTime")


class Device:
    """The state of one device, and the alerts that follow from its readings.

    Readings wait until the watermark has passed them, then they are taken in order. Moments are in seconds
    since 1970.
    """

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.waiting = handle.getMapState("waiting", "at bigint", "readings int")
        self.last = handle.getValueState("last", "at bigint, offline boolean")
        self.pauses = handle.getListState("pauses", "at bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        times = {int(row.at.replace(tzinfo=dt.UTC).timestamp()) for row in rows}
        for at in times:
            self.waiting.updateValue((at,), (1,))
        self.handle.registerTimer(min(times) * 1000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        device, now = key[0], timerValues.getCurrentWatermarkInMs() // 1000
        waiting = sorted(at for (at,) in self.waiting.keys())  # noqa: SIM118 - Spark's, no dict
        for at in waiting:
            if at <= now:
                self.waiting.removeKey((at,))
                yield from self._reading(device, at)
        yield from self._silence(device, until=now)
        at, offline = self.last.get()
        due = [one for one in waiting if one > now][:1] + ([] if offline else [at + PAUSE])
        if due:
            self.handle.registerTimer(min(due) * 1000)

    def _reading(self, device: str, at: int) -> Iterator[Row]:
        if self.last.exists():
            yield from self._silence(device, until=at)
            if self.last.get()[1]:
                yield self._alert(device, "recovered", at)
        self.last.update((at, False))

    def _silence(self, device: str, *, until: int) -> Iterator[Row]:
        at, offline = self.last.get()
        since = at + PAUSE
        if offline or since > until:
            return
        self.last.update((at, True))
        yield self._alert(device, "offline", since)
        recent = [(one,) for (one,) in self.pauses.get() if one > since - WHILE_FLAPPING] + [(since,)]
        if len(recent) == OFTEN:
            yield self._alert(device, "flapping", since)
            self.pauses.clear()
        else:
            self.pauses.put(recent)

    def _alert(self, device: str, kind: str, at: int) -> Row:
        from pyspark.sql import Row

        return Row(device=device, alert=kind, at=dt.datetime.fromtimestamp(at, dt.UTC))


PIPELINE = Pipeline(
    name="device_alerts",
    sources=SOURCES,
    schema=SCHEMA,
    transform=device_alerts,
    suite="device_alerts",
    sink=Append(),
    late="at",
    max_quarantine_share=0.2,
    schedule="@hourly",
)
