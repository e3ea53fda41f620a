"""Parts of files: tasks open them, so that no byte of a file goes through Spark's JVM, and several read a large one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from etl.common.record_columns import MALFORMED_COLUMN, ORIGIN, SOURCE_PATH
from etl.sources.raw.compression import UNPACKERS
from etl.sources.raw.origins import origin

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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

    def tell(self, rows: pa.RecordBatch, *, named: bool) -> pa.RecordBatch:
        """Return rows of the part beside ORIGIN and SOURCE_PATH; unless `named`, only malformed ones have a path."""
        number = pa.scalar(origin(self.uri), pa.int64())
        if named:
            paths = pa.repeat(self.uri, len(rows))
        else:
            paths = pc.if_else(rows[MALFORMED_COLUMN].is_valid(), self.uri, pa.scalar(None, pa.string()))
        return rows.append_column(ORIGIN, pa.repeat(number, len(rows))).append_column(SOURCE_PATH, paths)


def parts(files: DataFrame, uri: Column, *, splittable: bool) -> DataFrame:
    """Return the parts of files, a row each; `files` is a frame of SPARK_FORMAT and `uri` tells what a file is called.

    Parts of `splittable` files are dealt out to tasks; whole files lie as Spark packs them, by their size.
    """
    from pyspark.sql import functions as F

    size = F.col("_metadata.file_size")
    named = files.where(size > 0).select(uri.alias(SOURCE_PATH), size.alias("size"))
    if not splittable:
        return named.select(SOURCE_PATH, F.lit(0).cast("bigint").alias("start"), F.col("size").alias("end"))
    ends = "|".join(suffix.replace(".", r"\.") for suffix in UNPACKERS)
    packed = F.col(SOURCE_PATH).rlike(f"(?:{ends})$")
    step = F.when(packed, F.col("size")).otherwise(PART_BYTES)
    starts = F.explode(F.sequence(F.lit(0).cast("bigint"), F.col("size") - 1, step)).alias("start")
    end = F.least(F.col("start") + F.col("step"), F.col("size")).alias("end")
    each = named.select(SOURCE_PATH, starts, step.alias("step"), "size").select(SOURCE_PATH, "start", end)
    return each.repartition(each.sparkSession.sparkContext.defaultParallelism)
