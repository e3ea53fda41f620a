"""One function per page: it reads the ledger through a cursor and returns HTML with every value escaped.

No page runs more than ten statements or grows with the history: maps, charts and lists show a bounded part, and links
lead to the rest. A long value is cut where it is shown. The pages of held rows are in `held_rows`, a column's in `columns`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

from etl.airflow.pages import charts, formatting
from etl.airflow.pages.columns import columns_of
from etl.airflow.pages.consumers import consumers_of, late_by_pipeline
from etl.airflow.pages.deciding.choices import ReleaseRequest, StopChoice
from etl.airflow.pages.heatmap import COLUMNS, TABLE_FAILED, Heatmap, heatmap, width
from etl.airflow.pages.held_rows import Wanted, fetch_held
from etl.airflow.pages.progress import progress_charts, progress_of
from etl.airflow.pages.records import (
    LAST,
    LONGEST_REPORT,
    BatchRow,
    DecidedRow,
    DeliveryRow,
    FileRow,
    InputRow,
    LatestRow,
    ModelRow,
    PipelineRow,
    RangeRow,
    ReasonRow,
    RuleRow,
    StatusRow,
    StopRow,
    TryRow,
    VerdictRow,
    fetch_rows,
    new_streams,
    newer_than,
    older_than,
    pipeline_names,
    pipeline_rows,
)
from etl.airflow.pages.render import (
    HELD_LOOKED_AT,
    LISTED,
    STATES,
    Frame,
    NotThere,
    Page,
    pipeline_row,
    render,
)
from etl.airflow.pages.report import read_report
from etl.airflow.pages.rows import table as table_of
from etl.airflow.pages.verdicts import broken_first, of_report, verdicts_of
from etl.airflow.questions.addresses import question_address
from etl.airflow.questions.question import SeenStop, decisions_on
from etl.common.database import Cursor
from etl.common.wording import pluralize
from etl.ledger import activity
from etl.ledger.consumers import LateConsumer
from etl.ledger.telemetry.alerts import count_open
from etl.pipeline.dag_names import RUN_TASK

STRIP = 30  # batches of each pipeline in the overview
PIPELINES = 100  # on one page of it
SAMPLES = 10  # quarantined rows on a batch's page
DECISIONS = 5  # the last ones on a batch's page

WORST_FIRST = ("failing", "stopped", "interrupted", "partial", "flawed", "held", "new", "noted", "good")


@dataclass(frozen=True, kw_only=True)
class Conservation:
    """input = delivered + quarantined, in the units of a bar 100 wide."""

    delivered: float
    quarantined: float
    adds_up: bool


@dataclass(frozen=True, kw_only=True)
class Overview:
    """One line of the page of all pipelines."""

    row: PipelineRow
    strip: Sequence[LatestRow]  # oldest first
    declared: bool  # Airflow has a DAG of it
    late: Sequence[LateConsumer]  # the furthest behind first

    @property
    def summary(self) -> str:
        """Tell the strip in words."""
        counted = Counter(STATES[one.state][1].lower() for one in self.strip)
        return f"last {pluralize(len(self.strip), 'batch', 'batches')}: " + ", ".join(
            f"{n} {state}" for state, n in counted.items()
        )


def overview(
    cursor: Cursor,
    permitted: Callable[[list[str]], list[str]],
    frame: Frame,
    *,
    declared: Callable[[list[str]], Collection[str]] = list,
    start: int = 0,
    retired: bool = False,
) -> Page:
    """Show all pipelines that the reader may see, those in trouble first; beyond `start`, as many as fit.

    They are those that are retired, or those that are not; of the others it is told how many there are. `declared` returns
    those of which Airflow has a DAG.
    """
    known = pipeline_names(cursor)
    mine = permitted(list(known))
    rows = pipeline_rows(cursor, [name for name in mine if known[name] == retired])
    rows.sort(key=lambda row: (WORST_FIRST.index(row.standing), row.pipeline))
    listed = rows[start : start + PIPELINES]
    names = [row.pipeline for row in listed]
    latest = fetch_rows(cursor, "latest", LatestRow, pipelines=names, limit=STRIP)
    strips: dict[str, list[LatestRow]] = {}
    for one in reversed(latest):
        strips.setdefault(one.pipeline, []).append(one)
    known_to_airflow, late = declared(names), late_by_pipeline(cursor, names)
    return render(
        "overview.html",
        frame,
        lines=[
            Overview(
                row=row,
                strip=strips.get(row.pipeline, ()),
                declared=row.pipeline in known_to_airflow,
                late=late.get(row.pipeline, ()),
            )
            for row in listed
        ],
        following=start + PIPELINES if len(rows) > start + PIPELINES else None,
        retired=retired,
        others=len(mine) - len(rows),
    )


def pipeline(cursor: Cursor, name: str, frame: Frame, *, before: int = LAST) -> Page:
    """Show a pipeline: is it good, since when, which rules, what waits; the map of its rules and its charts."""
    row = pipeline_row(cursor, name)
    batches = fetch_rows(cursor, "batches", BatchRow, pipeline=name, before=before, limit=charts.BATCHES)
    shown = heatmap(batches[:COLUMNS], _rules(cursor, batches[:COLUMNS]))
    held = fetch_rows(cursor, "held_by_reason", ReasonRow, pipeline=name, most=HELD_LOOKED_AT)
    old_first = batches[::-1]
    progress_rows = progress_of(cursor, name, before=before)
    return render(
        "pipeline.html",
        frame,
        row=row,
        map=shown,
        pager=_pager(cursor, shown, batches, row, first=before == LAST),
        failing=_failing(shown, row),
        batches=batches[:LISTED],
        begun=new_streams(old_first),
        held=held,
        columns=columns_of(cursor, row.delivery_id),
        consumers=consumers_of(cursor, name, row.now),
        running=activity.running(cursor, name),
        alerts=count_open(cursor, name),
        progress_rows=progress_rows[:LISTED],
        progress=progress_charts(progress_rows[::-1]),
        drawn=[charts.volume(old_first), charts.held_share(old_first), charts.gaps(old_first)],
    )


def dag_run(
    cursor: Cursor,
    name: str,
    frame: Frame,
    *,
    dag: str,
    run_id: str,
    task_id: str | None = None,
    before: int = LAST,
    release_request: ReleaseRequest | None = None,
) -> Page:
    """Show what one Airflow DAG run was asked for and delivered of the pipeline, and how its tries ended."""
    row = pipeline_row(cursor, name)
    tries = fetch_rows(cursor, "tries", TryRow, pipeline=name, dag=dag, dag_run=run_id)
    batches = fetch_rows(
        cursor,
        "batches_of_run",
        BatchRow,
        pipeline=name,
        dag=dag,
        dag_run=run_id,
        before=before,
        limit=COLUMNS + 1,
    )
    shown = heatmap(batches[:COLUMNS], _rules(cursor, batches[:COLUMNS]))
    columns = len(shown.batches)
    return render(
        "run.html",
        frame,
        row=row,
        dag=dag,
        run_id=run_id,
        task_id=task_id,
        release_request=release_request,
        tries=tries,
        map=shown,
        batches=batches[:columns],
        older=batches[columns - 1].commit_seq if 0 < columns < len(batches) else None,
        worst=_worst(batches),
    )


def rule(cursor: Cursor, name: str, frame: Frame, *, known_by: str, before: int = LAST) -> Page:
    """Show one rule over time, by all its names. Raises NotThere where the last batches were judged by no such rule."""
    row = pipeline_row(cursor, name)
    verdicts = fetch_rows(
        cursor,
        "rule_history",
        VerdictRow,
        pipeline=name,
        rule=known_by,
        before=before,
        limit=charts.BATCHES,
    )
    if not verdicts and before == LAST:
        raise NotThere(
            f"The last {charts.BATCHES} batches of {name} were judged by no rule {formatting.cut(known_by)!r}"
        )
    fresh = [one for one in verdicts if one.kind != "release"]
    streak = list(takewhile(lambda one: one.broken, fresh))
    return render(
        "rule.html",
        frame,
        row=row,
        known_by=known_by,
        reason=verdicts[0].reason if verdicts else known_by,
        about=verdicts[0] if verdicts else None,
        names=list(dict.fromkeys(one.reason for one in verdicts))[1:],
        verdicts=verdicts[: 2 * LISTED],
        is_newest=before == LAST,
        last=fresh[0] if fresh and before == LAST else None,
        broken=sum(one.broken for one in fresh),
        seen=len(fresh),
        since=streak[-1] if streak else None,
        older=older_than(cursor, name, before=before, limit=charts.BATCHES, releases=True),
        drawn=charts.rule_share(verdicts[::-1]),
    )


def batch(cursor: Cursor, name: str, frame: Frame, *, delivery: int) -> Page:
    """Show one delivered batch: every expectation, its rows accounted for, where they came from and went.

    Raises NotThere.
    """
    about = fetch_rows(
        cursor, "delivery", DeliveryRow, pipeline=name, delivery=delivery, longest=LONGEST_REPORT
    )
    if not about:
        raise NotThere(f"{name} has no delivery {delivery}")
    [it] = about
    report = read_report(it.report)
    verdicts = verdicts_of(
        fetch_rows(cursor, "rules", RuleRow, deliveries=[delivery]),
        report,
    )
    samples = fetch_held(cursor, name, Wanted(batch=delivery, status=None), SAMPLES)
    return render(
        "batch.html",
        frame,
        name=name,
        it=it,
        shown=it.state or "new",
        decision=report.decision,
        verdicts=broken_first(verdicts),
        failed=sum(not one.success for one in verdicts),
        tolerated=sum(one.tolerated for one in verdicts),
        conservation=_conservation(it),
        models=fetch_rows(cursor, "models", ModelRow, delivery=delivery),
        inputs=fetch_rows(cursor, "inputs", InputRow, delivery=delivery, limit=LISTED),
        ranges=fetch_rows(cursor, "ranges", RangeRow, delivery=delivery, limit=LISTED),
        files=fetch_rows(cursor, "files", FileRow, delivery=delivery, limit=LISTED),
        statuses=fetch_rows(cursor, "statuses", StatusRow, delivery=delivery),
        decided=fetch_rows(cursor, "decided", DecidedRow, delivery=delivery, limit=DECISIONS),
        samples=table_of(samples, {one.reason: one.observed.columns for one in verdicts}),
        columns=columns_of(cursor, delivery),
    )


def stopped(cursor: Cursor, name: str, frame: Frame, *, waiting: str | None = None) -> Page:
    """Show the batch that broke its contract and waits: why, what was seen, and the ways on.

    `waiting` is the run in Airflow that asks what is to be done.
    """
    row = pipeline_row(cursor, name)
    stop = _open_stop(cursor, name)
    return render(
        "stopped.html",
        frame,
        row=row,
        stop=stop,
        waiting=waiting and question_address(frame.airflow, name, waiting, RUN_TASK),
        choices=[*decisions_on(stop.as_stop)] if stop else [],
        verdicts=broken_first(of_report(read_report(stop.report if stop else None))),
    )


def stop_decision(
    cursor: Cursor, frame: Frame, *, choice: StopChoice, sign: Callable[[SeenStop], str]
) -> Page:
    """Show the stop that is decided on, and the form that asks why. Raises NotThere where there is nothing to decide."""
    row, stop = pipeline_row(cursor, choice.pipeline), _open_stop(cursor, choice.pipeline)
    if stop is None or stop.decision is not None or row.anew:
        raise NotThere(f"No batch of {choice.pipeline} waits for a decision")
    offered = next((one for one in decisions_on(stop.as_stop) if one.action == choice.action), None)
    if offered is None:
        raise NotThere(f"Batch {stop.batch_id} of {choice.pipeline} can't be decided on so")
    seen = SeenStop(stream=stop.stream_id, batch=stop.batch_id, stopped_at=stop.stopped_at.isoformat())
    return render("stop_decision.html", frame, row=row, stop=stop, choice=offered, note=sign(seen))


def _open_stop(cursor: Cursor, name: str) -> StopRow | None:
    found = fetch_rows(cursor, "open_stop", StopRow, pipeline=name, longest=LONGEST_REPORT)
    return found[0] if found else None


def problem(frame: Frame, *, title: str, text: str, remedy: str = "") -> Page:
    """Make the page that stands in for one that can't be shown."""
    return render("problem.html", frame, title=title, text=text, remedy=remedy)


