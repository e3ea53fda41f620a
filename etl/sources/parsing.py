"""Parses landed files into typed rows: every record is either a row, or malformed and kept as its raw text.

Spark's own JSON reader lets some records slip and blurs values: JSON has a reader of our own, `json_records`, of which
docs/reading.md is the contract. All fields of all formats are parsed, whether the transform uses them or not. Of a text
file every line is a row, an empty one too.

CSV is one record a line. A quoted value with a line break in it is cut there, and its rest is read as a record of its
own: Spark closes an open quote at a line's end, without a message. Nor does it report bytes that are invalid in the
encoding: they become U+FFFD.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial, reduce
from operator import or_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from etl.common.errors import SetupError
from etl.common.paths import to_path
from etl.common.record_columns import DETAIL, MALFORMED_COLUMN, PARSED, SOURCE_PATH
from etl.pipeline import Files, Lookup
from etl.sources.decimals import decimal_of, no_decimal, spelled
from etl.sources.json_records.blocks import BESIDE, JsonReader
from etl.sources.json_records.lines import BLANK
from etl.spark.frames import quoted
from etl.spark.session import setting
from etl.spark.state_plan import SOURCE_NUMBER
from etl.spark.tasks import map_batches

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


_UNREAD = re.compile(r"\b(?:var)?char\(\d+\)|\binterval (?:year|month)\b.*")
_COMMON = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": MALFORMED_COLUMN,
    "enableDateTimeParsingFallback": "false",
}
_CSV = {
    "enforceSchema": "false",  # the header must name the schema's columns, in their order
    "escape": '"',
    "maxColumns": "1000000",  # a line of more fails its whole file; Spark's own limit is 20480
    "multiLine": "false",
}
_NANOSECONDS = "spark.sql.timestampNanosTypes.enabled"  # a preview of Spark 4.3; to read by alone
_WITH_BLANKS = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}


def ddl_fields(schema: str, where: str) -> StructType:
    """Parse DDL as Spark understands it, with every column nullable.

    Raises SetupError for what is no DDL, or has a type that can't be read.
    """
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructField, StructType

    try:
        parsed = cast("StructType", StructType.fromDDL(schema))
    except ParseException as error:
        why = str(error).strip().splitlines()[0]
        raise SetupError(f"{where} is no Spark DDL: {why}", remedy="correct it in the declaration") from error
    for field in parsed.fields:
        if refused := _UNREAD.search(field.dataType.simpleString()):
            raise SetupError(
                f"{where}: column {field.name} has the type {refused[0]}, which can't be read",
                remedy="declare string, and a rule on its length or a cast in the transform",
            )
    return StructType([StructField(field.name, field.dataType) for field in parsed.fields])


def read_stream(
    spark: SparkSession,
    files: Files,
    schema: StructType,
    path: str,
    name: str,
    *,
    number: int,
    named: bool,
) -> DataFrame:
    """Read new files below `path` called like the glob `name`, as rows with MALFORMED_COLUMN, DETAIL and SOURCE_PATH.

    The frame is streaming. Its plan tells that it is the source of this `number`. Unless the rows are to be `named`,
    SOURCE_PATH may be null: carried along to Python and back it is a tenth of what JSON costs.
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
    return _rows(spark.readStream.options(**options), files, schema, path, named=named)


def read_files(
    spark: SparkSession,
    files: Files | Lookup,
    schema: StructType,
    uris: Iterable[str],
    *,
    named: bool,
    broken: bool = False,
    read_as: Mapping[str, str] = MappingProxyType({}),
) -> DataFrame:
    """Read just the given files, as `read_stream` reads them: whole, or the job fails.

    Of files known to be `broken` it reads what can be read, whatever the session says. Those that are `read_as`
    another schema, DDL by their URI, are read by it and cast to `schema`.
    """
    # Names are taken as they are: a file may be called like a glob.
    options = {"__globPaths__": "false", "recursiveFileLookup": "true", "ignoreMissingFiles": "false"}
    options["ignoreCorruptFiles"] = str(broken).lower()
    alike: dict[str | None, list[str]] = {}
    for uri in uris:
        alike.setdefault(read_as.get(uri), []).append(to_path(uri))
    with _of_nanoseconds(spark) if read_as else nullcontext():
        frames = [
            _rows(spark.read.options(**options), files, schema, paths, named=named, ddl=ddl)
            for ddl, paths in (alike or {None: []}).items()
        ]
    return union(frames)


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
    *,
    named: bool,
    ddl: str | None = None,
) -> DataFrame:
    from pyspark.sql import functions as F

    # "file:/…" of Spark's reader is "file:///…" in its logs, and so in the ledger.
    source = F.regexp_replace("_metadata.file_path", "^file:/+", "file:///").alias(SOURCE_PATH)
    fields = [F.col(quoted(field.name)) for field in schema.fields]
    if files.kind == "parquet":
        frame: DataFrame = reader.schema(ddl or schema).format("parquet").load(paths)
        if ddl:
            fields = [F.col(quoted(one.name)).cast(one.dataType).alias(one.name) for one in schema]
        return frame.select(*fields, *none_malformed(), source)
    if files.kind == "csv":
        options = {**_COMMON, **_CSV, "header": str(files.header).lower(), **files.options}
        read_as = spelled(schema, options)
        frame = reader.schema(_with_malformed(read_as)).options(**options).format("csv").load(paths)
        fields = [decimal_of(F.col(quoted(one.name)), one, options).alias(one.name) for one in schema]
        return frame.select(*fields, _raw_csv(schema, options), no_detail(), source)
    lines: DataFrame = reader.format("text").options(**_text_options(files.options)).load(paths)
    if files.kind == "text":
        line = F.col("value").alias(only_column(f"text files ({files.pattern})", schema))
        return lines.select(line, *none_malformed(), source)
    if named:
        return json_rows(not_blank(lines.select("value", source)), schema)
    return without_path(json_rows(not_blank(lines.select("value")), schema))


