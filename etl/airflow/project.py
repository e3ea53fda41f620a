"""Lets a DAG folder belong to the project that it lies in: whichever version of it Airflow loads, that is what runs."""

from __future__ import annotations

import os
from pathlib import Path

from etl.common.settings import CONFIG_VARIABLE


def settle(dag_file: str) -> None:
    """Name the sluice.toml beside the DAG folder for this process and its commands, unless SLUICE_CONFIG names one.

    In a bundle that has versions it is that of the version which Airflow has loaded: for a task, its run's own.
    """
    own = Path(dag_file).resolve().parents[1] / "sluice.toml"
    if not os.environ.get(CONFIG_VARIABLE) and own.is_file():
        os.environ[CONFIG_VARIABLE] = str(own)
