"""Builds two DAGs for each declared pipeline, one for its runs and one for replays and releases, from the declaration
alone."""

from __future__ import annotations

import ast
import datetime as dt
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from airflow.sdk import (
    DAG,
    BaseOperator,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    Param,
    get_parsing_context,
)

from etl.airflow.alerts import FAILED, OF_REPLAYS, TASK_FAILED, deadline, look, notifiers, restarts
from etl.airflow.operator import SluiceRunOperator, SluiceTaskOperator, assets, partitions
from etl.airflow.retries import LONGEST_PAUSE, Retries, kept_up
from etl.airflow.run_form import FIELDS
from etl.alerts.destinations import named
from etl.common.errors import SetupError
from etl.common.outcome import in_short
from etl.common.settings import load_settings
from etl.pipeline import Airflow, Pipeline, loadable, loadable_alone
from etl.pipeline.dag_names import POOLS, RUN_TASK, pipeline_of, replays_of
from etl.pipeline.intervals import moment_of

EARLIEST = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)  # catchup is off: only says when intervals may begin
MAINTENANCE = """
For each pipeline, beside its runs:

- `audit_…` (`sluice audit`) reads the table and the Parquet of every delivery and compares both with the ledger. It
  fails when they differ; its log says in what, and which command repairs it.
- `sweep_…` (`sluice sweep`) then removes objects and staging of attempts that were fenced. It does not run where
  the audit failed: what it would remove may be evidence. *Clear* the audit when the cause is fixed; the sweep follows.
"""
ALERTS = """
Looks every five minutes for pipelines whose data is older, or less, than their `freshness` and `volume` allow, for consumers
that are further behind than `alert_consumer_lag`, and for runs and audits that failed outside of Airflow; reminds people of
alerts that nobody has taken up; tells what is over; and sends again what a destination did not take. A run fails where one
does not take what this run tries: the log says which, and a later run sends it.
"""
REPLAYS = """
Replays and releases of `{name}`, beside its own runs: neither waits for the other, also where a run is kept up. *Trigger*
asks for one of these:

- deliveries, or an interval: their inputs are delivered again, in their place (`sluice replay`);
- held rows: judged again, and released from quarantine (`sluice quarantine release`), as *Release* on the Data quality pages
  does.

With an empty form the run fails: what has landed since is left to the DAG `{name}`, and so are *Backfill* and *Clear* of
its runs.
"""
TAG, REPLAYS_TAG = "sluice", "sluice-replays"  # to see either kind of DAG alone
FOR_EVER = 100_000  # restarts of a run that is to stay up; Airflow wants a number


def _form(*, replays: bool, closes: bool = False) -> dict[str, Param]:
    return {
        name: Param(field.default, **field.schema(replays=replays))
        for name, field in FIELDS.items()
        if (replays or not field.replays_alone) and (closes or not field.closing_alone)
    }


def _form_of_runs(pipeline: Pipeline) -> dict[str, Param]:
    """Return what a person may fill in on triggering a run; empty is as on schedule."""
    return _form(replays=False, closes=any(one.open_for is not None for one in pipeline.sources))


REPLAYS_FORM = _form(replays=True)  # one of deliveries, interval and held rows; nothing filled in is refused
REPLAYS_FORM["driver_memory"] = REPLAYS_FORM.pop("driver_memory")  # last: it asks for none of these


def pool(dag_id: str) -> str:
    return f"{POOLS}{dag_id}"


class DagRefused(Exception):
    """Airflow does not take what a declaration says of its DAGs; the message is a sentence for its author."""


def pipeline_dags() -> dict[str, DAG]:
    """Make the DAGs of every pipeline whose declaration is right and which Airflow takes.

    They are returned by their names; the DAGs of a pipeline that Airflow refuses are left out, for an error would take all
    DAGs of its file out. Where Airflow starts a task it wants the DAG of that task alone: no other pipeline's is made, and
    files that don't have its name in their text are not run.
    """
    folders, wanted = load_settings().pipelines, get_parsing_context().dag_id
    pipelines = loadable(folders) if wanted is None else loadable_alone(pipeline_of(wanted), folders)
    made: list[DAG] = []
    for pipeline in pipelines.values():
        with suppress(DagRefused):  # which `require_dags` reports
            made += _dags(pipeline)
    return {dag.dag_id: dag for dag in made if wanted in (None, dag.dag_id)}


