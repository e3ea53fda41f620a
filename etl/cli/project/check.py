"""`sluice check`: tell every mistake of declarations and suites, for CI and before a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from etl.cli.shared import AsJson, out, print_json, shown_lines
from etl.common.errors import SetupError
from etl.common.wording import pluralize

if TYPE_CHECKING:
    from etl.operations.projects.check import Checked


def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[PIPELINE]…", help="Some pipelines; all by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find every mistake of declarations and suites at once, without services or Spark; exit 2 when there are some."""
    from etl.operations.projects.check import check as check_all

    checked = check_all(*names or ())
    if as_json:
        print_json([one.json() for one in checked])
    else:
        _show(checked)
    if any(one.mistakes for one in checked):
        raise typer.Exit(SetupError.exit_code)


def _show(checked: Sequence[Checked]) -> None:
    for one in checked:
        out.print(one.line())
        for mistake in one.mistakes:
            out.print(shown_lines(f"  {mistake.file}: {mistake.seen}"))
            out.print(f"    next: {mistake.remedy}")
    wrong = [one for one in checked if one.mistakes]
    mistakes = pluralize(sum(len(one.mistakes) for one in wrong), "mistake") if wrong else "no mistake"
    where = f"{len(wrong):,} of " if wrong else ""
    out.print(f"{mistakes} in {where}{pluralize(len(checked), 'pipeline')}")
