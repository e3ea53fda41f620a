"""`sluice audit`, `sluice recover` and `sluice sweep`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from etl.cli.shared import (
    DONE_SO_FAR,
    AsJson,
    PipelineName,
    as_given,
    given_reason,
    open_declared,
    out,
    print_json,
    who,
)
from etl.cli.withdrawal import Before, PlanOnly, go_back
from etl.spark.signals import leaves

if TYPE_CHECKING:
    from etl.pipeline import Pipeline
    from etl.runs.recovery.recover import Recovered


def audit(name: PipelineName, as_json: AsJson = False) -> None:
    """Recount both sinks and compare them with each other and with the ledger; exit 1 on a difference."""
    from etl.operations.audit.audit import audit as audit_pipeline

    workspace, pipeline = open_declared(name)
    report = audit_pipeline(workspace, pipeline)
    if as_json:
        print_json(report.json())
    else:
        for line in report.lines():
            out.print(line)
    if not report.clean:
        raise typer.Exit(1)


def recover(
    name: PipelineName,
    accept_gone: Annotated[
        bool,
        typer.Option(
            "--accept-gone", help="Go on without the records that Kafka no longer has; kept on record."
        ),
    ] = False,
    why: Annotated[
        str | None,
        typer.Option(callback=given_reason, help="The reason, kept with --accept-gone or --before."),
    ] = None,
    before: Before = None,
    plan_only: PlanOnly = False,
) -> None:
    """Repair a checkpoint that is lost, damaged or out of step with the ledger; nothing is lost or delivered twice.

    Where a transform's state is lost, it is rebuilt: all batches in force run through the transform once more.
    """
    _refuse_mixed(accept_gone=accept_gone, why=why, before=before, plan_only=plan_only)
    if before is not None:
        go_back(name, before, why=why, plan_only=plan_only)
    else:
        _repair(name, accepted_because=why)


def _refuse_mixed(*, accept_gone: bool, why: str | None, before: int | None, plan_only: bool) -> None:
    """Raise SetupError for options that do not go together, or lack another one."""
    from etl.common.errors import SetupError

    going_back, reason = before is not None, (why or "").strip()
    wrong = {
        "--plan needs --before": plan_only and not going_back,
        "--accept-gone does not go with --before": accept_gone and going_back,
        "--accept-gone needs --why": accept_gone and not reason,
        "--why needs --accept-gone or --before": why is not None and not accept_gone and not going_back,
        "--before needs --why, or --plan": going_back and not reason and not plan_only,
    }
    for message, so in wrong.items():
        if so:
            raise SetupError(message, remedy="`sluice recover --help`")


def _repair(name: str, *, accepted_because: str | None) -> None:
    """Repair the pipeline's checkpoint, and say so; with a reason also without records that Kafka no longer has."""
    from etl.runs.follow import RunControl, heeded
    from etl.runs.recovery.base import AcceptedGaps
    from etl.runs.recovery.recover import PUT_BACK
    from etl.runs.recovery.recover import recover as recover_pipeline

    workspace, pipeline = open_declared(name)
    accepted = AcceptedGaps(who=who(), why=accepted_because) if accepted_because else None
    control = RunControl(correction_left=PUT_BACK, again=as_given())
    with heeded(control):
        done = recover_pipeline(
            workspace,
            pipeline,
            on_progress=partial(_tell_rebuilt, name),
            accepted=accepted,
            control=control,
        )
    for line in recovered_lines(pipeline, done):
        out.print(line)


def _tell_rebuilt(name: str, batch: int, of: int) -> None:
    from etl.common.wording import pluralize

    if batch == 1:
        out.print(
            f"{name}: its state is rebuilt from {pluralize(of, 'batch', 'batches')}; none of them is delivered again"
        )
    out.print(f"  batch {batch} of {of}")


def recovered_lines(pipeline: Pipeline, done: Recovered) -> Iterator[str]:
    """Yield lines that say what a recovery did, and what had been wrong."""
    from etl.common.wording import pluralize
    from etl.pipeline.replayability import run_command

    if done.problem is None:
        yield f"{done.pipeline}: nothing to recover; checkpoint and ledger agree"
        return
    yield f"{done.pipeline}: recovered, and ready to run"
    yield f"  was: {done.problem}"
    for receipt in done.restored:
        yield (
            f"  put back from the lake: delivery {receipt.delivery_id}, batch {receipt.batch_id},"
            f" {pluralize(receipt.delivered, 'row')}"
        )
    yield from (f"  lost with PostgreSQL's last state: {line}" for line in done.to_redo)
    yield from (f"  on record as gone: {line}" for line in done.gone)
    if pipeline.replayable:
        known = f", whose checkpoint knows the {done.counted}" if done.seen else ""
        yield f"  stream {done.stream}{known}"
    yield f"next: `{run_command(pipeline)}`"


def sweep(
    name: PipelineName,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")
    ] = False,
) -> None:
    """Remove what fenced and failed attempts left behind, once it is older than the backup horizon."""
    from etl.operations.maintenance.sweep import sweep as sweep_pipeline

    if not dry_run:
        leaves(DONE_SO_FAR)
    workspace, pipeline = open_declared(name)
    report = sweep_pipeline(workspace, pipeline, dry_run=dry_run)
    for line in report.lines():
        out.print(line)
