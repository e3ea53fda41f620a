from __future__ import annotations

import inspect
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from etl.airflow.local import environment
from etl.common.errors import ServiceAway, SetupError
from etl.common.settings import Settings
from etl.operations.control import doctor, machine
from etl.operations.control.doctor import kafka, open_to_others, remote_warnings
from etl.pipeline import Volume
from tests.support import arrow_driver
from tests.support.data.orders import DECLARATION
from tests.support.environment import JARS


def warned(**settings: object) -> list[str]:
    return [finding.what for finding in remote_warnings(Settings.model_validate(settings))]


def test_what_only_this_machine_has_is_warned_of(tmp_path: Path) -> None:
    assert warned(home=tmp_path) == ["landing", "checkpoints", "PostgreSQL", "S3"]
    elsewhere = {
        "landing": "s3a://bucket/landing",
        "checkpoints": "s3a://bucket/checkpoints",
        "postgres": "host=db.example.org dbname=etl",
        "lake": "s3://bucket/lake",
    }
    assert warned(home=tmp_path, **elsewhere) == []
    assert warned(home=tmp_path, **elsewhere | {"landing": str(tmp_path)}) == ["landing"]


@pytest.mark.parametrize(
    ("mode", "told"), [(0o700, False), (0o710, False), (0o755, True), (0o750, True), (0o701, True)]
)
def test_a_home_that_others_can_enter_or_list_is_warned_of(tmp_path: Path, mode: int, told: bool) -> None:
    home = tmp_path / "home"
    assert list(open_to_others(home)) == [], "there is none yet"
    home.mkdir()
    home.chmod(mode)
    lines = [finding.line() for finding in open_to_others(home)]
    assert len(lines) == told
    assert all(f"(mode {mode:04o}): `chmod 0700 {home}`" in line for line in lines)


def test_a_warning_says_who_would_not_reach_it_and_what_to_set(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, spark_master="spark://master:7077")
    lines = [finding.line() for finding in remote_warnings(settings)]
    assert all(line.startswith("WARNING") and "spark://master:7077" in line for line in lines)
    assert "SLUICE_POSTGRES" in lines[2]