def _dags(pipeline: Pipeline) -> list[DAG]:
    """Make the DAGs of one pipeline. Raises DagRefused where Airflow does not take what the declaration says of them."""
    schedule = _valid_schedule(pipeline)
    try:
        runs = pipeline_dag(pipeline, schedule)
        return [runs, replays_dag(pipeline)] if pipeline.has_replays_dag else [runs]
    except Exception as wrong:
        if not _has_options(pipeline):  # then the mistake is ours
            raise
        raise DagRefused(
            f"{pipeline.file}: Airflow refuses its DAG, as `schedule` and `airflow` have it: {in_short(wrong)}"
        ) from wrong


def _has_options(pipeline: Pipeline) -> bool:
    """Tell whether the declaration says anything of the DAGs that only Airflow can check."""
    return pipeline.airflow != Airflow() or callable(pipeline.schedule)


def refused_dags(pipelines: Mapping[str, Pipeline]) -> dict[str, str]:
    """Return why Airflow takes no DAG of a pipeline, by the pipeline's name."""
    refused: dict[str, str] = {}
    for name, pipeline in pipelines.items():
        try:
            if _has_options(pipeline):
                _dags(pipeline)
            else:
                _valid_schedule(pipeline)
        except DagRefused as refusal:
            refused[name] = str(refusal)
    return refused


def require_dags(pipelines: Mapping[str, Pipeline]) -> None:
    """Raise one SetupError that names every pipeline of which Airflow takes no DAG."""
    if refused := refused_dags(pipelines):
        listed = "".join(f"\n  - {sentence}" for sentence in refused.values())
        raise SetupError(f"Pipelines without a DAG:{listed}", remedy="change these declarations")


def pipeline_dag(pipeline: Pipeline, schedule: Any) -> DAG:
    """Make the DAG that runs the pipeline on Airflow's `schedule`, one run at a time.

    Of a pipeline that follows, it keeps one run up that follows what lands.
    """
    form = _form_of_runs(pipeline)
    with DAG(
        dag_id=pipeline.name,
        description=_description(pipeline),
        doc_md=_documentation(pipeline),
        schedule="@continuous" if pipeline.follow else schedule,
        start_date=moment_of(pipeline.start) if pipeline.start else EARLIEST,
        catchup=False,
        max_active_runs=1,
        tags={TAG, *pipeline.tags},
        params=form,
        deadline=deadline(pipeline) or None,
        access_control=pipeline.airflow.access_control,
        auto_register=False,  # its file has it by its name, once it is whole
        **_paused_when_failed(pipeline),
        default_args=_failure_alerts(pipeline),
    ) as dag:
        _task(
            pipeline,
            form,
            **_placed(pipeline, pool(dag.dag_id)),
            **(_kept_up(pipeline) if pipeline.follow else _ended(pipeline)),
            answer_within=pipeline.airflow.answer_within,
            doc_md=_of_runs(pipeline),
        )
    return dag


def replays_dag(pipeline: Pipeline) -> DAG:
    """Make the DAG of replays and releases alone: each runs when asked for, one at a time.

    It never waits for the pipeline's own runs.
    """
    options = pipeline.airflow
    with DAG(
        dag_id=replays_of(pipeline.name),
        description=f"Replays and releases of {pipeline.name}, beside its runs",
        doc_md=REPLAYS.format(name=pipeline.name),
        schedule=None,
        start_date=EARLIEST,
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,  # without a schedule nothing starts that nobody asked for
        tags={REPLAYS_TAG, *pipeline.tags},
        access_control=options.access_control
        if options.replays_access_control is None
        else options.replays_access_control,
        auto_register=False,
        params=dict(REPLAYS_FORM),
        default_args=_failure_alerts(pipeline, OF_REPLAYS),
    ) as dag:
        _task(
            pipeline,
            REPLAYS_FORM,
            **_placed(pipeline, pool(dag.dag_id)),
            beside=True,
            **_ended(pipeline),
            doc_md=f"The replay or the release of `{pipeline.name}` that the form asks for.",
        )
    return dag


