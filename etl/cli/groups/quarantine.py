"""`sluice quarantine list | show | export | release | discard`."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from etl.cli.shared import (
    DONE_OR_NOT,
    AsJson,
    PipelineName,
    err,
    given_reason,
    is_on_record,
    load,
    open_declared,
    open_workspace,
    out,
    print_json,
    print_result,
    result_to_stdout,
    shown,
    who,
)
from etl.common.errors import SetupError
from etl.common.number_ranges import MOST
from etl.common.wording import WHY, first_few, pluralize
from etl.spark.signals import leaves

if TYPE_CHECKING:
    from rich.console import Console

    from etl.delivery.batch import Receipt
    from etl.ledger.quarantine import HeldRow, RowSelection
    from etl.runs.replay.corrections import Corrections
    from etl.runs.replay.made_corrections import Corrects
    from etl.runs.workspace import Workspace

app = typer.Typer(no_args_is_help=True, help="See held rows, and release or discard them.")

STATES = ("held", "released", "discarded", "superseded")
Ids = Annotated[list[int] | None, typer.Option("--id", min=1, max=MOST, help="A row's number; repeatable.")]
Delivery = Annotated[int | None, typer.Option(min=1, max=MOST, help="Rows that this delivery holds.")]
Reason = Annotated[str | None, typer.Option(help="Rows that carry this reason.")]
All = Annotated[bool, typer.Option("--all", help="Every held row of the pipeline.")]
Why = Annotated[str, typer.Option(callback=given_reason, help="The reason, kept with each row.")]
Status = Annotated[str, typer.Option(help="held, released, discarded or superseded.")]
Limit = Annotated[int, typer.Option(min=1, max=MOST, help="At most so many rows.")]
CorrectionsFile = Annotated[
    Path | None, typer.Option(help="JSON Lines with the columns to set; alone, it also chooses the rows.")
]
CorrectedBy = Annotated[
    str | None,
    typer.Option(
        "--with",
        metavar="FILE.py:FUNCTION",
        help="A function of (raw, row) that returns the columns to set; rows of which it returns None stay held.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The options that name rows of a pipeline's quarantine."""

    ids: Ids = None
    delivery: Delivery = None
    reason: Reason = None

    @property
    def named(self) -> bool:
        return bool(self.ids or self.delivery or self.reason)

    @property
    def words(self) -> str:
        """Return the options as they would be written for a delivery's rows or those of a reason; empty for all."""
        delivery = f" --delivery {self.delivery}" if self.delivery else ""
        return delivery + (f" --reason {shlex.quote(self.reason)}" if self.reason else "")

    def of_status(self, status: str | None, limit: int | None = None) -> RowSelection:
        """Return the choice as the ledger takes it. Raises SetupError where there is no such status."""
        from etl.ledger.quarantine import RowSelection

        if status is not None and status not in STATES:
            raise SetupError(f"--status {status} is no state", remedy=f"one of {', '.join(STATES)}")
        ids = tuple(self.ids) if self.ids else None
        return RowSelection(ids=ids, delivery=self.delivery, reason=self.reason, status=status, limit=limit)


