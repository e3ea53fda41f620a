from __future__ import annotations

import socket
from pathlib import Path

import pytest

from etl.common.errors import ServiceAway
from etl.common.settings import Settings
from etl.operations.control.doctor import kafka, remote_warnings


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


def test_a_warning_says_who_would_not_reach_it_and_what_to_set(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, spark_master="spark://master:7077")
    lines = [finding.line() for finding in remote_warnings(settings)]
    assert all(line.startswith("WARNING") and "spark://master:7077" in line for line in lines)
    assert "SLUICE_POSTGRES" in lines[2]


def test_brokers_that_take_no_connection_are_told_and_are_wrong_where_none_does() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        open_, away = (f"127.0.0.1:{one.getsockname()[1]}" for one in (server, closed))
        assert kafka(open_) == f"{open_} accepts connections"
        assert kafka(f"{away},{open_}").startswith(f"{open_} accepts connections; {away} does not: ")
        with pytest.raises(ServiceAway, match=rf"no broker accepts connections; {away} does not: .*refused"):
            kafka(away)
