"""Parses landed files into typed rows: every record is either a row, or malformed and kept as its raw text.

Spark's own readers of JSON and CSV let some records slip and blur values: `json_records` and `csv_records` read them, of
which docs/reading.md is the contract. All fields of all formats are parsed, whether the transform uses them or not. Of a
text file every line is a row, an empty one too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from etl.common.errors import SetupError
from etl.common.paths import to_path
from etl.common.record_bounds import DEFAULT, Bounds
from etl.common.record_columns import ORIGIN, REPORT, SOURCE_PATH, UNKNOWN
from etl.pipeline import Files, Lookup
from etl.pipeline.ddl import ddl_mistake, ddl_place
from etl.sources.counts import Drift, Uris
from etl.sources.csv_records.blocks import CsvReader
from etl.sources.csv_records.dialect import Dialect
from etl.sources.csv_records.files import CsvFiles
from etl.sources.json_records.arrays import JsonArrays
from etl.sources.json_records.blocks import BESIDE, JsonReader
from etl.sources.json_records.files import JsonFiles
from etl.sources.json_records.lines import BLANK
from etl.sources.raw.lines import Lines
from etl.sources.raw.origins import origin_column
from etl.sources.raw.parts import SPARK_FORMAT, SPARK_SCHEMA, bytes_of, parts
from etl.sources.raw.tasks import (
    Read,
    all_records,
    beside,
    good_and_report,
    no_size,
    only_malformed,
    unfit_parts,
    uris_beside,
)
from etl.spark.frames import NESTED, quoted
from etl.spark.session import setting
from etl.spark.state_plan import SOURCE_NUMBER
from etl.spark.tasks import read_batches

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

    from etl.sources.parquet_types import ReadAs


# "file:/…" of Spark's reader is "file:///…" in its logs, and so in the ledger.
_URI = "regexp_replace(_metadata.file_path, '^file:/+', 'file:///')"
# Names are taken as they are: a file may be called like a glob.
_AS_NAMED = {"__globPaths__": "false", "recursiveFileLookup": "true", "ignoreMissingFiles": "false"}
_UNREAD = re.compile(r"\b(?:var)?char\(\d+\)|\binterval (?:year|month)\b.*")
_NANOSECONDS = "spark.sql.timestampNanosTypes.enabled"  # a preview of Spark 4.3; to read by alone


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read, beside what is declared of them."""

    # How many malformed records the report of a task may have: they are no rows then. None: all records are rows.
    carried: int | None = None
    named: bool = False  # rows have SOURCE_PATH; where all records are rows they always have it
    broken: bool = False  # of files known to be so what can be read is read, whatever the session says
    only_malformed: bool = False  # where all records are rows: of JSON and CSV the good ones are left out
    holds_unknown: bool = False  # records with what the schema does not name are malformed
    bounds: Bounds = DEFAULT  # of JSON and CSV what is beyond them is malformed
    wanted: Callable[[Column], Column] | None = None  # tells by its URI whether a file is read at all
    # by URI: what a file of Parquet is read by, and cast to the schema
    read_as: Mapping[str, ReadAs] = field(default_factory=dict)

    @property
    def texts(self) -> Sequence[str]:
        """Name the columns of text that tell whether a record is malformed."""
        return BESIDE.names if self.carried is None else (REPORT,)

    @property
    def names_files(self) -> bool:
        """Tell whether rows have SOURCE_PATH."""
        return self.named or self.carried is None


