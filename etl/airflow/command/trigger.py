"""`sluice trigger`: runs a pipeline once through the local Airflow and follows the run to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from etl.airflow.api import Api, Refused, Unfinished
from etl.airflow.questions.addresses import question_address
from etl.common.errors import ServiceAway, SetupError, SluiceError
from etl.common.wording import first_few, pluralize
from etl.pipeline.dag_names import RUN_TASK
from etl.runs.summary import Summary

KNOWN_WITHIN = 60  # seconds; the DAG processor looks every few
LONGEST = 24 * 3600  # seconds
CONFLICT = 409  # another run of the DAG has that logical date
WAITS = "awaiting_input"  # the state of a task that has asked a person
IDLE = (
    None,
    "scheduled",
    "up_for_retry",
    "up_for_reschedule",
    WAITS,
)  # states of a task that no paused DAG goes on with


class RunFailed(SluiceError):
    """The run ended without success in Airflow; its exit code is the command's own."""

    def __init__(self, seen: str, *, remedy: str, exit_code: int) -> None:
        super().__init__(seen, remedy=remedy)
        self.exit_code = exit_code


def trigger(api: Api, name: str, say: Callable[[str], None]) -> Summary:
    """Start the DAG `name`, pass on what its task says of each batch, and return the run's summary.

    A run that asks a person is followed no further; it is left to wait for the answer, unless its DAG was paused.
    A DAG that was paused is paused again afterwards, and nothing that came meanwhile waits in it for ever. Raises
    SetupError where runs of a backfill wait in it.
    """
    _await_dag(api, name)
    if not api.is_paused(name):
        run = api.trigger(name)
        _follow(api, name, run, say)
        return _summary(api, name, run)
    unfinished = api.unfinished(name)
    _refuse_backfill(name, unfinished)
    waited = {one.run for one in unfinished}
    run = _instead_of_the_schedules(api, name)
    try:
        api.unpause(name)
        _follow(api, name, run, say)
    finally:
        api.pause(name)
        for one in api.unfinished(name):
            if one.run == run or (one.kind == "scheduled" and one.run not in waited):
                _let_none_wait(api, name, one, say)
    return _summary(api, name, run)


def _refuse_backfill(name: str, unfinished: Sequence[Unfinished]) -> None:
    """Raise SetupError where runs of a backfill wait in the paused DAG: they would begin, and replace what they name."""
    if waiting := [one.run for one in unfinished if one.kind == "backfill"]:
        raise SetupError(
            f"The DAG {name} is paused, and {pluralize(len(waiting), 'run of a backfill waits', 'runs of a backfill wait')}"
            f" in it ({first_few(waiting)}), which would begin with this one",
            remedy="in Airflow cancel the backfill, or unpause the DAG, which does it; then run the same command again",
        )


def _instead_of_the_schedules(api: Api, name: str) -> str:
    """Trigger a paused DAG by a run that takes the place of the one which its schedule owes, if it owes one.

    Airflow would make that one as soon as the DAG is not paused, and start it first, for its date is older. Ours is
    of now, so that the home page counts it.
    """
    try:
        return api.trigger(name, due=api.due(name))
    except Refused as refused:
        if refused.status != CONFLICT:
            raise
        return api.trigger(name)  # an earlier run has that place: the schedule makes none either


def _let_none_wait(api: Api, name: str, one: Unfinished, say: Callable[[str], None]) -> None:
    """End a run of the DAG, paused now, that would wait until somebody unpauses it; leave one at work to its end.

    One that has made a try is marked failed, and any other removed.
    """
    tasks = api.tasks(name, one.run)
    at_work = f"{name}: the run {one.run} has begun, and goes on to the end of its try"
    if any(task.state not in IDLE for task in tasks):
        say(at_work)
    elif any(
        task.tries > (task.state == "scheduled") for task in tasks
    ):  # this one's first has its number already
        api.set_failed(name, one.run)
        say(
            f"{name}: the run {one.run} waited for another try or an answer, and no paused DAG goes on; it is marked failed"
        )
    else:
        try:
            if not one.waits:
                api.queue_again(name, one.run)  # Airflow removes no run that it calls running
            api.remove(name, one.run)
        except Refused as refused:
            if refused.status != CONFLICT:
                raise
            say(at_work)


def _await_dag(api: Api, name: str) -> None:
    deadline = time.monotonic() + KNOWN_WITHIN
    while not api.dag_is_known(name):
        if time.monotonic() > deadline:
            wrong = "".join(f"\n  - {file}: {text}" for file, text in api.import_errors().items())
            raise ServiceAway(
                f"Airflow has no DAG {name!r} after {KNOWN_WITHIN} s{wrong}",
                remedy="check that the pipeline is declared (`sluice doctor`), then run the same command again; where"
                " settings have changed since Airflow was started, start it anew: `sluice down`, then `sluice airflow`",
            )
        time.sleep(0.5)


def _follow(api: Api, name: str, run: str, say: Callable[[str], None]) -> None:
    said: dict[int, int] = {}  # lines of each try that were passed on
    for state in api.follow(name, run, within=LONGEST, ticks=True):
        if state.task != RUN_TASK or not state.tries:
            continue
        lines = _lines(api, name, run, state.tries)
        for line in lines[said.get(state.tries, 0) :]:
            say(line)
        said[state.tries] = len(lines)
        if state.state == WAITS:
            return


def _lines(api: Api, name: str, run: str, attempt: int) -> list[str]:
    """Return what the command said in one try; nothing while Airflow has no log of it yet."""
    try:
        lines = api.log(name, run, RUN_TASK, attempt)
    except Refused:
        return []
    return [line for line in lines if line.startswith((f"{name} batch", "sluice:", "  evidence:", "  next:"))]


def _summary(api: Api, name: str, run: str) -> Summary:
    try:
        content = api.xcom(name, run, RUN_TASK, "summary")
    except Refused:
        content = {}
    exit_code = content.get("exit_code", 70)
    if any(task.state == WAITS for task in api.tasks(name, run)):
        raise RunFailed(
            f"The run {run} of {name} waits for a person; its log is above and in Airflow",
            remedy=f"answer in Airflow, {question_address(api.address, name, run, RUN_TASK)}; or what the log says",
            exit_code=exit_code,
        )
    if api.state(name, run) != "success":
        raise RunFailed(
            f"The run {run} of {name} failed; its log is above and in Airflow",
            remedy=f"what the log says; then `sluice trigger {name}`",
            exit_code=exit_code,
        )
    summary = Summary.from_json(content)
    if summary is None:
        raise RunFailed(
            f"The run {run} of {name} was marked a success in Airflow before it had ended",
            remedy=f"`sluice status {name}` shows what was delivered; then `sluice trigger {name}`",
            exit_code=exit_code,
        )
    return summary