@pytest.mark.parametrize(
    ("postgres", "told"),
    [
        ("host=db.example.org dbname=etl", "sslmode=prefer"),
        ("postgresql://etl@db.example.org/etl?sslmode=require", "sslmode=require"),
        ("postgresql://etl@db.example.org/etl?sslmode=verify-full", None),
        ("host=/var/run/postgresql dbname=etl", None),
        ("host=127.0.0.1 hostaddr=203.0.113.7 dbname=etl", "sslmode=prefer"),
        ("postgresql://etl@127.0.0.1/etl", None),
    ],
)
def test_a_postgresql_elsewhere_that_nobody_looks_at_is_warned_of(
    postgres: str, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    found = list(machine.unencrypted(Settings(postgres=SecretStr(postgres), lake="s3://bucket/lake")))
    assert [told] * (told is not None) == [one.partition(" with ")[2].partition(" ")[0] for one in found]
    assert not any("etl@" in one for one in found)


def test_a_postgresql_that_libpqs_variable_names_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    monkeypatch.setenv("PGHOST", "db.example.org")
    [found] = machine.unencrypted(Settings(postgres=SecretStr("dbname=etl"), lake="s3://bucket/lake"))
    assert found.startswith("PostgreSQL at db.example.org: ")


def test_s3_and_kafka_elsewhere_without_encryption_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://minio.example.org:9000")
    (file := tmp_path / "kafka.properties").write_text("")
    settings = Settings(
        lake="s3://bucket/lake", kafka="b1.example.org:9092,127.0.0.1:9092", kafka_properties=file
    )
    s3, kafka_ = machine.unencrypted(settings)
    assert s3.startswith("S3 at minio.example.org: AWS_ENDPOINT_URL_S3 is http")
    assert kafka_.startswith("Kafka at b1.example.org:9092: nothing is encrypted")
    file.write_text("sasl.mechanism=PLAIN\nsecurity.protocol = SASL_SSL\n")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://minio.example.org")
    assert list(machine.unencrypted(settings)) == []


def test_an_address_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://[")
    assert (
        list(doctor._doubts("encryption", machine.unencrypted(Settings()))) == []
    )  # the embedded S3 has its own
    [wrong] = doctor._doubts("encryption", machine.unencrypted(Settings(lake="s3://bucket/lake")))
    assert (wrong.good, wrong.seen.partition(": ")[0]) == (False, "AWS_ENDPOINT_URL=http://[ is no address")


def test_brokers_that_take_no_connection_are_told_and_are_wrong_where_none_does() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        open_, away = (f"127.0.0.1:{one.getsockname()[1]}" for one in (server, closed))
        assert kafka(open_) == f"{open_} accepts connections"
        assert kafka(f"{away},{open_}").startswith(f"{open_} accepts connections; {away} does not: ")
        with pytest.raises(ServiceAway, match=rf"no broker accepts connections; {away} does not: .*refused"):
            kafka(away)


def test_jars_without_an_archive_of_their_classes_are_warned_of(tmp_path: Path) -> None:
    [said] = machine.slow_start(Settings(jars=tmp_path))
    assert said.startswith(f"{tmp_path} has no archive of Spark's classes for this Java")
    assert "-m etl.spark.launch.class_data` makes it" in said
    assert list(machine.slow_start(Settings(jars=tmp_path, spark_master="yarn"))) == []
    assert list(machine.slow_start(Settings(jars=JARS))) == []


def test_the_machine_is_looked_at_and_each_fault_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path / "home")
    assert "GB free in" in machine.disks(settings)
    assert str(tmp_path / "home") in machine.writable(settings)
    assert machine.locale() == "names of files are utf-8"
    monkeypatch.setattr(machine, "LEAST_FREE", 1 << 80)
    with pytest.raises(SetupError, match=f"free some of the disk of {tmp_path}/home"):
        machine.disks(settings)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dpassword=secret -Xss4m")
    assert "JAVA_TOOL_OPTIONS=-Dpassword=*** -Xss4m" in machine.spark_environment(settings)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="SPARK_HOME="):
        machine.spark_environment(settings)