def csv_rows(lines: DataFrame, schema: StructType, options: Mapping[str, str]) -> DataFrame:
    """Parse each `value`, a line of CSV without a header, into one row beside its other columns.

    The row of a line that does not fit the schema is malformed.
    """
    from pyspark.sql import functions as F

    read_as = _with_malformed(spelled(schema, options))
    columns = (f"{quoted(field.name)} {field.dataType.simpleString()}" for field in read_as)
    parsed = F.from_csv("value", ", ".join(columns), {**_COMMON, **_CSV, **options})
    carried = [name for name in lines.columns if name != "value"]
    record = F.col(PARSED)
    fields = [decimal_of(record[one.name], one, options).alias(one.name) for one in schema.fields]
    bad = [no_decimal(record[one.name], one, options) for one in schema.fields]
    raw = F.coalesce(record[MALFORMED_COLUMN], F.when(reduce(or_, bad), F.col("value")))
    return lines.select(parsed.alias(PARSED), "value", *carried).select(
        *fields, raw.alias(MALFORMED_COLUMN), no_detail(), *carried
    )


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


def json_rows(lines: DataFrame, schema: StructType) -> DataFrame:
    """Parse each `value`, which is to be one whole object in UTF-8, into one row beside its other columns.

    What is no such object is malformed. A null is a row of nulls, and not malformed.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    reader = JsonReader(schema=to_arrow_schema(schema, timezone="UTC"))
    carried = [field for field in lines.schema.fields if field.name != "value"]
    beside = [StructField(name, StringType()) for name in BESIDE.names]
    records = lines.select(F.col("value").cast("binary"), *(field.name for field in carried))
    rows = partial(map_batches, reader.read_beside)
    return records.mapInArrow(rows, StructType([*schema.fields, *beside, *carried]))


def _raw_csv(schema: StructType, options: Mapping[str, str]) -> Column:
    """Return the text of a malformed record, null of any other.

    It needs every field: Spark does not check one that nobody uses. Where a decimal alone is wrong, Spark has
    the record's fields and not its text: they are written as CSV again.
    """
    from pyspark.sql import functions as F

    fields = [F.col(quoted(field.name)) for field in schema.fields]
    nothing = F.substring(F.concat_ws("", *(field.cast("string") for field in fields)), 1, 0)
    raw = F.col(MALFORMED_COLUMN)
    bad = [no_decimal(text, field, options) for text, field in zip(fields, schema.fields, strict=True)]
    rewritten = F.when(reduce(or_, bad), F.to_csv(F.struct(*fields), {**options, **_WITH_BLANKS}))
    return F.when(raw.isNotNull(), F.concat(raw, nothing)).otherwise(rewritten).alias(MALFORMED_COLUMN)


def _with_malformed(schema: StructType) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([*schema.fields, StructField(MALFORMED_COLUMN, StringType())])


def none_malformed() -> tuple[Column, Column]:
    """Return MALFORMED_COLUMN and DETAIL of records none of which can be malformed."""
    from pyspark.sql import functions as F

    return F.lit(None).cast("string").alias(MALFORMED_COLUMN), no_detail()


def without_path(rows: DataFrame) -> DataFrame:
    """Return rows whose SOURCE_PATH is null."""
    from pyspark.sql import functions as F

    return rows.withColumn(SOURCE_PATH, F.lit(None).cast("string"))


def no_detail() -> Column:
    """Return DETAIL of records of which the parser does not tell what is wrong."""
    from pyspark.sql import functions as F

    return F.lit(None).cast("string").alias(DETAIL)


Records = Mapping[str | None, "DataFrame"]  # of each stream; the one of the pipeline's own schema has no name


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all frames, by halves: Spark looks at a plan as a whole each time one more is put to it."""
    if len(frames) == 1:
        return frames[0]
    half = len(frames) // 2
    return union(frames[:half]).unionByName(union(frames[half:]))


def none_of(spark: SparkSession, fields: StructType, carried: str = "") -> DataFrame:
    """Return a frame of no record; `carried` is the DDL of what records have beside their fields."""
    from pyspark.sql.types import StringType, StructField, StructType

    extra = [StructField(name, StringType()) for name in (*BESIDE.names, SOURCE_PATH)]
    more = ddl_fields(carried, "").fields if carried else []
    return spark.createDataFrame([], StructType([*fields.fields, *more, *extra]))