@dataclass(frozen=True, kw_only=True)
class RowsOrAll(Rows):
    """The options that name rows to decide on."""

    everything: All = False

    def held(self, workspace: Workspace, name: str, *, why: str) -> list[HeldRow]:
        """Return the held rows that were named; nothing named is an error, and does not mean everything.

        Raises SetupError where no rows or no reason are given, or no such row is held.
        """
        from etl.ledger.quarantine import held_rows, require_held

        if not why.strip():
            raise SetupError("A decision needs its reason", remedy=f"add {WHY}")
        if self.everything == self.named:
            raise SetupError(
                "No rows are chosen, or --all is given with another choice",
                remedy="give --id, --delivery, --reason, or --all alone",
            )
        held = held_rows(workspace.services.postgres, name, self.of_status(None if self.ids else "held"))
        require_held(held, name, self.ids)
        if not held:
            raise SetupError(f"No such row of {name} is held", remedy=f"`sluice quarantine list {name}`")
        return held


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that its parameter `rows` declares, and let it have them as one value."""
    signature = inspect.signature(command, eval_str=True)
    kind = signature.parameters["rows"].annotation
    options = inspect.signature(kind, eval_str=True).parameters
    parameters: list[inspect.Parameter] = []
    for one in signature.parameters.values():
        parameters += options.values() if one.name == "rows" else [one.replace(kind=one.KEYWORD_ONLY)]

    @wraps(command)
    def run(**given: Any) -> None:
        command(rows=kind(**{name: given.pop(name) for name in options}), **given)

    vars(run)["__signature__"] = signature.replace(parameters=parameters)
    return run


@app.command("list")
@_with_options
def list_rows(
    name: PipelineName,
    rows: Rows,
    status: Status = "held",
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show how many of the rows are held for which reason, and some of them."""
    from etl.common.paths import landing_path, to_uri
    from etl.ledger.quarantine import by_reason, held_rows

    workspace, selection = _workspace(name), rows.of_status(status, limit)
    dsn = workspace.services.postgres
    held, reasons = held_rows(dsn, name, selection), by_reason(dsn, name, selection)
    if as_json:
        print_json({"reasons": [asdict(one) for one in reasons], "rows": [one.json() for one in held]})
        return
    for one in reasons:
        out.print(f"{one.rows:>9,}  {one.reason}  ({pluralize(one.deliveries, 'delivery', 'deliveries')})")
    table = Table("id", "delivery", "batch", "reasons", Column("from", overflow="fold"), "row or raw record")
    landing = f"{to_uri(landing_path(workspace.settings.landing))}/"
    for row in held:
        text = (row.row or row.raw or "")[:160]
        cells = (
            str(row.quarantine_id),
            str(row.delivery_id),
            str(row.batch_id),
            ", ".join(row.reasons) + (f": {row.detail[:160]}" if row.detail else ""),
            (row.source_path or "").removeprefix(landing),
            text,
        )
        table.add_row(*map(shown, cells))
    if not held:
        out.print(f"{name}: no row is {status}" if selection.everything else f"{name}: no such row")
        return
    out.print(table)
    out.print(f"next: `sluice quarantine show {name} {held[0].quarantine_id}`")


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
        "detail": row.detail,
        "raw record": row.raw,
        "released by": row.released_by and f"delivery {row.released_by}",
        "superseded": row.superseded_by and f"its delivery was replaced by delivery {row.superseded_by}",
        "decided": row.decided_by and f"by {row.decided_by}: {row.why}",
    }
    for title, value in lines.items():
        if value is not None:
            out.print(shown(f"{title:<12} {value}"))
    for column, value in (row.values or {}).items():
        out.print(shown(f"  {column:<24} {json.dumps(value)}"))


@app.command()
@_with_options
def export(
    name: PipelineName,
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A new file; default: print.")] = None,
    rows: Rows,
    status: Status = "held",
) -> None:
    """Write rows as JSON Lines, which can be corrected and released."""
    from etl.ledger.quarantine import held_rows

    result_to_stdout(output is None)
    held = held_rows(_workspace(name).services.postgres, name, rows.of_status(status))
    lines = "".join(json.dumps(one.export()) + "\n" for one in held)
    if output is None:
        print_result(lines)
        return
    try:
        with output.open("x") as file:
            file.write(lines)
    except OSError as error:
        raise SetupError(f"{output} can't be written: {error.strerror}", remedy="name a new file") from error
    out.print(f"{pluralize(len(held), 'row')} in {output}")
    if any(one.status == "held" for one in held):
        written = shlex.quote(str(output))
        out.print(
            f"next: correct the values in `row`, then `sluice quarantine release {name} --corrections {written} {WHY}`"
        )


@app.command()
@_with_options
def release(
    name: PipelineName,
    why: Why,
    rows: RowsOrAll,
    corrections: CorrectionsFile = None,
    by: CorrectedBy = None,
    as_json: AsJson = False,
) -> None:
    """Judge held rows again, corrected or not, and deliver those that pass."""
    from etl.runs.follow import RunControl, heeded
    from etl.runs.replay.made_corrections import function_at
    from etl.runs.replay.release import GIVEN_UP
    from etl.runs.replay.release import release as release_rows

    if corrections and by:
        raise SetupError("--corrections and --with are given", remedy="give one of them")
    function = function_at(by) if by else None
    workspace, pipeline = open_declared(name)
    if function is None:
        held, changes = _corrected_by_file(workspace, name, rows, corrections, why=why)
    else:
        held, changes = _corrected_by_function(workspace, name, rows, function, why=why)
        err.print(f"{name}: {pluralize(len(held), 'row')} corrected by {by}; the others stay held")
    receipts: Sequence[Receipt] = ()
    if held:
        # Also where the JSON is to come at the end: a signal may come before it.
        report = partial(_print_receipt, err if as_json else out, name)
        control = RunControl(correction_left=GIVEN_UP)
        with heeded(control):
            receipts = release_rows(
                workspace, pipeline, held, changes, who=who(), why=why, progress=report, control=control
            )
    if as_json:
        print_json([one.json() for one in receipts])


