"""`sluice status`, `deliveries`, `state`, `decide`, `retire`, `rename` and `doctor`: pipelines, decisions, this machine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

from etl.cli.airflow import where
from etl.cli.shared import (
    DONE_OR_NOT,
    AsJson,
    PipelineName,
    err,
    given_reason,
    load_if_right,
    open_declared,
    open_workspace,
    out,
    print_json,
    print_result,
    result_to_stdout,
    shown,
    standard_input,
    who,
)
from etl.common.number_ranges import MOST, WIDEST
from etl.common.settings import load_settings
from etl.common.steps import PHASES
from etl.common.wording import drifted, first_few, left_out, pluralize, records_read
from etl.spark.signals import leaves

if TYPE_CHECKING:
    from etl.ledger.activity import BatchProgress, Running
    from etl.operations.control.status import State


def state(
    name: PipelineName,
    rows: Annotated[int, typer.Option(min=0, max=WIDEST, help="How many rows of each store are shown.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show what the transform keeps between batches: how many keys, and some of them. Nothing is changed."""
    from etl.operations.control.state import read_state

    workspace, pipeline = open_declared(name)
    stores = read_state(workspace, pipeline, most=rows)
    if as_json:
        print_json([one.json() for one in stores])
        return
    for store in stores:
        out.print(
            shown(
                f"{name}: operator {store.operator} ({store.name}), store {store.store}, after batch {store.batch}:"
                f" {pluralize(store.keys, 'key')}"
            )
        )
        columns = [column for column in (store.rows[0] if store.rows else {}) if column != "partition_id"]
        table = Table(*columns, box=SIMPLE)
        for row in store.rows:
            table.add_row(*(shown(_text(row[column])) for column in columns))
        if store.rows:
            out.print(table)


def _text(value: Any) -> str:
    """Write a key or value as `name=value` parts, one after the other."""
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name}=({_text(one)})" if isinstance(one, Mapping) else f"{name}={one}"
            for name, one in value.items()
        )
    return str(value)


def show(out: Console, states: Sequence[State]) -> None:
    out.print(_delivered(states))
    out.print()
    for state in states:  # in lines: a command that was folded into a cell could not be copied
        then = "" if state.next == "-" else f"; next: {state.next}"
        out.print(f"{state.pipeline}: {_failing(state)}{state.state}{then}")
    if len(states) == 1:
        out.print(shown(f"delivers to {states[0].table}"))
    for state in states:
        for line in (
            *_promise(state),
            *_read(state),
            *_left_out(state),
            *_drifted(state),
            *_behind(state),
            *_runs(state),
            *_ended(state),
        ):
            out.print(line)
        if state.batches:
            _show_batches(out, state.batches)


def _failing(state: State) -> str:
    """Say since when no run has done well; nothing where the last one did, or a batch waits for a decision."""
    if state.failing_since is None or state.standing == "stopped":
        return ""
    return f"{state.standing} since {_moment(state.failing_since)}; "


def _delivered(states: Sequence[State]) -> Table:
    """Lay out what was delivered; a column that is 0 for all pipelines would take room from their names."""
    rows = [state.cells() for state in states]
    headings = ["pipeline", "deliveries", "delivered", "held now", "ever held", "left out", "last delivery"]
    if not any(state.dropped for state in states):
        headings.remove("left out")
    table = _table(*headings)
    table.columns[0].justify = "left"
    for row in rows:
        table.add_row(*(row[heading] for heading in headings))
    return table


def _promise(state: State) -> Iterator[str]:
    if state.promise:
        yield state.promise


def _read(state: State) -> Iterator[str]:
    records = state.rows_in if state.records is None else state.records
    if read := records_read(records, rows_in=state.rows_in, malformed=state.malformed):
        yield f"of {state.pipeline} {read}"


def _left_out(state: State) -> Iterator[str]:
    if state.last_dropped is None:
        return
    newest = (
        "in its last delivery, too"
        if state.last_dropped == state.last
        else f"last {_moment(state.last_dropped)}"
    )
    yield f"of {state.pipeline} {left_out(state.dropped)}: {newest}"


def _drifted(state: State) -> Iterator[str]:
    for sentence in drifted(state.unknown, state.missing):
        yield f"of {state.pipeline}, in its last delivery: {sentence}"


def _behind(state: State) -> Iterator[str]:
    if state.late_consumers:
        yield f"of {state.pipeline}, {first_few(state.late_consumers)}; next: `sluice consumers {state.pipeline}`"


def _runs(state: State) -> Iterator[str]:
    for one in state.running:
        what = state.pipeline if one.kind == "stream" else f"a {one.kind} of {state.pipeline}"
        if one.alive:
            yield f"{what} runs on {one.where}, since {_moment(one.since)}{_at_work(one)}"
        else:
            yield f"{what} ran on {one.where}, and was killed or cut off: last seen {_moment(one.seen)}{_left(state, one)}"


def _left(state: State, one: Running) -> str:
    """Say where a killed correction shows whether it is done; a killed run of the stream has a next command."""
    if one.kind == "stream":
        return ""
    return f"; it is whole or not there at all: `sluice deliveries {state.pipeline}` shows which"


