"""Who may see which page: Airflow's own api-server, its sign-in and its rights, over a seeded ledger."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from urllib.parse import urljoin

import httpx
import psutil
import pytest
from psycopg2.extensions import make_dsn

from etl.services import Services
from etl.services.process import HOST, choose_port
from tests.support import oracle
from tests.support.airflow.connected import as_connection
from tests.support.databases import new_database
from tests.support.environment import REPOSITORY
from tests.support.pages.history import seed
from tests.support.processes import answers
from tests.support.waiting import until

READY_WITHIN = 240  # seconds; nothing is decided by it, a server that takes so long has failed
USERS = {"ada": "viewer", "eve": "viewer", "bob": "user", "may": "user", "root": "admin"} | {
    "rae": "user",
    "ian": "user",
    "tri": "user",
}
PREFIX = "/data-quality"
WHY = "the vendor's <b>test</b> data"
ROUTES = """
import json
from fastapi.routing import APIRoute
from etl.airflow.pages.app import build
found = build().routes
assert all(type(route) is APIRoute for route in found), found
print(json.dumps([[sorted(route.methods), route.path] for route in found]))
"""
DAGS = """
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.session import create_session
from etl.airflow.operator import SluiceRunOperator
with create_session() as session:
    session.add(DagBundleModel(name="dags"))
    session.flush()
    session.add_all([DagModel(dag_id=name, bundle_name="dags", is_stale=False) for name in ("feed", "small")])
for name, deciders in (("feed", {}), ("small", {"bob": "bob"})):
    with DAG(name) as dag:
        SluiceRunOperator(task_id="run", pipeline=name, deciders=deciders)
    SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), bundle_name="dags")
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

    def get(
        self, path: str, user: str | None = None, method: str = "GET", **more: dict[str, str]
    ) -> httpx.Response:
        """`more` is a form as `data`, and further `headers`."""
        signed_in = {"Authorization": f"Bearer {self.token(user)}"} if user else {}
        headers = signed_in | more.pop("headers", {})
        return httpx.request(method, self.address + PREFIX + path, headers=headers, timeout=60, **more)

    def post(self, path: str, user: str | None, note: str, why: str = WHY, **headers: str) -> httpx.Response:
        """Send the form as a browser does from a page of this server, unless `headers` say otherwise."""
        origin = {"Origin": self.address, "Sec-Fetch-Site": "same-origin"}
        sent = {name: value for name, value in (origin | headers).items() if value}
        return self.get(path, user, "POST", data={"note": note, "why": why}, headers=sent)

    def note(self, path: str, user: str = "root") -> str:
        """Return the note that the form of a confirmation carries."""
        [note] = re.findall('name="note" value="([^"]+)"', self.get(path, user).text)
        return str(note)

    def point_to(self, dsn: str) -> None:
        self.config.write_text(f"postgres = {json.dumps(dsn)}\nlake = 's3://none'\n")

    def point_by(self, connection: str) -> None:
        self.config.write_text(f"connections = {{postgres = {json.dumps(connection)}}}\nlake = 's3://none'\n")


