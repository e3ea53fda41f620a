"""The parts of the one pass, each alone: what a delivery that did nothing else would cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import psycopg2
import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder

from benchmarks.events import SCHEMA
from benchmarks.ground import CORES, Ground
from benchmarks.usual import COLUMNS
from etl.pipeline import load_pipeline
from etl.sinks.lake.parquet_writer import Completions, FileSpec, ObjectWriter
from etl.sinks.lake.schema import arrow_schema, iceberg_schema
from etl.sinks.warehouse.packed_rows import COPY_READ_BYTES
from etl.sources.files import FileSource
from etl.sources.kinds.declared import require_files
from etl.sources.open import open_kind
from etl.sources.parsing import ddl_fields, json_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Parts:
    """What Sluice's pass is made of, without its guards, its rules and its commit."""

    ground: Ground

    @cached_property
    def batches(self) -> list[pa.RecordBatch]:
        """The events in memory, as Spark hands them over."""
        return list(self.ground.frame().toArrow().to_batches())

    def parse(self) -> None:
        """Spark reads the files and throws the rows away."""
        self.ground.frame().write.format("noop").mode("overwrite").save()

    def hand_over(self) -> None:
        """Parse the events and hand the rows over to Python as Arrow batches."""
        self._reach_python(self.ground.frame())

    def hand_over_whole(self) -> None:
        """Parse the events by Sluice's reader, which loses no record, and hand them over; nothing is judged or written."""
        self._reach_python(self._source.reread([path.as_uri() for path in self.ground.events], broken=()))

    def from_json(self) -> None:
        """Parse records of a topic, here the events' lines, as Spark's users do, and hand the rows over."""
        from pyspark.sql import functions as F

        text = F.col("value").cast("string")
        self._reach_python(self._records.select(F.from_json(text, SCHEMA).alias("event")).select("event.*"))

    def records(self) -> None:
        """Parse the same records by Sluice's reader, and hand the rows over."""
        source = self._source
        records = json_rows(self._records, ddl_fields(SCHEMA, "the events"), source.reading())
        self._reach_python(source._put_out({None: records}))

    @property
    def _records(self) -> DataFrame:
        """Return the events' lines as bytes, as Kafka's values are."""
        from pyspark.sql import functions as F

        lines = self.ground.spark.read.text([str(path) for path in self.ground.events])
        return lines.select(F.col("value").cast("binary").alias("value"))

    def _reach_python(self, frame: DataFrame) -> None:
        found = frame.mapInArrow(_count, "rows long").collect()
        assert sum(row.rows for row in found) == self.ground.rows

    @cached_property
    def _source(self) -> FileSource:
        settings = self.ground.place.settings
        pipeline = load_pipeline(self.ground.judged, settings.pipelines)
        kind = require_files(pipeline, "a benchmark")
        return replace(open_kind(self.ground.spark, kind, settings, stream=False), anywhere=True)

    def parquet(self) -> None:
        """Rows from memory to objects on S3, one a core."""
        with ThreadPoolExecutor(CORES) as pool:
            list(pool.map(self._write, range(CORES)))

    def _write(self, core: int) -> None:
        place = self.ground.place
        schema = arrow_schema(iceberg_schema(self.batches[0].schema))
        spec = FileSpec(
            prefix=f"{place.services.lake}/bench/parts", folder="alone", schema=schema, partitioning=None
        )
        with (
            Completions() as completions,
            ObjectWriter(spec, place.lake.store, 0, core, completions) as writer,
        ):
            for batch in self.batches[core::CORES]:
                rows = batch.num_rows
                identity = (pa.scalar("0" * 36), pa.scalar(0, pa.int64()), pa.scalar(0, pa.int64()))
                columns = [*batch.columns, *(pa.repeat(value, rows) for value in identity)]
                writer.write(pa.RecordBatch.from_arrays(columns, names=schema.names))
            writer.close()

    def prepare_copy(self) -> None:
        self.ground.execute("DROP TABLE IF EXISTS copied", f"CREATE TABLE copied ({COLUMNS})")

    def copy(self) -> None:
        """Rows from memory into a table: one COPY, since what becomes visible at once has one writer."""
        connection = psycopg2.connect(self.ground.dsn)
        try:
            with connection, connection.cursor() as cursor:
                chunks = _Chunks(_encoded(self.batches))
                cursor.copy_expert(
                    "COPY copied FROM STDIN WITH (FORMAT binary)", chunks, size=COPY_READ_BYTES
                )
        finally:
            connection.close()


def _count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})


def _encoded(batches: Sequence[pa.RecordBatch]) -> Iterator[bytes]:
    names = [*batches[0].schema.names, "batch_id"]
    numbered = (
        pa.RecordBatch.from_arrays(
            [*batch.columns, pa.repeat(pa.scalar(17, pa.int64()), batch.num_rows)], names=names
        )
        for batch in batches
    )
    first = next(numbered)
    encoder = ArrowToPostgresBinaryEncoder(first.schema)
    yield encoder.write_header()
    for batch in itertools.chain([first], numbered):
        yield encoder.write_batch(batch)
    yield encoder.finish()


class _Chunks:
    """The file that COPY reads."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        # What the encoder keeps for later is an empty chunk, which would end the COPY.
        self._chunks = filter(None, chunks)
        self._left = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        if not self._left:
            self._left = memoryview(next(self._chunks, b""))
        taken, self._left = self._left[:size], self._left[size:]
        return bytes(taken)

    readline = read
