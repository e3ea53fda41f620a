"""With SLUICE_LOG=json each line of a command's log is an object with a stable action and the key of its batch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.data.orders import NAME, NEGATIVE, orders
from tests.support.home import Home

KEYS = {"time", "level", "action", "message", "pipeline", "run", "batch", "delivery"}


def lines(log: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in log.splitlines()]
    assert all(one.keys() >= KEYS for one in found)
    return found


def test_each_line_of_a_run_is_an_object_with_its_action_and_its_batch(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_LOG", "json")
    home.land("orders/a.jsonl", orders(0, 12, negative=[3]), ["{broken"])
    home.land("orders/b.jsonl", orders(20, 6))
    home.land("orders/c.jsonl", orders(30, 6))
    text = (home.root / "my pipelines" / f"{NAME}.py").read_text()
    home.declare(text=f"{text}\nprint('from the pipeline')\n")
    done = home.sluice("run", NAME, "--json")
    summary, found = json.loads(done.stdout), lines(done.stderr)
    actions = [one["action"] for one in found]
    assert actions.count("batch-delivered") == 2
    assert [one["message"] for one in found if one["action"] == "told"] == ["from the pipeline"]
    assert (actions.index("run-began"), actions[-1]) == (1, "run-ended")
    of_run = [one for one in found if one["run"] is not None]
    assert {(one["pipeline"], one["run"]) for one in of_run} == {(NAME, summary["run"])}
    assert {one["level"] for one in found} == {"info"}
    first, second = (one for one in found if one["action"] == "batch-delivered")
    assert [(one["batch"], one["delivery"]) for one in (first, second)] == [
        (0, summary["deliveries"][0]),
        (1, summary["deliveries"][1]),
    ]
    assert (first["delivered"] + second["delivered"], first["quarantined"]) == (23, 2)
    assert first["reasons"] == {NEGATIVE: 1, "malformed": 1}
    assert set(first["phases"]) == {"stage", "judge", "draft", "transaction"}
    assert found[-1]["outcome"] == "done"


def test_what_ends_a_command_is_one_line(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_LOG", "json")
    failed = home.sluice("run", "nobody")
    [line] = lines(failed.stderr)
    assert (failed.returncode, line["exit_code"]) == (2, 2)
    assert (line["action"], line["level"], line["error"]) == ("command-failed", "error", "SetupError")
    assert "nobody" in line["message"]
    assert line["next"]
    usage = home.sluice("run", "--nothing")
    assert usage.returncode == 2
    assert any("--nothing" in one["message"] for one in lines(usage.stderr))
    monkeypatch.setenv("SLUICE_LOG", "xml")
    wrong = home.sluice("status")
    assert "SLUICE_LOG: must be 'text' or 'json'" in wrong.stderr
