"""A pipeline's declaration as a streaming DataFrame.

No record is dropped and none is blurred into nulls: a malformed one is counted where it is read, before the
transform can lose it, and can be had as its raw text afterwards. Blank lines are no records.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pyarrow import fs

from etl.columns import quoted
from etl.declaration import Files, Lookup, Pipeline
from etl.errors import InputsChanged, NeedsPerson, ServiceAway, SetupError
from etl.inputs import LOOKUP_SOURCE, Input, changed, look, path_of
from etl.late import LATE, is_late
from etl.patterns import Pattern, fits, inferred_format, is_glob, split_pattern
from etl.places import filesystem, landing_place
from etl.reader import MALFORMED, SOURCE_PATH, read_files, read_stream
from etl.settings import Settings
from etl.stage import MALFORMED as MALFORMED_REASON
from etl.stage import RAW, WHY

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

OBSERVATION = "source"  # observed with `rows` (all of them) and `malformed` (those that are late included)

_AWAY = ("java.net.", "software.amazon.awssdk.", "org.apache.hadoop.fs.s3a.", "java.nio.file.AccessDenied")


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a run reads."""

    pipeline: Pipeline
    spark: SparkSession
    landing: str
    fields: StructType  # of the declared schema
    paths: Sequence[str]  # where the files of each of the pipeline's sources are; none: it is not streamed
    lookups: Mapping[str, DataFrame]  # as they were when the source was opened
    lookup_versions: Mapping[str, tuple[Input, ...]]  # the files of each lookup
    anywhere: bool = False  # a file that no pattern means is read by the first source of its format

    @cached_property
    def frame(self) -> DataFrame:
        """The well-formed records of all sources, typed; streaming. Spark lists all of the landing for it."""
        return self._stream(self.paths)

    def shape(self) -> DataFrame:
        """As `frame`, for what asks its plan alone: nothing is listed, and it can't be run."""
        with tempfile.TemporaryDirectory(prefix="sluice-") as empty:
            return self.below(empty)

    def below(self, folder: str) -> DataFrame:
        """As `frame`, of a local folder instead of the landing, whatever the sources' patterns say of folders."""
        return self._stream([Path(folder).as_uri()] * len(self.pipeline.sources))

    def _stream(self, paths: Sequence[str]) -> DataFrame:
        streams = [
            read_stream(self.spark, files, self.fields, path, split_pattern(files.pattern).name)
            for files, path in zip(self.pipeline.sources, paths, strict=True)
        ]
        return _good(self._told_apart(reduce(lambda one, other: one.unionByName(other), streams)))

    def again(self, uris: Iterable[str], *, broken: Iterable[str]) -> DataFrame:
        """As `frame`, of the given files alone and not streaming; of the `broken` ones what can be read."""
        return _good(self._told_apart(self._static(uris, broken)))

    def malformed(self, uris: Iterable[str], *, broken: Iterable[str] = ()) -> DataFrame:
        """Exactly the malformed and late records of the given files: `_raw`, `_source_path` and `_why`, all text."""
        from pyspark.sql import functions as F

        frame = self._told_apart(self._static(uris, broken))
        bad = frame.where(F.col(MALFORMED).isNotNull())
        return bad.select(F.col(MALFORMED).alias(RAW), SOURCE_PATH, WHY)

    def _told_apart(self, records: DataFrame) -> DataFrame:
        """With `_why` a record is none for the transform; a late one is kept in `_malformed` as JSON."""
        from pyspark.sql import functions as F

        why = F.when(F.col(MALFORMED).isNotNull(), MALFORMED_REASON)
        if self.pipeline.late is None:
            return records.withColumn(WHY, why)
        late = F.col(WHY) == LATE
        whole = F.to_json(F.struct(*(F.col(quoted(field.name)) for field in self.fields.fields)))
        told = records.withColumn(WHY, why.when(is_late(quoted(self.pipeline.late)), LATE))
        return told.withColumn(MALFORMED, F.when(late, whole).otherwise(F.col(MALFORMED)))

    def _static(self, uris: Iterable[str], broken: Iterable[str]) -> DataFrame:
        by_source = _by_source(self.pipeline, uris, self.landing, anywhere=self.anywhere)
        return read_static(self.spark, self.pipeline, by_source, broken=broken)

    def to_blame(self, error: Exception, uris: Iterable[str]) -> dict[str, str]:
        """The files that made a job over them fail, each with the reason; raises `error` when none is to blame."""
        # Within foreachBatch Spark's error may come as py4j's own, which has no condition.
        if not any("FAILED_READ_FILE" in cause for cause in causes(error)):
            raise error
        found = dict(self.unreadable(uris))
        if not found:
            raise error
        return found

    def unreadable(self, uris: Iterable[str]) -> list[tuple[str, str]]:
        """The files that can't be read to their end, each with the reason; reads every one of them alone.

        For use after a job failed. Raises InputsChanged for a file that is gone and ServiceAway when the
        storage did not answer: neither is the fault of a file's content.
        """
        return [(uri, why) for uri in uris if (why := self._reading_fails(uri)) is not None]

    def _reading_fails(self, uri: str) -> str | None:
        """Why reading all of a file fails; None: it does not."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            frame = self._static([uri], ())
            frame.write.format("noop").mode("overwrite").save()
        except (PySparkException, Py4JJavaError) as error:
            chain = list(causes(error))
            text = " ".join(chain)
            if "FAILED_READ_FILE.FILE_NOT_EXIST" in text or "PATH_NOT_FOUND" in text:
                raise InputsChanged(f"{uri} is gone", remedy="put it back, then run again") from error
            if any(cause.startswith(_AWAY) for cause in chain):
                raise ServiceAway(f"{uri} can't be read now: {chain[-1]}", remedy="run again") from error
            if "FAILED_READ_FILE" not in text:
                raise
            return chain[-1]
        return None


def open_source(
    spark: SparkSession, pipeline: Pipeline, settings: Settings, *, stream: bool = True
) -> Source:
    """Check schema, lookups and, for a `stream`, the folders; no input is read yet."""
    fields = _fields(pipeline.schema, f"pipeline {pipeline.name}: schema")
    _refuse_timeless(pipeline, fields)
    where = f"pipeline {pipeline.name}"
    paths = [_existing(files, settings, where) for files in pipeline.sources] if stream else []
    lookups, versions = {}, {}
    for name, lookup in pipeline.lookups.items():
        lookups[name], versions[name] = _lookup(spark, pipeline, name, lookup, settings)
    return Source(
        pipeline=pipeline,
        spark=spark,
        landing=settings.landing,
        fields=fields,
        paths=paths,
        lookups=lookups,
        lookup_versions=versions,
    )


def _refuse_timeless(pipeline: Pipeline, fields: StructType) -> None:
    from pyspark.sql.types import TimestampType

    kinds = {field.name: field.dataType for field in fields.fields}
    if pipeline.late is not None and not isinstance(kinds.get(pipeline.late), TimestampType):
        raise SetupError(
            f"Pipeline {pipeline.name}: late={pipeline.late!r} is no timestamp column of its schema",
            remedy=f"name one of {', '.join(name for name, kind in kinds.items() if isinstance(kind, TimestampType))}",
        )


def _good(records: DataFrame) -> DataFrame:
    """The records that are neither malformed nor late; all are counted first, those apart."""
    from pyspark.sql import functions as F

    rows, malformed = F.count(F.lit(1)).alias("rows"), F.count(F.col(MALFORMED)).alias("malformed")
    counted = records.observe(OBSERVATION, rows, malformed)
    return counted.where(F.col(MALFORMED).isNull()).drop(MALFORMED, SOURCE_PATH, WHY)


def read_static(
    spark: SparkSession,
    pipeline: Pipeline,
    by_source: Mapping[int, Sequence[str]],
    *,
    broken: Iterable[str] = (),
) -> DataFrame:
    """The records of the given files of each source, malformed ones included: the fields, `_malformed`, `_source_path`.

    A file that can't be read to its end fails the job, unless it is one of `broken`.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    fields = _fields(pipeline.schema, f"pipeline {pipeline.name}: schema")
    known = set(broken)
    frames = []
    for source, some in by_source.items():
        for damaged in (False, True):
            if chosen := [uri for uri in some if (uri in known) is damaged]:
                files = pipeline.sources[source]
                frames.append(read_files(spark, files, fields, chosen, broken=damaged))
    if frames:
        return reduce(lambda one, other: one.unionByName(other), frames)
    extra = [StructField(name, StringType()) for name in (MALFORMED, SOURCE_PATH)]
    return spark.createDataFrame([], StructType([*fields.fields, *extra]))


