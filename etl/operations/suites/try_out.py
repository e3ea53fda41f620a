"""`sluice try`: runs a transform and its suite over some files as one batch; writes to no sink and no ledger.

The code that runs use reads, types, flags, filters and judges the files: the result is what a run of exactly these
files as one batch would do, into tables that do not exist yet. Where the transform keeps state, it is the output of a
new stream over them: in their batch, and in the next one, which closes what the watermark has passed.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etl.common import paths
from etl.common.errors import SetupError, SparkEnded
from etl.common.record_columns import DETAIL, RAW, SOURCE_PATH
from etl.common.settings import Settings
from etl.delivery.batch import Staged
from etl.delivery.row_filter import TaskReport
from etl.delivery.transform_failed import fault_of, transform_failed
from etl.operations.suites.first_rows import Seen, Values, look_through
from etl.operations.suites.what_if import row_filter_of
from etl.pipeline import Pipeline, load_pipeline
from etl.quality.verdict import Verdict
from etl.sinks.open import refuse_unfit
from etl.sinks.warehouse.table import postgres_type
from etl.sources import evidence
from etl.sources.kinds.declared import require_files
from etl.spark.checkpoint.files import FileCheckpoint
from etl.spark.checkpoint.reader import open_checkpoint
from etl.spark.frames import parquet
from etl.spark.java_errors import Cause, classify
from etl.spark.watermark import set_watermark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from etl.quality.rules import Rules
    from etl.runs.workspace import Workspace
    from etl.sources.files import FileSource


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What a run of these files as one batch would do."""

    pipeline: str
    files: Sequence[str]
    columns: Mapping[str, str]  # of the transform's output, with their PostgreSQL types
    delivered: int
    held: int  # rows, malformed records not counted
    malformed: int
    reasons: Mapping[str, int]  # held rows by reason
    rows: Sequence[Values]  # the first that would be delivered
    held_rows: Sequence[tuple[Sequence[str], Values]]  # the first that would be held, each with its reasons
    malformed_records: Sequence[tuple[str, str, str | None]]  # the first: raw record, file, what is wrong
    verdict: Verdict
    plan: str  # Spark's, of the transform

    @property
    def stops(self) -> Sequence[str]:
        """Return why a run would deliver nothing of it; empty if it would be delivered."""
        return self.verdict.stops

    def json(self) -> dict[str, Any]:
        rules = [
            {
                "reason": one.reason,
                "expectation": one.expectation_type,
                "severity": one.severity,
                "success": one.success,
                "element_count": one.element_count,
                "unexpected_count": one.unexpected_count,
            }
            for one in self.verdict.results
        ]
        fields = {name: value for name, value in vars(self).items() if name != "verdict"}
        return {**fields, "rules": rules, "stops": list(self.stops)}


@dataclass(frozen=True, kw_only=True)
class _Ran:
    job: DataFrame
    seen: Sequence[Seen]
    malformed: int
    records: int  # malformed ones included

    def staged(self, rules: Rules, *, stateful: bool) -> Staged:
        """Return what was seen as a run's stage would have it; with state, rows are not of records one by one."""
        return Staged(
            reports=[one.report for one in self.seen],
            malformed=[TaskReport(partition=0, task=0, quarantined=self.malformed)],
            aggregates=rules.aggregates(self.job),
            records=self.records if stateful else None,
        )


def try_files(
    name: str,
    *files: str | Path,
    rows: int = 20,
    spark: SparkSession | None = None,
    settings: Settings | None = None,
) -> Tried:
    """Try the pipeline `name` over `files`: what `sluice try` does, for tests of users, as `etl.try_out`.

    At most `rows` rows of either fate are kept. `spark`, such as `etl.session()`, is left running; None starts a session
    for this call. Raises SetupError where the pipeline, its suite or a file will not do.
    """
    from etl.runs.workspace import Workspace

    workspace = Workspace.open(settings)
    pipeline = load_pipeline(name, workspace.settings.pipelines)
    return try_out(workspace, pipeline, [str(file) for file in files], most=rows, spark=spark)


