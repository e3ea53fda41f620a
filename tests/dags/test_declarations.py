"""A declaration that is wrong, or that Airflow refuses, is told in the DAG folder, and the others keep their DAGs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.airflow.dag_files import ALWAYS, BAG, asked
from tests.support.environment import REPOSITORY


def test_a_broken_declaration_is_an_import_error_and_the_others_keep_their_dags(tmp_path: Path) -> None:
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    good = (REPOSITORY / "etl/pipelines/flights.py").read_text()
    (pipelines / "flights.py").write_text(good)
    (pipelines / "broken.py").write_text(good.replace('name="flights"', 'name="No Name"'))
    found = asked(BAG, str(REPOSITORY / "dags"), home=tmp_path, SLUICE_PIPELINES=str(pipelines))
    assert "flights" in found["dags"]
    assert list(found["errors"]) == ["declarations.py"]
    assert "'No Name' must match" in found["errors"]["declarations.py"]
    for mistake in (
        good.replace("PIPELINE = Pipeline(", "PIPELINE = Pipeline(("),
        good.replace("suite=", "suit="),
    ):
        (pipelines / "flights.py").write_text(mistake)
        found = asked(BAG, str(REPOSITORY / "dags"), home=tmp_path, SLUICE_PIPELINES=str(pipelines))
        assert set(found["dags"]) == ALWAYS, "the DAG downstream stays"
        assert "flights.py: line" in found["errors"]["declarations.py"]


def test_a_schedule_that_airflow_alone_refuses_is_reported_and_the_others_keep_their_dags(
    tmp_path: Path,
) -> None:
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    good = (REPOSITORY / "etl/pipelines/flights.py").read_text()
    bad = good.replace('name="flights"', 'name="mistyped"').replace('"@daily"', '"0 25 * * *"')
    assert bad.count("0 25 * * *") == 1
    (pipelines / "flights.py").write_text("\ufeff" + good)  # as some editors begin a file
    (pipelines / "mistyped.py").write_text(bad)
    told = asked(BAG, str(REPOSITORY / "dags"), home=tmp_path, SLUICE_PIPELINES=str(pipelines))
    unchecked = "import etl.pipeline.airflow_checks as checks\nchecks._cron_problems = lambda schedule: []\n"
    missed = asked(unchecked + BAG, str(REPOSITORY / "dags"), home=tmp_path, SLUICE_PIPELINES=str(pipelines))
    for found, words in ((told, "is no cron expression"), (missed, "Airflow refuses '0 25 * * *'")):
        assert set(found["dags"]) == {"flights", "flights_replays", *ALWAYS}
        assert list(found["errors"]) == ["declarations.py"]
        assert words in found["errors"]["declarations.py"]
        assert "mistyped.py" in found["errors"]["declarations.py"]


PLACED = """
def when():
    from airflow.timetables.trigger import MultipleCronTriggerTimetable

    return MultipleCronTriggerTimetable("0 6 * * 1-5", "0 10 * * 6", timezone="Europe/Berlin")


def pod():
    return {"pod_override": {"memory": "8Gi"}}


