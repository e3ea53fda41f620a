"""Takes addresses and secrets of the services from Airflow's Connections, which a secrets backend may keep.

Only Airflow's own processes have them: tasks, alerts and pages. A task gives its command what it needs by the environment,
and Kafka's client settings by a file that only its user may read and that goes with the command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from airflow.sdk import Connection
from psycopg2.extensions import make_dsn
from pydantic import SecretStr

from etl.common.errors import SetupError
from etl.common.settings import Settings, load_settings
from etl.services.java_properties import java_property

# Of a Connection's extras, what libpq takes; the others are for Airflow's own hook.
_LIBPQ = frozenset(
    {
        *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslnegotiation", "channel_binding", "gssencmode"),
        *("application_name", "connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval"),
        *("keepalives_count", "options", "target_session_attrs", "tcp_user_timeout"),
    }
)  # fmt: skip
# As the AWS chain reads them, by the names of an `aws` Connection's extras.
_AWS = {
    "aws_session_token": "AWS_SESSION_TOKEN",
    "profile_name": "AWS_PROFILE",
    "endpoint_url": "SLUICE_S3_ENDPOINT",
    "region_name": "SLUICE_S3_REGION",
}
_CREDENTIALS = frozenset({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"})
# What says how to reach brokers begins so; all else is for Airflow's own clients.
_OF_ACCESS = ("security.", "sasl.", "ssl.")
_HOOKS = {"slack": "https://hooks.slack.com/services"}  # where a Connection's host may be left out
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def settings_here() -> Settings:
    """Load the settings, PostgreSQL as Airflow's Connection has it where they name one."""
    settings = load_settings()
    if (name := settings.connections.get("postgres")) is None:
        return settings
    return settings.model_copy(update={"postgres": SecretStr(_postgres(_connection(name)))})


def addresses_here(settings: Settings) -> dict[str, Callable[[], str]]:
    """Return where alerts go by Airflow's Connections, each to be asked for when a message is sent.

    A Connection is as Airflow's own provider has it: `slackwebhook` and `pagerduty_events`, or `http` for any address.
    """
    given: dict[str, Callable[[], str]] = {}
    for service in settings.connections.keys() & {"slack", "teams", "webhook"}:
        given[service] = partial(_address_of, settings.connections[service], default=_HOOKS.get(service, ""))
    if name := settings.connections.get("pagerduty"):
        given["pagerduty"] = lambda: _connection(name).password or ""
        given["pagerduty_address"] = lambda: _host(
            _connection(name), default=settings.alert_pagerduty_address
        )
    return given


@contextmanager
def environment_of(names: Mapping[str, str]) -> Iterator[dict[str, str | None]]:
    """Yield the environment variables of a command, None for one to unset; `names` are of Connections, by service."""
    given: dict[str, str | None] = {}
    if name := names.get("postgres"):
        given["SLUICE_POSTGRES"] = _postgres(_connection(name))
    if name := names.get("s3"):
        given |= _s3(_connection(name))
    if (name := names.get("kafka")) is None:
        yield given
        return
    brokers, properties = _kafka(_connection(name))
    # A file without a name, which goes with this process, however that ends.
    with os.fdopen(os.memfd_create("kafka.properties"), "w", encoding="latin-1") as file:
        file.write("".join(f"{key}={java_property(value)}\n" for key, value in properties.items()))
        file.flush()
        place = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        yield {**given, "SLUICE_KAFKA": brokers, "SLUICE_KAFKA_PROPERTIES": place}


def _connection(name: str) -> Connection:
    try:
        found: Connection = Connection.get(name)
    except Exception as error:
        raise SetupError(
            f"SLUICE_CONNECTIONS names Airflow's Connection {name}, which can't be had ({type(error).__name__})",
            remedy=f"`airflow connections get {name}`; make it, or name another",
        ) from error
    return found


