"""What an Airflow run asks for: the stream's next batches, a replay, or the release of held rows.

- *Trigger* with deliveries or an interval named in the form replays these.
- *Trigger* of the DAG for replays and releases with held rows named in the form releases these; no other DAG does.
- *Backfill* replays the deliveries with a row in its interval, delivered or held; it may bring a form of its own.
- *Clear* of a run whose form names something does that again: what replaced those deliveries is replayed,
  and of held rows those that are not released yet are. *Clear* of any other run that had succeeded replays exactly
  what that run delivered; of one that had not, it goes on from where the stream is.

A run of the DAG for replays and releases works beside the stream, and fails where its form asks for neither: it never
delivers the stream's next batches.

The run's form says what a replay must not guess; a *Clear* has only the form of the run that it clears.

The run's type, how often it was cleared, or its task alone, its form and the ledger decide what it asks for; the text of
its id never does.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import TYPE_CHECKING

from etl.airflow.command import tries
from etl.airflow.command.partitions import touched_partitions
from etl.airflow.command.score import score
from etl.airflow.run_form import FIELDS
from etl.airflow.task_try import TaskTry
from etl.common.database import transaction
from etl.common.errors import SetupError
from etl.common.number_ranges import format_ranges, parse_ranges, shortened
from etl.common.wording import first_few, pluralize
from etl.ledger import deliveries
from etl.ledger.quarantine import RowSelection as Rows
from etl.ledger.quarantine import held_rows, require_held
from etl.pipeline.dag_names import replays_of
from etl.pipeline.intervals import named_interval
from etl.runs.follow import RunControl
from etl.runs.replay import release, replay
from etl.runs.replay.corrections import corrections_in
from etl.runs.replay.plan import ReplayPlan, Selection, keep_or_drop, plan
from etl.runs.replay.replay import Remedies
from etl.runs.run import run as run_stream
from etl.runs.summary import STOPPED, Progress, Summary
from etl.runs.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable

    from etl.airflow.command.tries import Became
    from etl.pipeline import Pipeline

WHO = "airflow"
# What the form calls its fields, and Airflow's form of a backfill the box without which it sends none of them.
_TITLES = {name: field.title for name, field in FIELDS.items()}
DELIVERIES, START, END = _TITLES["deliveries"], _TITLES["start"], _TITLES["end"]
CHANGED, UNREADABLE = _TITLES["accept_changed"], _TITLES["accept_unreadable"]
CLOSED = _TITLES["closed"]
FEWER, WHY = _TITLES["fewer"], _TITLES["why"]
RELEASES, RELEASE, CORRECTIONS = _TITLES["releases"], _TITLES["release"], _TITLES["corrections"]
OVERRIDE = "Override parameters on existing runs"


def run_requested(
    workspace: Workspace,
    pipeline: Pipeline,
    task_try: TaskTry,
    progress: Progress,
    say: Callable[[str], None],
    control: RunControl,
) -> Summary:
    """Do what the Airflow try asks for."""
    dsn = workspace.services.postgres
    with tries.recorded(
        dsn, pipeline.name, task_try, lambda: STOPPED if control.by_signal else tries.DONE
    ) as became:
        if task_try.release:
            _require_the_right(pipeline, task_try)
            control.correction_left = release.GIVEN_UP
            summary = _release(workspace, pipeline, task_try, progress, became, control)
        elif (selection := selection_of(workspace, pipeline, task_try)) is None:
            control.closed |= task_try.closed
            summary = run_stream(workspace, pipeline, progress=progress, began=became, control=control)
        elif (replayed := tries.replayed_before(dsn, task_try)) is not None:
            say(
                f"an earlier try of this run has replayed {selection.describe()}: nothing is left to do but to report it"
            )
            summary = Summary(pipeline=pipeline.name, stream=replayed, run=replayed)
        else:
            control.correction_left = replay.GIVEN_UP
            summary = _replay(workspace, pipeline, task_try, selection, progress, say, became)
        if summary.unknown or summary.missing:
            with transaction(dsn) as cursor:
                summary.drifted = deliveries.new_drift(cursor, pipeline.name, summary.deliveries)
        if summary.run or task_try.release:  # of a release an earlier try may have done all
            untold = tries.untold(dsn, pipeline.name, task_try)
            summary.unreported, summary.unreported_batches = (
                shortened(untold.deliveries),
                len(untold.deliveries),
            )
            summary.unreported_rows, summary.unreported_quarantined = untold.rows, untold.quarantined
            summary.replaced, summary.snapshot_id = shortened(untold.replaced), untold.snapshot_id
            summary.quality = score(dsn, pipeline, untold.deliveries, summary.run)
            summary.told_to = untold.told_to
            summary.told_delivery, summary.told_run = untold.told_delivery, untold.told_run
            if pipeline.names_partitions:
                touched = touched_partitions(dsn, untold.touched)
                summary.partitions, summary.partitions_beyond = touched.keys, touched.beyond
                summary.partitions_without_key = touched.without_key
    return summary


def _replay(
    workspace: Workspace,
    pipeline: Pipeline,
    task_try: TaskTry,
    selection: Selection,
    progress: Progress,
    say: Callable[[str], None],
    became: Became,
) -> Summary:
    """Deliver the chosen deliveries again, in their own place; say first what will be replaced."""
    started = time.monotonic()
    if task_try.fewer and not task_try.why:
        raise SetupError(
            f'The form has "{FEWER}" ticked and no reason', remedy=f'the same form, with "{WHY}" filled in'
        )
    planned = plan(workspace, pipeline, selection)
    for line in planned.lines():
        say(line)
    done = replay.replay(
        workspace,
        pipeline,
        planned,
        who=task_try.who or WHO,
        why=task_try.why or _why(task_try),
        accept_changed=task_try.accept_changed,
        accept_unreadable=task_try.accept_unreadable,
        fewer=task_try.fewer,
        releases=keep_or_drop("releases", task_try.releases),
        remedies=_in_the_form(pipeline, task_try, selection, planned),
        began=became,
    )
    summary = Summary(pipeline=pipeline.name, stream=done.run or "", run=done.run or "")
    if done.receipt is not None:
        summary.add(done.receipt)
        progress(done.receipt)
    summary.seconds = round(time.monotonic() - started, 3)
    return summary


def _in_the_form(
    pipeline: Pipeline, task_try: TaskTry, selection: Selection, planned: ReplayPlan
) -> Remedies:
    """Make the remedies: a new run whose form names the same deliveries.

    That works for whatever asked for this run.
    """
    name, deliveries = planned.pipeline, format_ranges(planned.numbers)
    same, fields = f"--deliveries {deliveries}", f'"{DELIVERIES}" {deliveries}'
    if selection.interval:  # which has history with it
        start, end = (one.isoformat() for one in selection.interval)
        same = f"--interval {start} {end}"
        if pipeline.has_replays_dag:
            fields = f'"{START}" {start}, "{END}" {end}'
    form = f'trigger {_dag(pipeline)} with {fields} and "{{}}" {{}}'
    command = f"or `sluice replay {name} {same} {{}}`"
    if task_try.run_type == "backfill":
        form += f', or create the backfill again with that ("{OVERRIDE}" ticked)'
    changed = form.format(CHANGED, "ticked")
    unreadable = form.format(UNREADABLE, "ticked")
    fewer = form.format(FEWER, f'ticked, and "{WHY}" filled in')
    releases = form.format(RELEASES, "keep, which leaves them as they are, or drop, which judges them again")
    return Remedies(
        changed=f"take them as they are now: {changed}, {command.format('--accept-changed')}",
        unreadable=f"deliver what can be read of them, and hold the rest: {unreadable},"
        f" {command.format('--accept-unreadable')} with the reason in --why",
        fewer=f"let the missing rows go: {fewer}, {command.format('--fewer')} with the reason in --why",
        releases=f"{releases}, {command.format('--releases keep|drop')}",
    )


def _dag(pipeline: Pipeline) -> str:
    """Name the DAG whose form asks for a replay best: the one that waits for no run."""
    return replays_of(pipeline.name) if pipeline.has_replays_dag else pipeline.name


def _require_the_right(pipeline: Pipeline, task_try: TaskTry) -> None:
    """Raise SetupError where rows are to be released by another DAG than that of replays and releases, or by no decider.

    Whoever may trigger the pipeline's own runs need not have the right to release; where deciders are declared, nor
    need whoever may trigger replays.
    """
    deciders = pipeline.airflow.ids_of_deciders
    if deciders and task_try.who not in deciders:
        raise SetupError(
            f"{task_try.who or 'Nobody who is known'} asks for a release of held rows of {pipeline.name}, and only"
            f" {', '.join(deciders)} may. Nothing was changed",
            remedy="ask one of them, who releases them on the Data quality pages; or name more `deciders` in the"
            " declaration's `airflow=Airflow(…)`",
        )
    if task_try.beside:
        return
    beside = (
        f'trigger {replays_of(pipeline.name)} with "{RELEASE}" filled in, or '
        if pipeline.has_replays_dag
        else ""
    )
    raise SetupError(
        f"A run of {task_try.dag_id} releases no rows: that is left to the DAG for replays and releases, which takes a"
        " right of its own",
        remedy=f"{beside}`sluice quarantine release {pipeline.name} --help`",
    )


def _release(
    workspace: Workspace,
    pipeline: Pipeline,
    task_try: TaskTry,
    progress: Progress,
    became: Became,
    control: RunControl,
) -> Summary:
    """Release the rows that the form names, each once.

    Rows that an earlier try of the same run released are done, and are not released again.
    """
    started, dsn, ids = time.monotonic(), workspace.services.postgres, _numbers(task_try)
    summary = Summary(pipeline=pipeline.name, stream="", run="", released=list(ids))
    corrections = corrections_in(task_try.corrections or "", f'"{CORRECTIONS}"', workspace.settings.bounds)
    if strangers := sorted(corrections.keys() - {*ids}):
        raise SetupError(
            f'"{CORRECTIONS}" has rows that "{RELEASE}" does not name: {first_few(strangers)}',
            remedy="name these rows too, or leave their lines out",
        )

    def began(run_id: str) -> None:
        became(run_id)
        summary.stream = summary.run = run_id

    held = held_rows(dsn, pipeline.name, Rows(ids=ids, status=None))
    released_earlier = tries.delivered_by(dsn, task_try)
    done = {one.quarantine_id for one in held if one.released_by in released_earlier}
    still_held = [one for one in held if one.quarantine_id not in done]
    require_held(still_held, pipeline.name, [number for number in ids if number not in done])
    if still_held:
        who, why = task_try.who or WHO, task_try.why or _why(task_try)
        released = release.release(
            workspace,
            pipeline,
            still_held,
            corrections,
            who=who,
            why=why,
            progress=progress,
            began=began,
            control=control,
        )
        for receipt in released:
            summary.add(receipt)
    summary.seconds = round(time.monotonic() - started, 3)
    return summary


def _numbers(task_try: TaskTry) -> tuple[int, ...]:
    if task_try.names_deliveries or task_try.says_how_to_replay:
        raise SetupError(
            "The form asks for a replay and names rows to be released", remedy="ask for one at a time"
        )
    _refuse_closed(task_try)
    if re.fullmatch(r"\d{1,18}(,\d{1,18})*", task_try.release or "") is None:
        raise SetupError(
            f"{task_try.release!r} names no held rows", remedy="write their numbers, with commas between"
        )
    return tuple(dict.fromkeys(int(one) for one in (task_try.release or "").split(",")))


def selection_of(workspace: Workspace, pipeline: Pipeline, task_try: TaskTry) -> Selection | None:
    """Return the deliveries to be replayed, or None where the stream's next batches are asked for.

    Raises SetupError where the form contradicts itself or asks for nothing that this DAG does.
    """
    if task_try.names_deliveries:
        return _named(task_try)
    if task_try.run_type == "backfill":
        _refuse_closed(task_try)
        return Selection(interval=_interval(pipeline, task_try))
    cleared = task_try.clear_number or task_try.tries_before_clear
    runs = tries.runs_before_clear(workspace.services.postgres, task_try) if cleared else ()
    if runs:
        return Selection(runs=runs)
    if task_try.says_how_to_replay:
        raise SetupError(
            "The form says how to replay, but names nothing to replay",
            remedy=f'trigger {_dag(pipeline)} with "{DELIVERIES}" filled in; the Data quality pages list them',
        )
    if task_try.beside:
        raise SetupError(
            f"The form of {task_try.dag_id} asks for nothing, and what has landed since is left to the DAG {pipeline.name}",
            remedy=f'trigger it with "{DELIVERIES}" filled in, with "{START}" and "{END}", or with "{RELEASE}"; the'
            " Data quality pages list deliveries and held rows",
        )
    return None


def _named(task_try: TaskTry) -> Selection:
    if task_try.deliveries and (task_try.start or task_try.end):
        raise SetupError("The form names deliveries and an interval", remedy="ask for one at a time")
    _refuse_closed(task_try)
    if task_try.deliveries:
        return Selection(deliveries=parse_ranges("deliveries", task_try.deliveries))
    if not (task_try.start and task_try.end):
        raise SetupError(
            "The form names one end of an interval alone",
            remedy=f'fill in "{START}" and "{END}"',
        )
    return Selection(interval=named_interval("interval", task_try.start, task_try.end))


def _refuse_closed(task_try: TaskTry) -> None:
    if task_try.closed:
        raise SetupError(
            f'The form has "{CLOSED}" ticked, and asks for what was delivered or held before',
            remedy="ask for one at a time",
        )


def _interval(pipeline: Pipeline, task_try: TaskTry) -> tuple[dt.datetime, dt.datetime]:
    start, end = task_try.interval_start, task_try.interval_end
    if start is None or end is None:
        raise SetupError(
            f"The backfill of {pipeline.name} has no interval",
            remedy="give the pipeline a schedule of intervals",
        )
    return dt.datetime.fromisoformat(start), dt.datetime.fromisoformat(end)


def _why(task_try: TaskTry) -> str:
    cleared = ", its task cleared" if task_try.tries_before_clear else ""
    if task_try.clear_number:
        cleared = f", cleared {pluralize(task_try.clear_number, 'time')}"
    return f"{task_try.run_type} run {task_try.dag_run_id} of {task_try.dag_id}{cleared}"
