"""`sluice airflow`: closed to others while it runs, and gone when it ends, however it ends."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import signal
import stat
import subprocess
import sys
import urllib.request
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import psutil
import pytest
from psycopg2.extensions import make_dsn

from etl import services
from etl.airflow.api import Api, Refused, heartbeats, sign_in
from etl.airflow.local import stack
from etl.airflow.local.environment import URL_VARIABLE
from etl.airflow.local.installation import Airflow, note_of
from etl.airflow.local.stack import COMPONENTS
from etl.common.errors import SetupError
from etl.common.settings import Settings, same_place
from etl.services.process import recall, remember
from tests.support.airflow.command import AirflowHome
from tests.support.airflow.listeners import webhook
from tests.support.processes import answers

RUN_WITHIN = 90  # seconds
AWKWARD = 'p@ss:/?#"\\ ö'


def got(address: str) -> str:
    with urllib.request.urlopen(address) as answer:  # noqa: S310 - our own address
        return str(answer.read().decode())


def pid(airflow: Airflow, component: str) -> int:
    found = recall(airflow.note(component))
    assert found is not None
    return found[0].pid


def test_it_is_healthy_and_serves_its_start_page(airflow: Airflow) -> None:
    assert set(heartbeats(airflow.address)) == {"scheduler", "dag_processor", "triggerer"}
    page = got(airflow.address)
    assert "<title>Airflow</title>" in page
    scripts = re.findall(r'<script[^>]+src="([^"]+)"', page)
    assert scripts
    assert all(got(urljoin(f"{airflow.address}/", script)) for script in scripts)


def test_status_says_where_it_is(home: AirflowHome, airflow: Airflow) -> None:
    said = home.sluice("status").stdout.splitlines()[-1]
    assert said == f"Airflow  {airflow.address}, the passwords of admin and viewer in {airflow.login}"


def on_loopback(ip: str) -> bool:
    address = ipaddress.ip_address(ip)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def test_every_process_listens_on_loopback_alone_and_talks_to_nobody_else(
    home: AirflowHome, airflow: Airflow
) -> None:
    sockets = home.sockets()
    wanted = {airflow.port, *(service.port for service in services.status(home.settings))}
    assert {socket.laddr.port for socket in sockets if socket.status == psutil.CONN_LISTEN} == wanted
    talking = [socket.raddr.ip for socket in sockets if socket.raddr]
    assert talking
    assert all(on_loopback(ip) for ip in [*talking, *(socket.laddr.ip for socket in sockets)])


def test_without_a_token_the_api_answers_nothing(airflow: Airflow) -> None:
    with pytest.raises(Refused) as refused:
        Api(address=airflow.address, token="").get("/api/v2/dags")
    assert refused.value.status == 401


def test_a_wrong_password_gets_no_token(airflow: Airflow, tmp_path: Path) -> None:
    wrong = tmp_path / "login.json"
    wrong.write_text(json.dumps({"admin": "admin"}))
    with pytest.raises(Refused) as refused:
        sign_in(airflow.address, wrong)
    assert refused.value.status == 401


def test_a_viewer_sees_a_dag_and_may_not_start_it(airflow: Airflow) -> None:
    viewer = sign_in(airflow.address, airflow.login, "viewer")
    assert viewer.dag_is_known("hello")
    with pytest.raises(Refused) as refused:
        viewer.trigger("hello")
    assert refused.value.status == 403


def test_a_dag_started_by_rest_gets_its_conf_and_gives_back_its_log_and_value(
    home: AirflowHome, airflow: Airflow
) -> None:
    api = sign_in(airflow.address, airflow.login)
    api.unpause("hello")
    run = api.trigger("hello", {"name": "Ada"})
    states = list(api.follow("hello", run, within=RUN_WITHIN))
    assert api.runs("hello") == {run: "success"}
    assert (api.state("hello", run), states[-1].task, states[-1].state) == ("success", "greet", "success")
    assert "hello Ada" in api.log("hello", run, "greet")
    assert api.xcom("hello", run, "greet") == str(home.settings.home)


def test_tasks_and_alerts_are_told_of_a_connection_that_airflows_database_or_a_secrets_backend_keeps(
    home: AirflowHome, airflow: Airflow
) -> None:
    kept = {"conn_type": "postgres", "host": "db", "login": "ann", "password": AWKWARD, "schema": "flights"}
    home.vault.write_text(json.dumps({"in_the_vault": kept}))
    api = sign_in(airflow.address, airflow.login)
    with webhook() as posted:
        connect(api, "in_the_database", kept)
        connect(
            api, "alerts", {"conn_type": "http", "host": "127.0.0.1", "port": posted.port, "schema": "http"}
        )
        run = api.trigger("connected", {"names": ["in_the_database", "in_the_vault"]})
        posted.wait_for(
            lambda sent: sent["kind"] == "deadline", RUN_WITHIN
        )  # it is paused: the triggerer tells
    api.unpause("connected")
    assert [*api.follow("connected", run, within=RUN_WITHIN)][-1].state == "success"
    dsn = make_dsn(host="db", user="ann", password=AWKWARD, dbname="flights")
    told = hashlib.sha256(dsn.encode()).hexdigest()
    assert api.xcom("connected", run, "ask") == {"in_the_database": told, "in_the_vault": told}
    assert AWKWARD not in api.log("connected", run, "ask")


def connect(api: Api, name: str, told: dict[str, Any]) -> None:
    """Store a Connection in Airflow's database."""
    answer = httpx.post(
        f"{api.address}/api/v2/connections",
        json={"connection_id": name, **told},
        headers={"Authorization": f"Bearer {api.token}"},
        timeout=RUN_WITHIN,
    )
    assert answer.status_code == 201, answer.text


