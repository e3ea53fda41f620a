"""The operators that run a pipeline, and any other `sluice` command, as a process."""

from __future__ import annotations

import dataclasses
import inspect
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import Asset, BaseOperator

from etl.airflow import alerts
from etl.airflow.alerts import WAITING
from etl.airflow.connections import environment_of
from etl.airflow.links import QualityLink
from etl.airflow.log_lines import harmless
from etl.airflow.process import Command, Finished
from etl.airflow.questions.asking import AsksAPerson
from etl.airflow.questions.question import QuestionCall
from etl.airflow.retries import (
    FAILURES,
    OUTAGES,
    STEADY,
    DifferencesFound,
    Ended,
    EndedAfterLong,
    NeedsPerson,
    NoSummary,
    Retries,
    RunFailed,
    TryLater,
    begin_anew,
    note_wait,
)
from etl.airflow.run_form import FIELDS, RunForm
from etl.airflow.task_try import TaskTry
from etl.airflow.told import event_extra, tell_partitions, told_to
from etl.alerts.records import RunRecords, troubles
from etl.common.errors import SetupError
from etl.common.settings import load_settings
from etl.common.wording import meant, records_read
from etl.ledger.telemetry.alerts import Trouble
from etl.pipeline.dag_names import replays_of
from etl.runs.summary import Summary

if TYPE_CHECKING:
    from airflow.sdk import Context

Init = TypeVar("Init", bound=Callable[..., None])

FOR_A_PERSON = (3, 4)  # exit codes on which a person is asked
SUMMARY = "summary"  # XCom key: what the run did, also when it failed


def assets(pipeline: str) -> tuple[Asset, Asset]:
    """Return the pipeline's two outputs, whose events come together, for the sinks do."""
    return (
        Asset(name=f"{pipeline} (PostgreSQL)", uri=f"x-sluice://{pipeline}/postgresql", group="sluice"),
        Asset(name=f"{pipeline} (lake)", uri=f"x-sluice://{pipeline}/lake", group="sluice"),
    )


def partitions(pipeline: str) -> Asset:
    """Return the hours, days or months of the pipeline's rows: each event has the key of one that a delivery touched.

    Only DAGs that are scheduled by partitions hear of it; the events of `assets` have no key, and start all others.
    """
    return Asset(name=f"{pipeline} (partitions)", uri=f"x-sluice://{pipeline}/partitions", group="sluice")


def _with_the_forms_fields(init: Init) -> Init:
    """Name the form's fields among the keywords of `init`; all are text, for Airflow renders them.

    Airflow looks into the signature for what `default_args` and `partial` may hold.
    """
    signature = inspect.signature(init)
    *own, others = signature.parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    fields = [inspect.Parameter(name, keyword, default=None, annotation="str | None") for name in FIELDS]
    vars(init)["__signature__"] = signature.replace(parameters=[*own, *fields, others])
    return init


