"""`sluice recover --before`: shows what would leave both sinks, then takes exactly that out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from etl.cli.shared import as_given, err, open_declared, out, who
from etl.common.number_ranges import MOST

if TYPE_CHECKING:
    from etl.runs.recovery.withdrawal import Withdrawn

Before = Annotated[
    int | None,
    typer.Option(
        metavar="DELIVERY",
        max=MOST,
        help="Go back: take this delivery and all after it out of both sinks, with the state as it was before; the next run"
        " reads their inputs again. For a transform that keeps state; needs --why.",
    ),
]
PlanOnly = Annotated[
    bool, typer.Option("--plan", help="With --before: show what would leave; change nothing.")
]


def go_back(name: str, before: int, *, why: str | None, plan_only: bool) -> None:
    """Take a delivery and all after it out of both sinks, or show what that would be."""
    from etl.common.errors import Stopped
    from etl.runs.follow import RunControl, heeded
    from etl.runs.recovery.withdrawal import withdraw
    from etl.runs.recovery.withdrawal_plan import plan_withdrawal

    workspace, pipeline = open_declared(name)
    planned = plan_withdrawal(workspace, pipeline, before)
    for line in planned.lines():
        (out if plan_only else err).print(line)
    if plan_only:
        return
    control = RunControl(correction_left=Stopped.NOTHING_CHANGED, again=as_given())
    with heeded(control):
        done = withdraw(
            workspace, pipeline, planned, who=who(), why=why or "", on_progress=_tell_batch, control=control
        )
    _say(done)


def _tell_batch(batch: int, of: int) -> None:
    err.print(f"  state      batch {batch} of {of}")


def _say(done: Withdrawn) -> None:
    from etl.common.number_ranges import format_ranges
    from etl.common.wording import pluralize

    plan, name = done.plan, done.plan.pipeline
    out.print(
        f"{name}: delivery {done.receipt.delivery_id} took {format_ranges(sorted(plan.numbers))} out of both sinks, with"
        f" {pluralize(plan.rows, 'delivered row')} and {plan.held:,} held"
    )
    out.print(f"  stream {done.stream.stream_id} goes on from the state of before delivery {plan.before}")
    out.print(f"next: `sluice run {name}`, which reads {plan.inputs} again")
