"""Makes a channel of each destination that the settings name."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import SecretStr

from etl.alerts.channels import Address, Channel, chat, mail, pagerduty
from etl.alerts.payloads import CHATS
from etl.common.settings import Settings


def named(settings: Settings) -> list[str]:
    """Return the destinations that the settings name, by an address or by a Connection of Airflow's."""
    own = _secrets(settings)
    posted = [name for name in (*CHATS, "pagerduty") if name in own or name in settings.connections]
    return [*posted, "email"] if settings.alert_email else posted


def channels(
    settings: Settings, addresses: Mapping[str, Address] | None = None, mails: Channel | None = None
) -> list[Channel]:
    """Make the channels of all destinations whose address is known: by `addresses`, or else by the settings.

    Mails go by `mails` unless the settings name a server; without both there is no channel for them.
    """
    known = {**_secrets(settings), **(addresses or {})}
    found = [chat(name, known[name]) for name in CHATS if name in known]
    if "pagerduty" in known:
        address = known.get("pagerduty_address", lambda: settings.alert_pagerduty_address)
        found.append(pagerduty(known["pagerduty"], address))
    if settings.alert_email and settings.alert_smtp:
        found.append(mail(settings.alert_smtp.get_secret_value, recipients(settings)))
    elif settings.alert_email and mails:
        found.append(mails)
    return found


def recipients(settings: Settings) -> list[str]:
    """Return whom mails go to."""
    return [one.strip() for one in (settings.alert_email or "").split(",") if one.strip()]


def _secrets(settings: Settings) -> dict[str, Address]:
    given: dict[str, SecretStr | None] = {
        "slack": settings.alert_slack,
        "teams": settings.alert_teams,
        "pagerduty": settings.alert_pagerduty,
        "webhook": settings.alert_webhook,
    }
    return {name: value.get_secret_value for name, value in given.items() if value is not None}
