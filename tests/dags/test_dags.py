"""The DAG folder as Airflow's DAG processor sees it: light to load, the DAGs of each declared pipeline."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Asset

from etl.airflow.operator import SluiceRunOperator, task_try_of
from etl.airflow.retries import (
    WAITS,
)
from etl.airflow.run_form import RunForm
from etl.airflow.told import PAGES, told_to
from etl.pipeline import Append, Files, Replace, day, identity, load_pipelines
from etl.pipeline.dag_names import pipeline_of, replays_of
from etl.pipelines.flights import PIPELINE
from tests.support.airflow.dag_files import ALWAYS, BAG, asked, asked_anew

ROOT = Path(__file__).resolve().parents[2]
# What the folder may load beside the standard library and Airflow itself.
ALLOWED = {"airflow", "dotenv", "etl", "psycopg2", "pydantic", "pydantic_settings"}

LOADED = """
import json, runpy, sys
import airflow.sdk
from airflow.sdk import DAG, Asset, BaseOperator, CronDataIntervalTimetable, ExceptionRetryPolicy, Param
from airflow.sdk import RetryRule, dag, task
before = set(sys.modules)
for file in sys.argv[1:]:
    runpy.run_path(file)
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(tops - set(sys.stdlib_module_names))))
"""


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return asked(BAG, str(ROOT / "dags"), home=tmp_path_factory.mktemp("airflow"))


@pytest.fixture
def task(bag: Any) -> Any:
    [found] = bag["dags"]["flights"]["tasks"]
    return found["__var"]


def test_loading_the_folder_adds_few_imports(tmp_path: Path) -> None:
    files = [str(path) for path in sorted((ROOT / "dags").glob("*.py"))]
    assert len(files) >= 4
    assert set(asked_anew(LOADED, *files, home=tmp_path)) <= ALLOWED


def test_the_plugin_loads_no_page_before_one_is_asked_for(tmp_path: Path) -> None:
    heavy = ("pyspark", "great_expectations", "pandas", "pyiceberg", "etl.airflow.pages")
    code = f"""import json, sys
