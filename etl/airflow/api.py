"""Airflow's REST API as far as Sluice needs it: sign in, start a DAG run, follow it, read what it said.

Every answer is Airflow's own; a refusal is raised as one error with Airflow's words.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

from tenacity import retry, retry_if_exception, stop_after_attempt

from etl.common.errors import ServiceAway, SluiceError

ANSWERS_WITHIN = 20  # seconds
ASKED = 6  # times that what is only read is asked for, where no answer comes: an Airflow that starts tasks can be slow
ENDED = ("success", "failed")
BETWEEN_LOOKS = 0.5  # seconds


class Refused(SluiceError):
    """Airflow answered, and not with what was asked for (exit 2)."""

    exit_code = 2

    def __init__(self, seen: str, *, remedy: str, status: int) -> None:
        super().__init__(seen, remedy=remedy)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class TaskState:
    """Where one task of a run stands."""

    task: str
    state: str | None  # None: not scheduled yet
    tries: int


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """One run that waits, or is at work."""

    run: str
    kind: str  # manual, scheduled, backfill or asset_triggered
    waits: bool


@dataclass(frozen=True, kw_only=True)
class Due:
    """The run that the schedule of a DAG owes: Airflow makes it at once where the DAG is not paused."""

    logical_date: str
    start: str | None  # of its data interval
    end: str | None


@dataclass(frozen=True, kw_only=True)
class Api:
    """One signed-in user."""

    address: str  # http://host:port
    token: str = field(repr=False)

    @retry(
        retry=retry_if_exception(lambda error: _is_slow(error.__cause__)),
        stop=stop_after_attempt(ASKED),
        reraise=True,
    )
    def get(self, path: str) -> Any:
        """Return what is at the path; asked for again where no answer comes. Raises Refused, ServiceAway."""
        return _call("GET", self.address + path, token=self.token)

    def dag_is_known(self, dag: str) -> bool:
        """Return True if the DAG processor has seen the DAG, and its file loads."""
        try:
            return not self.get(f"/api/v2/dags/{quote(dag)}")["has_import_errors"]
        except Refused as refused:
            if refused.status == 404:
                return False
            raise

    def import_errors(self) -> dict[str, str]:
        """Return the traceback of each file of the DAG folder that can't be loaded, by the file's name."""
        errors = self.get("/api/v2/importErrors")["import_errors"]
        return {error["filename"]: error["stack_trace"] for error in errors}

    def is_paused(self, dag: str) -> bool:
        return bool(self.get(f"/api/v2/dags/{quote(dag)}")["is_paused"])

    def unpause(self, dag: str) -> None:
        self._set_paused(dag, paused=False)

    def pause(self, dag: str) -> None:
        """Pause the DAG: no new run is started, and one that runs goes on."""
        self._set_paused(dag, paused=True)

    def _set_paused(self, dag: str, *, paused: bool) -> None:
        address = f"{self.address}/api/v2/dags/{quote(dag)}?update_mask=is_paused"
        _call("PATCH", address, token=self.token, body={"is_paused": paused})

    def due(self, dag: str) -> Due | None:
        """Return the run that the DAG's schedule owes by now; None: none."""
        said = self.get(f"/api/v2/dags/{quote(dag)}")
        date, after = said["next_dagrun_logical_date"], said["next_dagrun_run_after"]
        if date is None or after is None or datetime.fromisoformat(after) > datetime.now(UTC):
            return None
        start, end = (said[f"next_dagrun_data_interval_{name}"] for name in ("start", "end"))
        return Due(logical_date=date, start=start, end=end)

    def trigger(
        self,
        dag: str,
        conf: Mapping[str, Any] | None = None,
        *,
        run_after: datetime | None = None,
        due: Due | None = None,
    ) -> str:
        """Ask for a run of the DAG, and return its run id. The run starts once the DAG is not paused.

        Runs that wait start in the order of their `run_after`, which is now by default. With `due` the run takes
        the place of the one that the schedule owes, which Airflow then does not make: it is refused where another
        run has that place.
        """
        body: dict[str, Any] = {"logical_date": None, "conf": dict(conf or {})}
        if run_after is not None:
            body["run_after"] = run_after.isoformat()
        if due is not None:
            body["logical_date"] = due.logical_date
            body |= {"data_interval_start": due.start, "data_interval_end": due.end}
        address = f"{self.address}/api/v2/dags/{quote(dag)}/dagRuns"
        return str(_call("POST", address, token=self.token, body=body)["dag_run_id"])

    def runs(self, dag: str) -> dict[str, str]:
        """Return the state of each run by its id, the newest first.

        Unpausing alone may start a run that the schedule owes.
        """
        runs = self.get(f"/api/v2/dags/{quote(dag)}/dagRuns?order_by=-run_after")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in runs}

    def unfinished(self, dag: str) -> list[Unfinished]:
        """Return the runs of the DAG that wait, and those that are at work."""
        runs = self.get(f"/api/v2/dags/{quote(dag)}/dagRuns?state=queued&state=running")["dag_runs"]
        return [
            Unfinished(run=run["dag_run_id"], kind=run["run_type"], waits=run["state"] == "queued")
            for run in runs
        ]

    def remove(self, dag: str, run: str) -> None:
        """Remove a run that waits, as if nobody had asked for it. Raises Refused where it is at work."""
        _call("DELETE", self.address + _run(dag, run), token=self.token)

    def queue_again(self, dag: str, run: str) -> None:
        self._set_state(dag, run, "queued")

    def set_failed(self, dag: str, run: str) -> None:
        """Mark a run failed: Airflow ends the tasks of it that are at work, and goes on with none."""
        self._set_state(dag, run, "failed")

    def _set_state(self, dag: str, run: str, state: str) -> None:
        _call("PATCH", self.address + _run(dag, run), token=self.token, body={"state": state})

    def state(self, dag: str, run: str) -> str:
        return str(self.get(_run(dag, run))["state"])

    def tasks(self, dag: str, run: str) -> list[TaskState]:
        instances = self.get(f"{_run(dag, run)}/taskInstances")["task_instances"]
        return [TaskState(task=t["task_id"], state=t["state"], tries=t["try_number"]) for t in instances]

    def follow(self, dag: str, run: str, *, within: float, ticks: bool = False) -> Iterator[TaskState]:
        """Yield every change of the run's tasks as it comes, until the run has ended.

        With `ticks` the tasks are yielded each time they are looked at. Raises ServiceAway where the run has
        not ended after `within` seconds.
        """
        deadline = time.monotonic() + within
        seen: set[TaskState] = set()
        while True:
            ended = self.state(dag, run) in ENDED  # before the tasks: their last change is then seen
            for state in self.tasks(dag, run):
                if ticks or state not in seen:
                    seen.add(state)
                    yield state
            if ended:
                return
            if time.monotonic() > deadline:
                raise ServiceAway(
                    f"the run {run} of {dag} did not end within {within:.0f} s",
                    remedy=f"look at {self.address}/dags/{quote(dag)}/runs/{quote(run)}",
                )
            time.sleep(BETWEEN_LOOKS)

    def log(self, dag: str, run: str, task: str, attempt: int = 1) -> list[str]:
        """Return the log of one try of the task, line by line."""
        path = f"{_run(dag, run)}/taskInstances/{quote(task)}/logs/{attempt}?full_content=true"
        lines = self.get(path)["content"]
        return [line if isinstance(line, str) else str(line["event"]) for line in lines]

    def xcom(self, dag: str, run: str, task: str, key: str = "return_value") -> Any:
        path = f"{_run(dag, run)}/taskInstances/{quote(task)}/xcomEntries/{quote(key)}"
        return self.get(path)["value"]