def test_a_locale_without_utf_8_and_a_place_that_can_not_be_written_are_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from etl.operations.control.machine import locale; locale()"],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "SetupError: names of files are ascii here (LC_ALL=C, LANG=" in done.stderr
    assert "`export LC_ALL=C.UTF-8`" in done.stderr
    file = tmp_path / "file"
    file.touch(mode=0o644)
    with pytest.raises(SetupError, match=f"user [0-9]+ may not use {file}/home "):
        machine.writable(Settings(home=file / "home"))


def test_a_file_of_secrets_that_others_may_read_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sluice.toml"
    file.touch(mode=0o644)
    file.chmod(0o644)
    monkeypatch.setenv("SLUICE_CONFIG", str(file))
    [told] = machine.open_to_others(Settings(home=tmp_path))
    assert told.endswith(f"`chmod 600 {file}`")
    file.chmod(0o600)
    assert list(machine.open_to_others(Settings(home=tmp_path))) == []


def test_a_suite_that_is_not_there_or_is_none_is_found_before_a_file_lands(tmp_path: Path) -> None:
    declared = DECLARATION.format(name="orders", max_files=1, share=1.0)
    (tmp_path / "orders.py").write_text(declared)
    settings = Settings(home=tmp_path / "home", pipelines=(tmp_path,), suites=(tmp_path,))
    with pytest.raises(SetupError, match=r"Suite orders\.json of pipeline orders is in none of the folders"):
        machine.suites(settings)
    (tmp_path / "orders.json").write_text('{"expectation_suite_name": "a", "expectations": []}')
    with pytest.raises(SetupError, match="`expectation_suite_name` is `name` now"):
        machine.suites(settings)
    broken = [{"type": "expect_table_row_count_to_equal", "kwargs": {"valu": 3}}, {"kwargs": {}}]
    (tmp_path / "orders.json").write_text(json.dumps({"name": "a", "expectations": broken}))
    with pytest.raises(SetupError) as wrong:
        machine.suites(settings)
    assert f"{tmp_path}/orders.json: expectation 1 (expect_table_row_count_to_equal): " in wrong.value.seen
    assert "it has no argument 'valu'; did you mean value?; " in wrong.value.seen
    assert wrong.value.seen.endswith(f"{tmp_path}/orders.json: expectation 2: it has no type")
    null, not_null = (
        {"type": f"expect_column_values_to_{what}be_null", "kwargs": {"column": "x"}} for what in ("", "not_")
    )
    kwargs: dict[str, Any] = {"column": "x", "value_set": [1, None]}
    of_a_null = {"type": "expect_column_values_to_be_in_set", "kwargs": kwargs}
    (tmp_path / "orders.json").write_text(
        json.dumps({"name": "a", "expectations": [null, not_null, of_a_null]})
    )
    with pytest.raises(SetupError) as wrong:
        machine.suites(settings)
    assert "expectation 1 (expect_column_values_to_be_null(x)) and expectation 2 " in wrong.value.seen
    assert "expectation 3 (expect_column_values_to_be_in_set(x)): its value_set has null" in wrong.value.seen
    (tmp_path / "orders.json").write_text('{"name": "a", "expectations": []}')
    assert machine.suites(settings) == "those of orders are there"


FOLLOWED = """
from etl.pipeline import Append, Files, Pipeline

PIPELINE = Pipeline(
    name="{name}",
    sources=(Files("events/*.jsonl"),),
    schema="id bigint",
    transform=lambda frame: frame,
    sink=Append(),
    follow=True,
)
"""


def test_runs_that_are_kept_up_in_all_of_airflows_slots_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(machine.SLOTS, raising=False)
    settings = Settings(pipelines=(tmp_path,))
    for number in range(machine.LOCAL_SLOTS):
        assert list(machine.no_slot_left(settings)) == []
        (tmp_path / f"kept_{number}.py").write_text(FOLLOWED.format(name=f"kept_{number}"))
    [told] = machine.no_slot_left(settings)
    assert f"of {machine.LOCAL_SLOTS} (the local Airflow's {machine.SLOTS}) none is left" in told
    monkeypatch.setenv(machine.SLOTS, "5")
    assert list(machine.no_slot_left(settings)) == []
    monkeypatch.setenv(machine.SLOTS, "3")
    [told] = machine.no_slot_left(settings)
    assert (
        f"of 3 (the environment's {machine.SLOTS}) none is left for other runs and replays; set it to 5"
        in told
    )


def test_alerts_that_would_reach_nobody_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = [replace(arrow_driver.pipeline("taps"), volume=Volume()), arrow_driver.pipeline("pumps")]
    [told] = machine.untold(Settings(home=tmp_path), watched)
    assert told.startswith("taps: freshness or volume is declared, and the settings name nobody to tell")
    mails = Settings(home=tmp_path, alert_email="ann@example.org")
    assert list(machine.untold(mails, watched)) == [], "Airflow's provider is here"
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "airflow.providers.smtp", raising=False)
    monkeypatch.setattr("airflow.providers.__path__", [], raising=False)
    [told] = machine.untold(mails, watched)
    assert "set SLUICE_ALERT_SMTP" in told
    assert list(machine.untold(mails.model_copy(update={"alert_smtp": SecretStr("smtp://x")}), watched)) == []


def test_the_local_airflow_has_so_many_slots() -> None:
    source = inspect.getsource(environment)
    assert f'"{machine.SLOTS}": "{machine.LOCAL_SLOTS}"' in source
