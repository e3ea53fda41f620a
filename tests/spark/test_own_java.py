"""A machine without Java runs Spark by the one that is installed with Sluice."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from etl.common.errors import SetupError
from etl.services import installed_java, java, java_version
from tests.support import forked
from tests.support.data.orders import NAME, orders
from tests.support.home import Home


def without_java(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    for name in ("bash", "chmod", "ls", "sh", "test"):
        (folder / name).symlink_to(str(shutil.which(name)))
    rest = {name: value for name, value in environment.items() if name != "JAVA_HOME"}
    return rest | {"PATH": f"{Path(sys.executable).parent}:{folder}"}


def test_a_run_delivers(home: Home, tmp_path_factory: pytest.TempPathFactory) -> None:
    landed = home.land("orders/0.jsonl", orders(0, 9), ["{broken"])
    environment = without_java(home.environment, tmp_path_factory.mktemp("tools"))
    done = forked.sluice(["run", NAME], environment=environment, folder=home.root)
    assert done.returncode == 0, done.stderr
    home.assert_holds(landed)


def test_sparks_own_script_is_said_to_need_a_java_of_the_machine(
    home: Home, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home.land("orders/0.jsonl", orders(0, 9))
    environment = without_java(home.environment, tmp_path_factory.mktemp("tools")) | {
        "HADOOP_CONF_DIR": "/etc/hadoop"
    }
    done = forked.sluice(["run", NAME], environment=environment, folder=home.root)
    assert done.returncode == 2
    told = " ".join(done.stderr.split())
    assert (
        "Spark's own script is to launch its JVM, because of HADOOP_CONF_DIR, and it can't launch the small Java"
        in told
    )
    assert "next: install Java 17 or later and set JAVA_HOME to it, or take away what is named" in told


def test_a_java_on_path_that_is_too_old_is_passed_over_and_one_of_java_home_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(old.parent))
    assert java() == installed_java()
    assert java_version() == 25
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="is Java 8, too old"):
        java()


def test_a_java_on_path_that_does_not_run_is_told_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "java"
    broken.write_text("#!/bin/sh\necho 'Could not reserve enough space' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"\(from PATH\) does not run: Could not reserve enough space"):
        java()
