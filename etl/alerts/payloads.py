"""Writes a message as Slack, Microsoft Teams, PagerDuty and a plain webhook take it, within the limits that they document.

What a message says may hold bytes of the data: no value is read as markup, and none mentions anybody.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from etl.alerts.notice import Notice
from etl.ledger.telemetry.alerts import Alert

# Characters; of Teams a message may have 28 kB, whatever its characters take.
SLACK_HEADER, SLACK_TEXT = 150, 3_000
TEAMS_TEXT = 4_000
PAGERDUTY_SUMMARY, PAGERDUTY_KEY, PAGERDUTY_DETAIL = 1_024, 255, 20_000

ACTIONS = {
    "triggered": "trigger",
    "reminder": "trigger",
    "acknowledged": "acknowledge",
    "resolved": "resolve",
}
COLORS = {"critical": "attention", "error": "attention", "warning": "warning", "info": "accent"}
_SLACK = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}  # all that Slack reads as control characters


def cut(text: str, most: int) -> str:
    """Return a text of at most so many characters; one that is cut ends in an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def slack(notice: Notice) -> dict[str, Any]:
    """Return the message of an incoming webhook."""
    body = "\n".join((notice.trouble.text, *notice.notes))
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": _plain(notice.title, SLACK_HEADER)},
        {"type": "section", "text": _plain(body, SLACK_TEXT)},
    ]
    if notice.page:
        link = {"type": "mrkdwn", "text": f"<{_for_slack(notice.page, SLACK_TEXT)}|Data quality>"}
        blocks.append({"type": "context", "elements": [link]})
    return {"text": _for_slack(f"{notice.title}: {notice.trouble.text}", SLACK_TEXT), "blocks": blocks}


def _plain(text: str, most: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": cut(text, most), "emoji": False}


def _for_slack(text: str, most: int) -> str:
    """Escape what Slack takes for control characters, and cut the text so that no reference is cut in two."""
    escaped = re.sub("[&<>]", lambda one: _SLACK[one[0]], text)
    if len(escaped) <= most:
        return escaped
    return re.sub("&[a-z]*$", "", escaped[: most - 1]) + "…"


def teams(notice: Notice) -> dict[str, Any]:
    """Return an Adaptive Card, as a webhook of Workflows takes it; its texts are runs, in which no Markdown is read."""
    body = [_run(notice.title, weight="Bolder", size="Medium", color=_color(notice))]
    body += [_run(cut(line, TEAMS_TEXT)) for line in (notice.trouble.text, *notice.notes)]
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    if notice.page:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Data quality", "url": notice.page}]
    attachment = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return {"type": "message", "attachments": [attachment]}


def _run(text: str, **look: str) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text, **look}]}


def _color(notice: Notice) -> str:
    return "good" if notice.event == "resolved" else COLORS[notice.severity]


def pagerduty(notice: Notice, routing_key: str) -> dict[str, Any]:
    """Return an event of the Events API v2; all events of one trouble have its key."""
    trouble = notice.trouble
    event: dict[str, Any] = {
        "routing_key": routing_key,
        "event_action": ACTIONS[notice.event],
        "dedup_key": cut(trouble.key, PAGERDUTY_KEY),
    }
    if event["event_action"] != "trigger":
        return event
    details = {"text": cut(trouble.text, PAGERDUTY_DETAIL), "notes": list(notice.notes)}
    event["payload"] = {
        "summary": cut(f"{trouble.pipeline}: {trouble.kind}: {trouble.text}", PAGERDUTY_SUMMARY),
        "source": f"sluice/{trouble.pipeline}",
        "severity": notice.severity,
        "component": trouble.pipeline,
        "class": trouble.kind,
        "custom_details": details,
    }
    event["client"] = "Sluice"
    if notice.page:
        event["links"] = [{"href": notice.page, "text": "Data quality"}]
    return event


def webhook(notice: Notice) -> dict[str, Any]:
    """Return what a receiver of one's own gets."""
    trouble = notice.trouble
    number = trouble.alert_id if isinstance(trouble, Alert) else None
    return {
        "event": notice.event,
        "kind": trouble.kind,
        "pipeline": trouble.pipeline,
        "text": trouble.text,
        "key": trouble.key,
        "severity": notice.severity,
        "alert": number,
        "notes": list(notice.notes),
    }


CHATS: Mapping[str, Callable[[Notice], dict[str, Any]]] = {"slack": slack, "teams": teams, "webhook": webhook}