@pytest.fixture(scope="module")
def server(services: Services, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("airflow")
    passwords = {user: f"the password of {user}" for user in USERS}
    (home / "passwords.json").write_text(json.dumps(passwords))
    port = choose_port("airflow", 0, home / "port")
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__AUTH_MANAGER": "tests.support.airflow.rights.PerDag",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{n}:{role}" for n, role in USERS.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__API_AUTH__JWT_SECRET": "0123456789abcdef" * 4,
        "AIRFLOW__API__SECRET_KEY": "0123456789abcdef" * 4,
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://{HOST}:{port}",
        "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
        "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps({"connections_file_path": str(home / "vault.json")}),
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
        (home / "vault.json").write_text(json.dumps({"in_the_vault": as_connection(dsn)}))
        with (home / "log").open("w") as log:
            airflow = [sys.executable, "-P", "-m", "airflow"]
            (home / "dags.py").write_text(DAGS)  # Airflow keeps the text of a serialised DAG's file
            for asked in ([*airflow, "db", "migrate"], [sys.executable, str(home / "dags.py")]):
                subprocess.run(asked, env=environment, stdout=log, stderr=log, check=True)
            process = subprocess.Popen(
                [*airflow, "api-server", "--apps", "core", "--workers", "1"],
                env=environment,
                stdout=log,
                stderr=log,
            )
        head = psutil.Process(process.pid)
        try:
            await_ready(found, process, home / "log")
            yield found
        finally:
            family = [head, *chain(*answers([head], lambda one: one.children(recursive=True)))]
            answers(family, psutil.Process.terminate)  # once the first has ended, the others do by themselves
            psutil.wait_procs(family, 30)
            process.wait(30)


def await_ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    def ready() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        with suppress(httpx.TransportError):
            return httpx.get(f"{server.address}/api/v2/version", timeout=5).is_success
        return False

    until(ready, lambda: f"the server: {log.read_text()[-3000:]}", patience=READY_WITHIN, every=0.2)


@pytest.fixture(scope="module")
def all_routes(server: Server) -> list[tuple[str, str]]:
    """Return the method and address of every route, for the pipeline `feed`; those of all pipelines too."""
    done = subprocess.run(
        [sys.executable, "-c", ROUTES], env=server.environment, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    queries = {
        "/{dag_id}/run": "?run_id=scheduled__5",
        "/{dag_id}/rule": f"?name={RULE}",
        "/{dag_id}/column": "?name=c3",
    }
    values = {"dag_id": "feed", "delivery_id": "58", "row_id": "6", "number": "1"}
    return [
        (method, path.format(**values, action=action, decision=DECISION) + queries.get(path, ""))
        for [method], path in found
        for action in (("release", "discard") if "{action}" in path else ("",))
    ]


@pytest.fixture(scope="module")
def decisions(all_routes: list[tuple[str, str]]) -> list[str]:
    """Return the address of every form that decides on held rows; it asks by GET and does by POST."""
    ends = ("/release", "/discard", f"/{DECISION}", "/acknowledge")
    asks = [path for method, path in all_routes if method == "GET" and path.endswith(ends)]
    assert asks == [path for method, path in all_routes if method == "POST"]
    assert {method for method, _ in all_routes} == {"GET", "POST"}
    assert asks[-2:] == [STOP, ALERT]
    return asks[:-2]


@pytest.fixture(scope="module")
def routes(all_routes: list[tuple[str, str]], decisions: list[str]) -> list[str]:
    """Return the address of every page that anybody may read who may read the runs."""
    return [path for method, path in all_routes if method == "GET" and path not in (*decisions, STOP, ALERT)]


DECISION = "quarantine-all"
STOP = f"/feed/stopped/{DECISION}"
ALERT = "/feed/alerts/1/acknowledge"
STOPPED = """INSERT INTO sluice.stopped_batch (stream_id, batch_id, pipeline, stops, report, suite_digest, lookups, broken)
             SELECT stream_id, 99, pipeline, ARRAY['it stops'], '{}', 'a', '{}', '{"rule": 1}' FROM sluice.stream
             WHERE pipeline = 'feed'"""
RULE = "rule 1 about a column of the feed"


def test_every_route_is_refused_to_a_stranger(
    server: Server, all_routes: list[tuple[str, str]], routes: list[str]
) -> None:
    assert (len(all_routes), len(routes)) == (24, 12)
    for method, path in all_routes:
        assert server.get(path, method=method).status_code == 401, path


def test_every_route_of_a_pipeline_is_refused_to_who_may_not_see_its_dag(
    server: Server, routes: list[str]
) -> None:
    refused = [server.get(path, "eve") for path in routes if path not in ("/", "/metrics")]
    assert [answer.status_code for answer in refused] == [403] * 10
    assert not any("scheduled" in answer.text or "rule 1" in answer.text for answer in refused)


def test_every_route_is_open_to_who_may(server: Server, routes: list[str]) -> None:
    for user in ("ada", "root"):
        answers = {path: server.get(path, user).status_code for path in routes}
        assert answers.pop("/feed") == 303
        assert list(answers.values()) == [200] * 11


def test_a_pipeline_without_a_slash_leads_on_to_its_page(server: Server) -> None:
    for query in ("", "?before=20"):
        led = server.get(f"/feed{query}", "ada")
        assert (led.status_code, led.headers["location"]) == (303, f"feed/{query}")
        assert urljoin(f"{server.address}{PREFIX}/feed{query}", led.headers["location"]).endswith(
            f"{PREFIX}/feed/{query}"
        )
    assert server.get("/feed/?before=20", "ada").status_code == 200


def test_the_overview_has_the_pipelines_that_the_reader_may_see_and_no_others(server: Server) -> None:
    shown = server.get("/", "eve").text
    assert 'href="small/"' in shown
    assert "feed" not in shown
    assert 'href="feed/"' in server.get("/", "ada").text


def test_metrics_are_of_the_pipelines_that_the_reader_may_see_and_no_others(server: Server) -> None:
    shown = {user: server.get("/metrics", user).text for user in ("eve", "ada")}
    named = {user: set(re.findall('pipeline="(\\w+)"', text)) for user, text in shown.items()}
    assert "small" in named["eve"]
    assert "feed" in named["ada"] - named["eve"]


def test_a_right_on_one_pipeline_shows_nothing_of_another(server: Server) -> None:
    assert server.get("/small/", "eve").status_code == 200
    assert server.get("/small/batch/60", "eve").status_code == 404  # feed's
    assert server.get("/small/quarantine/1", "eve").status_code == 404
    assert "warehouse.feed" not in server.get("/small/?dag_id=feed", "eve").text
    assert server.get("/feed/?dag_id=small", "eve").status_code == 403
    assert server.get("/~/", "eve").status_code in (403, 404)


def test_every_answer_allows_no_script_and_no_other_host(
    server: Server, routes: list[str], decisions: list[str]
) -> None:
    for path in [*routes, *decisions, "/nothing", "/feed/nothing", "/feed/batch/x"]:
        for user in (None, "eve", "ada", "root"):
            answer = server.get(path, user)
            policy = answer.headers["content-security-policy"]
            assert all(part in policy for part in POLICY), path
            assert "<script" not in answer.text
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_nothing_else_can_be_sent(server: Server, routes: list[str], decisions: list[str]) -> None:
    for path in decisions:
        for method in ("PUT", "DELETE", "PATCH"):
            assert server.get(path, "root", method).status_code == 405
    for path in routes:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert server.get(path, "root", method).status_code == 405


def states(server: Server) -> dict[str, list[int]]:
    query = "SELECT status, array_agg(quarantine_id ORDER BY 1) FROM sluice.quarantine WHERE pipeline = 'feed' GROUP BY 1"
    return dict(oracle.ask(server.dsn, query))


def test_who_may_not_trigger_the_dag_has_no_buttons_and_decides_nothing(
    server: Server, decisions: list[str]
) -> None:
    before = states(server)
    for path in decisions:
        note = server.note(path)
        page = path.rpartition("/")[0]
        assert "/discard" in server.get(page, "root").text
        for user, reads in (("ada", 200), ("may", 200), ("eve", 403)):  # may: a user, but not for this DAG
            answer = server.get(page, user)
            assert (answer.status_code, "/discard" in answer.text) == (reads, False)
            assert server.get(path, user).status_code == 403
            assert server.post(path, user, note).status_code == 403
        assert server.post(path, None, note).status_code == 401
    assert states(server) == before


def test_a_release_takes_the_right_to_trigger_its_dag_and_a_discard_that_to_trigger_the_pipelines(
    server: Server, decisions: list[str]
) -> None:
    for path in decisions:
        page, _, action = path.rpartition("/")
        for user, may in (("rae", "release"), ("ian", "discard")):
            shown = server.get(page, user).text
            assert [one for one in ("release", "discard") if f"/{one}" in shown] == [may]
            status = 200 if action == may else 403
            assert server.get(path, user).status_code == status
            if action != may:
                assert server.post(path, user, server.note(path)).status_code == 403


def test_where_deciders_are_declared_they_alone_decide_whatever_else_others_may(server: Server) -> None:
    query = "SELECT min(quarantine_id) FROM sluice.quarantine WHERE pipeline = 'small'"
    [(row,)] = oracle.ask(server.dsn, query)
    for action in ("discard", "release"):
        path = f"/small/quarantine/{row}/{action}"
        assert server.get(path, "bob").status_code == 200
        for user in ("root", "may"):
            assert server.get(f"/small/quarantine/{row}", user).status_code == 200
            for refused in (server.get(path, user), server.post(path, user, "")):
                assert (refused.status_code, "deciders" in refused.text) == (403, True)
    assert server.get("/small/stopped/accept", "root").status_code == 403
    assert server.get("/small/stopped/accept", "bob").status_code == 404, "nothing is stopped, and he may"


def test_nothing_is_offered_to_be_released_into_a_table_that_each_batch_replaces(
    server: Server, decisions: list[str]
) -> None:
    pages = {path.rpartition("/")[0] for path in decisions}
    mark = "UPDATE sluice.pipeline SET replaces = %s WHERE name = 'feed'"
    oracle.ask(server.dsn, mark, (True,))
    try:
        shown = [server.get(page, "root").text for page in pages]
    finally:
        oracle.ask(server.dsn, mark, (None,))
    for text in shown:
        assert "/discard" in text and "quarantine discard" in text
        assert "/release" not in text and "quarantine release" not in text
        assert "Each batch replaces the whole table" in text and "sluice replay feed --deliveries" in text


def test_nothing_is_offered_to_be_released_of_a_pipeline_whose_dag_is_gone(
    server: Server, decisions: list[str]
) -> None:
    pages = {path.rpartition("/")[0] for path in decisions}
    releases = [path for path in decisions if path.endswith("/release")]
    notes = [server.note(path) for path in releases]
    before = states(server)
    mark_stale(server, "feed", True)
    try:
        shown = [server.get(page, "root").text for page in pages]
        refused = [server.post(path, "root", note) for path, note in zip(releases, notes, strict=True)]
        refused += [server.get(path, "root") for path in releases]
        every = server.get("/", "root").text
    finally:
        mark_stale(server, "feed", False)
    assert {answer.status_code for answer in refused} == {409}
    assert states(server) == before
    assert "Airflow has no DAG of it" in every
    for text in [*shown, *(answer.text for answer in refused)]:
        assert "Airflow has no DAG of feed: its declaration is gone, or has a mistake." in text
    for text in shown:
        assert "/discard" in text and "quarantine discard" in text
        assert "/release" not in text and "quarantine release" not in text
    assert "/release" in server.get(pages.pop(), "root").text


def mark_stale(server: Server, dag_id: str, stale: bool) -> None:
    """Say in Airflow's own database whether a DAG is gone, as its processor does when no file has it."""
    with closing(sqlite3.connect(server.config.parent / "airflow.db")) as connection, connection:
        connection.execute("UPDATE dag SET is_stale = ? WHERE dag_id = ?", (stale, dag_id))


def test_the_tabs_of_the_dag_for_replays_lead_to_the_pipelines_pages(server: Server) -> None:
    tab, run = "/feed_replays/", "/feed_replays/run?run_id=manual__1%2B2&task_id=run"
    answers = [server.get(path, "ada") for path in (tab, run)]
    assert [answer.status_code for answer in answers] == [303, 303]
    places = [answer.headers["location"] for answer in answers]
    assert places == ["../feed/", "../feed/run?dag=feed_replays&run_id=manual__1%2B2&task_id=run"]
    shown = [server.get(place.removeprefix(".."), "ada") for place in places]
    assert [answer.status_code for answer in shown] == [200, 200]
    assert "No try of it has begun" in shown[1].text
    assert [server.get(path, "eve").status_code for path in (tab, run)] == [403, 403]
    of_another = server.get("/small/run?dag=feed&run_id=scheduled__5", "eve").text
    assert "No try of it has begun" in of_another


def test_corrections_take_the_right_to_release_and_are_bounded(server: Server) -> None:
    before, path = states(server), "/feed/quarantine/36/correct"
    for user, status in (("ada", 403), ("ian", 403), ("rae", 200), ("root", 200)):
        assert server.get(path, user).status_code == status
    note = server.note(path)

    def post(given: str) -> tuple[int, str]:
        origin = {"Origin": server.address, "Sec-Fetch-Site": "same-origin"}
        answer = server.get(
            path, "root", "POST", data={"note": note, "why": WHY, "corrections": given}, headers=origin
        )
        return answer.status_code, answer.text

    for given, status, said in (
        ("{", 409, "they are no JSON"),
        ("x" * 200_001, 422, "corrections"),
        ("x" * 1_000_001, 413, "at most 1,000,000 bytes"),
        ('{"c3": 1}', 409, "Airflow refused to start a run of feed_replays"),  # no DAG file has it
    ):
        code, text = post(given)
        assert (code, said in text) == (status, True)
    server.config.write_text(f"{server.config.read_text()}releases_per_hour = 2\n")
    ask_for_releases(server, "feed_replays", 2)
    code, text = post('{"c3": 1}')
    assert (code, "feed: 2 releases of held rows since" in text, "try again after" in text) == (
        429,
        True,
        True,
    )
    server.point_to(server.dsn)
    assert states(server) == before


def ask_for_releases(server: Server, dag_id: str, count: int) -> None:
    """Put runs of so many releases from the pages, of now, into Airflow's own database."""
    runs = [(dag_id, f"release__{number}") for number in range(count)]
    with closing(sqlite3.connect(server.config.parent / "airflow.db")) as connection, connection:
        connection.executemany(
            "INSERT INTO dag_run (dag_id, run_id, state, run_type, run_after, created_at)"
            " VALUES (?, ?, 'queued', 'manual', datetime(), datetime())",
            runs,
        )


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": ""},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "null"},
        {"Origin": ""},
    ],
)
def test_a_form_from_elsewhere_changes_nothing(
    server: Server, decisions: list[str], headers: dict[str, str]
) -> None:
    before = states(server)
    for path in decisions:
        answer = server.post(path, "root", server.note(path), **headers)
        assert answer.status_code == 403
        assert "Nothing was changed" in answer.text
    assert states(server) == before