def observed(frame: DataFrame, name: str) -> dict[str, Any]:
    """What `observe(name, …)` counted, in the job that was run on exactly this frame.

    Within foreachBatch also what the streaming query itself observes: Spark hands the batch over as an RDD of
    the query's plan, so the metrics are the query's, whatever was made of the batch. They are those of each
    partition's last run, so a job that is run again counts once (Spark 4.3).
    """
    metrics = frame._jdf.queryExecution().observedMetrics()
    if not metrics.contains(name):
        batch = micro_batch(frame)
        metrics = batch and batch.observedMetrics()
    if metrics is None or not metrics.contains(name):
        raise KeyError(f"nothing was observed as {name!r}: no job was run on this frame")
    from pyspark.serializers import CPickleSerializer

    jvm: Any = frame.sparkSession.sparkContext._jvm
    pickled = jvm.org.apache.spark.sql.api.python.PythonSQLUtils.toPyRow(metrics.apply(name))
    return dict(CPickleSerializer().loads(pickled).asDict())  # type: ignore[no-untyped-call]


def micro_batch(frame: DataFrame) -> Any:
    """Spark's execution of the micro-batch that this thread is in, or None."""
    session = frame.sparkSession
    own = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    # The frame's session is a clone that knows no query; the state shared by all sessions does.
    for query in session._jsparkSession.sharedState().activeStreamingQueries().values():
        if query.id().toString() == own:
            return query.lastExecution()
    return None


