"""Corrections that a function of the user's makes of held rows, each of the record as it was read and of the row.

    def vendor_times(raw, row):              # raw: the record's text, or None; row: its columns by name, or None
        return {"at": row["at"] + ":00Z"} if row and row["at"] else None     # the columns to be set; None: it stays held

What a function returns is what a file of corrections could say, and is judged in the same way.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etl.common.errors import SetupError
from etl.common.record_bounds import DEFAULT, Bounds
from etl.common.wording import pluralize
from etl.runs.replay.corrections import corrections_in

if TYPE_CHECKING:
    from etl.ledger.quarantine import HeldRow

Corrects = Callable[[str | None, dict[str, Any] | None], dict[str, Any] | None]
_MODULE = "sluice_corrections"
MOST = 100_000  # rows that one command corrects
LONGEST = 1_000_000  # characters of one correction, as JSON


def function_at(place: str) -> Corrects:
    """Load the function that FILE.py:NAME says. Raises SetupError where there is none."""
    path, _, name = place.rpartition(":")
    file = Path(path)
    spec = importlib.util.spec_from_file_location(_MODULE, file) if file.is_file() else None
    if spec is None or spec.loader is None or not name:
        raise SetupError(
            f"--with {place} names no function of a file",
            remedy="write it as FILE.py:FUNCTION, such as fixes.py:times",
        )
    module = sys.modules[_MODULE] = importlib.util.module_from_spec(spec)  # where its classes look for it
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        raise SetupError(
            f"{file} can't be loaded: {type(error).__name__}: {error}", remedy="mend it"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise SetupError(f"{file} has no function {name}", remedy="name one that it has")
    made: Corrects = function
    return made


def made_corrections(
    rows: Iterable[HeldRow], function: Corrects, bounds: Bounds = DEFAULT
) -> dict[int, dict[str, Any]]:
    """Return what the function corrects of the rows, by quarantine id; rows of which it returns None are not in it.

    Raises SetupError where there are more than MOST rows, where the function fails, or where it returns anything else than
    columns with values as JSON has them, or more than LONGEST characters of it.
    """
    chosen = list(rows)
    if len(chosen) > MOST:
        raise SetupError(
            f"{pluralize(len(chosen), 'row')} are more than a function corrects at once ({MOST:,})",
            remedy="choose fewer, such as those of one --delivery",
        )
    found: dict[int, dict[str, Any]] = {}
    for one in chosen:
        number = one.quarantine_id
        try:
            made = function(one.raw, one.values)
            line = json.dumps({"quarantine_id": number, "row": made}, allow_nan=False)
        except Exception as error:  # whatever the user's function raises
            raise SetupError(
                f"The function failed on row {number}: {type(error).__name__}: {error}",
                remedy="mend it; nothing was changed",
            ) from error
        if made is None:
            continue
        if len(line) > LONGEST:
            raise SetupError(
                f"The function returned {pluralize(len(line), 'character')} for row {number}, more than {LONGEST:,}",
                remedy="return only the columns to be set",
            )
        found |= corrections_in(line, f"what the function returned for row {number}", bounds)
    return found