def _postgres(one: Connection) -> str:
    extras = {name: str(value) for name, value in one.extra_dejson.items() if name in _LIBPQ}
    named = {
        "host": one.host,
        "port": str(one.port) if one.port else None,
        "user": one.login,
        "password": one.password,
        "dbname": one.schema,
    }
    return str(make_dsn(**{name: value for name, value in named.items() if value}, **extras))


def _s3(one: Connection) -> dict[str, str | None]:
    """Return the variables of the AWS chain: those of the worker's own that would come before these are unset."""
    extras = one.extra_dejson
    if extras.get("role_arn"):
        raise SetupError(
            f"Airflow's Connection {one.conn_id} names a role to take on, which Sluice leaves to the AWS chain",
            remedy="name a profile that takes it on (`profile_name`), or give the workers the role",
        )
    given = {"AWS_ACCESS_KEY_ID": one.login, "AWS_SECRET_ACCESS_KEY": one.password}
    given |= {variable: extras.get(name) for name, variable in _AWS.items()}
    set_here = {variable: str(value) for variable, value in given.items() if value}
    return {**dict.fromkeys(_CREDENTIALS), **set_here} if set_here.keys() & _CREDENTIALS else {**set_here}


def _kafka(one: Connection) -> tuple[str, dict[str, str]]:
    """Return the brokers, and the settings as Java's client has them; the Connection has them as librdkafka does."""
    brokers = str(one.extra_dejson.get("bootstrap.servers") or "")
    if not brokers:
        raise SetupError(
            f"Airflow's Connection {one.conn_id} names no brokers",
            remedy="add `bootstrap.servers` to its configuration",
        )
    told = {name: str(value) for name, value in one.extra_dejson.items() if name.startswith(_OF_ACCESS)}
    if own := sorted(told.keys() & {"ssl.certificate.location", "ssl.key.location", "ssl.key.password"}):
        raise SetupError(
            f"Airflow's Connection {one.conn_id} has {', '.join(own)}, by which Java's client does not sign in",
            remedy="write Kafka's client settings, with a keystore, into a file, and name it in SLUICE_KAFKA_PROPERTIES",
        )
    mechanism = told.pop("sasl.mechanisms", None) or told.get("sasl.mechanism")
    user, password = told.pop("sasl.username", None), told.pop("sasl.password", None)
    if mechanism:
        told["sasl.mechanism"] = mechanism
    if user is not None:
        if (module := _LOGIN_MODULES.get(mechanism or "")) is None:
            raise SetupError(
                f"Airflow's Connection {one.conn_id} signs in by {mechanism}, and Sluice knows {', '.join(_LOGIN_MODULES)}",
                remedy="write Kafka's client settings into a file, and name it in SLUICE_KAFKA_PROPERTIES",
            )
        quoted_user, quoted_password = (_quoted(text) for text in (user, password or ""))
        told["sasl.jaas.config"] = f"{module} required username={quoted_user} password={quoted_password};"
    if certificate := told.pop("ssl.ca.location", None):
        told |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": certificate}
    return brokers, told


def _address_of(name: str, *, default: str) -> str:
    """Return the address of an `http` Connection, whose host may be the whole of it, or the path a secret one.

    The secret may be the whole address as well, as Slack's own Connections have it.
    """
    one = _connection(name)
    path = str(one.extra_dejson.get("webhook_endpoint") or one.password or "")
    if path.startswith(("http://", "https://")):
        return path
    host = _host(one, default=default)
    return f"{host}/{path.lstrip('/')}" if path else host


def _host(one: Connection, *, default: str) -> str:
    """Return what an address begins with; that of a Connection without a host begins with `default`."""
    host = one.host or default
    if "://" not in host:
        host = f"{one.schema or 'https'}://{host}" + (f":{one.port}" if one.port else "")
    if not host.startswith(("http://", "https://")):
        raise SetupError(
            f"Airflow's Connection {one.conn_id} is no http address", remedy="correct its host and schema"
        )
    return host.rstrip("/")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