def try_out(
    workspace: Workspace,
    pipeline: Pipeline,
    files: Sequence[str],
    *,
    most: int = 20,
    spark: SparkSession | None = None,
) -> Tried:
    """Run the transform and the suite over these files: below the landing or anywhere else, of any source's format."""
    from etl.quality.rules import compile_rules
    from etl.runs.slow_tasks import name_patterns
    from etl.runs.spark_session import a_session
    from etl.runs.stateful import kept_state
    from etl.sources.open import open_kind

    kind = require_files(pipeline, "a try")
    uris = _there(files, workspace.settings.landing)
    with (
        a_session(workspace, spark, little=True) as session,
        tempfile.TemporaryDirectory(prefix="sluice-") as folder,
        contextlib.ExitStack() as after,
    ):
        opened = open_kind(session, kind, workspace.settings, models=workspace.models, stream=False)
        source = replace(opened, anywhere=True).at(time.time_ns() // 1_000_000)
        shape = source.shape()
        state = kept_state(pipeline, shape)  # or it is refused, as by a run
        rules = compile_rules(pipeline, shape, workspace.settings)
        name_patterns(rules)
        row_filter = row_filter_of(rules)
        refuse_unfit(pipeline, row_filter.columns)
        with _telling_of_files(source, uris, streamed=bool(state)):
            if state:
                frame = _streamed(workspace, source, state, uris, Path(folder))
                after.callback(set_watermark, session, None)
                set_watermark(session, 0)  # as that stream began: the same records are late
            else:
                frame = source.reread(uris, broken=())
            with _telling_of_rules(rules, frame, uris):
                ran = _run(source, rules.judged(frame), partial(look_through, row_filter, most), uris)
        staged = ran.staged(rules, stateful=bool(state))
        counts = staged.counts(rules.flag_words)
        raw = source.malformed(uris).limit(most).collect() if ran.malformed else []
        return Tried(
            pipeline=pipeline.name,
            files=uris,
            columns={one.name: postgres_type(one.type) for one in row_filter.columns},
            delivered=counts.rows - counts.held,
            held=counts.held,
            malformed=ran.malformed,
            reasons=dict(staged.reasons.most_common()),
            rows=[row for one in ran.seen for row in one.delivered][:most],
            held_rows=[row for one in ran.seen for row in one.held][:most],
            malformed_records=[(one[RAW], one[SOURCE_PATH], one[DETAIL]) for one in raw],
            verdict=rules.judge(counts, lambda: frame),
            plan=_plan(shape if state else frame),
        )


def _there(files: Sequence[str], landing: str) -> list[str]:
    """Return the files' URIs; raise SetupError naming every one that is not there, or that Spark would not see."""
    wanted = {paths.to_uri(paths.to_path(file)): file for file in files}
    present = {one.uri for one in evidence.look(wanted, landing=landing)}
    if missing := [file for uri, file in wanted.items() if uri not in present]:
        raise SetupError(f"No such file: {', '.join(missing)}", remedy="--input takes files, one by one")
    if hidden := [file for uri, file in wanted.items() if uri.rpartition("/")[2].startswith(("_", "."))]:
        raise SetupError(
            f"Spark does not see files whose names begin with _ or a dot: {', '.join(hidden)}",
            remedy="copy them to other names",
        )
    return list(wanted)


@contextlib.contextmanager
def _telling_of_files(source: FileSource, uris: Sequence[str], *, streamed: bool) -> Iterator[None]:
    """Raise SetupError for files that can't be read to their end, or as declared."""
    if misfits := source.misfits(uris, streamed=streamed):
        some = "; ".join(f"{uri}: {why}" for uri, why in misfits.items())
        raise SetupError(
            f"Some files do not have the declared types: {some}",
            remedy='declare these; a run would stop, or hold such a file as malformed where unreadable="hold" is declared',
        )
    try:
        yield
    except Exception as error:
        some = "; ".join(f"{uri}: {why}" for uri, why in source.to_blame(error, uris).items())
        raise SetupError(
            f"Some files can't be read to their end: {some}",
            remedy="replace it with a whole file; a run would stop, or deliver what can be read of it and"
            " hold the rest as malformed where"
            ' unreadable="hold" is declared',
        ) from error


@contextlib.contextmanager
def _telling_of_rules(rules: Rules, frame: DataFrame, uris: Sequence[str]) -> Iterator[None]:
    """Raise, as a run does, VerdictUnknown for a rule that fails, and TransformFailed for the transform."""
    from etl.quality.blame import require_evaluable

    try:
        yield
    except SparkEnded:  # which a second look would end again
        raise
    except Exception as error:
        if Cause.FILE_UNREAD not in classify(error):
            alone = require_evaluable(rules.suite, frame)
            if alone and (fault := fault_of(alone, rules.pipeline, known_alone=True)):
                raise transform_failed(rules.pipeline, fault, files=uris, of=len(uris)) from error
        raise


def _streamed(
    workspace: Workspace, source: FileSource, state: Sequence[str], uris: Sequence[str], folder: Path
) -> DataFrame:
    """Return what a new stream of these files puts out, all its batches together; of complete mode the last."""
    from etl.runs.query import BatchFailure
    from etl.runs.recovery.base import RecordedBatch
    from etl.runs.recovery.state_rebuild import Planned
    from etl.runs.stateful import output_mode
    from etl.spark.state_plan import processing_time_batches

    if not workspace.settings.spark_master.startswith("local"):
        raise SetupError(
            f"The transform of {source.pipeline.name} keeps state, which would be in a folder of this machine",
            remedy="try it with SLUICE_SPARK_MASTER='local[*]'",
        )
    (folder / "none").mkdir()
    frame, mode = source.below(str(folder / "none")), output_mode(source.pipeline, state)
    failure, out = BatchFailure(), folder / "out"

    def write(batch: DataFrame, number: int) -> None:
        batch.write.parquet(paths.spark_path(out / f"{number:06}"))

    checkpoint = open_checkpoint(f"{folder}/checkpoint", FileCheckpoint, sources=len(source.pipeline.sources))
    checkpoint.create(str(uuid.uuid4()))
    numbered = source.by_source(uris).items()
    files = [one for n, some in numbered for one in evidence.look(some, landing=source.landing, source=n)]
    writer = frame.writeStream.foreachBatch(failure.capturing(write)).outputMode(mode)
    planned = Planned.of(source.pipeline, frame, writer, f"`sluice try {source.pipeline.name}`")
    batch = RecordedBatch(watermark_ms=0, time_ms=int(time.time() * 1000), files=files)
    with processing_time_batches(frame, state):
        planned.run(checkpoint, 0, batch, failure, once=False)
    written = [paths.spark_path(one) for one in sorted(out.iterdir())]
    return parquet(source.spark, written[-1:] if mode == "complete" else written, frame.schema)


def _run(source: FileSource, flagged: DataFrame, task: Callable[..., Seen], uris: Sequence[str]) -> _Ran:
    """Run the one job over the output."""
    from etl.spark.tasks import collect, in_tasks

    job = in_tasks(flagged, task)
    seen: list[Seen] = collect(job)
    counted = source.counted(job) or source.count(uris)
    return _Ran(job=job, seen=seen, malformed=counted.malformed, records=counted.rows)


def _plan(frame: DataFrame) -> str:
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        frame.explain("formatted")
    return written.getvalue().strip()
