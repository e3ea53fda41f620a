"""A run on a Spark cluster: a real standalone master and a worker, each a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from etl.common.settings import Settings
from etl.services import Services, spark_jars
from tests.support.data.orders import Landed, orders
from tests.support.home import Home
from tests.support.waiting import until

SPARK = spark_jars().parent
PATIENCE = 120  # seconds; nothing is decided by it, a test that waits so long has failed


@contextmanager
def spark_process(name: str, *words: str, log: Path, says: str, env: dict[str, str]) -> Iterator[str]:
    """Run one of Spark's own daemons; yield the text in its log that `says` matches, once it is there."""
    command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *words]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env)

    def said() -> re.Match[str] | None:
        assert process.poll() is None, log.read_text()[-2000:]
        return re.search(says, log.read_text())

    try:
        found = until(said, lambda: f"{says}: {log.read_text()[-2000:]}", patience=PATIENCE)
        yield found[0]
    finally:
        process.terminate()
        process.wait(PATIENCE)


OWN = {"SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "512m"}
AT = ("--host", "127.0.0.1", "--webui-port", "0")


def daemons_environment() -> dict[str, str]:
    return {**os.environ, **OWN, "SPARK_SCALA_VERSION": "2.13", "PYSPARK_PYTHON": sys.executable}


@pytest.fixture
def home(
    tmp_path: Path, dsn: str, services: Services, lake_uri: str, settings_for: Callable[..., Settings]
) -> Iterator[Home]:
    """Its cluster has a master and no worker yet."""
    log, env = tmp_path / "master.log", daemons_environment()
    with spark_process(
        "master.Master", *AT, "--port", "0", log=log, says=r"spark://\S+:\d+", env=env
    ) as master:
        yield Home.at(tmp_path / "user", dsn, services, lake_uri, settings_for, spark_master=master)


@contextmanager
def worker(home: Home, tmp_path: Path) -> Iterator[None]:
    with spark_process(
        "worker.Worker",
        *AT,
        *("--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / "work")),
        home.place.settings.spark_master,
        log=tmp_path / "worker.log",
        says="Successfully registered with master",
        env=daemons_environment(),
    ):
        yield


@pytest.fixture
def with_worker(home: Home, tmp_path: Path) -> Iterator[None]:
    with worker(home, tmp_path):
        yield


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("with_worker")
def test_a_run_on_a_cluster_delivers_exactly_once(home: Home, tmp_path: Path) -> None:
    landed = Landed()
    for number in range(3):
        start = number * 100
        landed += home.land(f"orders/{number}.jsonl", orders(start, 9, negative=[start + 4]), ["{broken"])
    python, used = tmp_path / "python", tmp_path / "used"
    python.write_text(f'#!/bin/sh\ntouch "{used}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    done = home.sluice("run", "orders", "--conf", f"spark.pyspark.python={python}")
    assert done.returncode == 0, done.stderr[-3000:]
    assert used.exists(), "executors run the Python that they were told to"
    home.assert_holds(landed)
    home.assert_clean()
    executors = list((tmp_path / "work").glob("app-*/*/stderr"))
    assert executors, "the executors ran in the worker"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_that_gets_no_executor_says_so_and_delivers_once_it_has_one(home: Home, tmp_path: Path) -> None:
    landed = home.land("orders/0.jsonl", orders(0, 9, negative=[4]))
    log = tmp_path / "run.log"
    with log.open("w") as out:
        run = subprocess.Popen(
            [sys.executable, "-m", "etl.cli", "run", "orders"],
            cwd=home.root,
            env={**os.environ, **home.environment, "SLUICE_SLOW_TASK": "PT3S"},
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
        )
    try:
        waits = r"stage \d+ for \d+ s \(SLUICE_SLOW_TASK is 3 s\) and waits for an executor: app-\S+ has none of its cluster"

        def told() -> re.Match[str] | None:
            assert run.poll() is None, log.read_text()[-3000:]
            return re.search(waits, " ".join(log.read_text().split()))

        until(told, lambda: log.read_text()[-3000:], patience=PATIENCE)
        with worker(home, tmp_path):
            assert run.wait(PATIENCE) == 0, log.read_text()[-3000:]
    finally:
        run.kill()
        run.wait()
    said = " ".join(log.read_text().split())
    assert "set `spark.cores.max` in SLUICE_SPARK_CONF, so that other runs take fewer" in said
    home.assert_holds(landed)
