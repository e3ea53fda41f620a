"""Reads corrections of held rows that a person typed or uploaded: their form alone, for the release judges the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from etl.airflow.pages.deciding.choices import Choice, Rows
from etl.airflow.run_form import LONGEST_CORRECTIONS
from etl.common.errors import NeedsPerson
from etl.common.wording import first_few, pluralize

_KEPT = "Nothing was changed"


def corrections_of(choice: Choice, rows: Rows, given: str) -> tuple[tuple[int, ...], str]:
    """Return the numbers of the rows that are corrected, and the corrections as JSON Lines.

    Of one row the columns to be set are given, of a batch's rows lines as `sluice quarantine export` writes them. Raises
    NeedsPerson where they are neither, are too long, or are of rows that were not shown.
    """
    if choice.row is not None:
        given = f'{{"quarantine_id": {choice.row}, "row": {_one_line(given)}}}'
    if len(given) > LONGEST_CORRECTIONS:
        raise _refused(f"they have {pluralize(len(given), 'character')}, more than {LONGEST_CORRECTIONS:,}")
    numbers = tuple(dict.fromkeys(_numbers(given)))
    if strangers := sorted({*numbers} - {*rows.ids}):
        raise _refused(f"they are of rows that are not held here: {first_few(strangers)}")
    if not numbers:
        raise _refused("they correct no row")
    return numbers, given


def _one_line(given: str) -> str:
    """Return a JSON object on one line: no text in it has a line's end as it is."""
    if not isinstance(_json(given), dict):
        raise _refused('they are no JSON object, such as {"amount": 3}')
    return re.sub(r"[\r\n]+", " ", given)


def _numbers(lines: str) -> Iterator[int]:
    """Yield the number of each row that a line corrects; one without a row, as of a malformed record, corrects nothing."""
    for line in lines.split("\n"):
        if not line.strip():
            continue
        one = _json(line)
        number = one.get("quarantine_id") if isinstance(one, dict) else None
        if type(number) is not int or not isinstance(one.get("row", 0), dict | None):
            raise _refused('each line is to be {"quarantine_id": 7, "row": {"column": value}}')
        if one["row"] is not None:
            yield number


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(f"they are no JSON: {error}") from error


def _refused(why: str) -> NeedsPerson:
    return NeedsPerson(f"The corrections can't be taken: {why}. {_KEPT}", remedy="go back, and mend them")