def test_no_secret_is_open_to_others_or_on_a_command_line_or_in_an_environment(
    home: AirflowHome, airflow: Airflow
) -> None:
    kept = list(airflow.login.parent.iterdir())
    assert airflow.login in kept
    assert {stat.S_IMODE(file.stat().st_mode) for file in kept} == {0o600}
    passwords = json.loads(airflow.login.read_text())
    assert set(passwords) == {"admin", "viewer"}
    words = {*passwords.values(), *(file.read_text() for file in kept if file.suffix == "")}
    shown = [*chain(*answers(home.processes(), lambda one: (*one.cmdline(), *one.environ().values())))]
    assert not [word for word in words if any(word in seen for seen in shown)]


def test_a_killed_supervisor_leaves_airflow_running_and_down_ends_even_orphans_of_a_killed_scheduler(
    home: AirflowHome, airflow: Airflow
) -> None:
    supervisor = psutil.Process(pid(airflow, stack.SUPERVISOR))
    supervisor.kill()
    supervisor.wait(30)
    again = home.sluice("airflow")
    assert again.returncode == 0
    assert f"{airflow.address}, running already" in again.stdout
    scheduler = psutil.Process(pid(airflow, "scheduler"))
    workers = scheduler.children(recursive=True)
    scheduler.kill()
    assert any(worker.is_running() for worker in workers)
    ended = home.sluice("down")
    assert ended.stdout == "stopped triggerer, dag-processor, api-server, postgres, s3\n"
    assert home.processes() == []
    assert home.sluice("down").stdout == "nothing was running\n"


@pytest.mark.parametrize(
    "ends_it",
    [
        pytest.param(signal.SIGINT, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_every_process_that_the_command_started(
    home: AirflowHome, ends_it: signal.Signals
) -> None:
    command = home.start()
    assert len(home.processes()) > len(COMPONENTS)
    command.process.send_signal(ends_it)
    code, said = command.ended()
    assert (code, home.processes()) == (0, [])
    assert f"stopped {', '.join(COMPONENTS)}, postgres, s3" in said


FOLLOWED = """
import signal, sys
from pathlib import Path
from etl.airflow.local import stack
from etl.airflow.local.installation import Airflow

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as of a shell, also where the tests run under nohup
airflow = Airflow(folder=Path(sys.argv[1]), port=0, login=Path(), was_running=False)
stack.follow(airflow, lambda: print("begun", flush=True))
print("ended")
"""


def test_the_command_that_follows_airflow_goes_on_to_its_end_when_its_terminal_is_closed(
    tmp_path: Path,
) -> None:
    for component in COMPONENTS:  # this process stands for each
        remember(note_of(tmp_path, component), psutil.Process(), 0)
    code = [sys.executable, "-c", FOLLOWED, str(tmp_path)]
    with subprocess.Popen(code, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "begun\n"
        follower.send_signal(signal.SIGHUP)
        assert follower.stdout.read() == "ended\n"
    assert follower.returncode == 0


@pytest.mark.slow
def test_a_component_that_ends_by_itself_is_reported_with_its_log_and_all_is_stopped(
    home: AirflowHome,
) -> None:
    command = home.start()
    psutil.Process(pid(command.airflow, "triggerer")).kill()
    code, said = command.ended()
    assert (code, home.processes()) == (75, [])
    assert "Airflow's triggerer ended by itself" in said
    assert str(command.airflow.log("triggerer")) in said


@pytest.mark.slow
def test_detached_it_is_left_running_healthy_until_down(home: AirflowHome) -> None:
    assert home.sluice("airflow", "--detach").returncode == 0
    found = stack.running(home.settings)
    assert found is not None
    assert set(heartbeats(found.address)) == {"scheduler", "dag_processor", "triggerer"}
    assert home.sluice("down").stdout == f"stopped {', '.join(COMPONENTS)}, postgres, s3\n"
    assert home.processes() == []


def test_with_a_postgresql_of_your_own_airflow_wants_a_database_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    own = Settings(home=tmp_path / "home", dags=tmp_path, postgres="host=127.0.0.1")
    with pytest.raises(SetupError, match=URL_VARIABLE):
        stack.up(own)
    assert not own.home.exists()


def test_a_dag_folder_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="from which Airflow would load its DAGs"):
        stack.up(Settings(home=tmp_path / "home", dags=tmp_path / "none"))
    assert not (tmp_path / "home").exists()


def test_an_airflow_that_was_started_with_other_folders_is_told_with_both(tmp_path: Path) -> None:
    before = Settings(home=tmp_path, pipelines=(tmp_path / "before",), suites=(tmp_path,), dags=tmp_path)
    now = before.model_copy(update={"pipelines": (tmp_path / "now", tmp_path / "before")})
    (tmp_path / "airflow").mkdir()
    code, pipe = [sys.executable, "-c", "print(); input()"], subprocess.PIPE
    with subprocess.Popen(code, stdin=pipe, stdout=pipe, env=os.environ | same_place(before)) as processor:
        assert processor.stdout is not None
        processor.stdout.readline()  # Linux shows no environment of a process that is about to begin
        remember(note_of(tmp_path / "airflow", "dag-processor"), psutil.Process(processor.pid), 1)
        stack.require_same_folders(before)
        with pytest.raises(SetupError) as told:
            stack.require_same_folders(now)
        processor.communicate(b"\n")
    assert told.value.seen == (
        f"Airflow runs with SLUICE_PIPELINES {tmp_path}/before, the settings want {tmp_path}/now:{tmp_path}/before"
    )
    assert "`sluice down`, then `sluice airflow --detach`" in told.value.remedy
    stack.require_same_folders(now)  # it runs no more
