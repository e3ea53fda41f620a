"""A stream with state goes on after an upgrade: what identifies its state says nothing of who parsed its records."""

from __future__ import annotations

import pytest

from etl.ledger.streams import StreamState

# As the ledger has it of runs while Spark parsed JSON, and as it is told now.
BEFORE_AND_NOW = [
    (
        "Aggregate by window (at, 0L, 3600000000L, 0), action computing count(1), max(at) (at = _parsed.`at`)",
        "Aggregate by window (at, 0L, 3600000000L, 0), action computing count(1), max(at)",
    ),
    (
        "Aggregate by origin computing count(dep_time) (dep_time = _parsed.`dep_time`), max(at) (at = coalesce(a, b))",
        "Aggregate by origin computing count(dep_time), max(at) (at = coalesce(a, b))",
    ),
    (
        "Aggregate by k computing sum(tiny) (tiny = TRY_CAST(_parsed.`tiny` AS TINYINT))",
        "Aggregate by k computing sum(tiny)",
    ),
    ("Join INNER on (a = b) computing (a = _parsed.`a`) (b = _parsed.`b`)", "Join INNER on (a = b)"),
    ("DeduplicateWithinWatermark by device, reading", "DeduplicateWithinWatermark by device, reading"),
]


def stream(state: str) -> StreamState:
    return StreamState(
        stream_id="s", pipeline="p", checkpoint=None, first_batch=0, state=[state], last_batch=3
    )


@pytest.mark.parametrize(("before", "now"), BEFORE_AND_NOW)
def test_a_state_that_was_begun_while_spark_parsed_json_is_gone_on_with(before: str, now: str) -> None:
    assert stream(before).goes_on_as([now]) and stream(now).goes_on_as([now])


def test_a_state_of_something_else_is_not() -> None:
    for before, _ in BEFORE_AND_NOW:
        others = [now for other, now in BEFORE_AND_NOW if other != before]
        assert not any(stream(before).goes_on_as([now]) for now in others)
