"""What Airflow's Connections tell of the services reaches tasks, alerts and pages, and nobody else."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest
from psycopg2.extensions import parse_dsn
from pydantic import SecretStr

from etl.airflow.alerts import notifiers, tell
from etl.airflow.connections import environment_of, settings_here
from etl.airflow.operator import SluiceRunOperator
from etl.airflow.process import Command
from etl.airflow.retries import NeedsPerson, Retries
from etl.common.database import transaction
from etl.common.errors import SetupError
from etl.common.settings import Settings
from etl.ledger.telemetry.alerts import Trouble, alerts
from etl.services import Services, find_postgres, up
from tests.support.airflow.by_hand import execute
from tests.support.airflow.connected import as_connection
from tests.support.airflow.listeners import mail, webhook

BROKERS = {"bootstrap.servers": "b:9092"}
PLAIN = {"disable_ssl": True, "disable_tls": True}
AWKWARD = 'p@ss:/?#"\\ ö😀'


@pytest.fixture(autouse=True)
def own_airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))


def connect(monkeypatch: pytest.MonkeyPatch, **connections: dict[str, Any]) -> None:
    """Let Airflow have Connections, as its environment tells of them, and the settings name each by its kind."""
    for kind, told in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_OUR_{kind.upper()}", json.dumps(told))
    monkeypatch.setenv("SLUICE_CONNECTIONS", json.dumps({kind: f"our_{kind}" for kind in connections}))


def test_a_task_and_the_pages_reach_the_postgresql_of_a_connection(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = services.postgres
    connect(monkeypatch, postgres=as_connection(dsn))
    told = parse_dsn(find_postgres(settings_here()))
    assert told["dbname"] == parse_dsn(dsn)["dbname"]
    assert told["application_name"] == "sluice by Airflow"
    assert "cursor" not in told
    seen = tmp_path / "seen"
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\necho "$SLUICE_POSTGRES" > {seen}; echo "$@" >> {seen}; exit 2\n')
    script.chmod(0o755)
    operator = SluiceRunOperator(task_id="run", pipeline="orders", python=str(script))
    with pytest.raises(NeedsPerson):
        execute(operator)
    given, words = seen.read_text().splitlines()
    assert parse_dsn(given) == told
    assert told["password"] not in words, "secrets are on no command line"


def test_a_shell_that_can_not_ask_airflow_starts_no_postgresql_of_its_own(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", connections={"postgres": "our_postgres"})
    for look in (find_postgres, up):
        with pytest.raises(
            SetupError, match="PostgreSQL is where Airflow's Connection our_postgres says"
        ) as told:
            look(settings)
        assert "SLUICE_POSTGRES" in told.value.remedy
    assert not (tmp_path / "home").exists()
    named = settings.model_copy(update={"postgres": SecretStr("host=db")})
    assert find_postgres(named) == "host=db"


def test_s3_and_kafka_are_given_as_their_clients_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"region_name": "eu-west-1", "endpoint_url": "https://s3.example", "aws_session_token": "token"}
    kafka = {
        "bootstrap.servers": "b1:9093,b2:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "ann",
        "sasl.password": AWKWARD,
        "ssl.ca.location": "/etc/ca.pem",
        "group.id": "airflow",
        "session.timeout.ms": 6000,
    }
    connect(
        monkeypatch,
        s3={"conn_type": "aws", "login": "key", "password": AWKWARD, "extra": extra},
        kafka={"conn_type": "kafka", "extra": kafka},
    )
    with environment_of({"s3": "our_s3", "kafka": "our_kafka"}) as given:
        file = Path(given.pop("SLUICE_KAFKA_PROPERTIES") or "")
        assert file.is_relative_to(f"/proc/{os.getpid()}/fd"), "it goes with the process, however that ends"
        lines = file.read_text().splitlines()
    assert given == {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": AWKWARD,
        "AWS_SESSION_TOKEN": "token",
        "AWS_PROFILE": None,
        "SLUICE_S3_REGION": "eu-west-1",
        "SLUICE_S3_ENDPOINT": "https://s3.example",
        "SLUICE_KAFKA": "b1:9093,b2:9093",
    }
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    password = r'p@ss:/?#\\"\\\\ \u00f6\ud83d\ude00'  # escaped for JAAS, then for a file of properties
    assert sorted(lines) == [
        f'sasl.jaas.config={module} required username="ann" password="{password}";',
        "sasl.mechanism=SCRAM-SHA-512",
        "security.protocol=SASL_SSL",
        "ssl.truststore.location=/etc/ca.pem",
        "ssl.truststore.type=PEM",
    ]


@pytest.mark.parametrize(
    ("kind", "told", "seen"),
    [
        (
            "s3",
            {"conn_type": "aws", "extra": {"role_arn": "arn:aws:iam::1:role/a"}},
            "names a role to take on",
        ),
        (
            "kafka",
            {"conn_type": "kafka", "extra": {**BROKERS, "sasl.mechanisms": "GSSAPI", "sasl.username": "a"}},
            "by GSSAPI",
        ),
        ("kafka", {"conn_type": "kafka", "extra": {"security.protocol": "SSL"}}, "names no brokers"),
        (
            "kafka",
            {"conn_type": "kafka", "extra": {**BROKERS, "ssl.key.location": "/key"}},
            "has ssl.key.location",
        ),
    ],
)
def test_a_connection_that_can_not_be_used_is_told(
    monkeypatch: pytest.MonkeyPatch, kind: str, told: dict[str, Any], seen: str
) -> None:
    connect(monkeypatch, **{kind: told})
    with pytest.raises(SetupError, match=seen), environment_of({kind: f"our_{kind}"}):
        pass


@pytest.mark.parametrize(
    ("told", "given"),
    [
        (
            {"login": "key", "password": "secret"},
            {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
        ),
        ({"extra": {"profile_name": "lake"}}, {"AWS_PROFILE": "lake"}),
        (
            {"extra": {"region_name": "eu"}},
            {"SLUICE_S3_REGION": "eu", "AWS_ACCESS_KEY_ID": "worker's", "AWS_SESSION_TOKEN": "old"},
        ),
    ],
)
def test_a_connections_credentials_are_mixed_with_none_of_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], given: dict[str, str]
) -> None:
    for name, value in (("AWS_ACCESS_KEY_ID", "worker's"), ("AWS_SESSION_TOKEN", "old")):
        monkeypatch.setenv(name, value)
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    connect(monkeypatch, s3={"conn_type": "aws", **told})
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nenv > {tmp_path}/seen\n")
    program.chmod(0o755)
    with environment_of({"s3": "our_s3"}) as environment:
        Command(arguments=["status"], python=str(program), environment=environment).run(
            lambda _level, _line: None
        )
    seen = dict(line.partition("=")[::2] for line in (tmp_path / "seen").read_text().splitlines())
    names = (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "SLUICE_S3_REGION",
    )
    assert {name: seen[name] for name in names if name in seen} == given


def test_a_connection_that_airflow_has_not_fails_a_task_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_CONNECTIONS", '{"postgres": "nosuch"}')
    operator = SluiceRunOperator(task_id="run", pipeline="orders")
    with pytest.raises(NeedsPerson, match="names Airflow's Connection nosuch, which can't be had") as told:
        execute(operator)
    assert "`airflow connections get nosuch`" in str(told.value)
    assert (
        Retries(retries=3, retry_delay=timedelta(seconds=1)).evaluate(told.value, 1, 3).action.value == "fail"
    )


def kept_in(monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
    """Let alerts be kept in a ledger of their own."""
    monkeypatch.setenv("SLUICE_POSTGRES", dsn)


def test_an_alert_is_posted_to_no_file(
    monkeypatch: pytest.MonkeyPatch, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept_in(monkeypatch, database)
    connect(monkeypatch, webhook={"conn_type": "http", "host": "file:///etc/hostname"})
    [notifier] = notifiers("failed", "orders", "it failed")
    notifier.notify({})  # type: ignore[typeddict-item]
    assert "our_webhook is no http address" in caplog.text


def test_an_alert_that_the_ledger_keeps_is_sent_from_there_alone(
    monkeypatch: pytest.MonkeyPatch, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept_in(monkeypatch, database)
    fail = """CREATE FUNCTION sluice.fails() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'away'; END$$;
        CREATE TRIGGER fails BEFORE UPDATE ON sluice.alert_message EXECUTE FUNCTION sluice.fails()"""
    with webhook() as inbox:
        monkeypatch.setenv("SLUICE_ALERT_WEBHOOK", f"http://127.0.0.1:{inbox.port}/")
        tell("orders", [Trouble(pipeline="orders", kind="failed", text="it failed")])
        with transaction(database) as cursor:
            cursor.execute(fail)
        tell("orders", [Trouble(pipeline="orders", kind="drift", text="new")])
        assert [one["kind"] for one in inbox.found] == ["failed"]
        assert "alerts are kept" in caplog.text
        with transaction(database) as cursor:
            cursor.execute("DROP TRIGGER fails ON sluice.alert_message")
        tell("orders")
        assert [(one["kind"], one["alert"]) for one in inbox.found] == [("failed", 1), ("drift", 2)]


def test_alerts_go_where_connections_say_as_each_service_takes_them(
    monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    kept_in(monkeypatch, database)
    monkeypatch.setenv("SLUICE_ALERT_EMAIL", "ann@example.org,bob@example.org")
    with webhook() as posted, mail() as mailed:
        here = {"host": f"http://127.0.0.1:{posted.port}"}
        connect(
            monkeypatch,
            slack={"conn_type": "slackwebhook", **here, "password": "T0/B0/secret"},
            teams={"conn_type": "http", "password": f"http://127.0.0.1:{posted.port}/workflows?sig=secret"},
            pagerduty={"conn_type": "pagerduty_events", **here, "password": "a-routing-key"},
            webhook={
                "conn_type": "http",
                "host": "127.0.0.1",
                "port": posted.port,
                "schema": "http",
                "extra": {"webhook_endpoint": "/secret/path"},
            },
            smtp={"conn_type": "smtp", "host": "127.0.0.1", "port": mailed.port, "extra": PLAIN},
        )
        notifiers("failed", "orders", "it failed: <b>\nno row")[0].notify({})  # type: ignore[typeddict-item]
        [text] = mailed.found
    assert posted.paths == ["/T0/B0/secret", "/workflows?sig=secret", "/secret/path", "/v2/enqueue"]
    slack, teams, own, event = posted.found
    assert slack["blocks"][1]["text"]["text"].startswith("it failed: <b>\nno row")
    card = teams["attachments"][0]["content"]
    assert card["body"][1]["inlines"][0]["text"] == "it failed: <b>\nno row"
    assert own["key"] == event["dedup_key"] == "sluice/orders/failed"
    assert (event["routing_key"], event["event_action"]) == ("a-routing-key", "trigger")
    written = message_from_string(text)
    assert (written["Subject"], written["To"]) == (
        "Sluice: orders (failed)",
        "ann@example.org, bob@example.org",
    )
    part = next(one for one in written.walk() if not one.is_multipart())
    assert "it failed: &lt;b&gt;" in part.get_payload(decode=True).decode()
    with transaction(database) as cursor:
        [one] = alerts(cursor, None)
    assert (one.unsent, one.problem) == (0, None)