PIPELINE = Pipeline(
    airflow=Airflow(
        queue="large", executor_config=pod, pool="vendors", pool_slots=2, priority_weight=7,
        execution_timeout=dt.timedelta(hours=2),
        access_control={"desk": {"can_edit"}}, replays_access_control={"owners": {"can_edit"}},
    ),
"""


@pytest.fixture
def placed(tmp_path: Path) -> str:
    """Return the declaration of a pipeline that says where and when Airflow runs it."""
    declared = (REPOSITORY / "etl/pipelines/flights.py").read_text()
    assert declared.count('schedule="@daily"') == 1
    declared = declared.replace('schedule="@daily"', "schedule=when").replace(
        "PIPELINE = Pipeline(\n", PLACED
    )
    return declared.replace(
        "from etl.pipeline import ", "import datetime as dt\nfrom etl.pipeline import Airflow, "
    )


def test_tasks_and_dags_have_what_the_declaration_says_of_airflow(tmp_path: Path, placed: str) -> None:
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    (pipelines / "flights.py").write_text(placed)
    found = asked(BAG, str(REPOSITORY / "dags"), home=tmp_path, SLUICE_PIPELINES=str(pipelines))
    assert found["errors"] == {}
    dags = found["dags"]
    assert dags["flights"]["timetable"]["__type"].endswith("MultipleCronTriggerTimetable")
    rights = [list(dags[name]["access_control"]["__var"]) for name in ("flights", "flights_replays")]
    assert rights == [["desk"], ["owners"]]
    for name in ("flights", "flights_replays"):
        [task] = [one["__var"] for one in dags[name]["tasks"]]
        assert (task["queue"], task["pool"], task["pool_slots"]) == ("large", "vendors", 2)
        assert (task["priority_weight"], task["execution_timeout"]) == (7, 7200.0)
        assert "8Gi" in json.dumps(task["executor_config"])
    for one in (one["__var"] for one in dags["sluice_maintenance"]["tasks"]):
        assert (one["queue"], one.get("pool", "default_pool")) == ("large", "default_pool")
        assert "8Gi" in json.dumps(one["executor_config"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            ("MultipleCronTriggerTimetable(", "NoSuch("),
            "schedule: Airflow refuses what when() returns: name 'NoSuch'",
        ),
        (
            ("schedule=when", "schedule=lambda: 5"),
            "Airflow refuses its DAG, as `schedule` and `airflow` have it: ",
        ),
        (
            ('return {"pod_override": {"memory": "8Gi"}}', 'raise ValueError("no pod")'),
            "Airflow refuses its DAG, as `schedule` and `airflow` have it: no pod",
        ),
    ],
)
def test_what_a_function_for_airflow_makes_wrong_is_reported_and_the_others_keep_their_dags(
    tmp_path: Path, placed: str, change: tuple[str, str], told: str
) -> None:
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    good = (REPOSITORY / "etl/pipelines/flights.py").read_text()
    (pipelines / "flights.py").write_text(good)
    (pipelines / "placed.py").write_text(placed.replace('name="flights"', 'name="placed"').replace(*change))
    found = asked(BAG, str(REPOSITORY / "dags"), home=tmp_path, SLUICE_PIPELINES=str(pipelines))
    assert set(found["dags"]) == {"flights", "flights_replays", *ALWAYS}
    assert list(found["errors"]) == ["declarations.py"]
    assert told in found["errors"]["declarations.py"]


@pytest.mark.parametrize(
    ("change", "made"),
    [
        (("", ""), {"flights", "flights_replays", "flights_delays", "flights_by_day"}),
        (
            ('day("scheduled_departure")', 'day("time_hour")'),
            {"flights", "flights_replays", "flights_delays"},
        ),
        (("dep_delay", "late"), {"flights", "flights_replays"}),  # a user's own, which it can't read
        (('name="flights"', 'name="departures"'), {"departures", "departures_replays"}),
    ],
)
def test_the_example_downstream_is_there_only_where_its_pipeline_is_declared(
    tmp_path: Path, change: tuple[str, str], made: set[str]
) -> None:
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    declared = (REPOSITORY / "etl/pipelines/flights.py").read_text().replace(*change)
    (pipelines / "mine.py").write_text(declared)
    found = asked(BAG, str(REPOSITORY / "dags"), home=tmp_path, SLUICE_PIPELINES=str(pipelines))
    assert (set(found["dags"]), found["errors"]) == ({*made, "sluice_maintenance"}, {})


@pytest.mark.parametrize(
    ("file", "dag_id", "task_id", "made"),
    [
        ("pipelines.py", "mine", "run", {"mine": ["run"]}),
        ("pipelines.py", "mine_replays", "run", {"mine_replays": ["run"]}),
        ("pipelines.py", "other", "run", {"other": ["run"]}),  # no text of a file has this name
        ("pipelines.py", "gone", "run", {}),
        (
            "maintenance.py",
            "sluice_maintenance",
            "sweep_mine",
            {"sluice_maintenance": ["audit_mine", "sweep_mine"]},
        ),
        ("declarations.py", "mine", None, {}),
    ],
)
def test_the_start_of_a_task_makes_its_dag_alone_and_minds_no_other_pipelines_file(
    tmp_path: Path, file: str, dag_id: str, task_id: str | None, made: dict[str, list[str]]
) -> None:
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    declared = (REPOSITORY / "etl/pipelines/flights.py").read_text()
    (pipelines / "z.py").write_text(declared.replace('name="flights"', 'name="mine"'))
    (pipelines / "other.py").write_text(declared.replace('name="flights"', 'name="".join(("o", "ther"))'))
    noted = tmp_path / "run"
    (pipelines / "a.py").write_text(f"open({str(noted)!r}, 'a').write('run')\nPIPELINE = None\n")
    context = {"_AIRFLOW_PARSING_CONTEXT_DAG_ID": dag_id}
    if task_id is not None:
        context["_AIRFLOW_PARSING_CONTEXT_TASK_ID"] = task_id
    found = asked(
        BAG, str(REPOSITORY / "dags" / file), home=tmp_path, SLUICE_PIPELINES=str(pipelines), **context
    )
    tasks = {
        name: sorted(one["__var"]["task_id"] for one in dag["tasks"]) for name, dag in found["dags"].items()
    }
    assert (tasks, found["errors"]) == (made, {})
    assert noted.exists() == (dag_id in ("other", "gone")), (
        "only where no text has the name is every file run"
    )
