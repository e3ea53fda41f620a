"""Corrections that are typed or uploaded on a page: of rows that were shown, bounded, and passed on as they were typed."""

from __future__ import annotations

import json

import pytest

from etl.airflow.pages.deciding.choices import Choice, Rows
from etl.airflow.pages.deciding.typed import corrections_of
from etl.airflow.run_form import LONGEST_CORRECTIONS
from etl.common.errors import NeedsPerson

ROW = Choice(pipeline="orders", action="correct", row=7)
BATCH = Choice(pipeline="orders", action="correct", delivery=3)
SHOWN = Rows(ids=(7, 8, 9), uncorrected=0, more=False)


def test_what_is_typed_of_a_row_is_passed_on_on_one_line_with_each_number_as_it_was_written() -> None:
    typed = '{"amount":\r\n 12345678901234567890.10,\n "name": "a\u2028b}"}'
    numbers, lines = corrections_of(ROW, SHOWN, typed)
    assert numbers == (7,)
    assert lines == '{"quarantine_id": 7, "row": {"amount":  12345678901234567890.10,  "name": "a\u2028b}"}}'
    assert json.loads(lines)["quarantine_id"] == 7


def test_of_a_batch_the_rows_that_have_a_line_are_corrected() -> None:
    line = '{"quarantine_id": %s, "row": %s, "raw": "x"}'
    uploaded = "\n".join([line % (8, '{"a": 1}'), "", line % (9, "null"), line % (7, "{}")])
    assert corrections_of(BATCH, SHOWN, uploaded) == ((8, 7), uploaded)


@pytest.mark.parametrize(
    ("choice", "given", "why"),
    [
        (ROW, "", "no JSON"),
        (ROW, "[1]", "no JSON object"),
        (ROW, "{'a': 1}", "no JSON"),
        (ROW, '{"a": 1}, "quarantine_id": 8', "no JSON"),
        (ROW, "[" * 100_000, "no JSON"),
        (ROW, json.dumps({"a": "x" * LONGEST_CORRECTIONS}), "more than 200,000"),
        (BATCH, "", "correct no row"),
        (BATCH, '{"quarantine_id": 9, "row": null}', "correct no row"),
        (BATCH, '{"quarantine_id": 10, "row": {}}', "not held here: 10"),
        (BATCH, '{"quarantine_id": true, "row": {}}', "each line is to be"),
        (BATCH, '{"quarantine_id": 7}', "each line is to be"),
        (BATCH, '{"quarantine_id": 7, "row": 3}', "each line is to be"),
        (BATCH, "x,y", "no JSON"),
    ],
)
def test_what_is_no_correction_of_what_was_shown_is_refused(choice: Choice, given: str, why: str) -> None:
    with pytest.raises(NeedsPerson, match=why) as refused:
        corrections_of(choice, SHOWN, given)
    assert "Nothing was changed" in refused.value.seen
