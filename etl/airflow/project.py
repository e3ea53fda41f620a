"""Lets a DAG folder belong to the project that it lies in: whichever version of it Airflow loads, that is what runs."""

from __future__ import annotations

import os
from pathlib import Path

from etl.common.settings import CONFIG_VARIABLE

_ours: set[str] = set()  # what was named here: a process may load the DAG files of several projects


def use_own_settings(dag_file: str) -> None:
    """Name the sluice.toml beside the DAG folder for this process and its commands, unless SLUICE_CONFIG names one.

    In a bundle that has versions it is that of the version which Airflow has loaded: for a task, its run's own.
    """
    own = Path(dag_file).resolve().parents[1] / "sluice.toml"
    named = os.environ.get(CONFIG_VARIABLE)
    if named and named not in _ours:
        return
    os.environ.pop(CONFIG_VARIABLE, None)
    if own.is_file():
        _ours.add(str(own))
        os.environ[CONFIG_VARIABLE] = str(own)