def _at_work(one: Running) -> str:
    batches = pluralize(one.batches, "batch", "batches")
    done = f"; {batches} of {pluralize(one.records, 'record')} so far"
    if one.batch is None or one.batch_since is None:
        return done
    return f"; batch {one.batch} for {(one.now - one.batch_since).total_seconds():.0f} s{done}"


def _ended(state: State) -> Iterator[str]:
    ended = state.ended
    if ended is None or ended.outcome == "done" or ended.message is None:
        return
    yield f"the last run of {state.pipeline} ended {_moment(ended.ended_at)} by {ended.outcome}: {ended.message}"
    if ended.remedy:
        yield f"  next: {ended.remedy}"


def _show_batches(out: Console, batches: Sequence[BatchProgress]) -> None:
    out.print()
    out.print(_times(batches))
    out.print()
    if any(one.operators or one.watermark for one in batches):
        out.print(_state_table(batches))
        out.print()
    for end in batches[0].ends:
        out.print(shown(f"read to  {end}"))
    if (behind := batches[0].behind) is not None:
        out.print(
            f"behind   {pluralize(behind, 'record', 'records')} that were there when batch {batches[0].batch_id} was planned"
        )


def _times(batches: Sequence[BatchProgress]) -> Table:
    """Make the table of how long each batch took and what for, in seconds.

    The rest is Spark's planning and its marks.
    """
    headings = (
        "batch",
        "delivery",
        "began",
        "records",
        "rows/s",
        "took",
        "stage",
        "judge",
        "draft",
        "commit",
        "rest",
    )
    table = _table(*headings, close=True)
    for one in batches:
        ours = [one.phase(phase) if phase in one.phases_ms else None for phase in PHASES]
        rate = "-" if one.processed_rate is None else f"{one.processed_rate:,.0f}"
        began = one.triggered_at.astimezone().strftime("%m-%d %H:%M")
        times = [_seconds(took) for took in (one.seconds, *ours, one.phase("spark"))]
        delivery = "-" if one.delivery_id is None else str(one.delivery_id)
        table.add_row(str(one.batch_id), delivery, began, f"{one.input_rows:,}", rate, *times)
    return table


def _state_table(batches: Sequence[BatchProgress]) -> Table:
    """Make the table of what came out of each batch, its state, late records, and what the operators left out.

    State is what the transform kept after the batch; late records came behind its watermark.
    """
    table = _table(
        "batch",
        "rows out",
        "state rows",
        "memory",
        "watermark (UTC)",
        "late",
        "dropped",
        "doubles",
        close=True,
    )
    for one in batches:
        memory = "-" if one.state_bytes is None else f"{one.state_bytes / 1e6:,.1f} MB"
        watermark = f"{one.watermark.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S}" if one.watermark else "-"
        counts = (_count(one.late), _count(one.dropped), _count(one.doubles))
        table.add_row(
            str(one.batch_id), _count(one.rows_out), _count(one.state_rows), memory, watermark, *counts
        )
    return table


def _table(*names: str, close: bool = False) -> Table:
    """Make a table of figures; its columns are `close` to each other where there are many, to fit 80 characters."""
    columns = (Column(name, justify="right", overflow="fold") for name in names)
    return Table(*columns, box=box.SIMPLE_HEAD, padding=(0, 0 if close else 1, 0, 0), show_edge=False)