def _rules(cursor: Cursor, batches: Sequence[BatchRow]) -> list[RuleRow]:
    return fetch_rows(cursor, "rules", RuleRow, deliveries=[one.delivery_id for one in batches])


def _failing(shown: Heatmap, row: PipelineRow) -> list[list[str]]:
    """Return the rules that failed in the pipeline's last batch, or for which rows of that batch are held.

    Of each rule that is what it is known by, name, what was seen, severity. Those about the table come first: they alone
    make a batch delivered with a broken rule.
    """
    columns = [one.delivery_id for one in shown.batches]  # releases may have come after the last batch
    if row.delivery_id not in columns:
        return []
    column, failing = columns.index(row.delivery_id), []
    for line in shown.lines:
        last = line.cells[column]
        if last is not None and last.shade != "h0" and not (last.tolerated and line.severity == "info"):
            failing.append(
                (last.shade != TABLE_FAILED, line.known_by, line.reason, last.title, line.severity)
            )
    return [rest for _, *rest in sorted(failing, key=lambda one: one[0])]


def _pager(
    cursor: Cursor, shown: Heatmap, batches: Sequence[BatchRow], row: PipelineRow, *, first: bool
) -> tuple[int | None, int | None]:
    """Return `before` of the older map and of the newer one; None where there is no such map."""
    if not shown.batches:
        return None, None
    older = shown.batches[0].commit_seq if len(batches) > len(shown.batches) else None
    if first:
        return older, None
    newest, limit = shown.batches[-1].commit_seq, width(len(shown.lines) + shown.left_out)
    return older, newer_than(cursor, row.pipeline, newest=newest, limit=limit)


def _worst(batches: Sequence[BatchRow]) -> str:
    """Return the worst state of the batches in force, or of all batches where none is in force."""
    states = {one.state for one in [one for one in batches if one.live] or batches}
    return next((state for state in WORST_FIRST if state in states), "new")


def _conservation(it: DeliveryRow) -> Conservation:
    least = 0.7 if it.quarantined else 0  # a single held row is to be seen, too
    held = max(least, 100 * it.quarantined / (it.rows_in or 1))
    return Conservation(
        delivered=100 - held if it.delivered else 0,
        quarantined=held,
        adds_up=it.delivered + it.quarantined == it.rows_in,
    )