def _fields(schema: str, where: str) -> StructType:
    """The DDL as Spark understands it, every column nullable."""
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructField, StructType

    try:
        found = cast("StructType", StructType.fromDDL(schema))
    except ParseException as error:
        why = str(error).strip().splitlines()[0]
        raise SetupError(f"{where} is no Spark DDL: {why}", remedy="correct it in the declaration") from error
    return StructType([StructField(field.name, field.dataType) for field in found.fields])


def _existing(files: Files | Lookup, settings: Settings, where: str) -> str:
    """The path to list. Raises SetupError when its folder is not there."""
    pattern = split_pattern(files.pattern)
    folder, path = _below_landing(pattern, settings)
    store, inner = filesystem(folder)
    if store.get_file_info(inner).type != fs.FileType.Directory:
        landed = pattern.folder.split("/")[0] in ("flights", "reference")
        remedy = "`sluice land flights`" if landed else "create it, or land its first files there"
        seen = f"The {where} reads {files.pattern}, and the folder {folder} is not there"
        raise SetupError(seen, remedy=remedy)
    return path


def _below_landing(pattern: Pattern, settings: Settings) -> tuple[str, str]:
    """(the fixed folder, the path to list), both absolute."""
    root = landing_place(settings.landing)
    if pattern.path.startswith(("/", "s3a://")):
        return pattern.folder or "/", pattern.path
    # The landing's own name is no glob, so what could be one in it is escaped.
    listed = _escaped(root) if is_glob(pattern.path) else root
    return f"{root}/{pattern.folder}".rstrip("/"), f"{listed}/{pattern.path}".rstrip("/")


