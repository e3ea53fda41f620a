"""What `sluice quarantine export` writes can be given back as it is, also by an editor that marks its files."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from etl.common.errors import SetupError
from etl.ledger.quarantine import read_corrections

ROW = {
    "quarantine_id": 7,
    "reasons": ["a"],
    "source_path": None,
    "raw": None,
    "detail": None,
    "row": {"n": 1},
}
NEVER_A_ROW = {**ROW, "quarantine_id": 8, "raw": "{broken", "row": None}


def test_a_line_of_a_record_that_never_became_a_row_corrects_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in (NEVER_A_ROW, ROW)), encoding="utf-8-sig")
    with caplog.at_level(logging.WARNING, "sluice"):
        assert read_corrections(file) == {7: {"n": 1}}
    assert caplog.messages == [f"{file}: 1 line left out, without a row to correct: number 8"]


def test_a_line_that_is_no_correction_is_still_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for line in ('{"quarantine_id": 7}', '{"quarantine_id": 7, "row": 3}', '{"row": null}', "\ufeff\ufeff{}"):
        file.write_text(f"{line}\n")
        with pytest.raises(SetupError, match="line 1 is not"):
            read_corrections(file)
