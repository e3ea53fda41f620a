"""Reads the ledger's history of a pipeline's columns: its last batches, and any span of them merged into one."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo

from etl.common.database import rows, transaction
from etl.common.migrations import migrate
from etl.common.statements import Statements
from etl.quality.metrics import RANKS, SKETCHES, ColumnMetrics, PastBatch, merged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from etl.pipeline import Pipeline

STATEMENTS = Statements(__name__)

By = Literal["all", "month", "day", "batch"]


def past_batches(dsn: str, pipeline: Pipeline, last: int, of_weekday: int = 0) -> list[PastBatch]:
    """Return the stream's last live batches, newest first: what a rule across batches compares with.

    Behind them are as many as are wanted of those that were delivered on today's day of the week, in the pipeline's zone.
    """
    if not last and not of_weekday:
        return []
    zone = pipeline.airflow.time_zone
    with transaction(dsn) as cursor:
        STATEMENTS.execute(
            cursor, "past_batches", pipeline=pipeline.name, last=last, of_weekday=of_weekday, zone=zone
        )
        records = rows(cursor)
    return [
        _past(list(lines), ZoneInfo(zone)) for _, lines in groupby(records, lambda line: line["delivery_id"])
    ]


def _past(lines: Sequence[dict[str, Any]], zone: ZoneInfo) -> PastBatch:
    of_columns = [line for line in lines if line["column_name"] is not None]
    estimates = {line["column_name"]: line["distinct_estimate"] for line in of_columns}
    return PastBatch(
        rows=lines[0]["rows"],
        committed_at=lines[0]["committed_at"].astimezone(zone),
        columns={line["column_name"]: _metrics(line) for line in of_columns},
        distinct={column: estimate for column, estimate in estimates.items() if estimate is not None},
    )


@dataclass(frozen=True, kw_only=True)
class Span:
    """What the columns looked like in the batches that were delivered within a span of time."""

    start: dt.datetime | None  # None: all that is asked for
    batches: int
    columns: Sequence[ColumnMetrics]

    def json(self) -> dict[str, Any]:
        start = self.start and self.start.isoformat()
        return {"start": start, "batches": self.batches, "columns": [_as_json(one) for one in self.columns]}


def _as_json(one: ColumnMetrics) -> dict[str, Any]:
    """Return the column's figures and what its sketches say; figures that it lacks are left out."""
    figures = {name: value for name, value in one.json().items() if name not in SKETCHES}
    estimates = {"distinct": one.distinct_estimate()} | {
        name: one.quantile(rank) for name, rank in RANKS.items()
    }
    values = {**figures, "null_share": one.null_share, **estimates}
    return {name: value for name, value in values.items() if value is not None}


def spans(
    dsn: str,
    pipeline: Pipeline,
    *,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    by: By = "all",
) -> list[Span]:
    """Return the metrics of each span of live batches, oldest first, without reading a row.

    `until` is exclusive, days are UTC's.
    """
    migrate(dsn)
    with transaction(dsn) as cursor:
        STATEMENTS.execute(cursor, "of_batches", pipeline=pipeline.name, since=since, until=until)
        records = rows(cursor)
    cut = _STARTS[by]
    return [
        _span(start, list(lines)) for start, lines in groupby(records, lambda line: cut(line["committed_at"]))
    ]


def _day(moment: dt.datetime) -> dt.datetime:
    return moment.astimezone(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)


_STARTS: Mapping[By, Callable[[dt.datetime], dt.datetime | None]] = {
    "all": lambda _: None,
    "month": lambda moment: _day(moment).replace(day=1),
    "day": _day,
    "batch": lambda moment: moment,
}


def _span(start: dt.datetime | None, lines: Sequence[dict[str, Any]]) -> Span:
    parts: dict[str, list[ColumnMetrics]] = {}
    for line in lines:
        parts.setdefault(line["column_name"], []).append(_metrics(line))
    batches = len({line["committed_at"] for line in lines})
    return Span(start=start, batches=batches, columns=[merged(some) for some in parts.values()])


def _metrics(line: dict[str, Any]) -> ColumnMetrics:
    distinct, quantiles = (
        None if line[name] is None else bytes(line[name]) for name in ("distinct_sketch", "quantile_sketch")
    )
    return ColumnMetrics(
        column=line["column_name"],
        rows=line["rows_seen"],
        nulls=line["null_count"],
        nans=line["nan_count"],
        minimum=line["minimum"],
        maximum=line["maximum"],
        mean=line["mean"],
        deviation=line["deviation"],
        earliest=line["earliest"],
        latest=line["latest"],
        distinct=distinct,
        quantiles=quantiles,
    )