def _moment(value: dt.datetime) -> str:
    return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _seconds(took: float | None) -> str:
    return "-" if took is None else f"{took:.2f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def status(
    name: Annotated[
        str | None, typer.Argument(metavar="[PIPELINE]", help="One pipeline; all by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show each pipeline's state and what it waits for; for one pipeline also its newest batches."""
    from etl.operations.control.retire import retired, undeclared
    from etl.operations.control.status import states
    from etl.pipeline import load_pipelines

    workspace = open_workspace()
    pipelines = states(workspace, name)
    if as_json:
        print_json([state.json() for state in pipelines])
    else:
        show(out, pipelines)
        if name is None and (gone := retired(workspace.services.postgres)):
            out.print(shown(f"retired, and not shown: {first_few(gone)}"))
        if name is None and (lost := undeclared(workspace, (one.pipeline for one in pipelines))):
            told = (
                f"on record, and not declared here: {first_few(lost)}; where nobody else declares it,"
                f" `sluice retire {lost[0]} --why WHY` takes it out of the pages, and `sluice rename {lost[0]} NEW` gives it"
                " the name that it is declared by now"
            )
            out.print(shown(told))
        if airflow := where(workspace.settings):
            out.print(airflow)
    if name is None:
        load_pipelines(
            workspace.settings.pipelines
        )  # a declaration that is not right is told after the others


def deliveries(
    name: PipelineName,
    last: Annotated[
        int, typer.Option(metavar="N", min=1, max=WIDEST, help="How many of the newest ones.")
    ] = 20,
    as_json: AsJson = False,
) -> None:
    """List the deliveries in the order of their commits, the newest first: their rows, and what replaced them."""
    from etl.operations.control.deliveries import newest_deliveries

    workspace = open_workspace()
    load_if_right(name, workspace)  # or it is refused, where nobody knows the pipeline
    found = newest_deliveries(workspace.services.postgres, name, last=last)
    if as_json:
        print_json([one.json() for one in found.newest])
        return
    if not found.newest:
        out.print(f"{name}: nothing is delivered yet; next: `sluice run {name}`")
        return
    figures = ("delivery", "batch", "records", "delivered", "held")
    reads = any(one.records is not None for one in found.newest)
    records = ("records",) if reads else ()
    table = _table("delivery", "kind", "batch", *records, "delivered", "held", "committed", "now", close=True)
    for column in table.columns:
        column.justify, column.no_wrap = (
            ("right" if column.header in figures else "left"),
            column.header != "kind",
        )
    for one in found.newest:
        at = one.committed_at.astimezone().strftime("%Y-%m-%d %H:%M")
        read = (_count(one.records),) if reads else ()
        counts = (str(one.batch_id), *read, f"{one.delivered:,}", f"{one.quarantined:,}")
        table.add_row(str(one.delivery_id), one.what, *counts, at, one.now)
    out.print(table)
    if (earlier := found.of - len(found.newest)) > 0:
        out.print(
            f"{pluralize(earlier, 'earlier delivery', 'earlier deliveries')}: `sluice deliveries {name} --last {found.of}`"
        )


def decide(
    name: PipelineName,
    batch: Annotated[int, typer.Option(max=MOST, help="The stopped batch's id.")],
    why: Annotated[str, typer.Option(callback=given_reason, help="The reason, kept with the decision.")],
    quarantine_all: Annotated[
        bool,
        typer.Option("--quarantine-all", help="Hold the failing rows, or the whole batch for a table rule."),
    ] = False,
    accept: Annotated[bool, typer.Option("--accept", help="Deliver the failing rows as they are.")] = False,
    stream: Annotated[
        str | None, typer.Option(help="The batch's stream; the current one by default.")
    ] = None,
) -> None:
    """Record what to do with a stopped batch; the next run acts on it."""
    from etl.common.errors import SetupError
    from etl.operations.control.decide import record_decision

    if quarantine_all == accept:
        raise SetupError("Give either --quarantine-all or --accept", remedy="`sluice decide --help`")
    leaves(DONE_OR_NOT)
    workspace, pipeline = open_declared(name)
    action = "accept" if accept else "quarantine-all"
    decided = record_decision(
        workspace,
        pipeline,
        batch=batch,
        stream=stream,
        action=action,
        who=who(),
        why=why,
    )
    out.print(decided)


def question(name: PipelineName) -> None:
    """Ask for what a person must decide, or do what was answered in Airflow; the call is on standard input, as JSON."""
    from etl.airflow.command.question import reply
    from etl.airflow.questions.question import QuestionCall

    result_to_stdout(wanted=True)
    call = QuestionCall.parse(standard_input())  # before a pipeline's file could read it
    workspace, pipeline = open_declared(name)
    print_json(reply(workspace, pipeline, call))


def retire(
    name: PipelineName,
    why: Annotated[str, typer.Option(callback=given_reason, help="The reason, kept with the pipeline.")],
) -> None:
    """Take a pipeline off the pages that will not run again; all that it has delivered stays."""
    from etl.operations.control.retire import retire as retire_pipeline

    leaves(DONE_OR_NOT)
    retire_pipeline(open_workspace(), name, who=who(), why=why)
    out.print(f"{name}: retired; its tables, files and records stay as they are, and a run takes it up again")


def rename(
    name: Annotated[str, typer.Argument(metavar="PIPELINE", help="The name that it has on record.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The name that it is declared by now.")],
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Show what would go along and what would stay; change nothing.")
    ] = False,
) -> None:
    """Give a pipeline another name, with its history; its tables and checkpoints stay where they are."""
    from etl.operations.control.rename import plan
    from etl.operations.control.rename import rename as rename_pipeline

    workspace = open_workspace()
    planned = plan(workspace, name, new)
    for line in planned.lines():
        (out if plan_only else err).print(shown(line))
    if not plan_only:
        leaves(DONE_OR_NOT)
        rename_pipeline(workspace, name, new, who=who())
        out.print(f"{new}: this is the name of {name} now; `sluice run {new}` goes on where {name} ended")
    for line in planned.by_hand():
        out.print(shown(f"by hand: {line}"))


def doctor(
    rights: Annotated[
        bool, typer.Option("--rights", help="Print the script that gives a role its rights.")
    ] = False,
) -> None:
    """Check the machine, the settings and the services; exit 2 when something is missing."""
    from etl.operations.control.doctor import examine, rights_script

    if rights:
        print_result(rights_script(load_settings()))
        return
    findings = examine()
    for finding in findings:
        out.print(finding.line())
    if not all(finding.good for finding in findings):
        raise typer.Exit(2)