def sign_in(address: str, login: Path, user: str = "admin") -> Api:
    """Sign in as one of the login file's users, and return the API in that user's name."""
    body = {"username": user, "password": json.loads(login.read_text())[user]}
    token = _call("POST", f"{address}/auth/token", body=body)["access_token"]
    return Api(address=address, token=token)


def heartbeats(address: str) -> dict[str, datetime]:
    """Return when each healthy component last gave a sign of life, by name; empty while nothing answers."""
    try:
        components = _call("GET", f"{address}/api/v2/monitor/health")
    except SluiceError:
        return {}
    if components["metadatabase"]["status"] != "healthy":
        return {}
    beats = {name: health.get(f"latest_{name}_heartbeat") for name, health in components.items()}
    return {
        name: datetime.fromisoformat(beat)
        for name, beat in beats.items()
        if beat and components[name]["status"] == "healthy"
    }


def _run(dag: str, run: str) -> str:
    return f"/api/v2/dags/{quote(dag)}/dagRuns/{quote(run, safe='')}"


def _is_slow(error: BaseException | None) -> bool:
    """Return True for the error of a server that is there and did not answer in time."""
    return isinstance(getattr(error, "reason", error), TimeoutError)


def _call(method: str, address: str, *, token: str | None = None, body: object = None) -> Any:
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = Request(address, data=data, headers=headers, method=method)  # noqa: S310 - http alone
    try:
        # by no proxy: it would not know our 127.0.0.1
        with build_opener(ProxyHandler({})).open(request, timeout=ANSWERS_WITHIN) as answer:
            said = answer.read()
            return json.loads(said) if said else None
    except HTTPError as error:
        said = error.read().decode(errors="replace")[:300]
        raise Refused(
            f"Airflow answered {error.code} to {method} {address}: {said}",
            remedy="see logs/api-server.log in Airflow's folder, <home>/airflow",
            status=error.code,
        ) from error
    except (URLError, OSError, HTTPException) as error:
        if _is_slow(error):
            raise ServiceAway(
                f"Airflow did not answer within {ANSWERS_WITHIN} s at {address}",
                remedy="it runs, and may be busy: the same command again; or see logs/api-server.log in Airflow's folder,"
                " <home>/airflow",
            ) from error
        raise ServiceAway(
            f"Airflow does not answer at {address}: {error}",
            remedy="`sluice airflow` starts it",
        ) from error
