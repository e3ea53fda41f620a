"""What a pipeline waits for and which command comes next: one rule for `sluice status` and the pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RECOVERED_FROM = frozenset(
    {"CheckpointLost", "CheckpointDamaged", "LedgerBehind", "LedgerAhead", "InputsChanged"}
)


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A batch that broke its contract and was not delivered since."""

    batch_id: int
    stops: Sequence[str]  # why, one sentence each
    decision: str | None  # quarantine-all or accept; None: nobody has decided yet
    stream: str | None = None  # named in the command where it is not the current one


@dataclass(frozen=True, kw_only=True)
class Standing:
    state: str
    next: str  # a command; "-" while it runs


def standing(
    pipeline: str, *, holder: str | None, stop: Stop | None, outcome: str | None, silent: str | None = None
) -> Standing:
    """`holder`: who runs it now; `silent`: whose run was killed or cut off and is not taken over yet; `outcome`: of
    its last ended run, None where none has ended."""
    if holder is not None:
        return Standing(state=f"running ({holder})", next="-")
    if stop is not None and stop.decision:
        state = f"batch {stop.batch_id} stopped, decided: {stop.decision}"
        return Standing(state=state, next=f"sluice run {pipeline}")
    if stop is not None:
        stream = f" --stream {stop.stream}" if stop.stream else ""
        return Standing(
            state=f"batch {stop.batch_id} stopped: {'; '.join(stop.stops)}",
            next=f"sluice decide {pipeline} --batch {stop.batch_id}{stream} …",
        )
    if silent is not None:
        return Standing(state=f"killed or cut off ({silent})", next=f"sluice run {pipeline}")
    if outcome is None:
        return Standing(state="new", next=f"sluice run {pipeline}")
    if outcome == "done":
        return Standing(state="idle", next=f"sluice run {pipeline}")
    if outcome == "stopped":
        return Standing(state="idle, stopped on request", next=f"sluice run {pipeline}")
    verb = "recover" if outcome in RECOVERED_FROM else "run"
    return Standing(state=f"last run: {outcome}", next=f"sluice {verb} {pipeline}")
