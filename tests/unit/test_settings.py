from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from etl.common.errors import SetupError
from etl.common.settings import load_settings, same_place


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with an empty sluice.toml; no SLUICE_* is set."""
    monkeypatch.delenv("SLUICE_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sluice.toml").touch()
    return tmp_path


def test_every_default_is_placed_below_home(folder: Path) -> None:
    found = load_settings()
    assert found.home == folder / ".sluice"
    assert found.jars == folder / ".sluice" / "jars"
    assert found.landing == str(folder / ".sluice" / "landing")
    assert found.checkpoints == str(folder / ".sluice" / "checkpoints")
    assert found.dags == Path(__file__).resolve().parents[2] / "dags"
    assert found.airflow_port == 0
    assert found.embedded_postgres
    assert found.embedded_s3
    assert found.backup_horizon == timedelta(days=7)
    assert found.slow_task == timedelta(minutes=10)
    assert found.task_limit == timedelta(hours=6)


def test_the_file_is_found_upwards_and_its_paths_count_from_its_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sluice.toml").write_text(
        'home = "state"\npipelines = ["mine"]\ndags = "flows"\n[spark_conf]\n"a.b" = true\n'
    )
    below = folder / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    found = load_settings()
    assert found.home == folder / "state"
    assert found.pipelines == (folder / "mine",)
    assert found.dags == folder / "flows"
    assert found.spark_conf == {"a.b": "true"}


def test_the_environment_wins_over_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "sluice.toml").write_text('s3_region = "eu-west-1"\npg_connections = 3\n')
    monkeypatch.setenv("SLUICE_S3_REGION", "eu-north-1")
    found = load_settings()
    assert (found.s3_region, found.pg_connections) == ("eu-north-1", 3)


def test_lists_and_tables_can_be_set_in_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_PIPELINES", "one:/two")
    monkeypatch.setenv("SLUICE_SUITES", '["three"]')
    monkeypatch.setenv("SLUICE_SPARK_CONF", '{"a": 1}')
    monkeypatch.setenv("SLUICE_BACKUP_HORIZON", "P1DT12H")
    monkeypatch.setenv("SLUICE_TASK_LIMIT", "none")
    found = load_settings()
    assert found.pipelines == (folder / "one", Path("/two"))
    assert found.suites == (folder / "three",)
    assert found.spark_conf == {"a": "1"}
    assert found.backup_horizon == timedelta(hours=36)
    assert found.task_limit is None


@pytest.mark.parametrize("value", ["one:", ":one", "one::", '["", "one"]'])
def test_an_empty_folder_is_not_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SLUICE_PIPELINES", value)
    assert load_settings().pipelines == (folder / "one",)


@pytest.mark.parametrize("folders", [[], ["/a"], ["/a", "/b c"], ["/a:b"], ["/a:b", "/c"]])
def test_folders_are_handed_on_as_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, folders: list[str]
) -> None:
    (folder / "sluice.toml").write_text(f"pipelines = {json.dumps(folders)}\n")
    found = load_settings()
    assert found.pipelines == tuple(map(Path, folders))
    (folder / "sluice.toml").write_text("")
    for name, value in same_place(found).items():
        monkeypatch.setenv(name, value)
    assert load_settings() == found


@pytest.mark.parametrize("limit", ["none", "PT2H"])
def test_a_limit_that_is_none_is_handed_on_as_that(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setenv("SLUICE_TASK_LIMIT", limit)
    found = load_settings()
    assert found.task_limit == (None if limit == "none" else timedelta(hours=2))
    assert same_place(found)["SLUICE_TASK_LIMIT"] == (limit if limit == "none" else "PT7200S")
    for name, value in same_place(found).items():
        monkeypatch.setenv(name, value)
    assert load_settings() == found


def test_all_problems_of_both_sources_are_reported_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sluice.toml").write_text('langing = "x"\npg_connections = 0\n')
    monkeypatch.setenv("SLUICE_HOEM", "x")
    monkeypatch.setenv("SLUICE_S3_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("SLUICE_BACKUP_HORIZON", "7 days")
    with pytest.raises(SetupError) as caught:
        load_settings()
    assert caught.value.exit_code == 2
    for part in (
        "langing in",
        "did you mean landing?",
        "pg_connections in",
        "did you mean SLUICE_HOME?",
        "an endpoint without a lake",
        "SLUICE_BACKUP_HORIZON: '7 days' is not an ISO 8601 duration",
    ):
        assert part in caught.value.seen


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("SLUICE_LAKE", "s3a://bucket", "is not s3://bucket"),
        ("SLUICE_SLOW_TASK", "none", "'none' is not an ISO 8601 duration"),
        ("SLUICE_BACKUP_HORIZON", "none", "'none' is not an ISO 8601 duration"),
        ("SLUICE_LANDING", "hdfs://x/y", "neither a folder nor s3a://"),
        ("SLUICE_SPARK_CONF", "[1]", "not a table"),
        ("SLUICE_SPARK_CONF", "{", "is not JSON"),
        ("SLUICE_KAFKA", "kafka://broker:9092", "is not host:port"),
        ("SLUICE_KAFKA_PROPERTIES", "/nowhere/client.properties", "there is no file"),
        ("SLUICE_PIPELINES", ":", "names no folder"),
        ("SLUICE_HOME", "~nobody-of-this-name/x", "no home directory for ~nobody-of-this-name in"),
        ("SLUICE_CONFIG", "~nobody-of-this-name/x", "no home directory for ~nobody-of-this-name in"),
        ("SLUICE_S3_PORT", "70000", "must be at most 65,535"),
        ("SLUICE_S3_PORT", "-1", "must be at least 0"),
        ("SLUICE_PG_CONNECTIONS", "many", "must be a whole number"),
        ("SLUICE_RECORD_FIELDS", "1", "must be at least 1,000"),
        ("SLUICE_CONFIG", "/nowhere/sluice.toml", "there is no such file"),
        ("SLUICE_BACKUP_HORIZON", "PT0S", "longer than nothing"),
        ("SLUICE_SLOW_TASK", "PT0S", "longer than nothing"),
        ("SLUICE_ALERT_EMAIL", " , ", "has no address"),
    ],
)
def test_a_wrong_value_is_named_with_its_variable(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, part: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SetupError, match=part) as caught:
        load_settings()
    assert name in caught.value.seen


def test_a_file_that_is_no_toml_is_named(folder: Path) -> None:
    (folder / "sluice.toml").write_text("home = \n")
    with pytest.raises(SetupError, match=r"sluice\.toml"):
        load_settings()


def test_a_file_that_is_not_utf_8_is_named_beside_the_other_problems(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sluice.toml").write_bytes('home = "données"\n'.encode("latin-1"))
    monkeypatch.setenv("SLUICE_HOEM", "x")
    with pytest.raises(
        SetupError, match=r"sluice\.toml is not UTF-8, as TOML has to be: .* at byte 12"
    ) as caught:
        load_settings()
    assert "SLUICE_HOEM" in caught.value.seen


def test_a_password_is_in_no_message_and_no_repr(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_POSTGRES", "host=h password=geheim")
    assert "geheim" not in repr(load_settings())
    monkeypatch.setenv("SLUICE_POSTGRES", "host=h pass word=geheim")
    with pytest.raises(SetupError) as caught:
        load_settings()
    assert "geheim" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_settings_do_not_change(folder: Path) -> None:
    with pytest.raises(ValidationError):
        load_settings().home = folder  # type: ignore[misc]


def test_a_file_with_the_mark_of_a_windows_editor_is_read(folder: Path) -> None:
    (folder / "sluice.toml").write_bytes(b'\xef\xbb\xbfs3_region = "eu-west-1"\r\npg_connections = 3\r\n')
    found = load_settings()
    assert (found.s3_region, found.pg_connections) == ("eu-west-1", 3)
