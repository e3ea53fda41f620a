"""A trouble is told once, again until somebody has it, and told to be over: each time to whoever knew of it."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from etl.alerts.channels import Channel, chat
from etl.alerts.notice import Notice
from etl.alerts.outbox import Outbox, SendResult
from etl.common.database import transaction
from etl.common.settings import Settings, same_place
from etl.ledger.telemetry import alerts, maintenance
from etl.ledger.telemetry.alerts import Trouble
from etl.pipeline import Airflow, Freshness, Pipeline, Volume
from etl.pipeline.loader import Loaded
from tests.support import arrow_driver, commands
from tests.support.ledger_rows import RUN, STREAM, Ledger
from tests.support.receivers import Receiver, receiving

OTHER = "00000000-0000-4000-8000-000000000003"  # another run
FAILED = Trouble(pipeline="taps", kind="failed", text="taps failed: exit code 70")
HOUR = dt.timedelta(hours=1)


@dataclass(kw_only=True)
class Told:
    """An outbox, and the two that it tells."""

    ledger: Ledger
    ours: Receiver
    slack: Receiver
    outbox: Outbox = field(init=False)

    def __post_init__(self) -> None:
        channels = (chat("slack", lambda: self.slack.address), chat("webhook", lambda: self.ours.address))
        self.outbox = Outbox(dsn=self.ledger.dsn, destinations=["slack", "webhook"], channels=channels)

    @property
    def events(self) -> list[str]:
        return [one["event"] for one in self.messages]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.ours.taken]

    @property
    def titles(self) -> list[str]:
        """Return what the messages to Slack begin with."""
        return [json.loads(body)["blocks"][0]["text"]["text"] for _, body in self.slack.taken]

    @property
    def number(self) -> int:
        with transaction(self.ledger.dsn) as cursor:
            return alerts.alerts(cursor, None)[0].alert.alert_id

    def later(self, by: dt.timedelta) -> None:
        """Let that much time pass for the messages."""
        self.ledger.execute(
            "UPDATE sluice.alert_message SET made_at = made_at - %s, due_at = due_at - %s, sent_at = sent_at - %s",
            *(by, by, by),
        )

    def tell(self, *troubles: Trouble) -> SendResult:
        self.outbox.tell("taps", troubles)
        return self.outbox.send()

    def settle(self) -> None:
        self.tell()

    def look(self, *pipelines: Pipeline) -> SendResult:
        """Look as where each is declared by a file, and nothing is wrong with it."""
        return self.outbox.look([Loaded(file=Path("taps.py"), pipeline=one, wrong=()) for one in pipelines])

    def acknowledge(self) -> None:
        with transaction(self.ledger.dsn) as cursor:
            alerts.acknowledge(cursor, [self.number], "ann")
        self.outbox.send()

    def remind(self) -> None:
        with transaction(self.ledger.dsn) as cursor:
            alerts.remind(cursor, {"taps": HOUR}, otherwise=None)
        self.outbox.send()


@pytest.fixture
def told(dsn: str) -> Iterator[Told]:
    ledger = Ledger(dsn=dsn)
    ledger.begin()
    with receiving() as ours, receiving() as slack:
        yield Told(ledger=ledger, ours=ours, slack=slack)


def test_a_trouble_is_told_once_reminded_of_and_told_to_be_over(told: Told) -> None:
    told.tell(FAILED)
    told.tell(FAILED)  # the next run fails, too
    told.remind()
    assert told.titles == ["taps: failed"]
    told.later(HOUR)
    told.remind()
    told.remind()
    assert told.titles[1:] == ["Still open: taps: failed"]
    assert "found 2 times" in told.messages[-1]["notes"][0]
    told.settle()
    assert len(told.events) == 2
    number = told.ledger.deliver()
    told.settle()
    told.settle()
    assert told.titles[2:] == ["Resolved: taps: failed"]
    assert told.events == ["triggered", "reminder", "resolved"]
    assert {one["key"] for one in told.messages} == {"sluice/taps/failed"}
    assert told.messages[-1]["notes"][0].endswith(f"delivery {number} came")
    told.tell(FAILED)
    assert told.events[3:] == ["triggered"]


def test_what_is_not_taken_is_sent_again_and_holds_up_no_other(told: Told) -> None:
    told.slack.answer = 503
    done = told.tell(FAILED)
    assert (done.sent, done.problems) == (1, ("slack: it answered 503 Service Unavailable",))
    told.slack.answer = 200
    assert told.outbox.send().sent == 0, "not before its pause"
    told.later(HOUR)
    assert told.outbox.send().sent == 1
    assert (told.titles, told.events) == (["taps: failed"], ["triggered"])
    assert told.outbox.send().sent == 0


def test_who_was_not_told_of_a_trouble_is_not_told_that_it_is_over(told: Told) -> None:
    told.slack.answer = 503
    told.tell(FAILED)
    told.ledger.deliver()
    told.slack.answer = 200
    told.settle()
    assert told.events == ["triggered", "resolved"]
    told.later(HOUR)
    told.outbox.send()
    assert told.titles == []


def test_who_takes_a_trouble_up_ends_its_reminders_but_not_the_trouble(told: Told) -> None:
    told.tell(FAILED)
    told.acknowledge()
    told.acknowledge()
    assert told.events == ["triggered", "acknowledged"]
    assert told.messages[-1]["notes"] == ["ann has taken it up"]
    told.later(HOUR)
    told.remind()
    told.tell(FAILED)
    assert len(told.events) == 2
    told.ledger.deliver()
    told.settle()
    assert told.titles[2:] == ["Resolved: taps: failed"]


def test_two_senders_send_a_message_once(told: Told) -> None:
    troubles = [Trouble(pipeline="taps", kind="drift", about=str(one), text="new") for one in range(12)]
    with transaction(told.ledger.dsn) as cursor:
        for one in troubles:
            alerts.open_alert(cursor, one, told.outbox.destinations)
    with ThreadPoolExecutor(4) as pool:
        sent = [one.result().sent for one in [pool.submit(told.outbox.send) for _ in range(4)]]
    assert sum(sent) == 24
    assert sorted(one["key"] for one in told.messages) == sorted(one.key for one in troubles)


@pytest.mark.parametrize(
    ("kind", "bad", "good"),
    [
        ("quarantine", {"held": 6}, {"held": 5}),
        ("dropped", {"dropped": 1}, {"dropped": 0}),
        ("drift", {"unknown": '{"shop": 1}'}, {}),
        ("failed", None, {}),
        ("waiting", None, {}),
        ("deadline", None, {"held": 9}),
        ("question", None, {}),
    ],
)
def test_a_batch_ends_the_trouble_that_it_does_not_have(
    told: Told, kind: str, bad: dict[str, Any] | None, good: dict[str, Any]
) -> None:
    told.tell(Trouble(pipeline="taps", kind=kind, text="see", share_limit=0.5))
    if bad is not None:
        for _ in range(2):
            told.ledger.deliver(**bad)
            told.settle()
        assert told.events == ["triggered"]
    told.ledger.deliver(**good)
    told.settle()
    assert told.events == ["triggered", "resolved"]


def test_what_is_under_way_while_its_trouble_ends_is_sent_and_then_its_end(told: Told) -> None:
    told.outbox.tell("taps", [FAILED])
    for_slack = {"destinations": ["slack"], "pipeline": None}
    with transaction(told.ledger.dsn) as cursor:
        under_way = alerts.claim(cursor, **for_slack)
    with transaction(told.ledger.dsn) as cursor:
        assert alerts.claim(cursor, **for_slack) is None, "another has it"
        alerts.resolve(cursor, [told.number], "ann ended it")
    assert under_way is not None
    assert told.outbox.send().sent == 0, "nobody else has been told, and the end waits for what is under way"
    with transaction(told.ledger.dsn) as cursor:
        alerts.note(cursor, under_way, None)
    told.outbox.send()
    assert (told.titles, told.events) == (["Resolved: taps: failed"], [])


def test_what_a_sender_died_with_is_sent_by_another(told: Told) -> None:
    told.outbox.tell("taps", [FAILED])
    with transaction(told.ledger.dsn) as cursor:
        alerts.claim(cursor, ["slack"], None)
    assert told.outbox.send().sent == 1
    told.later(HOUR)
    assert told.outbox.send().sent == 1
    assert (told.titles, told.events) == (["taps: failed"], ["triggered"])


def test_no_transaction_is_open_while_a_destination_answers(told: Told) -> None:
    open_ones = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL"
    )
    seen = []

    def send(_: Notice) -> None:
        seen.append(told.ledger.execute(f"{open_ones} AND pid <> pg_backend_pid()"))

    own = Channel(name="webhook", send=send)
    replace(told.outbox, channels=[own]).tell("taps", [FAILED])
    assert replace(told.outbox, channels=[own]).send().sent == 1
    assert seen == [[(0,)]]


def test_a_channel_that_fails_in_a_way_of_its_own_holds_up_no_other(told: Told) -> None:
    def send(_: Notice) -> None:
        raise LookupError("http://127.0.0.1/secret")

    broken = replace(told.outbox, channels=[Channel(name="slack", send=send), *told.outbox.channels[1:]])
    broken.tell("taps", [FAILED])
    assert broken.send() == SendResult(sent=1, problems=("slack: it could not be sent (LookupError)",))
    assert broken.send() == SendResult(sent=0, problems=()), "it has a pause"
    assert told.events == ["triggered"]


def test_no_message_is_begun_after_its_time_and_what_is_left_is_sent_by_the_next(told: Told) -> None:
    told.outbox.tell("taps", [FAILED])
    assert told.outbox.send(within=0) == SendResult(sent=0, problems=())
    assert told.outbox.send().sent == 2


def test_who_is_told_from_elsewhere_has_a_message_too(told: Told) -> None:
    told.tell(FAILED)
    here = replace(told.outbox, channels=told.outbox.channels[1:])
    here.tell("taps", [replace(FAILED, kind="drift")])
    assert here.send().sent == 1
    assert told.titles == ["taps: failed"]
    assert told.outbox.send().sent == 1
    assert told.titles[1:] == ["taps: drift"]


def test_two_that_look_at_once_remind_once(told: Told) -> None:
    told.tell(FAILED)
    told.later(HOUR)
    with transaction(told.ledger.dsn) as cursor:
        alerts.remind(cursor, {"taps": HOUR}, otherwise=None)
        told.remind()
    told.remind()
    assert told.events == ["triggered", "reminder"]


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
    told.ledger.execute(
        "INSERT INTO sluice.airflow_try (dag_id, dag_run_id, task_id, try_number, pipeline, run_type, clear_number, run_id)"
        " VALUES ('taps', 'r', 'run', 1, 'taps', 'manual', 0, %s)",
        RUN,
    )
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

    told.ledger.execute(
        "INSERT INTO sluice.airflow_try (dag_id, dag_run_id, task_id, try_number, pipeline, run_type, clear_number, run_id)"
        " VALUES ('taps', 'r', 'run', 1, 'taps', 'manual', 0, %s)",
        RUN,
    )
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


def test_a_run_without_a_batch_ends_what_kept_runs_from_their_end(told: Told) -> None:
    beside = Trouble(pipeline="taps", kind="failed", about="replays", text="the replay failed")
    told.tell(FAILED)
    told.tell(beside)
    told.tell(Trouble(pipeline="taps", kind="quarantine", text="too much", share_limit=0.5))
    told.tell(Trouble(pipeline="taps", kind="failed", about="audit", text="they differ"))
    ended = "UPDATE sluice.run SET ended_at = clock_timestamp(), outcome = %s WHERE run_id = %s"
    told.ledger.execute(ended, "ServiceAway", RUN)
    told.settle()
    assert told.events == ["triggered"] * 4
    told.ledger.execute(ended, "done", RUN)
    told.settle()
    assert [(one["event"], one["key"]) for one in told.messages[4:]] == [("resolved", FAILED.key)]
    told.ledger.execute("UPDATE sluice.run SET kind = 'replay' WHERE run_id = %s", RUN)
    told.settle()
    assert told.messages[5]["key"] == beside.key


def test_a_decision_ends_a_question(told: Told) -> None:
    told.ledger.stop()
    told.tell(Trouble(pipeline="taps", kind="question", text="what now?"))
    told.tell(FAILED)
    told.ledger.decide()
    told.settle()
    assert [one["kind"] for one in told.messages[2:]] == ["question"]
    assert told.messages[2]["notes"][0].endswith("ann decided")


def test_only_what_is_long_over_and_wholly_sent_is_forgotten(told: Told) -> None:
    for kind in ("drift", "dropped", "failed", "waiting"):
        told.tell(Trouble(pipeline="taps", kind=kind, text="see"))
        with transaction(told.ledger.dsn) as cursor:
            alerts.resolve(cursor, [told.number], "ann ended it")
        if kind == "waiting":  # its end is not taken
            told.ours.answer = 503
        told.outbox.send()
    told.ledger.execute(
        "UPDATE sluice.alert SET resolved_at = now() - interval '2 hours' WHERE kind <> 'failed'"
    )
    told.tell(Trouble(pipeline="taps", kind="question", text="what now?"))
    for most, left in (
        (1, ["dropped", "failed", "waiting", "question"]),
        (9, ["failed", "waiting", "question"]),
    ):
        with transaction(told.ledger.dsn) as cursor:
            alerts.forget_old(cursor, "others", HOUR, most=most)
            alerts.forget_old(cursor, "taps", HOUR, most=most)
        assert told.ledger.execute("SELECT kind FROM sluice.alert ORDER BY alert_id") == [
            (one,) for one in left
        ]
    with transaction(told.ledger.dsn) as cursor:
        assert alerts.old(cursor, "taps", HOUR) == 0


def pipeline(**declared: Any) -> Pipeline:
    return replace(arrow_driver.pipeline("taps"), **declared)


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


def test_a_page_is_named_of_a_pipeline_that_is_on_record(told: Told) -> None:
    box = replace(told.outbox, page_of=lambda name: f"https://airflow.example.org/{name}/")
    box.tell("taps", [FAILED])
    box.tell("others", [replace(FAILED, pipeline="others")])
    assert box.send().sent == 4
    assert ["https://airflow" in body.decode() for _, body in told.slack.taken] == [True, False]


def test_the_commands_list_acknowledge_resolve_and_send(
    told: Told, tmp_path: Path, settings_for: Callable[..., Settings]
) -> None:
    here = settings_for(
        tmp_path, postgres=told.ledger.dsn, pipelines=[str(tmp_path)], alert_webhook=told.ours.address
    )
    environment = {**os.environ, **same_place(here)}

    def sluice(*words: str) -> subprocess.CompletedProcess[str]:
        return commands.sluice(("alerts", *words), None, environment=environment, folder=tmp_path)

    told.ours.answer = 500
    told.tell(replace(FAILED, text="[bold]it failed"))
    listed = sluice("list")
    number = str(told.number)
    assert "[bold]it failed" in listed.stdout
    assert "1 message not taken (it answered 500 Internal Server Error)" in " ".join(listed.stdout.split())
    told.later(HOUR)
    away = sluice("send")
    assert (away.returncode, "webhook: it answered 500" in away.stderr) == (75, True)
    told.ours.answer = 200
    told.later(HOUR)
    assert sluice("send").stdout == "1 message sent\n"
    assert sluice("acknowledge", number, "999999").returncode == 0
    assert sluice("acknowledge", number).returncode == 2
    [state] = json.loads(sluice("list", "taps", "--json").stdout)
    assert (state["kind"], state["unsent"], bool(state["acknowledged_by"])) == ("failed", 1, True)
    assert sluice("resolve", number).returncode == 2, "a reason is wanted"
    assert sluice("resolve", number, "--why", "the vendor knows").returncode == 0
    assert sluice("list").stdout == "no alert is open\n"
    assert "ended it: the vendor knows" in " ".join(sluice("list", "--closed").stdout.split())
    assert told.events == ["triggered", "acknowledged", "resolved"]