from airflow.plugins_manager import get_fastapi_plugins
[mounted] = [one for one in get_fastapi_plugins()[0] if one["url_prefix"] == "/data-quality"]
print(json.dumps([name for name in {heavy!r} if name in sys.modules]))"""
    assert asked_anew(code, home=tmp_path) == []


def test_every_declared_pipeline_has_its_dag(bag: Any) -> None:
    assert bag["errors"] == {}
    declared = {path.stem for path in (ROOT / "etl/pipelines").glob("[!_]*.py")}
    assert declared <= set(bag["dags"])


def test_a_schedule_gives_intervals_with_a_length_and_runs_do_not_overlap(bag: Any) -> None:
    dag = bag["dags"]["flights"]
    assert dag["timetable"]["__type"].endswith("CronDataIntervalTimetable")
    assert dag["catchup"] is False
    assert dag["max_active_runs"] == 1


def test_the_dag_downstream_looks_each_hour_also_without_an_event_and_tries_again(bag: Any) -> None:
    dag = bag["dags"]["flights_delays"]
    schedule = dag["timetable"]
    assert schedule["__type"].endswith("AssetOrTimeSchedule")
    assert schedule["__var"]["timetable"]["__var"]["expression"] == "0 * * * *"
    assert (dag["max_active_runs"], dag["catchup"]) == (1, False)
    [task] = [one["__var"] for one in dag["tasks"]]
    assert task["retries"] == 3
    assert [outlet["__var"]["uri"] for outlet in task["outlets"]] == ["x-sluice://flights_delays"]


def test_only_what_is_partitioned_by_time_names_partitions(bag: Any) -> None:
    def named(dag: str) -> bool:
        [task] = [one["__var"] for one in bag["dags"][dag]["tasks"]]
        return f"x-sluice://{pipeline_of(dag)}/partitions" in [one["__var"]["uri"] for one in task["outlets"]]

    sinks = {name: one.sink for name, one in load_pipelines([ROOT / "etl/pipelines"]).items()}
    by_time = {name for name, sink in sinks.items() if sink.partition_by}
    assert {pipeline_of(dag) for dag in set(bag["dags"]) - ALWAYS if named(dag)} == by_time
    assert {name for name in by_time if named(replays_of(name))} == by_time
    for sink in (Append(), Append(partition_by=identity("carrier")), Replace(partition_by=day("time_hour"))):
        assert not replace(PIPELINE, sink=sink).names_partitions


def test_a_dag_has_the_pipelines_owner_and_tags(bag: Any, task: Any) -> None:
    assert task["owner"] == PIPELINE.owner
    assert set(bag["dags"]["flights"]["tags"]) == {"sluice", *PIPELINE.tags}


def test_a_run_has_the_pipelines_own_pool_and_tells_of_both_outputs(task: Any) -> None:
    assert task["pool"] == "sluice_flights"
    assert [outlet["__var"]["uri"] for outlet in task["outlets"]] == [
        "x-sluice://flights/postgresql",
        "x-sluice://flights/lake",
        "x-sluice://flights/partitions",
    ]


@pytest.mark.parametrize("dag", ["flights", "flights_replays", "sluice_maintenance"])
def test_each_task_has_the_policy_and_as_many_retries_as_it_may_ask_for(bag: Any, dag: str) -> None:
    for one in bag["dags"][dag]["tasks"]:
        task = one["__var"]
        assert task["has_retry_policy"] is True
        assert (task["retries"], task["max_retry_delay"]) == (3 + WAITS, 1800)
        assert (task["retry_delay"], task["retry_exponential_backoff"]) == (60, 2.0)


def test_replays_have_a_dag_and_a_pool_of_their_own_which_nobody_has_to_unpause(bag: Any) -> None:
    dag = bag["dags"]["flights_replays"]
    assert dag["timetable"]["__type"].endswith("NullTimetable")
    assert (dag["max_active_runs"], dag["catchup"], dag["is_paused_upon_creation"]) == (1, False, False)
    assert not dag.get("deadline")
    assert set(dag["tags"]) == {"sluice-replays", *PIPELINE.tags}
    [task] = [one["__var"] for one in dag["tasks"]]
    assert (task["pool"], task["retries"], task["owner"]) == (
        "sluice_flights_replays",
        3 + WAITS,
        PIPELINE.owner,
    )
    assert task["outlets"] == bag["dags"]["flights"]["tasks"][0]["__var"]["outlets"]


def test_a_pipeline_into_whose_sink_no_row_is_released_has_no_dag_for_replays(bag: Any) -> None:
    pipelines = load_pipelines([ROOT / "etl/pipelines"])
    without = {name for name in pipelines if replays_of(name) not in bag["dags"]}
    assert without == {"actions_by_day", "delays_by_carrier"}


def test_a_pipeline_that_is_followed_has_a_run_kept_up_until_a_person_is_needed(
    bag: Any, tmp_path: Path
) -> None:
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    declared = (ROOT / "etl/pipelines/fleet.py").read_text()
    assert 'schedule="@daily"' in declared
    (pipelines / "fleet.py").write_text(declared.replace('schedule="@daily"', "follow=True"))
    hook = {"SLUICE_ALERT_WEBHOOK": "http://127.0.0.1:9/hook"}
    found = asked(BAG, str(ROOT / "dags"), home=tmp_path, SLUICE_PIPELINES=str(pipelines), **hook)
    assert found["errors"] == {}
    dag = found["dags"]["fleet"]
    assert dag["timetable"]["__type"].endswith("ContinuousTimetable")
    assert dag["max_consecutive_failed_dag_runs"] == 1, "paused, for the next run would fail at once"
    [task] = [one["__var"] for one in dag["tasks"]]
    assert task["retries"] >= 10_000
    assert (task["retry_delay"], task["max_retry_delay"], task["retry_exponential_backoff"]) == (60, 300, 2.0)
    assert task["has_on_retry_callback"]
    assert "execution_timeout" not in task or task["execution_timeout"] is None
    looks = found["dags"]["sluice_alerts"]
    assert (looks["tasks"][0]["__var"]["task_id"], looks["is_paused_upon_creation"]) == ("look", False)
    beside = found["dags"]["fleet_replays"]
    assert beside["timetable"]["__type"].endswith("NullTimetable")
    assert beside.get("max_consecutive_failed_dag_runs", 0) == 0
    assert beside["tasks"][0]["__var"]["retries"] == 3 + WAITS
    assert bag["dags"]["flights"].get("max_consecutive_failed_dag_runs", 0) == 0


def test_the_page_of_a_dag_says_what_the_pipelines_file_says(bag: Any) -> None:
    assert bag["dags"]["flights"]["doc_md"].startswith("Flights that left New York City in 2013")
    assert "beside its own runs" in bag["dags"]["flights_replays"]["doc_md"]
    assert "`sluice audit`" in bag["dags"]["sluice_maintenance"]["doc_md"]


def test_the_trigger_form_checks_what_is_typed(bag: Any) -> None:
    params = bag["dags"]["flights"]["params"]
    schemas = {name: param["schema"]["__var"] for name, param in params}
    assert schemas.pop("why")["maxLength"] == 2000
    for name in ("accept_changed", "accept_unreadable", "fewer"):
        assert schemas.pop(name)["type"] == "boolean"
    assert schemas.pop("releases")["enum"] == [None, "keep", "drop"]
    assert {name: schema["pattern"] for name, schema in schemas.items()} == {
        "driver_memory": "^[1-9][0-9]*[mg]$",
        "deliveries": "^[0-9]+([.][.][0-9]+)?(,[0-9]+([.][.][0-9]+)?)*$",
    }
    beside = dict(bag["dags"]["flights_replays"]["params"])
    assert beside["release"]["schema"]["__var"]["pattern"] == "^[0-9]+(,[0-9]+)*$", "of that DAG's form alone"


def test_only_the_form_of_a_pipeline_that_closes_folders_asks_for_a_look_into_them(bag: Any) -> None:
    from etl.airflow.factory import pipeline_dag

    files, *others = PIPELINE.sources
    assert isinstance(files, Files)
    closing = replace(PIPELINE, sources=(replace(files, open_for=timedelta(days=1)), *others))
    forms = [set(pipeline_dag(one, None).params) for one in (PIPELINE, closing)]
    assert forms[1] - forms[0] == {"closed"}
    assert forms[0] == {name for name, _ in bag["dags"]["flights"]["params"]}


FILLED_IN = """
import dataclasses, json, sys
from types import SimpleNamespace
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.definitions.param import process_params
from etl.airflow.operator import task_try_of
from etl.airflow.run_form import RunForm
from etl.airflow.task_try import TaskTry
bag = DagBag(sys.argv[1])
run = dict.fromkeys(("data_interval_start", "data_interval_end", "clear_number", "triggering_user_name"))
context = {
    "ti": SimpleNamespace(dag_id="any", run_id="manual", task_id="run", try_number=1, max_tries=0),
    "dag_run": SimpleNamespace(**run, run_type="manual"),
}
found = []
for name, conf in json.loads(sys.argv[2]):
    dag = bag.dags[name]
    task = dag.get_task("run").prepare_for_execution()
    params = process_params(dag, task, conf, suppress_exception=False)
    task.render_template_fields({"params": params})
    context["ti"].task = task
    told = TaskTry.parse(task_try_of(context, task.form, beside=task.beside).json())
    found.append({one.name: getattr(told, one.name) for one in dataclasses.fields(RunForm)})
