"""What a user can bring about is told as that, with a step to take: it ends as no unexpected error (exit 70)."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from etl.cli.app import _report_failure
from etl.common import paths
from etl.common.errors import SetupError
from etl.common.outages import raising_service_errors
from etl.operations.datasets import flights
from etl.sinks.lake import s3
from etl.sinks.lake.parquet_writer import ObjectStore

Act = Callable[[Path, pytest.MonkeyPatch], None]


def a_profile_that_is_none(_: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("AWS_PROFILE", "nope")
    paths.s3_client()


def a_profile_for_the_lake(_: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("AWS_PROFILE", "nope")
    s3.s3_client(ObjectStore(endpoint=None, region="us-east-1"))


def a_file_of_aws_that_is_broken(folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / "config").write_text("[profile\n")
    patch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    paths.s3_client()


def half_of_the_credentials(_: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("AWS_ACCESS_KEY_ID", "a")
    patch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    paths.s3_client()


def a_file_where_a_folder_of_the_landing_is_to_be(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "flights").touch()
    flights._replace(folder / "flights" / "a.csv", b"x")


def a_folder_where_a_landed_file_is_to_be(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "a.csv" / "b").mkdir(parents=True)
    flights._replace(folder / "a.csv", b"x")


def few_files_may_be_open(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "a").touch()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as open_now:
        open_now.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 8, hard))
        while True:
            open_now.enter_context((folder / "a").open())


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (a_profile_that_is_none, "AWS' settings can't be used: .*nope"),
        (a_profile_for_the_lake, "AWS' settings can't be used: .*nope"),
        (a_file_of_aws_that_is_broken, "AWS' settings can't be used: .*config"),
        (half_of_the_credentials, "AWS' settings can't be used: "),
        (a_file_where_a_folder_of_the_landing_is_to_be, "The file system refuses it to user .*flights"),
        (a_folder_where_a_landed_file_is_to_be, r"The file system refuses it to user .*a\.csv"),
        (few_files_may_be_open, "More files are open than may be"),
    ],
)
def test_an_act_of_the_users_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Act, told: str
) -> None:
    paths._client.cache_clear()
    with pytest.raises(SetupError, match=told) as raised, raising_service_errors():
        act(tmp_path, monkeypatch)
    paths._client.cache_clear()
    assert _report_failure(raised.value) == 2


def test_a_working_directory_that_is_gone_is_told() -> None:
    gone = tempfile.mkdtemp()
    script = f"import os, sys; os.chdir({gone!r}); os.rmdir({gone!r}); sys.argv = ['sluice', 'down']\n"
    script += "from etl.cli import main; main()"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert said.returncode == 2, said.stderr
    assert "sluice: The working directory is no longer there" in said.stderr


def test_a_text_that_the_outputs_encoding_lacks_is_written_out() -> None:
    script = (
        "from etl.cli import write_all; write_all(); from etl.cli.shared import out; out.print('K\u00f6ln ☃')"
    )
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment, check=True)
    assert said.stdout == rb"K\xf6ln \u2603" + b"\n"
