"""Finds troubles that the ledger shows, so also where nothing runs, and where no Airflow does.

These are runs and audits that failed, records that a run held, left out or found to drift, consumers that are behind, and
data that is not as fresh or as much as declared, by the day of the week.
"""

from __future__ import annotations

import datetime as dt
import statistics
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from zoneinfo import ZoneInfo

from etl.alerts.records import RunRecords, troubles
from etl.common.database import Cursor
from etl.common.statements import Statements
from etl.common.wording import pluralize
from etl.ledger import consumers, deliveries, pipelines
from etl.ledger.telemetry.alerts import Trouble
from etl.pipeline import Freshness, Pipeline, Volume
from etl.pipeline.thresholds import WEEKDAYS

STATEMENTS = Statements(__name__)

LONGEST = dt.timedelta(days=400)  # what lies further back counts no more: it is late by any limit


def failures(cursor: Cursor) -> Iterator[Trouble]:
    """Yield what has failed since it was last told of, of all pipelines: runs that Airflow did not start, and audits."""
    STATEMENTS.execute(cursor, "failed_runs")
    for name, kind, outcome, message in cursor.fetchall():
        word = "is stopped" if kind == "question" else "failed"
        why = message or outcome or "its run was killed or cut off"
        text = f"{name} {word}: {why}; `sluice status {name}` names the next command"
        yield Trouble(pipeline=name, kind=kind, text=text)
    STATEMENTS.execute(cursor, "failed_audits")
    for name, differences in cursor.fetchall():
        text = f"the audit of {name} found {pluralize(differences, 'difference')}; `sluice audit {name}` lists them"
        yield Trouble(pipeline=name, kind="failed", about="audit", text=text)


def lags(cursor: Cursor) -> Iterator[Trouble]:
    """Yield the consumers that are further behind now than they may be, of all pipelines."""
    for late in consumers.late(cursor, pipelines.all_names(cursor)):
        text = f"{late.pipeline}: {late}; `sluice consumers {late.pipeline}` lists all of them"
        yield Trouble(pipeline=late.pipeline, kind="consumer", about=late.consumer, text=text)


def records(cursor: Cursor, pipeline: Pipeline) -> Iterator[Trouble]:
    """Yield the troubles of the records that runs have delivered since the last look, but those that Airflow started."""
    STATEMENTS.execute(cursor, "claim_records", pipeline=pipeline.name)
    for numbers, rows_in, read, quarantined, dropped, unknown, missing in cursor.fetchall():
        of_run = RunRecords(
            read=max(rows_in, read),
            quarantined=quarantined,
            dropped=dropped,
            unknown=sum(map(Counter, unknown), Counter[str]()),
            missing=sum(map(Counter, missing), Counter[str]()),
            drifted=deliveries.new_drift(cursor, pipeline.name, numbers),
        )
        yield from troubles(pipeline.name, of_run, share_limit=pipeline.alert_quarantine_share)


def thresholds(cursor: Cursor, pipeline: Pipeline) -> dict[str, Trouble | None]:
    """Return by kind what is wrong with the pipeline's data now; None for a threshold that holds."""
    told = {"freshness": _stale(cursor, pipeline), "volume": _unusual(cursor, pipeline)}
    return {
        kind: Trouble(pipeline=pipeline.name, kind=kind, text=f"{pipeline.name}: {text}") if text else None
        for kind, text in told.items()
    }


def _stale(cursor: Cursor, pipeline: Pipeline) -> str | None:
    declared = pipeline.freshness
    if declared is None:
        return None
    STATEMENTS.execute(cursor, "newest", pipeline=pipeline.name)
    [(newest, now)] = cursor.fetchall()
    zone = ZoneInfo(pipeline.airflow.time_zone)
    if newest is None or used(declared, newest, now, zone) < 1:
        return None
    day = WEEKDAYS[now.astimezone(zone).weekday()]
    limit = declared.limit_on(day)
    today = f"on a {day} it is {limit}" if limit else f"a {day} does not count"
    since = newest.astimezone(zone)
    return (
        f"its last delivery is of {WEEKDAYS[since.weekday()]}, {since:%Y-%m-%d %H:%M %Z}, longer ago than `freshness`"
        f" allows ({today}); `sluice status {pipeline.name}` says what runs"
    )


def used(declared: Freshness, since: dt.datetime, now: dt.datetime, zone: ZoneInfo) -> float:
    """Return how much of what is allowed has passed, 1 for all of it: each hour counts by its own day's limit."""
    total = 0.0
    for start, end in pairwise(_midnights(max(since, now - LONGEST), now, zone)):
        if (limit := declared.limit_on(WEEKDAYS[start.astimezone(zone).weekday()])) is not None:
            total += (end - start) / limit
    return total


def _midnights(since: dt.datetime, now: dt.datetime, zone: ZoneInfo) -> Iterator[dt.datetime]:
    """Yield both moments in UTC, and each midnight of the zone between them."""
    yield since.astimezone(dt.UTC)
    day = since.astimezone(zone).date() + dt.timedelta(days=1)
    while (midnight := dt.datetime.combine(day, dt.time(), zone).astimezone(dt.UTC)) < now:
        yield midnight
        day += dt.timedelta(days=1)
    yield now.astimezone(dt.UTC)


def _unusual(cursor: Cursor, pipeline: Pipeline) -> str | None:
    """Say what is wrong with the rows of yesterday, the last day that is over."""
    declared = pipeline.volume
    if declared is None:
        return None
    zone = pipeline.airflow.time_zone
    STATEMENTS.execute(cursor, "first_day", pipeline=pipeline.name, zone=zone)
    [(first, today)] = cursor.fetchall()
    if first is None:
        return None
    day = today - dt.timedelta(days=1)
    since = dt.datetime.combine(day - dt.timedelta(weeks=declared.weeks), dt.time(), ZoneInfo(zone))
    STATEMENTS.execute(cursor, "days", pipeline=pipeline.name, zone=zone, since=since)
    return unusual(declared, dict(cursor.fetchall()), day=day, first=first)


def unusual(declared: Volume, rows: dict[dt.date, int], *, day: dt.date, first: dt.date) -> str | None:
    """Say how a day's rows differ from the same day of the weeks before; a day without deliveries brought 0."""
    before = [day - dt.timedelta(weeks=number) for number in range(1, declared.weeks + 1)]
    known = [rows.get(one, 0) for one in before if one >= first]
    if len(known) < declared.at_least:
        return None
    median, came = statistics.median(known), rows.get(day, 0)
    low, high = (median * factor for factor in declared.times)
    if low <= came <= high:
        return None
    return (
        f"on {WEEKDAYS[day.weekday()]}, {day}, came {pluralize(came, 'row')}, {'fewer' if came < low else 'more'} than"
        f" {low if came < low else high:,.0f}, by the median {median:,.0f} of the same day in"
        f" {pluralize(len(known), 'week')} before"
    )
