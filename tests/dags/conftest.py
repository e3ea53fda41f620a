"""A real Airflow, started by the command that a person would type, with a home and a DAG folder of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from etl.airflow.local import stack
from etl.airflow.local.installation import Airflow
from etl.common.settings import Settings
from tests.support.airflow.browser import browser, page
from tests.support.airflow.command import AirflowHome
from tests.support.airflow.orders_stack import delivered, orders_stack
from tests.support.environment import JARS

__all__ = ["browser", "delivered", "orders_stack", "page"]

HELLO = """
from airflow.sdk import dag, task

@dag(schedule=None)
def hello():
    @task
    def greet(dag_run=None):
        import os
        print("hello", dag_run.conf["name"])
        return os.environ["SLUICE_HOME"]

    greet()

hello()
"""
CONNECTED = """
from datetime import timedelta
from types import SimpleNamespace

from airflow.sdk import dag, task
from etl.airflow.alerts import deadline

@dag(schedule=None, deadline=deadline(SimpleNamespace(name="connected", deadline=timedelta(seconds=1))))
def connected():
    @task
    def ask(dag_run=None):
        import hashlib
        from etl.airflow.connections import environment_of
        told = {}
        for name in dag_run.conf["names"]:
            with environment_of({"postgres": name}) as given:
                told[name] = hashlib.sha256(given["SLUICE_POSTGRES"].encode()).hexdigest()
        return told

    ask()

connected()
"""


@pytest.fixture(scope="module")
def home() -> Iterator[AirflowHome]:
    """Nothing is started yet; at the end nothing is left."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-"))
    folder.chmod(0o711)  # the embedded PostgreSQL's system user passes through
    (folder / "sluice.toml").touch()
    (folder / "dags").mkdir()
    (folder / "dags" / "hello.py").write_text(HELLO)
    (folder / "dags" / "connected.py").write_text(CONNECTED)
    found = AirflowHome(
        settings=Settings(home=folder / "home", jars=JARS, dags=folder / "dags"), vault=folder / "vault.json"
    )
    yield found
    ended = found.sluice("down")
    assert (ended.returncode, found.processes()) == (0, []), ended.stderr
    shutil.rmtree(folder)


@pytest.fixture
def airflow(home: AirflowHome) -> Airflow:
    """Run Airflow, followed by a command; start it again if an earlier test ended it."""
    found = stack.running(home.settings)
    return found if found is not None else home.start().airflow
