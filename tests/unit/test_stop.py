"""What `sluice stop` says of a run that has ended."""

from __future__ import annotations

import pytest

from etl.cli.run import how_ended
from etl.operations.control.stop import DIED

GOES_ON, ANEW = "goes on from the ledger", "begins a stream of its own"


@pytest.mark.parametrize(
    ("outcome", "replayable", "said"),
    [
        ("stopped", True, ("has stopped; every batch that it began is delivered", GOES_ON)),
        ("ContractBroken", False, ("ended with ContractBroken", ANEW)),
        (DIED, True, ("is not alive; the next run finishes what it had begun", GOES_ON)),
        (
            DIED,
            False,
            ("is not alive; what it had begun is in both sinks or in neither, and can't be read again", ANEW),
        ),
    ],
)
def test_the_next_run_finishes_only_what_it_can_read_again(
    outcome: str, replayable: bool, said: tuple[str, str]
) -> None:
    assert how_ended(outcome, replayable=replayable) == said
