"""Parts of files: tasks open them, so that no byte of a file goes through Spark's JVM, and several read a large one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from etl.common.record_columns import ORIGIN, SOURCE_PATH
from etl.sources.raw.compression import UNPACKERS
from etl.sources.raw.origins import origin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SPARK_FORMAT = "binaryFile"  # tells of files; as long as nobody asks for their content, Spark opens none
SPARK_SCHEMA = "path string, modificationTime timestamp, length long, content binary"
PART_BYTES = 32 << 20


@dataclass(frozen=True)
class Part:
    """The records of a file that begin from one byte on, and before another one.

    A file that is packed, or not splittable, is one part: `end` is its size as it lies there.
    """

    uri: str
    start: int
    end: int

    @classmethod
    def listed(cls, batches: Iterator[pa.RecordBatch]) -> Iterator[Part]:
        """Yield the parts that the rows of a frame of `parts` tell of."""
        for batch in batches:
            for uri, start, end in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield cls(uri, start, end)

    def tell(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the part beside ORIGIN and SOURCE_PATH."""
        number, uri = pa.scalar(origin(self.uri), pa.int64()), pa.scalar(self.uri, pa.string())
        beside = {ORIGIN: pa.repeat(number, len(rows)), SOURCE_PATH: pa.repeat(uri, len(rows))}
        return pa.RecordBatch.from_arrays(
            [*rows.columns, *beside.values()], names=[*rows.schema.names, *beside]
        )


def bytes_of(parts: pa.RecordBatch) -> int:
    """Return how many bytes some rows of a frame of `parts` tell of."""
    return sum(pc.subtract(parts["end"], parts["start"]).to_pylist())


def parts(files: DataFrame, uri: Column, *, splittable: bool) -> DataFrame:
    """Return the parts of files, a row each; `files` is a frame of SPARK_FORMAT and `uri` tells what a file is called.

    Parts of `splittable` files are dealt out to tasks; whole files lie as Spark packs them, by their size, in `most_tasks`.
    """
    # In SQL: a column made of columns is a call into the JVM for each of them, and this is done for each run.
    named = files.where("_metadata.file_size > 0").select(uri.alias(SOURCE_PATH), "_metadata.file_size")
    if not splittable:
        whole = named.selectExpr(SOURCE_PATH, "0L AS start", "file_size AS end")
        return whole.coalesce(most_tasks(whole.sparkSession))
    ends = "|".join(suffix.replace(".", "[.]") for suffix in UNPACKERS)
    step = f"IF({SOURCE_PATH} RLIKE '(?:{ends})$', file_size, {PART_BYTES}L)"
    starts = named.selectExpr(
        SOURCE_PATH, "file_size", f"{step} AS step", f"explode(sequence(0L, file_size - 1, {step})) AS start"
    )
    each = starts.selectExpr(SOURCE_PATH, "start", "least(start + step, file_size) AS end")
    return each.repartition(each.sparkSession.sparkContext.defaultParallelism)


def most_tasks(spark: SparkSession) -> int:
    """Return how many tasks read one source at most."""
    return 16 + spark.sparkContext.defaultParallelism
