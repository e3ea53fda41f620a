"""Who may see which page: Airflow's own api-server, its sign-in and its rights, over a seeded ledger."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest
from psycopg2.extensions import make_dsn

from etl.services import Services
from etl.services.process import HOST, choose_port
from tests import oracle
from tests.conftest import REPOSITORY
from tests.stores import new_database
from tests.ui.history import seed

READY_WITHIN = 240  # seconds; nothing is decided by it, a server that takes so long has failed
USERS = {"ada": "viewer", "eve": "viewer", "root": "admin"}
PREFIX = "/data-quality"
ROUTES = """
import json
from fastapi.routing import APIRoute
from etl.ui.app import build
found = build().routes
assert all(type(route) is APIRoute for route in found), found
print(json.dumps([[sorted(route.methods), route.path] for route in found]))
"""
POLICY = ("default-src 'none'", "script-src 'none'", "frame-ancestors 'self'", "form-action 'self'")


@dataclass(frozen=True, kw_only=True)
class Server:
    address: str
    config: Path  # sluice.toml, read at every request
    dsn: str
    environment: dict[str, str]
    passwords: dict[str, str]
    tokens: dict[str, str] = field(default_factory=dict)

    def token(self, user: str) -> str:
        if user not in self.tokens:
            self.tokens[user] = self._sign_in(user)
        return self.tokens[user]

    def _sign_in(self, user: str) -> str:
        body = {"username": user, "password": self.passwords[user]}
        answer = httpx.post(f"{self.address}/auth/token", json=body, timeout=60)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["access_token"])

    def get(self, path: str, user: str | None = None, method: str = "GET") -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token(user)}"} if user else {}
        return httpx.request(method, self.address + PREFIX + path, headers=headers, timeout=60)

    def point_to(self, dsn: str) -> None:
        self.config.write_text(f"postgres = {json.dumps(dsn)}\nlake = 's3://none'\n")


@pytest.fixture(scope="module")
def server(services: Services, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("airflow")
    passwords = {user: f"the password of {user}" for user in USERS}
    (home / "passwords.json").write_text(json.dumps(passwords))
    port = choose_port("airflow", 0, home / "port")
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__AUTH_MANAGER": "tests.ui.rights.PerDag",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{n}:{role}" for n, role in USERS.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__API_AUTH__JWT_SECRET": "0123456789abcdef" * 4,
        "AIRFLOW__API__SECRET_KEY": "0123456789abcdef" * 4,
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://{HOST}:{port}",
        "SLUICE_CONFIG": str(home / "sluice.toml"),
        "PYTHONPATH": str(REPOSITORY),
        "no_proxy": HOST,
    }
    with new_database(services.postgres, template=template) as dsn:
        seed(dsn, "feed", batches=60, rules=3)
        seed(dsn, "small", batches=3, rules=3, first=1000)
        found = Server(
            address=f"http://{HOST}:{port}",
            config=home / "sluice.toml",
            dsn=dsn,
            environment=environment,
            passwords=passwords,
        )
        found.point_to(dsn)
        with (home / "log").open("w") as log:
            airflow = [sys.executable, "-P", "-m", "airflow"]
            subprocess.run([*airflow, "db", "migrate"], env=environment, stdout=log, stderr=log, check=True)
            process = subprocess.Popen(
                [*airflow, "api-server", "--apps", "core", "--workers", "1"],
                env=environment,
                stdout=log,
                stderr=log,
            )
        try:
            await_ready(found, process, home / "log")
            yield found
        finally:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for one in family:
                one.terminate()
            psutil.wait_procs(family, 30)
            process.wait(30)


def await_ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        try:
            if httpx.get(f"{server.address}/api/v2/version", timeout=5).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.2)


@pytest.fixture(scope="module")
def routes(server: Server) -> list[str]:
    """The address of every route, for the pipeline `feed`; those of all pipelines too."""
    done = subprocess.run(
        [sys.executable, "-c", ROUTES], env=server.environment, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert {tuple(methods) for methods, _ in found} == {("GET",)}
    queries = {"/{dag_id}/run": "?run_id=scheduled__5", "/{dag_id}/rule": f"?name={RULE}"}
    values = {"dag_id": "feed", "delivery_id": "60", "row_id": "1"}
    return [path.format(**values) + queries.get(path, "") for _, path in found]


RULE = "rule 1 about a column of the feed"


def test_every_route_is_refused_to_a_stranger(server: Server, routes: list[str]) -> None:
    assert len(routes) == 8
    for path in routes:
        assert server.get(path).status_code == 401, path


def test_every_route_of_a_pipeline_is_refused_to_who_may_not_see_its_dag(
    server: Server, routes: list[str]
) -> None:
    refused = [server.get(path, "eve") for path in routes if path != "/"]
    assert [answer.status_code for answer in refused] == [403] * 7
    assert not any("scheduled" in answer.text or "rule 1" in answer.text for answer in refused)


def test_every_route_is_open_to_who_may(server: Server, routes: list[str]) -> None:
    for user in ("ada", "root"):
        assert [server.get(path, user).status_code for path in routes] == [200] * 8


def test_the_overview_has_the_pipelines_that_the_reader_may_see_and_no_others(server: Server) -> None:
    shown = server.get("/", "eve").text
    assert 'href="small/"' in shown
    assert "feed" not in shown
    assert 'href="feed/"' in server.get("/", "ada").text


def test_a_right_on_one_pipeline_shows_nothing_of_another(server: Server) -> None:
    assert server.get("/small/", "eve").status_code == 200
    assert server.get("/small/batch/60", "eve").status_code == 404  # feed's
    assert server.get("/small/quarantine/1", "eve").status_code == 404
    assert "warehouse.feed" not in server.get("/small/?dag_id=feed", "eve").text
    assert server.get("/feed/?dag_id=small", "eve").status_code == 403
    assert server.get("/~/", "eve").status_code in (403, 404)


def test_every_answer_allows_no_script_and_no_other_host(server: Server, routes: list[str]) -> None:
    for path in [*routes, "/nothing", "/feed/nothing", "/feed/batch/x"]:
        for user in (None, "eve", "ada"):
            answer = server.get(path, user)
            policy = answer.headers["content-security-policy"]
            assert all(part in policy for part in POLICY), path
            assert "<script" not in answer.text
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_nothing_can_be_sent(server: Server, routes: list[str]) -> None:
    for path in routes:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert server.get(path, "root", method).status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/feed/batch/99999999999999999999999",
        "/feed/batch/-1",
        "/feed/?before=x",
        "/feed/run",
        "/feed/rule?name=%00",
        "/feed/quarantine?rule=%00",
        "/feed/quarantine?status=<b>",
        "/feed/quarantine?since=<script>",
        "/feed/quarantine?before=1-99999999999999999999",
        "/feed%00/",
    ],
)
def test_an_address_that_makes_no_sense_is_refused_and_not_repeated(server: Server, path: str) -> None:
    answer = server.get(path, "root")
    assert answer.status_code == 422
    assert "<b>" not in answer.text
    assert "script>" not in answer.text


def test_the_form_with_nothing_filled_in_shows_all_that_is_held(server: Server) -> None:
    answer = server.get("/feed/quarantine?rule=&status=held&batch=&since=&until=", "ada")
    assert answer.status_code == 200
    assert 'href="quarantine/' in answer.text


def test_with_postgresql_away_a_page_says_so(server: Server) -> None:
    server.point_to(make_dsn(server.dsn, port="1"))
    try:
        answer = server.get("/feed/", "ada")
        assert answer.status_code == 503
        assert "PostgreSQL can&#39;t be reached" in answer.text
        assert "sluice doctor" in answer.text
    finally:
        server.point_to(server.dsn)


def test_a_ledger_that_is_not_there_yet_is_no_fault(server: Server, services: Services) -> None:
    with new_database(services.postgres) as empty:
        server.point_to(empty)
        try:
            answer = server.get("/", "ada")
        finally:
            server.point_to(server.dsn)
    assert answer.status_code == 503
    assert "<code>sluice status</code>" in answer.text


def test_the_pages_leave_no_connection_behind(server: Server, routes: list[str]) -> None:
    for path in routes:
        server.get(path, "ada")
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    deadline = time.monotonic() + 20
    while oracle.ask(server.dsn, query) != [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
