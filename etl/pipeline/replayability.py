"""Says whether a pipeline's sources can be read again, and what is promised where they can't."""

from __future__ import annotations

from etl.common.errors import SetupError
from etl.pipeline.declaration import Pipeline


def require_replayable(pipeline: Pipeline, what: str) -> None:
    """Raise SetupError for a pipeline of what can't be read again, which `what` would have to do."""
    if not pipeline.replayable:
        raise SetupError(
            f"Pipeline {pipeline.name} reads {pipeline.reads}, which can't be read again, as {what} would",
            remedy="land as files what you want to read again; docs/cookbook/live.md says what such sources support",
        )


def promise(pipeline: Pipeline) -> str:
    """Tell what a person must know of a pipeline that is not replayable, in one line."""
    after = pipeline.sources[0].after_crash
    return (
        f"{pipeline.name} reads {pipeline.reads}, which is not replayable: each batch is delivered exactly once"
        f" within a run, but after a crash no more than at least once is promised{after}"
    )


def run_command(pipeline: Pipeline) -> str:
    """Return the command that starts a run of the pipeline."""
    return f"sluice run {pipeline.name}{'' if pipeline.replayable or pipeline.follow else ' --follow'}"
