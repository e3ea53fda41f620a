"""Diagnoses what a pipeline waits for and which command comes next, in one rule for `sluice status` and the pages."""

from __future__ import annotations

from dataclasses import dataclass

from etl.ledger.stops import Stop

# Ends of a run that leave checkpoint and ledger in step, and still need a new checkpoint to go on.
NEED_ANOTHER_CHECKPOINT = frozenset(
    {
        "CheckpointDamaged",
        "CommitTooLong",
        "InputsChanged",
        "InputsDoubled",
        "InputsUnreadable",
        "RecordsMissing",
        "StateChanged",
    }
)
# Ends at a batch that another run tries again as it was planned; a person may have it planned anew, to be smaller.
MAY_HAVE_ANOTHER_CHECKPOINT = frozenset({"BatchEndsSpark", "SparkEnded", "TaskTooLong"})
RECOVERED_FROM = NEED_ANOTHER_CHECKPOINT | {"CheckpointLost", "LedgerAhead", "LedgerBehind", "OffsetsGone"}


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    state: str
    next: str  # a command; "-" while it runs


def diagnose(
    pipeline: str,
    *,
    holder: str | None,
    stop: Stop | None,
    outcome: str | None,
    remedy: str | None = None,
    silent: str | None = None,
    anew: str | None = None,
) -> Diagnosis:
    """Return the pipeline's state and the command that comes next.

    `holder`: who runs it now; `silent`: whose run was killed or cut off and is not taken over yet; `outcome`:
    of its last ended run, None where none has ended; `remedy`: the next step that this one named; `anew`: the
    command of a run that begins anew, which leaves nothing to be decided on a stopped batch, None where a run goes on.
    """
    run = anew or f"sluice run {pipeline}"
    if holder is not None:
        return Diagnosis(state=f"running ({holder})", next="-")
    if stop is not None and stop.decision:
        state = f"batch {stop.batch_id} stopped, decided: {stop.decision}"
        return Diagnosis(state=state, next=run)
    if stop is not None:
        state = f"batch {stop.batch_id} stopped: {'; '.join(stop.stops)}"
        return Diagnosis(state=state, next=anew or stop.next(pipeline))
    if silent is not None:
        return Diagnosis(state=f"killed or cut off ({silent})", next=run)
    if outcome is None:
        return Diagnosis(state="new", next=run)
    if outcome == "done":
        return Diagnosis(state="idle", next=run)
    if outcome == "stopped":
        return Diagnosis(state="idle, stopped on request", next=run)
    if outcome == "TransformFailed":
        return Diagnosis(state=f"last run: {outcome}, which first needs another transform", next=run)
    if outcome == "Stopped" and remedy:
        return Diagnosis(state="a recovery was stopped", next=remedy)
    recover = f"sluice recover {pipeline}"
    return Diagnosis(state=f"last run: {outcome}", next=recover if outcome in RECOVERED_FROM else run)
