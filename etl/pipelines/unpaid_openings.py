"""When the app was opened and nothing was paid within the hour."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from etl.pipeline import Append, Pipeline, day
from etl.pipelines.actions_per_hour import SCHEMA, SOURCES

if TYPE_CHECKING:
    from pandas import DataFrame as PandasFrame
    from pyspark.sql import DataFrame

HOUR = 3600  # seconds


def unpaid_openings(df: DataFrame) -> DataFrame:
    """Return one row for each second in which a phone opened the app and paid nothing within the hour.

    It comes once the watermark is an hour past that second.
    """
    from pyspark.sql.streaming.state import GroupStateTimeout

    phones = df.withWatermark("at", "3 hours").groupBy("phone")
    return phones.applyInPandasWithState(
        waiting,
        outputStructType="phone string, opened timestamp",
        stateStructType="waiting string",
        outputMode="append",
        timeoutConf=GroupStateTimeout.EventTimeTimeout,
    )


def waiting(key: tuple[str], frames: Iterable[PandasFrame], state: Any) -> Iterator[PandasFrame]:
    """Keep openings until no payment of their hour can come any more; yield those that none came for.

    Moments are seconds since 1970. The state is JSON, for Spark 4.3 takes no array here: its Python worker
    reads the state's schema in lower case.
    """
    import pandas as pd

    opened, paid = (set(one) for one in (json.loads(state.get[0]) if state.exists else ((), ())))
    for frame in () if state.hasTimedOut else frames:  # with a timeout comes an empty one, without types
        seconds = (frame["at"] - pd.Timestamp(0)) // pd.Timedelta(seconds=1)
        opened.update(seconds[frame["action"] == "open"].tolist())
        paid.update(seconds[frame["action"] == "pay"].tolist())
    now = state.getCurrentWatermarkMs() // 1000
    over = {at for at in opened if at + HOUR <= now}
    unpaid = sorted(at for at in over if not any(at < one <= at + HOUR for one in paid))
    if unpaid:
        yield pd.DataFrame({"phone": key[0], "opened": pd.to_datetime(unpaid, unit="s")})
    opened -= over
    # a payment waits, too: what it pays for may come after it
    paid = {one for one in paid if one > min(opened | {now})}
    if opened or paid:
        state.update((json.dumps([sorted(opened), sorted(paid)]),))
        state.setTimeoutTimestamp((min(opened, default=max(paid, default=now)) + HOUR) * 1000)
    elif state.exists:
        state.remove()


PIPELINE = Pipeline(
    name="unpaid_openings",
    sources=SOURCES,
    schema=SCHEMA,
    transform=unpaid_openings,
    suite="unpaid_openings",
    sink=Append(partition_by=day("opened")),
    late="at",
    max_quarantine_share=0.2,
    schedule="@hourly",
)
