"""Records what a person decided on a stopped batch."""

from __future__ import annotations

import uuid

from etl.common.errors import SetupError
from etl.common.migrations import migrate
from etl.ledger.decisions import decide_on_stop
from etl.pipeline import Pipeline
from etl.pipeline.replayability import run_command
from etl.runs.workspace import Workspace


def record_decision(
    workspace: Workspace,
    pipeline: Pipeline,
    *,
    batch: int,
    stream: str | None,
    action: str,
    who: str,
    why: str,
) -> str:
    """Record the decision on a stopped batch, for the next run to act on; returns what it will do."""
    if stream is not None and not is_uuid(stream):
        raise SetupError(
            f"--stream {stream} is no stream's id", remedy="`sluice status PIPELINE --json` shows them"
        )
    if not pipeline.replayable:
        raise SetupError(
            f"Pipeline {pipeline.name} reads {pipeline.reads}: no run can have a stopped batch of it again",
            remedy=f"fix the suite, then `{run_command(pipeline)}`, which begins a new stream",
        )
    dsn = workspace.services.postgres
    migrate(dsn)
    will = decide_on_stop(dsn, pipeline.name, batch=batch, stream=stream, action=action, who=who, why=why)
    return f"{will}\nnext: `sluice run {pipeline.name}`"


def is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
