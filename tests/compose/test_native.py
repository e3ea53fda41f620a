"""The set of docker-compose.yml, started by its own commands without a container engine, does its work."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import boto3
import psutil
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from etl import services
from etl.airflow.api import Api, sign_in
from etl.airflow.command.trigger import trigger
from etl.common.settings import load_settings
from etl.runs.workspace import Workspace
from tests.support.compose import HOST, Native, variables_of
from tests.support.data.orders import DECLARATION, NAME, RULES, SHOPS, Landed, orders
from tests.support.environment import FOREIGN
from tests.support.processes import answers
from tests.support.s3_home import S3Home

EYES = "airflow-scheduler"  # the service through whose environment the tests look
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True, kw_only=True)
class Set:
    """The set, all of it healthy, over one user's pipeline `orders`."""

    native: Native
    home: S3Home
    login: Path

    @property
    def api(self) -> Api:
        return sign_in(f"http://{HOST}:{self.native.ports['8080']}", self.login)


@pytest.fixture(scope="module", name="started")
def _started(made_env: Path) -> Iterator[Set]:
    root = Path(tempfile.mkdtemp(prefix="sluice-"))
    root.chmod(0o711)  # PostgreSQL's system user passes through
    mine, ours = root / "my pipelines", root / "our-suites"
    for folder in (mine, ours):
        folder.mkdir()
    secrets = variables_of(made_env)
    native = Native.of(root, secrets | {"PIPELINES": str(mine), "SUITES": str(ours)})
    login = root / "login.json"
    login.write_text(
        json.dumps({user: secrets[f"AIRFLOW_{user.upper()}_PASSWORD"] for user in ("admin", "viewer")})
    )
    (mine / f"{NAME}.py").write_text(DECLARATION.format(name=NAME, max_files=2, share=1.0))
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in [name for name in os.environ if name.startswith(FOREIGN)]:
            monkeypatch.delenv(name)
        for name, value in native.environment(EYES).items():
            if name.startswith(FOREIGN):
                monkeypatch.setenv(name, value)
        (root / "sluice.toml").touch()
        monkeypatch.setenv("SLUICE_CONFIG", str(root / "sluice.toml"))  # not one further up
        settings = load_settings()
        found = services.up(settings)
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        try:
            native.up()
            home = S3Home(root=root, place=Workspace(settings=settings, services=found), spark=None)
            home.judge(*RULES)
            home.write("reference/shops.csv", SHOPS)
            yield Set(native=native, home=home, login=login)
        finally:
            native.down()
    shutil.rmtree(root)


def test_a_pipeline_run_by_its_airflow_on_its_spark_delivers_once_to_both_sinks(started: Set) -> None:
    landed, home = Landed(), started.home
    for number in range(3):
        start = number * 100
        landed += home.land(f"orders/{number}.jsonl", orders(start, 9, negative=[start + 4]), ["{broken"])
    said: list[str] = []
    summary = trigger(started.api, NAME, said.append)
    assert (summary.batches, summary.delivered, summary.quarantined) == (2, 24, 6), said
    home.assert_holds(landed)
    home.assert_clean()
    executors = list(started.native.folder("spark-worker", "/var/lib/sluice").glob("spark/app-*/*/stderr"))
    assert executors, "they ran in the worker"


def test_a_second_start_sets_up_nothing_anew(started: Set) -> None:
    before = started.home.history(), started.api.runs(NAME)
    started.native.start("setup")
    started.native.wait("setup", "service_completed_successfully")
    assert (started.home.history(), started.api.runs(NAME)) == before


def test_it_listens_on_no_other_address_than_its_own(started: Set) -> None:
    """Here all names are 127.0.0.1; in the set, each is the container's own address."""
    opened = answers(started.native.processes(), lambda one: one.net_connections("inet"))
    found = [socket.laddr for socket in chain(*opened) if socket.status == psutil.CONN_LISTEN]
    assert {at.ip.removeprefix("::ffff:") for at in found} == {HOST}
    assert {int(port) for port in started.native.ports.values()} <= {at.port for at in found}


def test_s3_refuses_whoever_does_not_know_its_secret(started: Set) -> None:
    guess = boto3.Session().client(
        "s3",
        endpoint_url=started.home.place.services.s3_endpoint,
        aws_access_key_id="sluice",
        aws_secret_access_key="sluice",
        config=Config(s3={"addressing_style": "path"}),
    )
    with pytest.raises(ClientError) as refused:
        guess.list_buckets()
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
