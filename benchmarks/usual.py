"""What users write today, well tuned; and the same made as idempotent as Sluice.

Both persist the frame, ask Great Expectations, then write to each sink on its own. Neither makes the two
sinks visible together.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from psycopg2.extensions import parse_dsn

from benchmarks.ground import HERE, Ground, password

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = (
    "event_id text, device_id text, event_time timestamptz, temperature double precision,"
    " humidity double precision, state text, firmware text, battery integer, batch_id bigint"
)
GOOD = (
    "temperature IS NOT NULL AND (humidity IS NULL OR humidity BETWEEN 0 AND 100)"
    " AND (state IS NULL OR state IN ('on', 'off', 'idle')) AND event_id IS NOT NULL"
    " AND (battery IS NULL OR battery BETWEEN 0 AND 100)"
    " AND (firmware IS NULL OR firmware RLIKE '^v\\\\d+\\\\.\\\\d+$')"
)


@dataclass(frozen=True)
class Usual:
    """The usual way; a batch that is run again is in both sinks twice."""

    ground: Ground

    def prepare(self) -> None:
        self.ground.execute("DROP TABLE IF EXISTS usual", f"CREATE TABLE usual ({COLUMNS})")

    def deliver(self) -> None:
        frame = self.batch(17).persist()
        try:
            self.validate(frame)
            frame.write.mode("append").parquet(self.ground.s3a("usual"))
            self.insert(frame, "usual")
        finally:
            frame.unpersist(blocking=True)

    def batch(self, number: int) -> DataFrame:
        from pyspark.sql import functions

        return self.ground.frame().withColumn("batch_id", functions.lit(number).cast("bigint"))

    @cached_property
    def _definition(self) -> Any:
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        warnings.filterwarnings("ignore", module="great_expectations")
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        asset = context.data_sources.add_spark("bench").add_dataframe_asset("events")
        return asset.add_batch_definition_whole_dataframe("batch")

    @cached_property
    def _suite(self) -> Any:
        import great_expectations as gx

        return gx.ExpectationSuite(**json.loads((HERE / "suites" / "events.json").read_text()))

    def validate(self, frame: DataFrame) -> None:
        found = self._definition.get_batch(batch_parameters={"dataframe": frame})
        result = found.validate(self._suite, result_format="SUMMARY")
        assert result.success, result

    def insert(self, frame: DataFrame, table: str) -> None:
        """Spark's JDBC append, tuned: many rows a statement."""
        at = parse_dsn(self.ground.dsn)
        options = {
            "url": f"jdbc:postgresql://{at['host']}:{at['port']}/{at['dbname']}?reWriteBatchedInserts=true",
            "user": at["user"],
            "password": password(self.ground.dsn),
            "driver": "org.postgresql.Driver",
            "batchsize": "10000",
            "dbtable": table,
        }
        frame.write.format("jdbc").options(**options).mode("append").save()


@dataclass(frozen=True)
class Idempotent(Usual):
    """Staging tables and a merge, bad rows by a second write: a batch run again replaces itself."""

    def prepare(self) -> None:
        names = ("idempotent", "idempotent_bad", "staged", "staged_bad")
        self.ground.execute(*(f"DROP TABLE IF EXISTS {name}" for name in names))
        self.ground.execute(
            *(f"CREATE TABLE {name} ({COLUMNS})" for name in names[:2]),
            *(f"CREATE UNLOGGED TABLE {name} ({COLUMNS})" for name in names[2:]),
            *(f"CREATE INDEX ON {name} USING brin (batch_id)" for name in names[:2]),
        )

    def deliver(self) -> None:
        frame = self.batch(17).persist()
        try:
            self.validate(frame)
            for rows, place, suffix in (
                (frame.where(GOOD), "idempotent", ""),
                (frame.where(f"NOT ({GOOD})"), "idempotent-bad", "_bad"),
            ):
                rows.write.mode("overwrite").parquet(self.ground.s3a(f"{place}/batch=17"))
                self.ground.execute(f"TRUNCATE staged{suffix}")
                self.insert(rows, f"staged{suffix}")
            self.merge()
        finally:
            frame.unpersist(blocking=True)

    def merge(self) -> None:
        self.ground.execute(
            "DELETE FROM idempotent WHERE batch_id = 17",
            "DELETE FROM idempotent_bad WHERE batch_id = 17",
            "INSERT INTO idempotent SELECT * FROM staged",
            "INSERT INTO idempotent_bad SELECT * FROM staged_bad",
        )