def test_a_note_counts_for_its_user_its_rows_its_action_and_ten_minutes(
    server: Server, decisions: list[str]
) -> None:
    before = states(server)
    notes = {path: server.note(path) for path in decisions}
    too_old = dict(zip(notes, aged(server, list(notes.values())), strict=True))
    for path, note in notes.items():
        others = [other for one, other in notes.items() if one != path]
        others += [
            server.note(path.replace("/6/", "/7/").replace("/58/", "/55/")),
            server.note(path, "bob"),
            too_old[path],
        ]
        for wrong in ("", "x", note[:-1], f"{note}x", note.replace(".", "", 1), *others):
            assert server.post(path, "root", wrong).status_code == 403, wrong
        for why in ("", "  ", "x" * 2001, "\0"):
            assert server.post(path, "root", note, why).status_code == 422
    assert states(server) == before


def aged(server: Server, notes: list[str]) -> list[str]:
    """Return the same notes, rightly signed eleven minutes ago."""
    code = f"""
import json, time
from etl.airflow.pages.deciding.decisions import _notes
now = time.time
contents = [_notes().loads(note) for note in {notes!r}]
time.time = lambda: now() - 660
print(json.dumps([_notes().dumps(content) for content in contents]))"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=server.environment, capture_output=True, text=True, check=True
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_discard_changes_exactly_the_rows_that_were_shown_once(server: Server) -> None:
    before, path = states(server), "/feed/quarantine/16/discard"
    note = server.note(path, "bob")
    done = server.post(path, "bob", note)
    assert (done.status_code, done.headers["location"]) == (303, "../16")
    after = states(server)
    assert set(after["discarded"]) - set(before["discarded"]) == {16}
    assert set(before["held"]) - set(after["held"]) == {16}
    query = "SELECT decided_by, why FROM sluice.quarantine WHERE quarantine_id = 16"
    assert oracle.ask(server.dsn, query) == [("bob", WHY)]
    shown = server.get("/feed/quarantine/16", "ada").text
    assert "<b>bob</b> decided" in shown
    assert "test&lt;/b&gt; data" in shown
    again = server.post(path, "bob", note)
    assert again.status_code == 409
    assert "somebody else has changed them since. Nothing was changed" in again.text
    assert "Nothing is held here" in server.get(path, "bob").text


def test_a_batchs_held_rows_are_discarded_together_unless_they_are_no_longer_those_shown(
    server: Server,
) -> None:
    [(delivery, rows)] = oracle.ask(server.dsn, OF_LAST_BUT_ONE)
    path = f"/feed/batch/{delivery}/discard"
    assert "Discard 5 rows" in server.get(path, "bob").text
    stale = server.note(path, "bob")
    one = f"/feed/quarantine/{rows[0]}/discard"
    assert server.post(one, "bob", server.note(one, "bob")).status_code == 303
    before = states(server)
    assert server.post(path, "bob", stale).status_code == 409
    assert states(server) == before
    assert server.post(path, "bob", server.note(path, "bob"), "all of them").status_code == 303
    assert set(before["held"]) - set(states(server)["held"]) == set(rows[1:])
    assert "<b>bob</b> discarded 4 rows" in server.get(f"/feed/batch/{delivery}", "ada").text


OF_LAST_BUT_ONE = """SELECT delivery_id, array_agg(quarantine_id ORDER BY 1) FROM sluice.quarantine
WHERE pipeline = 'feed' AND status = 'held' GROUP BY 1 ORDER BY 1 DESC OFFSET 1 LIMIT 1"""


def test_a_release_that_airflow_can_not_start_changes_nothing(server: Server) -> None:
    before, path = states(server), "/feed/quarantine/26/release"
    answer = server.post(path, "root", server.note(path))
    assert answer.status_code == 409
    assert "Airflow refused to start a run of feed_replays" in answer.text  # no DAG file has it
    assert states(server) == before


@pytest.fixture
def stopped(server: Server) -> Iterator[None]:
    """The pipeline `feed` has a stopped batch."""
    oracle.ask(server.dsn, STOPPED)
    yield
    oracle.ask(server.dsn, "DELETE FROM sluice.stopped_batch")


def decided(server: Server) -> list[tuple[object, ...]]:
    return oracle.ask(server.dsn, "SELECT decision, decided_by, why FROM sluice.stopped_batch")


@pytest.mark.usefixtures("stopped")
def test_a_stop_is_decided_on_by_who_may_answer_what_its_dag_asks_and_by_no_other(server: Server) -> None:
    page, note = STOP.rpartition("/")[0], server.note(STOP)
    for user, reads in (("ada", 200), ("tri", 200), ("eve", 403)):  # tri: may trigger both DAGs
        shown = server.get(page, user)
        assert (shown.status_code, f"stopped/{DECISION}" in shown.text) == (reads, False)
        assert server.get(STOP, user).status_code == 403
        assert server.post(STOP, user, note).status_code == 403
    assert server.get(STOP).status_code == server.post(STOP, None, note).status_code == 401
    other = STOP.replace(DECISION, "accept")
    assert server.post(other, "root", note).status_code == 403, "it was drawn for another decision"
    assert server.post(STOP, "root", note, **{"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert decided(server) == [(None, None, None)]
    done = server.post(STOP, "root", note)
    assert (done.status_code, done.headers["location"]) == (303, "../stopped")
    assert decided(server) == [(DECISION, "root", WHY)]
    assert "test&lt;/b&gt; data" in server.get(page, "ada").text


def test_an_alert_is_taken_up_by_who_may_trigger_the_dag_in_their_name_and_by_no_other(
    server: Server,
) -> None:
    told = (
        "INSERT INTO sluice.alert (pipeline, kind, known_as, text)"
        " VALUES (%s, 'failed', 'sluice/failed', 'it <b>failed</b>') RETURNING alert_id"
    )
    [(number,)], [(others,)] = (oracle.ask(server.dsn, told, [name]) for name in ("feed", "small"))
    page, form = "/feed/alerts", f"/feed/alerts/{number}/acknowledge"
    assert "1 alert is open" in server.get("/feed/", "ada").text
    assert "it &lt;b&gt;failed&lt;/b&gt;" in server.get(page, "ada").text
    note = server.note(form, "tri")
    for user, reads in (("ada", 200), ("may", 200), ("eve", 403)):
        shown = server.get(page, user)
        assert (shown.status_code, f"alerts/{number}/acknowledge" in shown.text) == (reads, False)
        assert server.get(form, user).status_code == server.post(form, user, note).status_code == 403
    assert server.post(form, "root", note).status_code == 403, "it was drawn for somebody else"
    assert server.post(form, "tri", note, **{"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert server.get(f"/feed/alerts/{others}/acknowledge", "tri").status_code == 404, (
        "it is of another pipeline"
    )
    taken = "SELECT acknowledged_by FROM sluice.alert ORDER BY alert_id"
    assert oracle.ask(server.dsn, taken) == [(None,), (None,)]
    late = server.note(form, "root")
    done = server.post(form, "tri", note)
    assert (done.status_code, done.headers["location"]) == (303, "../../alerts")
    assert oracle.ask(server.dsn, taken) == [("tri",), (None,)]
    assert "<b>tri</b> has it" in server.get(page, "ada").text
    answer = server.post(form, "root", late)
    assert (answer.status_code, "somebody has taken it up" in answer.text) == (409, True)


@pytest.mark.usefixtures("stopped")
def test_a_stop_that_is_not_as_it_was_shown_is_not_decided_on(server: Server) -> None:
    note = server.note(STOP)
    oracle.ask(server.dsn, "UPDATE sluice.stopped_batch SET stopped_at = stopped_at + interval '1 second'")
    answer = server.post(STOP, "root", note)
    assert (answer.status_code, "has stopped once more" in answer.text) == (409, True)
    first, second = server.note(STOP), server.note(STOP.replace(DECISION, "accept"))
    assert server.post(STOP, "root", first).status_code == 303
    answer = server.post(STOP.replace(DECISION, "accept"), "root", second)
    assert (answer.status_code, "was decided on meanwhile: quarantine-all, by root" in answer.text) == (
        409,
        True,
    )
    assert decided(server) == [(DECISION, "root", WHY)]
    assert server.get(STOP, "root").status_code == 404, "nothing waits for a decision"


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


def test_the_pages_reach_the_postgresql_of_a_connection_that_airflows_database_or_a_secrets_backend_keeps(
    server: Server,
) -> None:
    kept = as_connection(server.dsn)
    body = {"connection_id": "in_the_database", **kept, "extra": json.dumps(kept["extra"])}
    signed_in = {"Authorization": f"Bearer {server.token('root')}"}
    made = httpx.post(f"{server.address}/api/v2/connections", json=body, headers=signed_in, timeout=60)
    assert made.status_code == 201, made.text
    try:
        for name in ("in_the_database", "in_the_vault"):
            server.point_by(name)
            assert 'href="feed/"' in server.get("/", "ada").text, name
        server.point_by("nowhere")
        answer = server.get("/", "ada")
    finally:
        server.point_to(server.dsn)
    assert answer.status_code == 503
    assert "names Airflow&#39;s Connection nowhere, which can&#39;t be had" in answer.text
    assert "`airflow connections get nowhere`" in answer.text


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
    until(lambda: oracle.ask(server.dsn, query) == [(0,)], "the end of the pages' connections", patience=20)
