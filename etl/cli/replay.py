"""`sluice replay`: shows what it would replace, then replaces exactly that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from etl.cli.shared import (
    AsJson,
    PipelineName,
    err,
    given_reason,
    open_declared,
    out,
    print_json,
    who,
)
from etl.common.errors import SetupError
from etl.common.wording import pluralize

if TYPE_CHECKING:
    from etl.pipeline import Pipeline
    from etl.runs.replay.plan import ReplayPlan, Selection
    from etl.runs.replay.replay import Replayed
    from etl.runs.workspace import Workspace

Deliveries = Annotated[
    str | None, typer.Option(metavar="A..B,C", help="Delivery ids: ranges, or single ones.")
]
Batches = Annotated[str | None, typer.Option(metavar="A..B", help="Batch ids of one stream.")]
Stream = Annotated[str | None, typer.Option(help="The batches' stream; the current one by default.")]
RunId = Annotated[str | None, typer.Option(metavar="RUN_ID", help="Whatever this run delivered.")]
Interval = Annotated[
    tuple[str, str] | None,
    typer.Option(
        metavar="START END",
        help="Deliveries with a row, delivered or held, or a file in this interval, as declared; END is exclusive.",
    ),
]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Show what would be replaced; change nothing.")]
AcceptChanged = Annotated[
    bool,
    typer.Option(
        "--accept-changed", help="Take changed or missing inputs, and rows of the table, as they are now."
    ),
]
AcceptUnreadable = Annotated[
    bool,
    typer.Option(
        "--accept-unreadable",
        help="Deliver what can be read of damaged files, and hold the rest; needs --why.",
    ),
]
Fewer = Annotated[
    bool,
    typer.Option(
        "--fewer",
        help="Deliver fewer rows than are replaced, by more than max_fewer_share allows; needs --why.",
    ),
]
Releases = Annotated[
    str | None, typer.Option(metavar="keep|drop", help="What to do with rows that were released since.")
]
Why = Annotated[str | None, typer.Option(callback=given_reason, help="The reason, kept with the run.")]

ONE_WAY = "`sluice replay --help` shows how to say what is to be replayed"


def replay(
    name: PipelineName,
    deliveries: Deliveries = None,
    batches: Batches = None,
    stream: Stream = None,
    run: RunId = None,
    interval: Interval = None,
    plan_only: PlanOnly = False,
    accept_changed: AcceptChanged = False,
    accept_unreadable: AcceptUnreadable = False,
    fewer: Fewer = False,
    releases: Releases = None,
    why: Why = None,
    as_json: AsJson = False,
) -> None:
    """Deliver batches again, from the same inputs, in place of what they delivered before."""
    from etl.runs.follow import RunControl, heeded
    from etl.runs.replay.plan import keep_or_drop, plan
    from etl.runs.replay.replay import GIVEN_UP
    from etl.runs.replay.replay import replay as replay_deliveries

    selection = _selection(deliveries, batches, stream, run, interval)
    releases_choice = keep_or_drop("--releases", releases)
    workspace, pipeline = open_declared(name)
    planned = plan(workspace, pipeline, selection)
    for line in planned.lines():
        (out if plan_only and not as_json else err).print(line)
    if plan_only:
        _tell_columns(workspace, pipeline, planned, as_json=as_json)
        return
    with heeded(RunControl(correction_left=GIVEN_UP)):
        done = replay_deliveries(
            workspace,
            pipeline,
            planned,
            who=who(),
            why=why,
            accept_changed=accept_changed,
            accept_unreadable=accept_unreadable,
            fewer=fewer,
            releases=releases_choice,
        )
    _say(done, as_json=as_json)


def _tell_columns(workspace: Workspace, pipeline: Pipeline, planned: ReplayPlan, *, as_json: bool) -> None:
    """Complete a plan by what the replay does to the tables' columns, which takes Spark to tell."""
    from etl.runs.replay.columns import column_changes

    if planned.deliveries and not planned.state:
        planned = replace(planned, columns=column_changes(workspace, pipeline))
    if as_json:
        print_json(planned.json())
        return
    for line in planned.column_lines():
        out.print(line)


def _say(done: Replayed, *, as_json: bool) -> None:
    if as_json:
        print_json(done.json())
    elif done.receipt is not None:
        from etl.common.number_ranges import format_ranges

        one, name = done.receipt, done.plan.pipeline
        out.print(
            f"{name}: delivery {one.delivery_id} replaced {format_ranges(done.replaced) or 'none'}:"
            f" {pluralize(one.delivered, 'row')} delivered (before: {done.plan.rows:,}),"
            f" {one.quarantined:,} quarantined (before: {done.plan.held:,}), in {one.seconds:.1f} s"
        )
        if one.columns:
            out.print(f"its tables have changed: {'; '.join(one.columns)}")
        out.print(
            f"next: `sluice audit {name}` recounts both sinks; the view sluice.replaced lists what was replaced"
        )


def _selection(
    deliveries: str | None,
    batches: str | None,
    stream: str | None,
    run: str | None,
    interval: tuple[str, str] | None,
) -> Selection:
    from etl.common.number_ranges import first_and_last, parse_ranges
    from etl.operations.control.decide import is_uuid
    from etl.pipeline.intervals import named_interval
    from etl.runs.replay.plan import Selection

    if sum(one is not None for one in (deliveries, batches, run, interval)) != 1:
        raise SetupError(
            "A replay takes exactly one of --deliveries, --batches, --run and --interval", remedy=ONE_WAY
        )
    if stream is not None and batches is None:
        raise SetupError("--stream needs --batches", remedy=ONE_WAY)
    for option, value in (("--stream", stream), ("--run", run)):
        if value is not None and not is_uuid(value):
            raise SetupError(
                f"{option} {value} is not a valid id", remedy="`sluice status PIPELINE --json` shows them"
            )
    if deliveries is not None:
        return Selection(deliveries=parse_ranges("--deliveries", deliveries))
    if batches is not None:
        return Selection(batches=first_and_last("--batches", batches), stream=stream)
    if interval is not None:
        return Selection(interval=named_interval("--interval", *interval))
    return Selection(runs=(str(run),))
