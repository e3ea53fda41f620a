"""What the commands print is what it claims to be."""

from __future__ import annotations

import json
import math

import pytest

from etl.command import duration, print_json, shown
from etl.errors import SetupError


def test_a_json_document_has_no_value_that_json_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"rows": [(1.5, math.nan), (math.inf, None)], "at": {1: -math.inf}})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found == {"rows": [[1.5, "nan"], ["inf", None]], "at": {"1": "-inf"}}


def test_a_value_can_not_command_the_terminal() -> None:
    assert shown("a\x1b]0;owned\x07[bold]ä\n").plain == r"a\x1b]0;owned\x07[bold]ä\n"


def test_a_duration_is_a_number_and_a_unit_within_a_day() -> None:
    found = [duration("--every", text).total_seconds() for text in ("1s", "1.5s", "90s", "5m", "24h")]
    assert found == [1, 1.5, 90, 300, 86_400]
    for text in ("", "10", "s", "0s", "0.5s", "25h", "-1s", "1e3s", "10 s", "1d"):
        with pytest.raises(SetupError, match=f"--every {text}: no time"):
            duration("--every", text)
