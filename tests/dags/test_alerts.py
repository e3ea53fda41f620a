"""What is alerted of, once for each cause, and sent again where the webhook does not take it for now."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from jinja2 import Environment, StrictUndefined

from etl.airflow.alerts import FAILED, RESTARTED, TASK_FAILED, restarts
from etl.airflow.operator import SluiceRunOperator, failure
from etl.airflow.process import Finished
from etl.airflow.retries import OUTAGES, STEADY, Retries, RunFailed, TryLater, kept_up
from etl.runs.summary import Summary
from tests.support.airflow.listeners import Inbox, webhook


@pytest.fixture(autouse=True)
def no_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs in this home: an alert goes out without being kept. Those that are, tests/service/test_alerts.py has."""
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))


def told(inbox: Inbox) -> list[dict[str, Any]]:
    """Return of each alert what a receiver goes by."""
    return [{name: one[name] for name in ("kind", "pipeline", "text")} for one in inbox.found]


def failed(code: int, *, up: timedelta = timedelta(0)) -> RunFailed:
    return failure(Finished(exit_code=code, printed="", result=None, said=()), up=up)


@pytest.mark.parametrize("words", [FAILED, RESTARTED, TASK_FAILED])
def test_an_alert_comes_of_a_worker_that_was_lost(words: str) -> None:
    """Its callbacks run elsewhere, and know of no exception."""
    named = {"dag": SimpleNamespace(dag_id="flights"), "task": SimpleNamespace(task_id="audit")}
    template = Environment(undefined=StrictUndefined, autoescape=True).from_string(words)
    assert template.render(named).endswith(": its worker was lost")
    assert template.render(named, exception="exit code 3").endswith(": exit code 3")


@pytest.mark.parametrize("limit", [None, 0.5])
def test_rows_that_a_run_left_out_behind_the_watermark_are_alerted_of(
    monkeypatch: pytest.MonkeyPatch, limit: float | None
) -> None:
    task = SluiceRunOperator(task_id="run", pipeline="hours", alert_quarantine_share=limit)
    summary = Summary(pipeline="hours", stream="", run="", quarantined=6, rows_in=7, records=1186)
    with webhook() as inbox:
        monkeypatch.setenv("SLUICE_ALERT_WEBHOOK", f"http://127.0.0.1:{inbox.port}/")
        task._alert(summary)
        task._alert(replace(summary, dropped=200))
    left = "200 rows, or groups of rows, came behind the watermark and are in neither sink"
    text = f"hours: of what a run read {left}"
    assert told(inbox) == [{"kind": "dropped", "pipeline": "hours", "text": text}]


@pytest.mark.parametrize(("limit", "alerts"), [(None, 0), (0.5, 1), (0.6, 0)])
def test_held_rows_are_alerted_of_beyond_a_declared_share(
    monkeypatch: pytest.MonkeyPatch, limit: float | None, alerts: int
) -> None:
    task = SluiceRunOperator(task_id="run", pipeline="hours", alert_quarantine_share=limit)
    summary = Summary(pipeline="hours", stream="", run="", quarantined=6, rows_in=10)
    with webhook() as inbox:
        monkeypatch.setenv("SLUICE_ALERT_WEBHOOK", f"http://127.0.0.1:{inbox.port}/")
        task._alert(summary)
    text = "hours holds 60.00% of a run's records in quarantine, more than 50.00%"
    assert told(inbox) == [{"kind": "quarantine", "pipeline": "hours", "text": text}] * alerts


def test_a_run_that_stays_up_tells_of_its_restarts_and_not_of_each_in_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dag = DAG("fleet")
    with webhook() as inbox:
        monkeypatch.setenv("SLUICE_ALERT_WEBHOOK", f"http://127.0.0.1:{inbox.port}/")
        [tell] = restarts("fleet")
        for ended in (TryLater("S3 is away"), failed(75, up=STEADY), failed(70)):
            tell({"dag": dag, "exception": ended})  # type: ignore[typeddict-item]
    assert [one["text"].partition(":")[0] for one in inbox.found] == [
        "fleet died and will be started again"
    ] * 2


@pytest.mark.parametrize(
    ("policy", "patience"),
    [
        (kept_up(timedelta(minutes=1)), OUTAGES),
        (Retries(retries=2, retry_delay=timedelta(minutes=1)), 2),
    ],
    ids=["a run that stays up", "another"],
)
def test_waiting_is_alerted_of_once_in_each_outage(
    monkeypatch: pytest.MonkeyPatch, policy: Any, patience: int
) -> None:
    """The count is in the task's state store, which outlives all tries until the task is cleared."""
    task = SluiceRunOperator(
        task_id="run", pipeline="fleet", follow=True, retry_policy=policy, dag=DAG("fleet")
    )
    store: dict[str, Any] = {}
    keep = SimpleNamespace(get=store.get, set=store.__setitem__)
    context: Any = {
        "task_state_store": keep,
        "ti": SimpleNamespace(try_number=1, max_tries=999),
        "dag": DAG("fleet"),
    }
    alerts = []
    with webhook() as inbox:
        monkeypatch.setenv("SLUICE_ALERT_WEBHOOK", f"http://127.0.0.1:{inbox.port}/")
        for _ in range(2):  # outages, each found by a run that had been up for long
            task._note(failed(75, up=STEADY), context)
            for _ in range(patience):
                task._note(TryLater("S3 is away"), context)
            alerts.append(len(inbox.found))
            for _ in range(patience):
                task._note(TryLater("S3 is away"), context)
    assert alerts == [0, 1]
    assert [one["kind"] for one in inbox.found] == ["waiting"] * 2


def test_an_alert_that_no_ledger_keeps_is_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task = SluiceRunOperator(task_id="run", pipeline="hours", alert_quarantine_share=0.5)
    with webhook(503, 429) as inbox:
        monkeypatch.setenv("SLUICE_ALERT_WEBHOOK", f"http://127.0.0.1:{inbox.port}/")
        task._alert(Summary(pipeline="hours", stream="", run="", quarantined=6, rows_in=10))
    assert [one["kind"] for one in inbox.found] == ["quarantine"]


@pytest.mark.parametrize("limit", [None, 0.5])
def test_fields_that_are_new_are_alerted_of_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch, limit: float | None
) -> None:
    task = SluiceRunOperator(task_id="run", pipeline="taps", alert_quarantine_share=limit)
    summary = Summary(pipeline="taps", stream="", run="", rows_in=9, unknown=Counter(shop=5, note=1))
    with webhook() as inbox:
        monkeypatch.setenv("SLUICE_ALERT_WEBHOOK", f"http://127.0.0.1:{inbox.port}/")
        task._alert(summary)
        task._alert(replace(summary, drifted=["note"]))
    [alert] = inbox.found
    assert alert["text"].endswith(", fields that the schema does not name: note (1 record)")
    assert alert["kind"] == "drift"
