from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.compose import make_env


@pytest.fixture(scope="session")
def made_env(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("env")
    made = make_env(folder)
    assert made.returncode == 0, made.stderr
    return folder / ".env"
