"""Which steps a signal may break into."""

from __future__ import annotations

import pytest

from etl.common.steps import COMMIT, Step, committing, reached


@pytest.mark.parametrize("step", [*COMMIT, Step.COMMITTED, Step.BATCH_DONE])
def test_what_is_committed_is_not_given_up(step: Step) -> None:
    """A replay that said here that nothing was changed would be wrong."""
    reached(step)
    assert committing()
    reached(Step.ATTEMPT_OPENED)
    assert not committing()
