"""A message is as its service takes it: within its limits, and no value of the data is markup there."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from email import message_from_bytes
from typing import Any

import pytest

from etl.alerts.channels import NotTaken, chat, mail, message, pagerduty
from etl.alerts.notice import SEVERITIES, Notice
from etl.alerts.outbox import fit
from etl.alerts.payloads import CHATS
from etl.alerts.payloads import pagerduty as event_of
from etl.ledger.telemetry.alerts import Alert, Event, Trouble
from tests.support.airflow.listeners import mail as mail_server
from tests.support.receivers import receiving

AT = dt.datetime(2026, 11, 30, 8, tzinfo=dt.UTC)
HOSTILE = "<!channel> <@U1> *b* [x](http://evil) & \r\nBcc: all@example.org\r\n {{ 1 }} \x00 \ud800"
PAGE = "https://airflow.example.org/data-quality/taps/"


def notice(text: str, event: Event = "triggered", **more: Any) -> Notice:
    given = {
        "pipeline": "taps",
        "kind": "failed",
        "known_as": "sluice/taps/failed",
        "times": 3,
        "opened_at": AT,
        "last_at": AT,
    }
    return Notice(event=event, trouble=Alert(alert_id=7, text=text, **given | more), page=PAGE)


def slack_texts(sent: dict[str, Any]) -> list[str]:
    blocks = [part for block in sent["blocks"] for part in block.get("elements", [block.get("text")])]
    return [sent["text"], *(one["text"] for one in blocks)]


@pytest.mark.parametrize("text", [HOSTILE, "&" * 40_000, "ü" * 40_000, "\U0001f6b0" * 40_000])
def test_every_payload_is_within_the_limits_of_its_service(text: str) -> None:
    slack, teams, own = (CHATS[name](notice(text)) for name in ("slack", "teams", "webhook"))
    assert len(slack["blocks"]) <= 50
    assert all(0 < len(one) <= 3_000 for one in slack_texts(slack))
    assert len(slack["blocks"][0]["text"]["text"]) <= 150
    assert len(json.dumps(teams, ensure_ascii=False).encode("utf-8", "replace")) <= 28_000
    event = event_of(notice(text, known_as="x" * 300), "key")
    assert len(event["payload"]["summary"]) <= 1_024
    assert len(event["dedup_key"]) <= 255
    assert len(json.dumps(event, ensure_ascii=False).encode("utf-8", "replace")) <= 512_000
    assert own["text"] == text


def test_nothing_of_the_data_is_markup() -> None:
    slack, teams = CHATS["slack"](notice(HOSTILE)), CHATS["teams"](notice(HOSTILE))
    assert not {"<", ">"} & set(slack["text"])
    assert "&lt;!channel&gt; &lt;@U1&gt;" in slack["text"]
    assert [one["text"]["type"] for one in slack["blocks"][:2]] == ["plain_text", "plain_text"]
    assert slack["blocks"][1]["text"]["text"].startswith(HOSTILE)
    content = teams["attachments"][0]["content"]
    assert {one["type"] for one in content["body"]} == {"RichTextBlock"}, "in a TextBlock Markdown is read"
    assert content["body"][1]["inlines"][0]["text"] == HOSTILE
    assert content["actions"][0]["url"] == PAGE
    assert "MessageCard" not in json.dumps(teams)
    cut = CHATS["slack"](notice("<" * 2_000))["text"].removeprefix("taps: failed: ")
    assert cut.removesuffix("…").replace("&lt;", "") == ""
    written = message(notice("x", kind="failed\nBcc: all@example.org"), ["ann@example.org"])
    assert written["Bcc"] is None


@pytest.mark.parametrize(
    ("event", "action"),
    [
        ("triggered", "trigger"),
        ("reminder", "trigger"),
        ("acknowledged", "acknowledge"),
        ("resolved", "resolve"),
    ],
)
def test_pagerdutys_events_of_one_trouble_have_one_key(event: Event, action: str) -> None:
    found = event_of(notice("it failed", event, acknowledged_by="ann", resolved_by="delivery 4 came"), "key")
    assert (found["routing_key"], found["event_action"], found["dedup_key"]) == (
        "key",
        action,
        "sluice/taps/failed",
    )
    assert ("payload" in found) == (action == "trigger")
    if action == "trigger":
        payload = found["payload"]
        assert (payload["severity"], payload["source"], payload["class"]) == (
            "critical",
            "sluice/taps",
            "failed",
        )
        assert found["links"][0]["href"] == PAGE
    assert set(SEVERITIES.values()) <= {"critical", "error", "warning", "info"}


def test_what_is_taken_arrives_as_it_was_written() -> None:
    with receiving() as receiver:
        pagerduty(lambda: "key", lambda: f"{receiver.address}/").send(notice(HOSTILE))
        chat("slack", lambda: f"{receiver.address}/T0/B0").send(notice(HOSTILE))
    assert [path for path, _ in receiver.taken] == ["/v2/enqueue", "/T0/B0"]
    assert json.loads(receiver.taken[0][1])["dedup_key"] == "sluice/taps/failed"


def test_a_redirect_is_not_followed_and_delivers_nothing() -> None:
    with receiving() as receiver, receiving() as elsewhere:
        receiver.answer, receiver.leads_to = 302, elsewhere.address
        with pytest.raises(NotTaken, match="it answered 302 Found"):
            chat("slack", lambda: receiver.address).send(notice("x"))
    assert (receiver.refused, elsewhere.asked) == (1, 0)


def test_a_text_leaves_without_secrets_and_control_characters() -> None:
    told = fit(Trouble(pipeline="taps", kind="failed", text=f"{HOSTILE}\npassword=hunter2 " + "x" * 20_000))
    assert not {"\x00", "\ud800", "\r"} & set(told.text)
    assert "hunter2" not in told.text
    assert len(told.text) == 10_000


@pytest.mark.parametrize(
    "address",
    [
        lambda port: f"http://127.0.0.1:{port}/secret",
        lambda _: "http://127.0.0.1:1/secret",
        lambda _: "http://127.0.0.1:secret/",
        lambda _: "http://no such host secret/",
        lambda _: "http://127.0.0.1\n/secret",
    ],
)
def test_no_error_names_an_address(address: Callable[[str], str]) -> None:
    with receiving() as receiver:
        receiver.answer = 403
        with pytest.raises(NotTaken) as refused:
            chat("slack", lambda: address(receiver.address.rpartition(":")[2])).send(notice("x"))
    assert "secret" not in str(refused.value)
    assert "127.0.0.1" not in str(refused.value)


def test_a_mail_goes_through_a_server_without_airflow() -> None:
    with mail_server() as inbox:
        mail(lambda: f"smtp://127.0.0.1:{inbox.port}", ["ann@example.org", "bob@example.org"]).send(
            notice("it failed: ü <b>", "reminder")
        )
    [sent] = inbox.found
    found = message_from_bytes(sent.encode())
    assert (found["Subject"], found["To"]) == (
        "Sluice: taps (failed, reminder)",
        "ann@example.org, bob@example.org",
    )
    text = found.get_payload(decode=True).decode()
    assert "it failed: ü <b>" in text
    assert "Open since 2026-11-30 08:00 UTC, found 3 times" in text
    assert PAGE in text


def test_an_address_that_the_mail_server_refuses_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with mail_server(refused="bob@example.org") as inbox:
        mail(lambda: f"smtp://127.0.0.1:{inbox.port}", ["ann@example.org", "bob@example.org"]).send(
            notice("x")
        )
    assert len(inbox.found) == 1
    assert "refused 1 of its addresses" in caplog.text


def test_a_mail_server_that_is_away_is_no_crash_and_names_no_password() -> None:
    with pytest.raises(NotTaken) as refused:
        mail(lambda: "smtp://ann:secret@127.0.0.1:1", ["ann@example.org"]).send(notice("x"))
    assert "secret" not in str(refused.value)
