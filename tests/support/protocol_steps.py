"""The steps of a delivery's protocol, before its commit and after."""

from __future__ import annotations

from etl.common.steps import Step

AFTER_THE_COMMIT = (Step.COMMITTED, Step.BATCH_DONE)
BEFORE_THE_COMMIT = (
    Step.STAGED,
    Step.POINTER_DRAFTED,
    Step.DELIVERY_INSERTED,
    Step.ROWS_MERGED,
    Step.POINTER_SWAPPED,
)