print("\\n" + json.dumps(found))
"""
NOTHING = dict.fromkeys(
    ("driver_memory", "deliveries", "start", "end", "releases", "release", "corrections", "why")
) | dict.fromkeys(("accept_changed", "accept_unreadable", "fewer", "closed"), False)


@pytest.mark.parametrize(
    ("number", "most", "before"),
    [
        (1, 3, 0),
        (3, 3, 0),
        (2, 4, 1),
        (3, 4, 1),
        (5, 7, 4),
        (1, 4, 0),
    ],  # the last: fewer retries since it began
)
def test_tries_before_a_clear_are_told_by_the_number_of_tries_that_it_raises(
    number: int, most: int, before: int
) -> None:
    run: Any = SimpleNamespace(
        run_type="scheduled",
        clear_number=0,
        data_interval_start=None,
        data_interval_end=None,
        triggering_user_name=None,
    )
    ti = SimpleNamespace(
        dag_id="d",
        run_id="r",
        task_id="run",
        try_number=number,
        max_tries=most,
        task=SimpleNamespace(retries=3),
    )
    context: Any = {"ti": ti, "dag_run": run}
    assert task_try_of(context, RunForm(), beside=False).tries_before_clear == before


def test_what_a_run_was_given_reaches_the_command_as_the_form_has_it(tmp_path: Path) -> None:
    given: dict[str, object] = {"releases": "drop", "accept_changed": True, "accept_unreadable": True}
    given |= {"fewer": True, "why": " a filter\n", "deliveries": "4..7"}
    march = {"start": "2013-03-01", "end": "2013-04-01T00:00:00Z", "releases": "keep"}
    asks = [
        ("flights", {"why": " "}),
        ("flights", given),
        ("flights_replays", None),
        ("flights_replays", march),
    ]
    found = asked(FILLED_IN, str(ROOT / "dags"), json.dumps(asks), home=tmp_path)
    assert found == [NOTHING, NOTHING | given | {"why": "a filter"}, NOTHING, NOTHING | march]
    rows: dict[str, object] = {"release": "17,18", "why": "a refund"}
    both = json.dumps([("flights_replays", rows), ("flights", rows)])
    found = asked(FILLED_IN, str(ROOT / "dags"), both, home=tmp_path)
    assert found == [NOTHING | rows] * 2, "the other past its form, for the command to refuse"


ONE_MORE_FIELD = """
import importlib.util, sys
from pathlib import Path
spec = importlib.util.find_spec("etl.airflow.run_form")
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
before, why, after = Path(spec.origin).read_text().partition("    why: ")
exec(before + '    ticket: str | None = _text("Ticket", "Of whom.", maxLength=9)\\n' + why + after, vars(module))
"""


def test_a_field_that_is_declared_in_one_line_is_in_the_forms_and_reaches_the_command(
    tmp_path: Path,
) -> None:
    asks = json.dumps([(dag, {"ticket": "T-1"}) for dag in ("flights", "flights_replays")])
    found = asked(ONE_MORE_FIELD + FILLED_IN, str(ROOT / "dags"), asks, home=tmp_path)
    assert found == [NOTHING | {"ticket": "T-1"}] * 2


def test_the_operator_takes_the_forms_fields_as_keywords_of_its_own() -> None:
    keywords = set(inspect.signature(SluiceRunOperator).parameters) - {"kwargs"}
    own = {"pipeline", "alert_quarantine_share", "follow", "beside", "answer_within", "deciders", "python"}
    assert keywords == {*own, *NOTHING}
    with DAG("mine", default_args={"why": "as agreed"}):
        made = SluiceRunOperator(task_id="run", pipeline="orders", release="17")
        many = SluiceRunOperator.partial(task_id="many", driver_memory="4g").expand(pipeline=["a", "b"])
    assert [getattr(made, name) for name in ("why", "release", "deliveries")] == ["as agreed", "17", None]
    assert many.partial_kwargs["driver_memory"] == "4g"
    with pytest.raises(TypeError, match="no_such_field"):
        SluiceRunOperator(task_id="run", pipeline="orders", no_such_field="x")


def test_each_field_of_the_forms_has_a_bound(bag: Any) -> None:
    from etl.airflow.pages.deciding.choices import MOST
    from etl.airflow.run_form import LONGEST_CORRECTIONS, LONGEST_LIST

    for dag in ("flights", "flights_replays"):
        schemas = {name: param["schema"]["__var"] for name, param in bag["dags"][dag]["params"]}
        texts = {name for name, schema in schemas.items() if schema["type"] != "boolean"} - {"releases"}
        bounds = {name: schemas[name]["maxLength"] for name in texts}
        assert bounds.pop("corrections", LONGEST_CORRECTIONS) == LONGEST_CORRECTIONS
        assert all(1 < bound <= 20_000 for bound in bounds.values()), bounds
    assert len(",".join(["9" * 18] * MOST)) <= LONGEST_LIST, "as many rows as a page releases at once"


def test_a_stopped_replay_calls_the_forms_fields_by_their_titles(bag: Any) -> None:
    from etl.airflow.command import request

    titles = {
        name: param["schema"]["__var"]["title"] for name, param in bag["dags"]["flights_replays"]["params"]
    }
    assert titles.items() >= {
        ("deliveries", request.DELIVERIES),
        ("start", request.START),
        ("end", request.END),
        ("releases", request.RELEASES),
        ("accept_changed", request.CHANGED),
        ("accept_unreadable", request.UNREADABLE),
        ("fewer", request.FEWER),
        ("why", request.WHY),
        ("release", request.RELEASE),
    }


def test_the_names_kept_from_pipelines_are_those_of_the_dags_made_of_no_declaration(bag: Any) -> None:
    pipelines = load_pipelines([ROOT / "etl/pipelines"])
    of_pipelines = {*pipelines, *(replays_of(name) for name in pipelines)}
    assert set(bag["dags"]) - of_pipelines == ALWAYS


class Events:
    """Events of an asset as a task reads them, newest first, each a minute older than the last; counts the requests."""

    def __init__(self, made: Sequence[SimpleNamespace]) -> None:
        self.made, self.requests = made, 0
        self.most, self.until = 0, made[0].timestamp

    def __getitem__(self, asset: Asset) -> Events:
        return self

    def ascending(self, ascending: bool) -> Events:
        assert not ascending
        self.until = self.made[0].timestamp
        return self

    def limit(self, most: int) -> Events:
        self.most = most
        return self

    def before(self, moment: datetime) -> Events:
        self.until = moment
        return self

    def __iter__(self) -> Iterator[SimpleNamespace]:
        self.requests += 1
        return islice((one for one in self.made if one.timestamp <= self.until), self.most)


@pytest.mark.parametrize(("replayed", "found"), [(150, 7), (1_500, None), (None, None)])
def test_the_newest_event_of_a_replay_is_looked_for_among_so_many_of_the_stream(
    replayed: int | None, found: int | None
) -> None:
    """Runs of the DAG for replays go by its own events: behind too many others, by the ledger's record of tries."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    made = [
        SimpleNamespace(
            id=-number,
            timestamp=start - timedelta(minutes=number),
            source_dag_id="flights_replays" if number == replayed else "flights",
            extra={"pipeline": "flights", "told_to": 7},
        )
        for number in range(5_000)
    ]
    events = Events(made)
    told = told_to(events, Asset("x-sluice://flights/lake"), "flights", "flights_replays")
    assert told.get("told_to") == found
    assert events.requests <= PAGES