def ddl_fields(schema: str, where: str, file: Path | None = None) -> StructType:
    """Parse DDL as Spark understands it, with every column nullable; `file` is the one that declares it.

    Raises SetupError for what is no DDL of columns, or has a type that can't be read.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructField, StructType

    try:
        parsed = StructType.fromDDL(schema)
    except PySparkException as error:
        raise SetupError(
            f"{ddl_place(str(error), schema, file)}{where} is no Spark DDL: {ddl_mistake(error, schema)}",
            remedy="correct it in the declaration",
        ) from error
    if not isinstance(parsed, StructType):  # Spark takes the name of a type alone, too
        raise SetupError(
            f"{ddl_place('', schema, file)}{where} is {schema!r}, a type without a column",
            remedy="write a name before it in the declaration",
        )
    for one in parsed.fields:
        if refused := _UNREAD.search(one.dataType.simpleString()):
            raise SetupError(
                f"{ddl_place('', schema, file)}{where}: column {one.name} has the type {refused[0]}, which can't be read",
                remedy="declare string, and a rule on its length or a cast in the transform",
            )
    return StructType([StructField(one.name, one.dataType) for one in parsed.fields])


def read_stream(
    spark: SparkSession,
    files: Files,
    schema: StructType,
    path: str,
    name: str,
    *,
    number: int,
    reading: Reading,
) -> DataFrame:
    """Read new files below `path` called like the glob `name`, as rows with ORIGIN and what `reading` says.

    These are REPORT, and SOURCE_PATH if it is named; where all records are rows MALFORMED_COLUMN, DETAIL and SOURCE_PATH.
    The frame is streaming. Its plan tells that it is the source of this `number`.
    """
    options = {
        SOURCE_NUMBER: str(number),
        # Without it Spark would make columns of folders such as dt=2013-01-01.
        "recursiveFileLookup": "true",
        "pathGlobFilter": name,
        # A file older than the newest by more than this would be skipped silently: there is no more than this.
        "maxFileAge": f"{2**63 - 1}ms",
        "latestFirst": "false",
        "cleanSource": "off",
    }
    if files.max_files is not None:
        options["maxFilesPerTrigger"] = str(files.max_files)
    if files.max_bytes is not None:
        options["maxBytesPerTrigger"] = str(files.max_bytes)
    return _rows(spark.readStream.options(**options), files, schema, path, reading)


def read_files(
    spark: SparkSession,
    files: Files | Lookup,
    schema: StructType,
    uris: Iterable[str],
    *,
    reading: Reading,
) -> DataFrame:
    """Read just the given files, as `read_stream` reads them: whole, or the job fails, unless they are `broken`."""
    options = _AS_NAMED | {"ignoreCorruptFiles": str(reading.broken).lower()}
    alike: dict[ReadAs | None, list[str]] = {}
    for uri in uris:
        alike.setdefault(reading.read_as.get(uri), []).append(to_path(uri))
    with _of_nanoseconds(spark) if reading.read_as else nullcontext():
        frames = [
            _rows(spark.read.options(**options), files, schema, paths, reading, read_as=read_as)
            for read_as, paths in (alike or {None: []}).items()
        ]
    return union(frames)


def read_here(
    files: Files | Lookup, schema: StructType, sizes: Mapping[str, int], *, reading: Reading
) -> pa.Table:
    """Read small files of JSON or CSV in this process, as `read_files` reads them, but without a job of Spark.

    `sizes` are their bytes, by URI. Raises FileUnfit for one that can't be read so, FileUnread for one that can't be now.
    """
    rows, _ = _file_reader(files, schema, reading)
    full = {uri: size for uri, size in sizes.items() if size}
    whole = [pa.array(full, pa.string()), pa.array([0] * len(full)), pa.array(full.values(), pa.int64())]
    where = [pa.field(ORIGIN, pa.int64()), pa.field(SOURCE_PATH, pa.string())]
    return pa.Table.from_batches(
        all_records(rows, iter([pa.RecordBatch.from_arrays(whole, names=["uri", "start", "end"])])),
        pa.schema([*arrow_schema(schema), *BESIDE, *where]),
    )


def faults(
    spark: SparkSession, files: Files, schema: StructType, bounds: Bounds, uris: Iterable[str]
) -> dict[str, str]:
    """Read files of JSON or CSV to their ends, in one job; return those that can't be read so, each with the reason.

    Raises what Spark raises where not all of them can be looked at.
    """
    from pyspark.sql import functions as F

    rows, splittable = _file_reader(files, schema, Reading(bounds=bounds))
    by_path = {to_path(uri): uri for uri in uris}  # Spark may write the same URI otherwise
    found = spark.read.options(**_AS_NAMED).schema(SPARK_SCHEMA).format(SPARK_FORMAT).load([*by_path])
    unfit = parts(found, F.expr(_URI), splittable=splittable).mapInArrow(
        partial(unfit_parts, rows), "uri string, why string"
    )
    return {by_path[to_path(row.uri)]: row.why for row in unfit.collect()}


@contextmanager
def _of_nanoseconds(spark: SparkSession) -> Iterator[None]:
    """Let Spark read columns of nanoseconds; a transform's output has none, for neither sink does.

    A type is looked up in the session that is active, which within a query is another one than its source's.
    """
    active = type(spark)(spark.sparkContext, type(spark)._get_j_spark_session_class(spark._jvm).active())
    with setting(spark, _NANOSECONDS, "true"), setting(active, _NANOSECONDS, "true"):
        yield


def _rows(
    reader: Any,
    files: Files | Lookup,
    schema: StructType,
    paths: str | list[str],
    reading: Reading,
    *,
    read_as: ReadAs | None = None,
) -> DataFrame:
    from pyspark.sql import functions as F

    uri = F.expr(_URI)
    about = [*none_malformed(reading), origin_column().alias(ORIGIN)]
    if reading.names_files:
        about.append(uri.alias(SOURCE_PATH))

    def loaded(made: Any) -> DataFrame:
        """Load the files that are wanted: Spark opens no other, for it tells by a file's name alone."""
        frame: DataFrame = made.load(paths)
        return frame if reading.wanted is None else frame.where(reading.wanted(uri))

    if files.kind == "parquet":
        frame = loaded(reader.schema(read_as.ddl if read_as else schema).format("parquet"))
        fields = _cast(schema, read_as) if read_as else [F.col(quoted(one.name)) for one in schema]
        return frame.select(*fields, *about)
    if files.kind == "text":
        lines = loaded(reader.format("text").options(**_text_options(files.options)))
        line = F.col("value").alias(only_column(f"text files ({files.pattern})", schema))
        return lines.select(line, *about)
    rows, splittable = _file_reader(files, schema, reading)
    found = loaded(reader.schema(SPARK_SCHEMA).format(SPARK_FORMAT))
    return _rows_of_files(parts(found, uri, splittable=splittable), schema, rows, reading)


