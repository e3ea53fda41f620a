"""Tells that a transform fails on a record: what Spark says of it, at which line of the user's, and in which files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from etl.common.errors import ServiceAway, SluiceError, TransformFailed
from etl.common.outages import service_error
from etl.common.paths import to_path
from etl.common.shipped import PACKAGE
from etl.common.wording import first_few, visible
from etl.pipeline import Pipeline
from etl.spark.java_errors import Cause, classify, is_of_java, messages, raised

LONGEST = 400  # characters of what Spark says

# What is no fault of a transform, whichever record it was at.
_OTHERS = frozenset(Cause) - {Cause.FILE_DAMAGED, Cause.STACK_OVERFLOW}
_PASSING = re.compile(
    r"^java\.lang\.(?:OutOfMemoryError|InterruptedException|LinkageError|NoClassDefFoundError)"
    r"|^java\.(?:io|nio)\."
    r"|^org\.apache\.spark\.memory\."
    r"|^org\.apache\.spark\.shuffle\."
    r"|^org\.apache\.spark\.Spark\w*Exception: (?:\[\w+\] )?"
    r"(?:Python worker (?:exited|failed)|Could not execute broadcast|Job \d+ cancelled|Cannot broadcast)"
    r"|^org\.apache\.spark\.SparkException: Job aborted due to stage failure: (?:Task .*ExecutorLostFailure|Total size"
    r"|ShuffleMapStage|Could not recover)"
    r"|\[(?:UNABLE_TO_ACQUIRE_MEMORY|CANNOT_BROADCAST\w*|_LEGACY_ERROR_TEMP_2249|INTERNAL_ERROR_SHUFFLE)"
)
# Of a Python function: a service of its own was away.
_AWAY = re.compile(
    r"^(?:\w+\.)*(?:\w*(?:Connect|Timeout|MaxRetry|NameResolution)\w*|URLError|gaierror|BrokenPipeError)\b"
)
# Likewise: memory or the disk was short.
_PASSING_RAISED = re.compile(r"^(?:\w+\.)*MemoryError\b|^OSError: \[Errno (?:5|12|23|24|28|122)\]")
_CLASS = re.compile(
    r"^[\w.$]+: (?=\[(?!TASK_WRITE_FAILED|WRITING_JOB_ABORTED|STREAM_FAILED)[A-Z][A-Z0-9_.]+\] )"
)
_ANY_CLASS = re.compile(r"^[\w.$]+\.(?=\w+: )")  # leaves the name of a Java exception without its package
_STATE = re.compile(r"\s*SQLSTATE: \w+.*$", re.DOTALL)
_CALLED = re.compile(r'^== DataFrame ==\n"(?P<call>.*)" was called from\n(?P<line>.+:\d+)$', re.MULTILINE)
_SQL = re.compile(r"^== SQL.*==\n(?P<text>.+)$", re.MULTILINE)
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in ', re.MULTILINE)
_SCORERS = PACKAGE / "sources/side_inputs"  # a model is the user's


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What a transform did not get over."""

    said: str  # by Spark or Python, in one line
    at: str | None  # a line of the user's, or the SQL of an expression


def fault_of(error: BaseException, pipeline: Pipeline, *, known_alone: bool = False) -> Fault | None:
    """Return what made a transform fail on a record; None of an error that may be of something else.

    Where it is `known_alone`, since the transform's output alone can't be had, Spark needs to name no class of error.
    """
    if isinstance(error, SluiceError) or service_error(error) or classify(error).keys() & _OTHERS:
        return None
    told = list(messages(error))
    if any(_PASSING.search(one.partition("\n")[0]) for one in told):
        return None
    for one in reversed(told):
        if (python := raised(one)) != one:
            return _of_python(one, python, pipeline)
        if _CLASS.search(one):
            return Fault(said=_in_a_line(_CLASS.sub("", _STATE.sub("", one))), at=_line(one))
    if known_alone and is_of_java(error):
        return Fault(said=_in_a_line(_ANY_CLASS.sub("", told[-1].partition("\n")[0])), at=None)
    return None


