"""`sluice audit`, `sluice recover` and `sluice sweep`."""

from __future__ import annotations

from typing import Annotated

import typer

from etl.cli.shared import AsJson, PipelineName, load, open_workspace, out, print_json, shown_lines, who


def audit(name: PipelineName, as_json: AsJson = False) -> None:
    """Recount both sinks and compare them with each other and with the ledger; exit 1 on a difference."""
    from etl.operations.audit.audit import audit as audit_pipeline

    workspace = open_workspace()
    report = audit_pipeline(workspace, load(name, workspace.settings))
    if as_json:
        print_json(report.json())
    else:
        for line in report.lines():
            out.print(shown_lines(line))
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
    why: Annotated[str | None, typer.Option(help="The reason, kept with --accept-gone.")] = None,
) -> None:
    """Repair a checkpoint that is lost, damaged or out of step with the ledger; nothing is lost or delivered twice.

    Where a transform's state is lost, it is rebuilt: all batches in force run through the transform once more.
    """
    from etl.common.errors import SetupError
    from etl.common.wording import pluralize
    from etl.pipeline.replayability import run_command
    from etl.runs.recovery.base import AcceptedGaps
    from etl.runs.recovery.recover import recover as recover_pipeline

    if accept_gone != bool(why):
        raise SetupError(
            "--accept-gone needs --why, and --why needs --accept-gone", remedy="`sluice recover --help`"
        )

    def on_progress(batch: int, of: int) -> None:
        if batch == 1:
            out.print(
                f"{name}: its state is rebuilt from {pluralize(of, 'batch', 'batches')}; none of them is delivered again"
            )
        out.print(f"  batch {batch} of {of}")

    workspace = open_workspace()
    accepted = AcceptedGaps(who=who(), why=why) if why else None
    pipeline = load(name, workspace.settings)
    done = recover_pipeline(workspace, pipeline, on_progress=on_progress, accepted=accepted)
    if done.problem is None:
        out.print(f"{name}: nothing to recover; checkpoint and ledger agree")
        return
    out.print(f"{name}: {done.problem}", markup=False)
    for receipt in done.restored:
        out.print(
            f"  put back from the lake: delivery {receipt.delivery_id}, batch {receipt.batch_id},"
            f" {receipt.delivered:,} rows"
        )
    for line in done.to_redo:
        out.print(f"  lost with PostgreSQL's last state: {line}", markup=False)
    for line in done.gone:
        out.print(f"  on record as gone: {line}", markup=False)
    if pipeline.replayable:
        out.print(f"  stream {done.stream}, whose checkpoint knows the {done.seen:,} {done.counted}")
    out.print(f"next: `{run_command(pipeline)}`")


def sweep(
    name: PipelineName,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")
    ] = False,
) -> None:
    """Remove what fenced and failed attempts left behind, once it is older than the backup horizon."""
    from etl.operations.maintenance.sweep import sweep as sweep_pipeline

    workspace = open_workspace()
    report = sweep_pipeline(workspace, load(name, workspace.settings), dry_run=dry_run)
    for line in report.lines():
        out.print(line, markup=False)