class SluiceRunOperator(AsksAPerson, BaseOperator):
    """Delivers all that has landed for a pipeline, each batch exactly once, by `sluice run` as a process.

    A backfill, the clear of a run that had succeeded, and deliveries or an interval named in the form are
    replays. The form may tell them what becomes of released rows and of changed or unreadable inputs. A backfill
    brings a form of its own, a clear none: it has the one of the run. With `beside` the operator does replays and
    releases alone, and fails where none is asked for; without it, it releases no rows, for that takes a right of
    its own (etl/airflow/command/request.py). The form's fields (etl/airflow/run_form.py) are its keywords, too.

    Killed in any way, the task leaves no process; the next try goes on from the ledger. The summary is pushed
    as XCom even when the run fails; a success makes an asset event with what was delivered since the last
    one, which the operator reads: its outlets are its inlets, too. A run that Airflow ends comes to the end of
    its batch first, where that takes no more than GRACE_SECONDS. With `follow` the run stays up. `python` is that of an
    environment of the command's own; None: SLUICE_PYTHON, or Airflow's own.

    Where only a person can help, the run waits for an answer for `answer_within`, by one of `deciders` if any are named
    (etl/airflow/questions/asking.py); None: it fails.
    """

    template_fields = ("pipeline", "deciders", *FIELDS)  # the pages read the deciders of the serialised DAG
    ui_color = "#d5e8d4"
    operator_extra_links = (QualityLink(),)

    @_with_the_forms_fields
    def __init__(
        self,
        *,
        pipeline: str,
        alert_quarantine_share: float | None = None,
        follow: bool = False,
        beside: bool = False,
        answer_within: timedelta | None = None,
        deciders: Mapping[str, str] | None = None,
        python: str | None = None,
        **kwargs: Any,
    ) -> None:
        fields = {name: kwargs.pop(name, None) for name in FIELDS}
        super().__init__(**kwargs)
        self.inlets = [*self.inlets, *(one for one in self.outlets if one not in self.inlets)]
        self.follow = follow
        self.beside = beside
        self.answer_within = answer_within
        self.deciders = dict(deciders or {})
        self.alert_quarantine_share = alert_quarantine_share
        self.pipeline = pipeline
        self.python = python
        for name, text in fields.items():
            setattr(self, name, text)
        self._command: Command | None = None
        self._killed = False

    def execute(self, context: Context) -> dict[str, Any]:
        _require_a_try(self, context)
        self._refuse_unknown(context)
        form = self.form
        task_try = task_try_of(context, form, beside=self.beside, told=self._told_to(context))
        arguments = ["run", self.pipeline, "--json", "--airflow"]
        if self.follow:
            arguments.append("--follow")
        if form.driver_memory:
            arguments += ["--conf", f"spark.driver.memory={form.driver_memory}"]
        began = time.monotonic()
        with _services() as environment:
            self._command = Command(
                arguments=arguments,
                python=_python(self.python),
                environment={**environment, **self._named_as_parent(context), **_trace_parent()},
                given=task_try.json(),
                own_group=True,
            )
            done = self._command.run(self.log.log)
        summary = Summary.from_json(done.result)
        if done.exit_code:
            up = timedelta(seconds=time.monotonic() - began) if self.follow else timedelta(0)
            error = self._failed(done, summary, up, context)
            if done.exit_code in FOR_A_PERSON and not self._killed:
                self.ask(task_try, context)
            raise error
        if summary is None:
            raise NoSummary(
                f"`sluice {' '.join(arguments[:3])}` ended with exit code 0 and without its summary. It printed"
                f" {done.printed[:200]!r}; `sluice status {self.pipeline}` says what was delivered. Does the pipeline's"
                " file, or a library, end the process?"
            )
        return self._succeeded(summary, context)

    def question(self, call: QuestionCall) -> Mapping[str, Any]:
        with _services() as environment:
            self._command = Command(
                arguments=["question", self.pipeline],
                python=_python(self.python),
                environment=environment,
                given=call.json(),
                own_group=True,
            )
            done = self._command.run(self.log.log)
        if done.exit_code or not isinstance(done.result, dict):
            raise failure(done)
        return done.result

    def _named_as_parent(self, context: Context) -> dict[str, str]:
        """Return the variable that names this task to OpenLineage as Airflow's own events do, where it sends any."""
        try:
            from airflow.providers.openlineage.plugins.macros import lineage_parent_id
        except ImportError:
            return {}
        try:
            return {"OPENLINEAGE_PARENT_ID": str(lineage_parent_id(context["ti"]))}
        except Exception:
            self.log.exception("the events of what is delivered can't name this task as their parent")
            return {}

    def _refuse_unknown(self, context: Context) -> None:
        """Raise NeedsPerson where the `conf` of a run of the pipeline's own DAGs names what no form has: a slip of the pen.

        A DAG of somebody else's may have parameters of its own.
        """
        unknown = sorted({*context.get("params", {})} - FIELDS.keys())
        if unknown and context["ti"].dag_id in (self.pipeline, replays_of(self.pipeline)):
            raise NeedsPerson(
                f"The run's conf names {', '.join(map(repr, unknown))}, which no form of {self.pipeline} has, and"
                f" nothing was done. The fields are {', '.join(FIELDS)}{meant(unknown[0], FIELDS)}"
            )

    def _failed(self, done: Finished, summary: Summary | None, up: timedelta, context: Context) -> RunFailed:
        """Push the summary of a run that ended with an error, and alert of it; return what the task fails with."""
        said = summary.json() if summary else {}
        context["ti"].xcom_push(key=SUMMARY, value={**said, "exit_code": done.exit_code})
        self._alert(summary)
        # for a worker that restarts no run is given up
        if self._killed and summary is not None and summary.outcome == "FilesUnread":
            return Ended("Airflow ended this try; everything is delivered except files that Spark skipped")
        error = failure(done, up=up)
        self._note(error, context)
        return error

    def _succeeded(self, summary: Summary, context: Context) -> dict[str, Any]:
        """Push the summary of a run that ended well and make the asset event of it; raise Ended where Airflow ended it."""
        said = summary.json()
        context["ti"].xcom_push(key=SUMMARY, value=said)
        self._alert(summary)
        if self._killed:  # it came to a good end, but no success is to be told of
            raise Ended("Airflow ended this try; the batch in flight is delivered")
        self.log.info("%s", closing_line(summary))
        for asset in self._sinks():
            context["outlet_events"][asset].extra.update(event_extra(summary))
        asset = partitions(self.pipeline)
        if asset in self.outlets and not tell_partitions(summary, asset, context):
            self.outlets = self._sinks()
        return said

    def _sinks(self) -> list[Any]:
        """Return the outlets whose events tell of deliveries: all but that of partitions."""
        return [one for one in self.outlets if one != partitions(self.pipeline)]

    def _told_to(self, context: Context) -> dict[str, Any]:
        """Return the commit up to which the events of this pipeline's runs of the same kind have told, as they say it."""
        sinks = self._sinks()
        if not sinks:
            return {}
        return told_to(context["inlet_events"], sinks[-1], self.pipeline, context["ti"].dag_id)

    @property
    def form(self) -> RunForm:
        """Return what the form says, once Airflow has rendered the template fields."""
        return RunForm.rendered({name: getattr(self, name) for name in FIELDS})

    def _alert(self, summary: Summary | None) -> None:
        """Alert of what this try delivered, however it ended, and tell what is over by it."""
        self._tell([] if summary is None else [*self._troubles(summary)])

    def _troubles(self, summary: Summary) -> Iterator[Trouble]:
        records = RunRecords(
            read=max(summary.rows_in, summary.records),
            quarantined=summary.quarantined,
            dropped=summary.dropped,
            unknown=summary.unknown,
            missing=summary.missing,
            drifted=summary.drifted,
        )
        return troubles(self.pipeline, records, share_limit=self.alert_quarantine_share)

    def _note(self, error: RunFailed, context: Context) -> None:
        """Keep count of the tries that ended by an outage; alert once these are more than the declared retries.

        A run that stays up has none: for it they are OUTAGES, counted anew once it had been up for long.
        """
        if isinstance(error, EndedAfterLong):
            begin_anew(context)
        if not isinstance(error, TryLater):
            return
        policy, waited = self.retry_policy, note_wait(context)
        patience = policy.retries if isinstance(policy, Retries) else OUTAGES
        if waited == patience + 1:
            self.tell("waiting", WAITING.format(pipeline=self.pipeline, error=error))

    def tell(self, kind: str, text: str) -> None:
        """Tell people of a trouble; what keeps it from them fails no run."""
        self._tell([Trouble(pipeline=self.pipeline, kind=kind, text=text)])

    def _tell(self, troubles: Sequence[Trouble]) -> None:
        for one in troubles:
            self.log.warning("%s", one.text)
        try:
            alerts.tell(self.pipeline, troubles)
        except Exception:
            self.log.exception("alerts could not be sent")

    def on_kill(self) -> None:
        self._killed = True
        if self._command is not None:
            self._command.kill()