def _of_python(message: str, python: str, pipeline: Pipeline) -> Fault | None:
    """Return what a Python function raised, unless it was one of Sluice's own, or it tells of an outage."""
    frames = [(one["file"], one["line"]) for one in _FRAME.finditer(message)]
    if _AWAY.search(python) or _PASSING_RAISED.search(python) or any(_is_ours(file) for file, _ in frames):
        return None
    return Fault(said=_in_a_line(python), at=_innermost(frames, pipeline))


def _innermost(frames: Sequence[tuple[str, str]], pipeline: Pipeline) -> str | None:
    """Return the user's own line that is nearest to the error; None where no frame is the user's."""
    mine = [one for one in frames if one[0] == str(pipeline.file)] or [
        one for one in frames if "-packages/" not in one[0] and not one[0].startswith("<")
    ]
    return ":".join(mine[-1]) if mine else None


def service_away(error: BaseException, pipeline: Pipeline, batch: int) -> ServiceAway | None:
    """Return that a Python function of the transform could not reach a service of its own; None of any other error."""
    for one in messages(error):
        frames = [(found["file"], found["line"]) for found in _FRAME.finditer(one)]
        if _AWAY.search(python := raised(one)) and frames and not any(_is_ours(file) for file, _ in frames):
            at = _innermost(frames, pipeline)
            return ServiceAway(
                f"Batch {batch} of {pipeline.name}, not delivered: its transform could not reach a service of its own"
                f"{f' at {at}' if at else ''}: {_in_a_line(python)}",
                remedy="see that it is there; then run again, which goes on from the ledger",
            )
    return None


def _is_ours(file: str) -> bool:
    ours = file.startswith(f"{PACKAGE}/")
    return ours and not file.startswith((f"{PACKAGE}/pipelines/", f"{_SCORERS}/"))


def _line(message: str) -> str | None:
    if called := _CALLED.search(message):
        return f"{called['line']} ({called['call']})"
    return f"`{_in_a_line(sql['text'])}`" if (sql := _SQL.search(message)) else None


def _in_a_line(text: str) -> str:
    text = visible(" ".join(text.split()))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def transform_failed(
    pipeline: Pipeline,
    fault: Fault,
    *,
    what: str | None = None,
    files: Sequence[str] = (),
    of: int = 1,
    ranges: Sequence[str] = (),
) -> TransformFailed:
    """Make the error of a transform that fails on a record, in `what`.

    One of `files`, or of `ranges` of topics, all URIs, has it; of files, `of` were read in all.
    """
    name, at = pipeline.name, f" at {fault.at}" if fault.at else ""
    seen = f"{what}, not delivered: its transform" if what else f"The transform of {name}"
    seen += f" fails on a record{at}: {fault.said}"
    if inputs := files or ranges:
        of = of if files else len(ranges)
        seen += f"\n  in: {inputs[0] if len(inputs) == 1 else f'one of {of:,}: {first_few(inputs)}'}"
    paths = shlex.quote(to_path(files[0])) if len(files) == 1 else "FILE"
    looks = f"; `sluice try {name} --input {paths}` shows whether it gets over it" if files else ""
    return TransformFailed(seen, remedy=f"change it, in {pipeline.file}{looks}; then run again")


def with_the_record(uris: Sequence[str], fails: Callable[[Sequence[str]], bool]) -> Sequence[str]:
    """Return one of the inputs that alone `fails`, found by halves; all of some where neither half of them does.

    Each look is a pass over the half: all together are at most two over all of it.
    """
    while len(uris) > 1:
        half = len(uris) // 2
        failing = next((some for some in (uris[:half], uris[half:]) if fails(some)), None)
        if failing is None:
            break
        uris = failing
    return uris
