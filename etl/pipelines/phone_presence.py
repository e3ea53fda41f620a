"""Which phones came to the app, and which have not used it for thirty days, by the clock.

What is due by the clock comes with the first batch after that, so it depends on when the batches ran.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from etl.pipeline import Append, Pipeline
from etl.pipelines.actions_per_hour import SCHEMA, SOURCES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

AWAY = dt.timedelta(days=30)


def phone_presence(df: DataFrame) -> DataFrame:
    """Tell `came` with a phone's first action in thirty days, and `went` thirty days after its last.

    `came` is told at the moment of that action, `went` by the clock.
    """
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Processor(Phone, StatefulProcessor):
        """A `Phone` as Spark takes it: pyspark is not imported where the declaration is loaded."""

    columns = "phone string, event string, at timestamp"
    away = AWAY // dt.timedelta(milliseconds=1)
    return df.groupBy("phone").transformWithState(Processor(away), columns, "append", "ProcessingTime")


class Phone:
    """What is known of one phone.

    It is forgotten `away` milliseconds after the phone's last action, when its timer fires as well.
    """

    def __init__(self, away: int) -> None:
        self.away = away

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.known = handle.getValueState("known", "yes boolean", self.away)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        if self.known.exists():
            for timer in self.handle.listTimers():
                self.handle.deleteTimer(timer)
        else:
            yield self._row(key, "came", min(row.at.replace(tzinfo=dt.UTC) for row in rows))
        self.known.update((True,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + self.away)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        went = expiredTimerInfo.getExpiryTimeInMs() / 1000
        yield self._row(key, "went", dt.datetime.fromtimestamp(went, dt.UTC))

    def _row(self, key: Any, event: str, at: dt.datetime) -> Row:
        from pyspark.sql import Row

        return Row(phone=key[0], event=event, at=at)


PIPELINE = Pipeline(
    name="phone_presence",
    sources=SOURCES,
    schema=SCHEMA,
    transform=phone_presence,
    suite="phone_presence",
    sink=Append(),
    late="at",  # holds what has no time
    max_quarantine_share=0.2,
    schedule="@daily",
)
