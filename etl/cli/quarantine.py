"""`sluice quarantine list | show | export | release | discard`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from etl.cli.shared import (
    AsJson,
    PipelineName,
    err,
    load,
    open_workspace,
    out,
    print_json,
    print_result,
    result_apart,
    shown,
    who,
)
from etl.common.errors import SetupError
from etl.common.number_ranges import MOST

if TYPE_CHECKING:
    from etl.delivery.batch import Receipt
    from etl.ledger.quarantine import HeldRow, RowSelection
    from etl.runs.workspace import Workspace

app = typer.Typer(no_args_is_help=True, help="See what was held back, and let it out or give it up.")

Ids = Annotated[list[int] | None, typer.Option("--id", min=1, max=MOST, help="A row's number; repeatable.")]
Delivery = Annotated[int | None, typer.Option(min=1, max=MOST, help="Rows that this delivery holds.")]
Reason = Annotated[str | None, typer.Option(help="Rows that carry this reason.")]
All = Annotated[bool, typer.Option("--all", help="Every held row of the pipeline.")]
Why = Annotated[str, typer.Option(help="The reason, kept with each row.")]
Status = Annotated[str, typer.Option(help="held, released, discarded or superseded.")]
Limit = Annotated[int, typer.Option(min=1, help="At most so many rows.")]
STATES = ("held", "released", "discarded", "superseded")


@app.command("list")
def list_rows(
    name: PipelineName,
    ids: Ids = None,
    delivery: Delivery = None,
    reason: Reason = None,
    status: Status = "held",
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show how many rows are held for which reason, and some of them."""
    from etl.ledger.quarantine import by_reason, held_rows

    workspace, chosen = _workspace(name), _chosen(ids, delivery, reason, status, limit)
    dsn = workspace.services.postgres
    found, reasons = held_rows(dsn, name, chosen), by_reason(dsn, name, status)
    if as_json:
        print_json({"reasons": reasons, "rows": [one.json() for one in found]})
        return
    for one in reasons:
        out.print(f"{one['rows']:>9,}  {one['reason']}  ({one['deliveries']:,} deliveries)", markup=False)
    table = Table("id", "delivery", "batch", "reasons", "from", "row or raw record")
    for row in found:
        source = (row.source_path or "").rpartition("/")[2]
        text = (row.row or row.raw or "")[:160]
        cells = (
            str(row.quarantine_id),
            str(row.delivery_id),
            str(row.batch_id),
            ", ".join(row.reasons),
            source,
            text,
        )
        table.add_row(*map(shown, cells))
    if not found:
        out.print(
            f"{name}: no row is {status}" if chosen.everything else f"{name}: no such row", markup=False
        )
        return
    out.print(table)
    out.print(f"next: `sluice quarantine show {name} {found[0].quarantine_id}`", markup=False)


@app.command()
def show(
    name: PipelineName,
    number: Annotated[int, typer.Argument(metavar="ID", min=1, max=MOST)],
    as_json: AsJson = False,
) -> None:
    """Show one row whole."""
    from etl.ledger.quarantine import one_row

    row = one_row(_workspace(name).services.postgres, name, number)
    if as_json:
        print_json(row.json())
        return
    lines = {
        "row": row.quarantine_id,
        "state": row.status,
        "reasons": ", ".join(row.reasons),
        "held by": f"delivery {row.delivery_id}, batch {row.batch_id} of stream {row.stream_id}",
        "held at": row.held_at.astimezone().isoformat(timespec="seconds"),
        "from": row.source_path,
        "raw record": row.raw,
        "released by": row.released_by and f"delivery {row.released_by}",
        "superseded": row.superseded_by and f"its delivery was replaced by delivery {row.superseded_by}",
        "decided": row.decided_by and f"by {row.decided_by}: {row.why}",
    }
    for title, value in lines.items():
        if value is not None:
            out.print(Text(f"{title:<12} ") + shown(value))
    for column, value in (row.values or {}).items():
        out.print(Text("  ") + shown(f"{column:<24} {json.dumps(value)}"))


@app.command()
def export(
    name: PipelineName,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new file; default: print.")] = None,
    ids: Ids = None,
    delivery: Delivery = None,
    reason: Reason = None,
    status: Status = "held",
) -> None:
    """Write rows as JSON Lines, which can be corrected and released."""
    from etl.ledger.quarantine import held_rows

    result_apart(output is None)
    found = held_rows(_workspace(name).services.postgres, name, _chosen(ids, delivery, reason, status))
    lines = "".join(json.dumps(one.export()) + "\n" for one in found)
    if output is None:
        print_result(lines)
        return
    try:
        with output.open("x") as file:
            file.write(lines)
    except OSError as error:
        raise SetupError(f"{output} can't be written: {error.strerror}", remedy="name a new file") from error
    out.print(f"{len(found):,} rows in {output}", markup=False)
    out.print(
        f"next: correct the values in `row`, then `sluice quarantine release {name} --corrections {output}"
        ' --why "…"`',
        markup=False,
    )