def _cast(schema: StructType, read_as: ReadAs) -> list[Column]:
    """Cast the columns of files to those of the schema; UNKNOWN takes those that are kept, as JSON."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    from etl.sources.parquet_types import columns_of

    def cast(fields: StructType) -> list[Column]:
        return [F.col(quoted(one.name)).cast(one.dataType).alias(one.name) for one in fields]

    if not read_as.kept:
        return cast(schema)
    kept = F.to_json(F.struct(*cast(columns_of(read_as.kept))), NESTED)
    declared = StructType([one for one in schema if one.name != UNKNOWN])
    return [*cast(declared), F.nullif(kept, F.lit("{}")).alias(UNKNOWN)]


def _file_reader(files: Files | Lookup, schema: StructType, reading: Reading) -> tuple[Read, bool]:
    """Return what reads parts of files, and whether files may be split."""
    arrow, unknown, bounds = arrow_schema(schema), reading.holds_unknown, reading.bounds
    dialect = Dialect.of(files.options) if files.kind == "csv" else None
    ends = files.options.get("lineSep")
    lines = Lines(
        separator=None if ends is None else ends.encode(dialect.encoding if dialect else "utf-8"),
        tolerant=reading.broken,
        longest=bounds.record_bytes,
    )
    if dialect is not None:
        csv = CsvReader(schema=arrow, dialect=dialect, holds_unknown=unknown, bounds=bounds)
        splittable = lines.splittable and not csv.dialect.whole_files
        return CsvFiles(reader=csv, header=files.header, lines=lines).rows, splittable
    json = JsonReader(schema=arrow, holds_unknown=unknown, bounds=bounds)
    if files.kind == "json-array":
        return JsonArrays(reader=json, lines=lines).rows, False
    return JsonFiles(reader=json, lines=lines).rows, lines.splittable


def _rows_of_files(parts: DataFrame, schema: StructType, read: Read, reading: Reading) -> DataFrame:
    """Make rows of parts of files by `read`, which gives records beside ORIGIN and SOURCE_PATH."""
    from pyspark.sql.types import LongType, StringType, StructField

    where = [StructField(ORIGIN, LongType())]
    if reading.names_files:
        where.append(StructField(SOURCE_PATH, StringType()))
    return _in_tasks(parts, schema, read, where, reading, size=bytes_of)


def _in_tasks(
    frame: DataFrame,
    schema: StructType,
    read: Read,
    beside: Sequence[StructField],
    reading: Reading,
    uris: Uris = uris_beside,
    size: Callable[[pa.RecordBatch], int] = no_size,
) -> DataFrame:
    """Make rows of a frame by `read`, in its tasks: the schema's columns, what is `reading`'s, and what is `beside`."""
    from pyspark.sql.types import StringType, StructField, StructType

    texts = [StructField(name, StringType()) for name in reading.texts]
    fields = StructType([*schema.fields, *texts, *beside])
    if reading.carried is not None:
        rows = partial(good_and_report, read, arrow_schema(fields), uris, reading.carried, size)
    else:
        rows = partial(only_malformed if reading.only_malformed else all_records, read)
    return frame.mapInArrow(partial(read_batches, rows), fields)


def only_column(where: str, schema: StructType) -> str:
    """Return the column that takes the lines, or records, of a source of text.

    Raises SetupError unless it is the only one, and a string.
    """
    from pyspark.sql.types import StringType

    if len(schema.fields) != 1 or not isinstance(schema.fields[0].dataType, StringType):
        raise SetupError(
            f"The lines of {where} are one string column; the schema is {schema.simpleString()}",
            remedy='declare schema="line string", and take the lines apart in the transform',
        )
    return schema.fields[0].name


def _text_options(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name == "lineSep"}


def not_blank(lines: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    value = F.col("value")
    # What begins as an object is not blank: searching each line for blanks costs as much as half the parsing.
    return lines.where(value.startswith("{") | (F.btrim(value, F.lit(BLANK)) != ""))


def json_rows(lines: DataFrame, schema: StructType, reading: Reading, uris: Uris = uris_beside) -> DataFrame:
    """Parse each `value`, which is to be one whole object in UTF-8, into one record beside its other columns.

    What is no such object is malformed; `uris` says where it is. A null is a row of nulls, and not malformed.
    """
    json = JsonReader(schema=arrow_schema(schema), holds_unknown=reading.holds_unknown, bounds=reading.bounds)
    return _each_value(lines, schema, json.read, reading, uris)


def _each_value(
    lines: DataFrame,
    schema: StructType,
    read: Callable[[pa.Array, Drift], pa.RecordBatch],
    reading: Reading,
    uris: Uris,
) -> DataFrame:
    """Make a record of each `value` by `read`; the other columns stay beside it."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructField

    # A report has nulls in all of them.
    others = [StructField(one.name, one.dataType) for one in lines.schema if one.name != "value"]
    records = lines.select(F.col("value").cast("binary"), *(field.name for field in others))
    return _in_tasks(records, schema, partial(beside, read), others, reading, uris)


