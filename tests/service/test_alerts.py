"""A trouble is told once, again until somebody has it, and told to be over: each time to whoever knew of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etl.alerts.channels import Channel
from etl.alerts.notice import Notice
from etl.alerts.outbox import SendResult
from etl.common.database import transaction
from etl.common.settings import Settings, same_place
from etl.ledger.telemetry import alerts
from etl.ledger.telemetry.alerts import Trouble
from tests.support import commands
from tests.support.ledger_rows import RUN
from tests.support.told import FAILED, HOUR, Told


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


def test_all_that_are_open_are_listed(told: Told) -> None:
    told.tell(*(replace(FAILED, about=f"audit {number}") for number in range(120)))
    with transaction(told.ledger.dsn) as cursor:
        assert len(alerts.alerts(cursor, "taps")) == 120
        assert len(alerts.alerts(cursor, "taps", closed=True, limit=100)) == 100


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
