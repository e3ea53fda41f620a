"""Sends a message to one destination: an HTTP address, or a mail server.

An address often is a secret: no error that leaves here names one.
"""

from __future__ import annotations

import json
import logging
import smtplib
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import EmailMessage
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from etl.alerts import payloads
from etl.alerts.notice import Notice
from etl.common.errors import SetupError

log = logging.getLogger("sluice")

ANSWERS_WITHIN = 10  # seconds
SUBJECT = 200  # characters
Address = Callable[[], str]  # asked for anew by each message; it may be a secret, and so is a key
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class NotTaken(Exception):
    """A destination has not taken a message; the text says why, without its address."""


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A destination, by its name, and how a message goes there. `send` raises NotTaken."""

    name: str  # slack, teams, pagerduty, webhook or email
    send: Callable[[Notice], None]


def chat(name: str, address: Address) -> Channel:
    """Make the channel of an address that takes messages by POST: of Slack, Teams, or a webhook of one's own."""
    write = payloads.CHATS[name]
    return Channel(name=name, send=lambda notice: post(_known(address), write(notice)))


def pagerduty(routing_key: Address, address: Address) -> Channel:
    """Make the channel of a service of PagerDuty, by its integration's key; `address` is of its Events API."""

    def send(notice: Notice) -> None:
        event = payloads.pagerduty(notice, _known(routing_key))
        post(f"{_known(address).rstrip('/')}/v2/enqueue", event)

    return Channel(name="pagerduty", send=send)


def mail(server: Address, to: Sequence[str]) -> Channel:
    """Make the channel of mails that go through a server, such as smtp://user:password@host:587."""
    return Channel(name="email", send=lambda notice: _submit(_known(server), message(notice, to)))


def _known(address: Address) -> str:
    """Return an address, which a Connection of Airflow's may have; raise NotTaken where that can't be had."""
    try:
        return address()
    except SetupError as error:
        raise NotTaken(error.seen) from error


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect: a GET elsewhere delivers nothing, and the address may be anybody's."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return no request, so that the answer is an error."""


def post(address: str, content: dict[str, Any]) -> None:
    """POST JSON; raise NotTaken where it does not arrive, or is refused."""
    headers = {"Content-Type": "application/json", "User-Agent": "sluice"}
    try:
        body = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
        request = Request(address, data=body, headers=headers, method="POST")  # noqa: S310 - http alone
        with build_opener(_NoRedirect).open(request, timeout=ANSWERS_WITHIN) as answer:
            answer.read(1_000)
    except HTTPError as error:
        with error:
            raise NotTaken(f"it answered {_status(error.code)}") from None
    except URLError as error:
        raise NotTaken(f"it could not be reached ({type(error.reason).__name__})") from None
    except (OSError, HTTPException, ValueError) as error:  # their texts may name the address
        raise NotTaken(f"it could not be reached ({type(error).__name__})") from None


def _status(code: int) -> str:
    known = code in HTTPStatus._value2member_map_
    return f"{code} {HTTPStatus(code).phrase}" if known else str(code)


def message(notice: Notice, to: Sequence[str]) -> EmailMessage:
    """Write a mail of plain text; its headers take no line break, whatever the notice holds."""
    written = EmailMessage()
    written["Subject"] = payloads.cut(" ".join(subject(notice).split()), SUBJECT)
    written["From"] = to[0]
    written["To"] = ", ".join(to)
    written["X-Sluice-Key"] = " ".join(notice.trouble.key.split())
    written.set_content(text(notice))
    return written


def subject(notice: Notice) -> str:
    word = "" if notice.event == "triggered" else f", {notice.event}"
    return f"Sluice: {notice.trouble.pipeline} ({notice.trouble.kind}{word})"


def text(notice: Notice) -> str:
    """Return a mail's text."""
    return "\n\n".join((notice.trouble.text, *notice.notes, *([notice.page] if notice.page else [])))


def _submit(server: str, written: EmailMessage) -> None:
    """Hand a mail to the server: by TLS from the start for smtps://, else once the server offers it."""
    parts = urlsplit(server)
    host, secure = parts.hostname or "", ssl.create_default_context()
    encrypted = parts.scheme == "smtps"
    with (
        mail_errors("the mail server has not taken it"),
        smtplib.SMTP_SSL(host, parts.port or 465, timeout=ANSWERS_WITHIN, context=secure)
        if encrypted
        else smtplib.SMTP(host, parts.port or 587, timeout=ANSWERS_WITHIN) as client,
    ):
        if not encrypted and client.ehlo()[0] == 250 and client.has_extn("starttls"):
            client.starttls(context=secure)
            encrypted = True
        if parts.username:
            if not encrypted and host not in LOOPBACK:
                raise NotTaken("the mail server offers no TLS, and is given no password without")
            client.login(unquote(parts.username), unquote(parts.password or ""))
        if refused := client.send_message(written):
            log.warning("the mail server took a mail, and refused %d of its addresses", len(refused))


@contextmanager
def mail_errors(failed: str, also: type[Exception] = OSError) -> Iterator[None]:
    """Raise NotTaken for what smtplib raises, and for `also`: with the server's code, or `failed` and the kind of error."""
    try:
        yield
    except smtplib.SMTPResponseException as error:
        raise NotTaken(f"the mail server answered {error.smtp_code}") from None
    except (OSError, ValueError, also) as error:  # SMTPException is an OSError
        raise NotTaken(f"{failed} ({type(error).__name__})") from None