def csv_rows(lines: DataFrame, schema: StructType, options: Mapping[str, str], reading: Reading) -> DataFrame:
    """Parse each `value`, a line of CSV without a header, into one record beside its other columns.

    One that does not fit the schema is malformed.
    """
    csv = CsvReader(schema=arrow_schema(schema), dialect=Dialect.of(options), bounds=reading.bounds)
    return _each_value(lines, schema, csv.read_headless, reading, uris_beside)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema as Arrow has it, moments in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def none_malformed(reading: Reading) -> list[Column]:
    """Return what is beside records none of which can be malformed."""
    from pyspark.sql import functions as F

    nothing = F.lit(None).cast("string")
    return [nothing.alias(name) for name in reading.texts]


Records = Mapping[str | None, "DataFrame"]  # of each stream; the one of the pipeline's own schema has no name


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all frames, by halves: Spark looks at a plan as a whole each time one more is put to it."""
    if len(frames) == 1:
        return frames[0]
    half = len(frames) // 2
    return union(frames[:half]).unionByName(union(frames[half:]))


def none_of(spark: SparkSession, fields: StructType, beside: str, reading: Reading) -> DataFrame:
    """Return a frame of no record; `beside` is the DDL of what records have beside their fields."""
    from pyspark.sql.types import StringType, StructField, StructType

    names = (*reading.texts, SOURCE_PATH) if reading.names_files else reading.texts
    extra = [StructField(name, StringType()) for name in names]
    return spark.createDataFrame([], StructType([*fields.fields, *ddl_fields(beside, "").fields, *extra]))
