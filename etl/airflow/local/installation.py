"""The local Airflow: its folder, and the notes of its processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from etl.services.process import (
    HOST,
)


@dataclass(frozen=True, kw_only=True)
class Airflow:
    """One local Airflow and how to reach it."""

    folder: Path  # AIRFLOW_HOME
    port: int
    login: Path  # JSON, mode 0600: the password of each user
    was_running: bool  # before this command

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}"

    def note(self, component: str) -> Path:
        return note_of(self.folder, component)

    def log(self, component: str) -> Path:
        return self.folder / "logs" / f"{component}.log"


def note_of(folder: Path, component: str) -> Path:
    return folder / f"{component}.json"
