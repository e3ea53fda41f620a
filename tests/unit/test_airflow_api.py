"""What Sluice reads of Airflow's API is asked for again where Airflow is there and slow, and not where it is gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from etl.airflow import api
from etl.airflow.api import Api
from etl.common.errors import ServiceAway


@contextmanager
def slow_server(unanswered: int) -> Iterator[tuple[str, list[str]]]:
    """Serve on a free port: so many first requests get no answer, all others `{}`; yield its address and the requests."""
    asked: list[str] = []
    done = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if len(asked) <= unanswered:
                done.wait()
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            done.set()
            server.shutdown()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "ANSWERS_WITHIN", 0.3)


def test_what_is_read_is_asked_for_again_where_no_answer_comes() -> None:
    with slow_server(unanswered=2) as (address, asked):
        assert Api(address=address, token="t").get("/api/v2/version") == {}
    assert asked == ["/api/v2/version"] * 3


def test_an_airflow_that_never_answers_is_said_to_run() -> None:
    with (
        slow_server(unanswered=99) as (address, asked),
        pytest.raises(ServiceAway, match="did not answer") as told,
    ):
        Api(address=address, token="t").get("/api/v2/version")
    assert len(asked) == api.ASKED
    assert told.value.exit_code == 75
    assert told.value.remedy.startswith("it runs, and may be busy: the same command again")


def test_an_airflow_that_is_gone_is_told_at_once() -> None:
    with slow_server(unanswered=0) as (address, _):
        pass
    with pytest.raises(ServiceAway, match="does not answer") as told:
        Api(address=address, token="t").get("/api/v2/version")
    assert told.value.remedy == "`sluice airflow` starts it"
