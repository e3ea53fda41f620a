"""A look finds the troubles that the ledger shows, tells of each once, and tells what is over."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from pathlib import Path

from etl.common.database import transaction
from etl.ledger.telemetry import alerts, maintenance
from etl.ledger.telemetry.alerts import Trouble
from etl.pipeline import Airflow, Freshness, Volume
from etl.pipeline.loader import Loaded
from tests.support.ledger_rows import RUN, STREAM
from tests.support.told import FAILED, HOUR, Told, pipeline

OTHER = "00000000-0000-4000-8000-000000000003"  # another run


def test_a_look_finds_each_consumer_that_is_behind_and_tells_of_it_once(told: Told) -> None:
    told.ledger.deliver(at=dt.datetime.now(dt.UTC) - 3 * HOUR)
    told.ledger.execute("UPDATE sluice.pipeline SET consumer_lag_limit = interval '4 hours'")
    for name in ("sums", "audit", "{{ 7 * 7 }}"):
        told.ledger.execute("INSERT INTO sluice.consumer (pipeline, name) VALUES ('taps', %s)", name)
    told.look()
    assert told.events == []
    told.ledger.execute("UPDATE sluice.pipeline SET consumer_lag_limit = interval '2 hours'")
    told.look()
    told.look()
    assert sorted(one["key"] for one in told.messages) == [
        "sluice/taps/consumer/audit",
        "sluice/taps/consumer/sums",
        "sluice/taps/consumer/{{ 7 * 7 }}",
    ]
    [text] = [one["text"] for one in told.messages if one["key"].endswith("}}")]
    late = r"taps: consumer \{\{ 7 \* 7 \}\} is 3:00:\d\d behind, more than 2:00:00; `sluice consumers taps` lists"
    assert re.match(late, text)
    told.ledger.execute(
        "UPDATE sluice.consumer SET commit_seq = 1, delivery_id = 1, moved_at = now() WHERE name = 'audit'"
    )
    told.look()
    [over] = told.messages[3:]
    assert (over["event"], over["key"]) == ("resolved", "sluice/taps/consumer/audit")
    told.ledger.execute(
        "UPDATE sluice.pipeline SET retired_at = now(), retired_by = 'ann', retired_why = 'moved'"
    )
    told.look()
    told.look()
    assert told.events[4:] == ["resolved"] * 2


def test_a_look_tells_once_of_each_run_that_failed_where_airflow_does_not(told: Told) -> None:
    def end(outcome: str, *, why: str | None = None) -> None:
        told.ledger.execute(
            "UPDATE sluice.run SET ended_at = clock_timestamp(), seen_at = clock_timestamp(), outcome = %s, message = %s",
            *(outcome, why),
        )

    end("ServiceAway", why="S3 is away")
    told.look()
    assert told.events == [], "an outage interrupts"
    end("TransformFailed", why="no column [bold]tap")
    told.ledger.start_by_airflow()
    told.look()
    assert told.events == [], "its task tells, once it is tried no more"
    told.ledger.execute("DELETE FROM sluice.airflow_try")
    told.look()
    told.look()
    assert [one["key"] for one in told.messages] == [FAILED.key]
    says = "taps failed: no column [bold]tap; `sluice status taps` names the next command"
    assert told.messages[0]["text"] == says
    told.look()
    end("TransformFailed")
    told.look()
    with transaction(told.ledger.dsn) as cursor:
        [found] = alerts.alerts(cursor, "taps")
        assert (found.alert.times, found.alert.text.split("; ")[0]) == (2, "taps failed: TransformFailed")
        alerts.resolve(cursor, [found.alert.alert_id], "ann ended it")
    told.look()
    assert told.events == ["triggered", "resolved"], "nothing has failed since"
    told.ledger.execute("UPDATE sluice.pipeline SET lease_token = %s", RUN)
    told.ledger.execute(
        "UPDATE sluice.run SET ended_at = NULL, outcome = NULL, message = NULL, seen_at = now() - interval '5 seconds'"
    )
    told.look()
    assert len(told.events) == 2, "it is at work"
    told.ledger.execute("UPDATE sluice.run SET seen_at = now() - interval '30 seconds'")
    told.look()
    assert told.messages[2]["text"].startswith("taps failed: its run was killed or cut off; ")
    end("done")
    told.look()
    assert told.events[2:] == ["triggered", "resolved"]


def test_a_look_tells_once_of_the_records_of_each_run_where_airflow_does_not(told: Told) -> None:
    def look() -> list[tuple[str, str]]:
        """Look twice; return what was told by that, in the order of the texts."""
        before = len(told.messages)
        for _ in range(2):
            told.look(pipeline(alert_quarantine_share=0.2))
        return sorted((one["event"], one["text"]) for one in told.messages[before:])

    told.ledger.start_by_airflow()
    told.ledger.deliver(10, held=9, unknown='{"other": 1}')
    assert look() == [], "its task has told"
    for run in (STREAM, OTHER):
        told.ledger.execute("INSERT INTO sluice.run (run_id, pipeline, holder) VALUES (%s, 'taps', 'h')", run)
    told.ledger.deliver(10, held=2, run_id=STREAM)
    told.ledger.deliver(10, held=3, dropped=1, unknown='{"shop": 4}', run_id=STREAM)
    told.ledger.deliver(90, unknown='{"shop": 1}', run_id=OTHER)  # which has no trouble that is new
    held, drifted, dropped = (text for event, text in look() if event == "triggered")
    assert held == "taps holds 25.00% of a run's records in quarantine, more than 20.00%"
    assert dropped.startswith("taps: of what a run read 1 row, ")
    assert drifted.endswith("fields that the schema does not name: shop (4 records)")
    told.ledger.deliver(10, unknown='{"shop": 1}', run_id=OTHER)
    assert [event for event, _ in look()] == ["resolved", "resolved"], (
        "the drift is no new one, and is not over"
    )


def test_a_look_tells_of_a_batch_that_stopped_until_somebody_decides(told: Told) -> None:
    told.ledger.stop()
    told.ledger.execute(
        "UPDATE sluice.run SET ended_at = now(), outcome = 'ContractBroken', message = 'batch 1 broke its contract'"
    )
    told.look()
    told.look()
    assert [(one["event"], one["kind"]) for one in told.messages] == [("triggered", "question")]
    assert told.messages[0]["text"].startswith("taps is stopped: batch 1 broke its contract; ")
    told.ledger.decide()
    told.look()
    told.look()
    assert told.events == ["triggered", "resolved"]


def test_a_look_tells_of_a_failed_audit_until_one_passes_whoever_started_them(told: Told) -> None:
    def audited(differences: int) -> None:
        maintenance.note(told.ledger.dsn, "taps", "audit", differences=differences)

    audited(0)
    told.look()
    assert told.events == []
    for _ in range(2):
        audited(3)
        told.look()
        told.look()
    [found] = told.messages
    assert (found["key"], found["text"]) == (
        "sluice/taps/failed/audit",
        "the audit of taps found 3 differences; `sluice audit taps` lists them",
    )
    audited(0)
    told.look()
    assert told.messages[1]["notes"][0].endswith("its audit ended well")
    told.tell(Trouble(pipeline="taps", kind="failed", about="audit", text="audit_taps failed: exit code 1"))
    told.look()
    assert told.events[2:] == ["triggered"], "as Airflow's task tells of it"


def test_a_look_finds_what_is_late_and_little_reminds_and_tells_what_is_over(told: Told) -> None:
    now = dt.datetime.now(dt.UTC)
    watched = pipeline(
        freshness=Freshness(within=HOUR), volume=Volume(weeks=3, at_least=2), alert_repeat=2 * HOUR
    )
    told.look(watched)
    assert told.events == [], "nothing was ever delivered"
    noon = now.replace(hour=12, minute=0) - dt.timedelta(days=1)
    for week in (2, 1):
        told.ledger.deliver(100, at=noon - dt.timedelta(weeks=week))
        told.ledger.deliver(10, at=noon - dt.timedelta(weeks=week, days=1))  # of another weekday
    told.ledger.deliver(30, at=noon)
    told.ledger.deliver(19, at=noon)
    for _ in range(2):
        told.look(watched)
    assert [(one["event"], one["kind"]) for one in told.messages] == [
        ("triggered", "freshness"),
        ("triggered", "volume"),
    ]
    assert (
        "came 49 rows, fewer than 50, by the median 100 of the same day in 2 weeks before"
        in told.messages[1]["text"]
    )
    assert "longer ago than `freshness` allows" in told.messages[0]["text"]
    told.later(2 * HOUR)
    told.ledger.deliver()
    told.look(watched)
    assert [(one["event"], one["kind"]) for one in told.messages[2:]] == [
        ("resolved", "freshness"),
        ("reminder", "volume"),
    ]
    told.later(2 * HOUR)
    told.look(replace(watched, alert_repeat=None))
    assert len(told.events) == 4
    told.look(pipeline())
    assert told.events[4:] == ["resolved"], "it is declared no more"
    told.look(watched)
    told.ledger.execute(
        "UPDATE sluice.pipeline SET retired_at = now(), retired_by = 'ann', retired_why = 'moved'"
    )
    told.look(watched)
    told.look(watched)
    assert told.events[5:] == ["triggered", "resolved"]


def test_a_pipeline_that_can_not_be_looked_at_keeps_no_other_alert_back(told: Told) -> None:
    told.outbox.tell("taps", [FAILED])
    broken = pipeline(freshness=Freshness(within=HOUR), airflow=Airflow(time_zone="Nowhere/City"))
    told.ledger.deliver(at=dt.datetime.now(dt.UTC) - 3 * HOUR)
    told.outbox.tell("taps", [Trouble(pipeline="taps", kind="drift", text="new")])
    done = told.look(broken, replace(pipeline(), name="others"))
    assert done.sent == 4
    [problem] = done.problems
    assert problem.startswith("taps could not be looked at: ")


def test_people_are_reminded_of_a_pipeline_whose_file_is_broken_or_gone_and_its_thresholds_end_with_it(
    told: Told,
) -> None:
    told.tell(FAILED, Trouble(pipeline="taps", kind="freshness", text="late"))
    told.later(4 * HOUR)
    broken = Loaded(file=Path("taps.py"), pipeline=None, wrong=("it is no Python",))
    told.outbox.look([broken])
    assert told.events[2:] == ["reminder", "reminder"]
    told.look()
    assert [(one["event"], one["kind"]) for one in told.messages[4:]] == [("resolved", "freshness")]
    told.look()
    assert len(told.events) == 5, "their last message is not four hours old"