def _escaped(place: str) -> str:
    return "".join("\\" + char if char in "*?[]{}\\" else char for char in place)


def _by_source(
    pipeline: Pipeline, uris: Iterable[str], landing: str, *, anywhere: bool
) -> dict[int, list[str]]:
    """Which source reads which file: the first whose pattern means it; `anywhere`, or else of its format."""
    found: dict[int, list[str]] = {}
    for uri in uris:
        path = path_of(uri, landing)
        source = next((n for n, files in enumerate(pipeline.sources) if fits(files.pattern, path)), None)
        if source is None and anywhere:
            kind = inferred_format(uri)
            source = next((n for n, files in enumerate(pipeline.sources) if files.kind == kind), None)
        if source is None:
            seen = f"{uri} is no file of pipeline {pipeline.name}: none of its patterns means it"
            raise SetupError(seen, remedy="check the pipeline's sources and SLUICE_LANDING")
        found.setdefault(source, []).append(uri)
    return found


def causes(error: Any) -> Iterator[str]:
    """The first line of each Java exception, from the outermost to the cause of all."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        yield (str(error).strip() or type(error).__name__).splitlines()[0]
    while java is not None:
        yield str(java.toString()).strip().splitlines()[0]
        java = java.getCause()


def _lookup(
    spark: SparkSession, pipeline: Pipeline, name: str, lookup: Lookup, settings: Settings
) -> tuple[DataFrame, tuple[Input, ...]]:
    """The table as it is now, held in the driver: a file that changes during the run changes nothing."""
    from pyspark.sql import functions as F

    where = f"lookup {name!r} of pipeline {pipeline.name}"
    path = _existing(lookup, settings, where)
    fields = _fields(lookup.schema, f"{where}: schema")
    uris = _listed(spark, lookup, path)
    if not uris:
        raise SetupError(f"The {where} has no file: none is {lookup.pattern}", remedy="land it")
    before = look(uris, landing=settings.landing, source=LOOKUP_SOURCE)
    frame = read_files(spark, lookup, fields, uris)
    rows = frame.toArrow()
    if changes := changed(before, look(uris, landing=settings.landing, source=LOOKUP_SOURCE)):
        raise SetupError(f"The {where} changed while it was read: {'; '.join(changes)}", remedy="run again")
    bad = [text for text in rows.column(MALFORMED).to_pylist() if text is not None]
    if bad:
        seen = f"The {where} has {len(bad)} malformed records, such as {bad[0]!r}"
        raise SetupError(seen, remedy=f"correct {lookup.pattern}")
    _refuse_doubled(rows, lookup, where)
    held = spark.createDataFrame(rows.drop_columns([MALFORMED, SOURCE_PATH]), fields)
    return F.broadcast(held), tuple(before)


def _listed(spark: SparkSession, lookup: Lookup, path: str) -> list[str]:
    """URIs of the lookup's files, in order."""
    pattern = split_pattern(lookup.pattern)
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    found = reader.option("pathGlobFilter", pattern.name).load(path)
    return sorted(found.inputFiles())


def _refuse_doubled(rows: pa.Table, lookup: Lookup, where: str) -> None:
    """A key that is there twice would double the rows that join it; a null key joins nothing."""
    keys = Counter(zip(*(rows.column(column).to_pylist() for column in lookup.key), strict=True))
    doubled = sorted(key for key, count in keys.items() if count > 1 and None not in key)
    if doubled:
        some = ", ".join(str(key[0] if len(key) == 1 else key) for key in doubled[:5])
        seen = f"The {where} has {len(doubled)} keys ({', '.join(lookup.key)}) more than once: {some}"
        raise NeedsPerson(seen, remedy=f"make each key unique in {lookup.pattern}, then run again")