@app.command()
def release(
    name: PipelineName,
    why: Why,
    ids: Ids = None,
    delivery: Delivery = None,
    reason: Reason = None,
    everything: All = False,
    corrections: Annotated[
        Path | None, typer.Option(help="JSON Lines with the columns to set; alone, it names the rows too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge held rows again, corrected or not, and deliver those that pass."""
    from etl.ledger.quarantine import read_corrections
    from etl.runs.follow import RunControl, heeded
    from etl.runs.replay.release import GIVEN_UP
    from etl.runs.replay.release import release as release_rows

    workspace = _workspace(name)
    changes = read_corrections(corrections) if corrections else {}
    if changes and not (ids or delivery or reason or everything):
        ids = list(changes)
    found = _selected(workspace, name, ids, delivery, reason, everything=everything, why=why)
    if strangers := sorted(changes.keys() - {one.quarantine_id for one in found}):
        raise SetupError(
            f"{corrections} corrects rows that are not to be released: {', '.join(map(str, strangers[:5]))}",
            remedy="name these too, or take them out of the file",
        )
    pipeline = load(name, workspace.settings)

    def tell(one: Receipt) -> None:
        to = err if as_json else out  # also where the JSON is to come at the end: a signal may come before it
        again = f", {one.quarantined:,} held again" if one.quarantined else ""
        to.print(f"{name}: delivery {one.delivery_id}: {one.delivered:,} rows released{again}", markup=False)
        for why_held, count in one.reasons.items():
            to.print(f"  {count:>9,}  {why_held}", markup=False)

    stay = RunControl(beside=GIVEN_UP)
    with heeded(stay):
        receipts = release_rows(
            workspace, pipeline, found, changes, who=who(), why=why, progress=tell, stay=stay
        )
    if as_json:
        print_json([one.json() for one in receipts])


@app.command()
def discard(
    name: PipelineName,
    why: Why,
    ids: Ids = None,
    delivery: Delivery = None,
    reason: Reason = None,
    everything: All = False,
) -> None:
    """Give held rows up; they stay on record."""
    from etl.ledger.quarantine import discard as discard_rows

    workspace = _workspace(name)
    found = _selected(workspace, name, ids, delivery, reason, everything=everything, why=why)
    numbers = [one.quarantine_id for one in found]
    count = discard_rows(workspace.services.postgres, name, numbers, who=who(), why=why)
    out.print(
        f"{name}: {count:,} rows discarded; sluice.quarantine keeps them, with who and why", markup=False
    )


def _workspace(name: str) -> Workspace:
    workspace = open_workspace()
    load(name, workspace.settings)
    return workspace


def _selected(
    workspace: Workspace,
    name: str,
    ids: list[int] | None,
    delivery: int | None,
    reason: str | None,
    *,
    everything: bool,
    why: str,
) -> list[HeldRow]:
    """Return the held rows that were named; nothing named is an error, and does not mean everything.

    Raises SetupError where no rows or no reason are given, or no such row is held.
    """
    from etl.ledger.quarantine import held_rows, require_held

    if not why.strip():
        raise SetupError("A decision needs its reason", remedy='add --why "…"')
    if everything == bool(ids or delivery or reason):
        raise SetupError(
            "No rows are chosen, or --all goes with another choice",
            remedy="say --id, --delivery, --reason or --all",
        )
    chosen = _chosen(ids, delivery, reason, None if ids else "held")
    found = held_rows(workspace.services.postgres, name, chosen)
    require_held(found, name, ids)
    if not found:
        raise SetupError(f"No such row of {name} is held", remedy=f"`sluice quarantine list {name}`")
    return found


def _chosen(
    ids: list[int] | None,
    delivery: int | None,
    reason: str | None,
    status: str | None,
    limit: int | None = None,
) -> RowSelection:
    from etl.ledger.quarantine import RowSelection

    if status is not None and status not in STATES:
        raise SetupError(f"--status {status} is no state", remedy=f"one of {', '.join(STATES)}")
    return RowSelection(
        ids=tuple(ids) if ids else None, delivery=delivery, reason=reason, status=status, limit=limit
    )