class SluiceTaskOperator(BaseOperator):
    """Runs any other `sluice` command as a process, such as `audit`; succeeds exactly when it exits with 0."""

    template_fields = ("words",)
    ui_color = "#dae8fc"

    def __init__(self, *, words: list[str], python: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.words = words
        self.python = python
        self._command: Command | None = None

    def execute(self, context: Context) -> Any:
        _require_a_try(self, context)
        with _services() as environment:
            self._command = Command(
                arguments=self.words, python=_python(self.python), environment=environment
            )
            done = self._command.run(self.log.log)
        for line in done.printed.splitlines():
            self.log.info(harmless(line))
        if done.exit_code == 1 and done.printed and self.words[0] == "audit":
            raise DifferencesFound(f"the audit of {self.words[1]} found differences")
        if done.exit_code:
            error = failure(done)
            if isinstance(error, TryLater):
                note_wait(context)
            raise error
        return done.result

    def on_kill(self) -> None:
        if self._command is not None:
            self._command.kill()


def _python(named: str | None) -> str:
    """Return the Python that runs the command; raise NeedsPerson where there is none at the place that was named."""
    place = Path(named or load_settings().python or sys.executable)
    if not (place.is_file() and os.access(place, os.X_OK)):
        raise NeedsPerson(
            f"{place} is no program on {socket.gethostname()}: name the Python of an environment that has Sluice, by"
            " SLUICE_PYTHON or the operator's `python`"
        )
    return str(place)


@contextmanager
def _services() -> Iterator[dict[str, str | None]]:
    """Yield the variables by which a command reaches the services of Airflow's Connections.

    Raises NeedsPerson where a Connection can't be had.
    """
    try:
        with environment_of(load_settings().connections) as environment:
            yield environment
    except SetupError as error:
        raise NeedsPerson(str(error)) from error


def _trace_parent() -> dict[str, str]:
    """Return the variables that name the span of this task to what it starts; none where Airflow makes no spans."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {name.upper(): value for name, value in carrier.items()}


def _require_a_try(task: BaseOperator, context: Context) -> None:
    """Raise NoTriesLeft where workers that were killed have used up the declared retries."""
    if isinstance(task.retry_policy, Retries):
        task.retry_policy.require_one_left(context)


def task_try_of(
    context: Context, form: RunForm, *, beside: bool, told: Mapping[str, Any] | None = None
) -> TaskTry:
    """Return who asks, in Airflow's own terms, and what the form says.

    Nothing is read out of the text of a run id.
    """
    ti, dag_run = context["ti"], context["dag_run"]
    start, end = dag_run.data_interval_start, dag_run.data_interval_end
    return TaskTry(
        dag_id=ti.dag_id,
        dag_run_id=ti.run_id,
        task_id=ti.task_id,
        try_number=max(ti.try_number, 1),
        run_type=str(getattr(dag_run.run_type, "value", dag_run.run_type)),
        clear_number=dag_run.clear_number or 0,
        tries_before_clear=_tries_before_clear(ti),
        interval_start=start.isoformat() if start else None,
        interval_end=end.isoformat() if end else None,
        who=dag_run.triggering_user_name,
        beside=beside,
        **(told or {}),
        **dataclasses.asdict(form),
    )


def _tries_before_clear(ti: Any) -> int:
    """Return how many tries a task had before it was last cleared, which raises `max_tries` above its own retries."""
    this: int = max(ti.try_number, 1)
    raised_by: int = ti.max_tries - ti.task.retries
    return min(max(raised_by, 0), this - 1)


def closing_line(summary: Summary) -> str:
    """Say in one line of the task's log what its run did."""
    read = records_read(summary.records, rows_in=summary.rows_in, malformed=summary.malformed)
    return (
        f"{summary.pipeline}: batches {summary.batches}{f' ({read})' if read else ''}, rows delivered {summary.delivered},"
        f" quarantined {summary.quarantined} (malformed or late {summary.malformed}), {summary.seconds} s"
    )


def failure(done: Finished, *, up: timedelta = timedelta(0)) -> RunFailed:
    """Return the exit code as an exception, with the command's own last words.

    `up` is how long a run that was to stay up had been up.
    """
    kind = FAILURES.get(done.exit_code, RunFailed)
    if up >= STEADY and kind in (RunFailed, TryLater):
        kind = EndedAfterLong
    message = next((line for line in reversed(done.said) if line.startswith("sluice: ")), "")
    return kind(f"exit code {done.exit_code}. {message}".strip())