def _task(pipeline: Pipeline, form: Mapping[str, Param], **more: Any) -> None:
    """Make the only task of a DAG, which takes its one slot; the form's fields are the operator's."""
    fields: dict[str, Any] = {name: f"{{{{ params.{name} or '' }}}}" for name in form}
    # Of a `conf` past the form, which the command does or refuses, rather than that the run does something else.
    for name in FIELDS.keys() - form.keys():
        fields[name] = f"{{{{ params.get({name!r}) or '' }}}}"
    SluiceRunOperator(
        task_id=RUN_TASK,
        pipeline=pipeline.name,
        **fields,
        deciders=pipeline.airflow.ids_of_deciders,
        alert_quarantine_share=pipeline.alert_quarantine_share,
        outlets=[*assets(pipeline.name), *([partitions(pipeline.name)] if pipeline.names_partitions else [])],
        **more,
    )


def _placed(pipeline: Pipeline, own_pool: str) -> dict[str, Any]:
    """Return the options of a run's task: where it runs, before which others, and for how long at most."""
    options = pipeline.airflow
    return {
        "pool": options.pool or own_pool,
        "pool_slots": options.pool_slots,
        "priority_weight": options.priority_weight,
        "execution_timeout": options.execution_timeout,
        **_worker(pipeline),
    }


def _worker(pipeline: Pipeline) -> dict[str, Any]:
    """Return the options that say on which workers a task of the pipeline runs, and how, where they are declared."""
    options, config = pipeline.airflow, pipeline.airflow.executor_config
    given = {
        "queue": options.queue,
        "executor": options.executor,
        "executor_config": config() if callable(config) else config,
    }
    return {name: value for name, value in given.items() if value is not None}


def _of_runs(pipeline: Pipeline) -> str:
    if pipeline.follow:
        return (
            f"`sluice run {pipeline.name} --follow`: what has landed and what lands, each batch exactly once."
        )
    return f"`sluice run {pipeline.name}`: all that has landed, each batch exactly once."


def _failure_alerts(pipeline: Pipeline, about: str = "") -> dict[str, Any]:
    return {
        "owner": pipeline.owner,
        "on_failure_callback": notifiers("failed", pipeline.name, FAILED, about),
    }


def _ended(pipeline: Pipeline) -> dict[str, Any]:
    """Return the retry options of a task that does what there is to do, and ends.

    Airflow goes by its own delays where nobody asks the policy, as of a worker that was killed.
    """
    policy = Retries(retries=pipeline.retries, retry_delay=pipeline.retry_delay)
    return {
        "retries": policy.tries_again,
        "retry_delay": pipeline.retry_delay,
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": LONGEST_PAUSE,
        "retry_policy": policy,
    }


def _kept_up(pipeline: Pipeline) -> dict[str, Any]:
    """Return the options of a task that stays up: restarted for as long as it takes, telling of each restart."""
    return {
        "follow": True,
        "retries": FOR_EVER,
        "retry_delay": pipeline.retry_delay,
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(minutes=5),
        "retry_policy": kept_up(pipeline.retry_delay),
        "on_retry_callback": restarts(pipeline.name),
    }


def _paused_when_failed(pipeline: Pipeline) -> dict[str, Any]:
    """Return the option that pauses the DAG of a followed pipeline once a run has failed.

    What needs a person ends the run for good, and @continuous would start the next one in the same second.
    """
    return {"max_consecutive_failed_dag_runs": 1} if pipeline.follow else {}


def maintained() -> Iterable[Pipeline]:
    """Return the pipelines whose audit and sweep the maintenance's DAG is made of: those that have a DAG of their own.

    Where Airflow starts one of its tasks, that is the task's own alone.
    """
    folders = load_settings().pipelines
    _, _, name = (get_parsing_context().task_id or "").partition("_")
    pipelines = loadable_alone(name, folders) if name else loadable(folders)
    refused = refused_dags(pipelines)
    return [pipeline for name, pipeline in pipelines.items() if name not in refused]