def _corrected_by_file(
    workspace: Workspace, name: str, rows: RowsOrAll, file: Path | None, *, why: str
) -> tuple[list[HeldRow], Corrections]:
    """Return the rows to release, with the columns that a file sets; without a file none is set.

    Raises SetupError where the file has rows that are not chosen.
    """
    from etl.runs.replay.corrections import read_corrections

    changes = read_corrections(file, workspace.settings.bounds) if file else {}
    if changes and not (rows.named or rows.everything):
        rows = replace(rows, ids=list(changes))
    held = rows.held(workspace, name, why=why)
    if strangers := sorted(changes.keys() - {one.quarantine_id for one in held}):
        raise SetupError(
            f"{file} corrects rows that this release does not choose: {first_few(strangers)}",
            remedy="choose these rows too, or remove them from the file",
        )
    return held if rows.ids else _as_they_are(name, held, changes, words=rows.words), changes


def _corrected_by_function(
    workspace: Workspace, name: str, rows: RowsOrAll, function: Corrects, *, why: str
) -> tuple[list[HeldRow], Corrections]:
    """Return the rows that the function corrects, with the columns that it sets."""
    from etl.runs.replay.made_corrections import made_corrections

    held = rows.held(workspace, name, why=why)
    changes = made_corrections(held, function, workspace.settings.bounds)
    return [one for one in held if one.quarantine_id in changes], changes


def _print_receipt(to: Console, name: str, one: Receipt) -> None:
    """Print what one delivery of a release delivered, and why it holds the rest again."""
    held_again = f", {one.quarantined:,} held again" if one.quarantined else ""
    to.print(f"{name}: delivery {one.delivery_id}: {pluralize(one.delivered, 'row')} released{held_again}")
    for why_held, count in one.reasons.items():
        to.print(f"  {count:>9,}  {why_held}")


@app.command()
@_with_options
def discard(
    name: PipelineName,
    why: Why,
    rows: RowsOrAll,
) -> None:
    """Discard held rows; they stay on record."""
    from etl.ledger.quarantine import discard as discard_rows

    leaves(DONE_OR_NOT)
    workspace = _workspace(name)
    held = rows.held(workspace, name, why=why)
    numbers = [one.quarantine_id for one in held]
    count = discard_rows(workspace.services.postgres, name, numbers, who=who(), why=why)
    out.print(f"{name}: {pluralize(count, 'row')} discarded; sluice.quarantine keeps them, with who and why")


def _as_they_are(name: str, held: list[HeldRow], changes: Corrections, *, words: str) -> list[HeldRow]:
    """Return the rows without those that can't be released before they are corrected, and tell of these.

    Where there is no other, they are returned: the release itself says what they need.
    """
    left = [one for one in held if one.needs_correction and one.quarantine_id not in changes]
    if not left or len(left) == len(held):
        return held
    err.print(
        f"{name}: {_staying(left)}; `sluice quarantine export {name}{words} -o rows.jsonl` writes"
        f" {'it' if len(left) == 1 else 'them'} to be corrected"
    )
    without = {one.quarantine_id for one in left}
    return [one for one in held if one.quarantine_id not in without]


def _staying(left: Sequence[HeldRow]) -> str:
    """Say of rows that need a correction that they stay held, and why."""
    held, first = pluralize(len(left), "row stays", "rows stay"), left[0].quarantine_id
    if len(left) == 1:
        return f"{held} held, {first}: it never became a row, or holds bytes that are no UTF-8"
    return f"{held} held, such as {first}: they never became rows, or hold bytes that are no UTF-8"


def _workspace(name: str) -> Workspace:
    """Open the workspace; raise SetupError where the pipeline is neither on record nor declared.

    What is held of one that is declared no more, or by mistake, can be looked at and discarded.
    """
    workspace = open_workspace()
    if not is_on_record(name, workspace):
        load(name, workspace.settings)
    return workspace
