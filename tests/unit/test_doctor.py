from __future__ import annotations

from pathlib import Path

from etl.doctor import remote_warnings
from etl.settings import Settings


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