def maintenance_dag(pipelines: Iterable[Pipeline]) -> DAG:
    """Make the daily DAG of `sluice audit`, which compares both sinks of each pipeline, and `sluice sweep`.

    The sweep follows the audit, and removes what fenced attempts left.
    """
    with _timed_dag(
        "sluice_maintenance",
        description="Audits every pipeline's sinks, then sweeps what fenced attempts left behind",
        schedule=CronDataIntervalTimetable("30 4 * * *", timezone="UTC"),
        max_active_tasks=1,  # of many pipelines: the runs have the other slots
        doc_md=MAINTENANCE,
    ) as dag:
        for pipeline in pipelines:
            audit = _command("audit", pipeline)
            audit >> _command("sweep", pipeline)
    return dag


def alerts_dag() -> DAG | None:
    """Make the DAG that looks every five minutes for what people are to be told; None where nobody is to be."""
    from airflow.providers.standard.operators.python import PythonOperator

    if not named(load_settings()):
        return None
    with _timed_dag(
        "sluice_alerts",
        description="Tells people of what failed or is late, reminds them, and sends again what was not taken",
        schedule=CronTriggerTimetable("*/5 * * * *", timezone="UTC"),
        is_paused_upon_creation=False,  # whoever names a destination wants to be told
        doc_md=ALERTS,
    ) as dag:
        PythonOperator(task_id="look", python_callable=look, execution_timeout=timedelta(minutes=4))
    return dag


def _timed_dag(dag_id: str, **own: Any) -> DAG:
    """Make a DAG that goes by the clock alone, one run at a time, and makes up for none that was missed."""
    return DAG(dag_id=dag_id, start_date=EARLIEST, catchup=False, max_active_runs=1, tags={TAG}, **own)


def _command(name: str, pipeline: Pipeline) -> BaseOperator:
    # Out of the runs' way, not in it: both are safe beside a run.
    return SluiceTaskOperator(
        task_id=f"{name}_{pipeline.name}",
        words=[name, pipeline.name],
        owner=pipeline.owner,
        weight_rule="absolute",  # an audit that a sweep waits for comes before no run
        **_worker(pipeline),
        on_failure_callback=notifiers("failed", pipeline.name, TASK_FAILED, name),
        **_ended(pipeline),
    )


def _valid_schedule(pipeline: Pipeline) -> Any:
    """Return Airflow's schedule. Raises DagRefused where Airflow does not take it."""
    try:
        schedule = _schedule(pipeline)
        if (validate := getattr(schedule, "validate", None)) is not None:
            validate()
    except Exception as wrong:
        raise DagRefused(
            f"{pipeline.file}: schedule: Airflow refuses {_named(pipeline.schedule)}: {in_short(wrong)}"
        ) from wrong
    return schedule


def _schedule(pipeline: Pipeline) -> Any:
    """Return Airflow's schedule; a cron string becomes a timetable whose intervals have a start and an end.

    With the string alone an interval would have no length.
    """
    schedule = pipeline.schedule
    if callable(schedule):
        return schedule()
    if schedule is None or schedule == "@once":
        return schedule
    return CronDataIntervalTimetable(schedule, timezone=pipeline.airflow.time_zone)


def _named(schedule: object) -> str:
    return f"what {getattr(schedule, '__name__', 'it')}() returns" if callable(schedule) else repr(schedule)


def _documentation(pipeline: Pipeline) -> str:
    """Return the docstring of the pipeline's file, and where its rows go, as Markdown."""
    docstring = ast.get_docstring(ast.parse(pipeline.file.read_bytes())) if pipeline.file else None
    mode = type(pipeline.sink).__name__.lower()
    suite = f"`{pipeline.suite}`" if pipeline.suite else "none"
    return (
        f"{docstring or 'No docstring.'}\n\n"
        f"- delivers to `{pipeline.table}` in PostgreSQL and on the lake ({mode})\n"
        f"- rejected rows: `{pipeline.quarantine_table}` on the lake, `sluice.quarantine` in PostgreSQL\n"
        f"- suite: {suite}\n"
    )


def _description(pipeline: Pipeline) -> str:
    return f"Delivers to {pipeline.table}, in PostgreSQL and on the lake together"
