"""What runs where, how the last run ended, and how batches ran: as `sluice status` tells it."""

from __future__ import annotations

import datetime as dt
import io
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from psycopg2.extras import Json
from rich.console import Console

from etl.cli import status
from etl.cli.progress import summary_lines
from etl.common.database import transaction
from etl.common.errors import ServiceAway
from etl.common.outcome import LONGEST, RunOutcome
from etl.ledger import attempts, leases, streams
from etl.ledger.quarantine import discard
from etl.operations.control.status import State, states
from etl.operations.maintenance.sweep import sweep
from etl.pipeline import Append
from etl.runs.heartbeat import leased
from etl.runs.summary import Summary
from etl.services import Services
from etl.sinks.lake.lake import Lake
from tests.support.delivering import DECLARATION, Delivering

COLUMNS = pa.schema([("id", pa.int64())])
ROWS = pa.table({"id": pa.array(range(20), pa.int64())})
DAY = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def events(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    """Return a pipeline that runs: its run has delivered a batch of 20 rows."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "events.py").write_text(DECLARATION)
    folder = (tmp_path / "pipelines",)
    found = Delivering.start(services, dsn, lake, tmp_path / "home", COLUMNS, Append(), pipelines=folder)
    found.deliver(ROWS)
    return found


def state(events: Delivering, name: str | None = "events") -> State:
    [found] = states(events.place, name)
    return found


def said(events: Delivering, name: str | None = "events", width: int = 80) -> str:
    """Return the text as a terminal of that width shows it."""
    out = io.StringIO()
    status.show(Console(file=out, width=width, soft_wrap=True, highlight=False), [state(events, name)])
    return out.getvalue()


def tell(events: Delivering, batch: int, **changes: Any) -> None:
    """Write a row of sluice.batch_progress for a batch of the stream, as a run of a transform with state does."""
    values = {
        "stream_id": events.session.stream_id,
        "batch_id": batch,
        "run_id": events.session.lease.run_id,
        "triggered_at": DAY + dt.timedelta(minutes=batch),
        "input_rows": 12_345_678,
        "input_rate": None,
        "processed_rate": 1234.5,
        "durations_ms": Json({"addBatch": 2600, "triggerExecution": 3000}),
        "phases_ms": Json({"stage": 1500, "judge": 250, "draft": 125, "transaction": 625}),
        "watermark": DAY - dt.timedelta(hours=2),
        "latest": DAY,
        "operators": Json([{"name": "stateStoreSave", "rows": 1234567}]),
        "state_rows": 1_234_567,
        "state_bytes": 98_765_432,
        "dropped": 17,
        "doubles": 5,
        "behind": 54_321,
        "ends": ['FileStreamSource[file:/landing/events]: {"logOffset": 7}'],
    } | changes
    names = ", ".join(values)
    marks = ", ".join(["%s"] * len(values))
    events.execute(f"INSERT INTO sluice.batch_progress ({names}) VALUES ({marks})", *values.values())


def test_what_was_left_out_behind_the_watermark_is_told_of_every_pipeline(events: Delivering) -> None:
    assert state(events).dropped == 0
    assert "behind the watermark" not in said(events)
    events.deliver(ROWS, records=1186, dropped=200)
    told = "of events 200 rows, or groups of rows, came behind the watermark and are in neither sink: "
    for name in (None, "events"):
        assert f"{told}in its last delivery, too" in said(events, name)
    events.deliver(ROWS, records=1186, dropped=0)
    assert f"{told}last 20" in said(events, None)
    assert state(events).json()["dropped"] == 200


def test_records_read_stand_beside_what_came_out_where_the_transform_keeps_state(events: Delivering) -> None:
    assert (state(events).records, "of events" in said(events)) == (None, False)
    events.deliver(ROWS, records=12_345_678, dropped=0)
    for name in (None, "events"):
        assert "\nof events 12,345,678 records read; 20 rows out\n" in said(events, name)
    events.execute(
        "UPDATE sluice.delivery SET (rows_in, malformed, quarantined) = (23, 3, 3) WHERE records IS NOT NULL RETURNING 1"
    )
    assert "records read; 20 rows out + 3 malformed or late records\n" in said(events)


def test_what_is_held_now_is_told_beside_what_ever_was(events: Delivering) -> None:
    events.deliver(ROWS, bad=range(7))
    numbers = [
        number for (number,) in events.execute("SELECT quarantine_id FROM sluice.quarantine ORDER BY 1")
    ]
    assert discard(events.dsn, "events", numbers[:5], who="tester", why="doubles") == 5
    found = state(events)
    assert (found.held, found.quarantined) == (2, 7)
    headings, cells = (re.split(r" {2,}", line.strip()) for line in said(events, None).splitlines()[:3:2])
    assert headings[:5] == ["pipeline", "deliveries", "delivered", "held now", "ever held"]
    assert cells[:5] == ["events", "2", "33", "2", "7"]


def test_drift_is_told_of_the_last_delivery_that_read_records(events: Delivering) -> None:
    events.deliver(ROWS, unknown={"shop": 2})
    for kind in ("release", "withdrawal"):
        events.deliver_none(kind)
    assert state(events).unknown == {"shop": 2}
    events.deliver(ROWS)
    assert state(events).unknown == {}


def test_a_consumer_that_is_further_behind_than_it_may_be_is_told(events: Delivering) -> None:
    events.deliver(ROWS)
    events.execute("INSERT INTO sluice.consumer (pipeline, name) VALUES ('events', 'delays')")
    events.execute("UPDATE sluice.delivery SET committed_at = now() - interval '3 hours'")
    assert state(events).late_consumers == []
    events.pipeline = replace(events.pipeline, alert_consumer_lag=dt.timedelta(hours=2))
    events.restart()
    [told] = state(events).late_consumers
    assert re.fullmatch(r"consumer delays is 3:00:\d\d behind, more than 2:00:00", told)
    assert f"of events, {told}; next: `sluice consumers events`" in said(events)


def test_a_run_says_what_comes_next_only_where_something_landed(events: Delivering) -> None:
    def last(**did: int) -> list[str]:
        summary = Summary(pipeline="events", stream="s", run="r", **did)
        return list(summary_lines(events.place, events.pipeline, summary))

    assert last() == ["events: nothing new had landed; nothing was changed"]
    landed = "\n".join(last(batches=1))
    assert all(part in landed for part in ("Parquet   s3://", "next      eval", "psql -c", "audit events"))
    assert "quarantine list" not in landed
    events.deliver(ROWS, bad=[3])
    assert last()[1:] == [
        "rows in quarantine now, of every run, by reason (a row may have several):",
        "          1  rule",
        "`sluice quarantine list events` shows them; release and discard end their hold",
    ]
    assert "quarantine list events      shows held rows" in "\n".join(last(batches=1))


def test_a_run_is_told_with_its_host_its_process_and_the_batch_at_work(events: Delivering) -> None:
    with transaction(events.dsn) as cursor:
        attempts.open_attempt(cursor, events.session.lease, events.session.stream_id, 1)
    found = state(events)
    [run] = found.running
    assert (run.kind, run.host, run.pid) == ("stream", socket.gethostname(), str(os.getpid()))
    assert (run.alive, run.batch, run.batches, run.records) == (True, 1, 1, 20)
    assert run.since <= run.now
    assert found.state == f"running ({socket.gethostname()}/{os.getpid()})"
    assert f"events runs on {socket.gethostname()}, process {os.getpid()}, since " in said(events)
    assert re.search(r"; batch 1 for [0-9]+ s; 1 batch of 20 records so far\n", said(events))
    assert found.json()["running"][0]["run_id"] == events.session.lease.run_id


def test_a_run_whose_process_is_dead_is_told_as_killed_before_its_silence_is_long_enough(
    events: Delivering,
) -> None:
    died = subprocess.Popen([sys.executable, "-c", ""])
    died.wait()
    events.execute("UPDATE sluice.run SET holder = %s RETURNING 1", f"{socket.gethostname()}/{died.pid}")
    found = state(events)
    assert [run.alive for run in found.running] == [False]
    assert found.state == f"killed or cut off ({socket.gethostname()}/{died.pid})"
    assert found.next == "sluice run events"
    assert f"process {died.pid}, and was killed or cut off: last seen " in said(events)
    kind = "UPDATE sluice.run SET kind = %s WHERE outcome IS NULL RETURNING 1"
    events.execute(kind, "replay")
    assert "; it is whole or not there at all: `sluice deliveries events` shows which\n" in said(events)
    events.execute(kind, "stream")
    with transaction(events.dsn) as cursor:
        taken = leases.take_lease(cursor, "events")
        leases.end_run(cursor, taken, RunOutcome(outcome="done"))
        leases.give_lease_back(cursor, taken)
    [(message,)] = events.execute("SELECT message FROM sluice.run WHERE outcome = 'lost its lease'")
    assert message.startswith("It was killed or cut off, and last seen at 20")
    assert state(events).state == "idle"


def test_what_ended_the_last_run_is_kept_and_told_until_a_run_ends_well(events: Delivering) -> None:
    error = ServiceAway("PostgreSQL went away\nin the middle", remedy="`sluice run events`")
    with pytest.raises(ServiceAway), leased(events.dsn, events.session.lease):
        raise error
    found = state(events)
    assert found.running == []
    assert found.state == "last run: ServiceAway"
    assert found.ended is not None
    kept = (found.ended.outcome, found.ended.message, found.ended.remedy)
    assert kept == ("ServiceAway", "PostgreSQL went away in the middle", "`sluice run events`")
    text = said(events)
    assert (found.standing, found.failing_since) == ("interrupted", found.ended.ended_at)
    assert re.search(
        r"^events: interrupted since 20[-0-9: ]+; last run: ServiceAway; next: ", text, re.MULTILINE
    )
    assert "the last run of events ended " in text
    assert " by ServiceAway: PostgreSQL went away in the middle" in text
    assert "  next: `sluice run events`" in text
    events.restart()
    with leased(events.dsn, events.session.lease):
        pass
    assert "the last run" not in said(events)
    assert state(events).state == "idle"


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (ValueError("postgresql://ann:hush@db/x is wrong"), "postgresql://***@db/x is wrong"),
        (ValueError("host=db password=hush user=ann"), "host=db password=*** user=ann"),
        (ValueError("PASSWORD: 'hush hush', host"), "PASSWORD: ***, host"),
        (ValueError('{"secret_access_key": "hush", "a": 1}'), '{"secret_access_key": ***, "a": 1}'),
        (ValueError("key AKIAABCDEFGHIJKLMNOP was refused"), "key *** was refused"),
        (ValueError("one\x00two"), "onetwo"),
        (ValueError(""), "ValueError"),
        (ServiceAway("x" * 600, remedy="token=hush"), "x" * (LONGEST - 1) + "…"),
    ],
)
def test_no_secret_of_an_error_is_kept_and_not_more_than_fits(error: Exception, kept: str) -> None:
    ending = RunOutcome.by(error)
    assert (ending.outcome, ending.message) == (type(error).__name__, kept)
    assert "hush" not in str(ending)


def test_a_pipeline_by_itself_is_told_with_its_newest_batches_and_nothing_is_cut_at_80_columns(
    events: Delivering,
) -> None:
    for batch in range(12):
        tell(events, batch)
    events.execute("UPDATE sluice.delivery SET (batch_id, late) = (11, 21) RETURNING 1")
    text = said(events)
    assert max(len(line) for line in text.split("read to")[0].splitlines() if "runs on" not in line) <= 80
    assert "…" not in text
    cells = [line.split() for line in text.splitlines()]
    times = ["12,345,678", "1,234", "3.00", "1.50", "0.25", "0.12", "0.62", "0.50"]
    [newest] = [line for line in cells if line[:2] == ["11", "1"] and line[-1] == "0.50"]
    assert newest[-8:] == times
    [before] = [line for line in cells if line[:2] == ["10", "-"] and line[-1] == "0.50"]
    assert before[-8:] == times
    assert ["11", "20", "1,234,567", "98.8", "MB", "2026-03-01", "10:00:00", "21", "17", "5"] in cells
    assert [line[0] for line in cells if line[-8:] == times] == [str(batch) for batch in range(11, 1, -1)]
    assert 'read to  FileStreamSource[file:/landing/events]: {"logOffset": 7}' in text
    assert "behind   54,321 records that were there when batch 11 was planned" in text
    assert "state rows" not in said(events, None)
    told = state(events).json()["batches"]
    assert [one["batch_id"] for one in told] == list(range(11, 1, -1))
    assert [one["late"] for one in told] == [21, *[None] * 9]
    assert [one["delivery_id"] for one in told] == [1, *[None] * 9]
    assert told[0]["durations_ms"] == {"addBatch": 2600, "triggerExecution": 3000}
    assert state(events, None).batches == ()


def test_a_batch_without_state_or_phases_is_told_too(events: Delivering) -> None:
    none = dict.fromkeys(
        ("watermark", "latest", "state_rows", "state_bytes", "dropped", "processed_rate", "doubles", "behind")
    )
    tell(events, 0, **none, phases_ms=Json({}), operators=Json([]), ends=[])
    text = said(events)
    assert "state rows" not in text
    assert "behind" not in text
    assert any(line.split()[-7:] == ["-", "3.00", "-", "-", "-", "-", "3.00"] for line in text.splitlines())


def test_a_sweep_takes_out_how_batches_of_earlier_streams_ran_and_alerts_long_over(
    events: Delivering,
) -> None:
    tell(events, 0, triggered_at=dt.datetime.now(dt.UTC) - dt.timedelta(days=30))
    tell(events, 1, triggered_at=dt.datetime.now(dt.UTC))
    other = "00000000-0000-0000-0000-000000000001"
    with transaction(events.dsn) as cursor:
        lease = events.session.lease
        streams.register_stream(
            cursor, lease.pipeline, lease.run_id, other, checkpoint="/none", first_batch=0
        )
        leases.end_run(cursor, events.session.lease, RunOutcome(outcome="done"))
        leases.give_lease_back(cursor, events.session.lease)

    def kept() -> list[tuple[Any, ...]]:
        return events.execute("SELECT batch_id FROM sluice.batch_progress ORDER BY batch_id")

    assert sweep(events.place, events.pipeline, dry_run=True).progress == 1
    assert kept() == [(0,), (1,)]
    assert events.execute("SELECT count(*) FROM sluice.maintenance") == [(0,)]
    report = sweep(events.place, events.pipeline)
    assert report.progress == 1
    assert "  removed how 1 batch of earlier streams ran" in report.lines()
    assert kept() == [(1,)]

    events.execute(
        "INSERT INTO sluice.alert (pipeline, kind, known_as, text, resolved_at, resolved_by)"
        " SELECT 'events', 'failed', '', '', now() - interval '31 days', '' FROM generate_series(1, 1001) RETURNING 1"
    )
    assert sweep(events.place, events.pipeline).alerts == 0, (
        "they are kept for ever unless settings say how long"
    )
    settings = events.place.settings.model_copy(update={"quality_retention": dt.timedelta(days=30)})
    place = replace(events.place, settings=settings)
    assert sweep(place, events.pipeline, dry_run=True).alerts == 1001
    assert "  removed 1,001 alerts that had long been over" in sweep(place, events.pipeline).lines()
    assert events.execute("SELECT count(*) FROM sluice.alert") == [(0,)]
    assert events.execute("SELECT command, differences FROM sluice.maintenance") == [("sweep", 0)]
