"""Puts rows of a pipeline `taps` into a ledger, of deliveries that nobody made: for what looks at the ledger alone."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from etl.common.database import transaction

RUN, STREAM = "00000000-0000-4000-8000-000000000002", "00000000-0000-4000-8000-000000000001"


@dataclass(kw_only=True)
class Ledger:
    """A pipeline's rows in the ledger."""

    dsn: str
    deliveries: int = 0

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with transaction(self.dsn) as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def begin(self) -> None:
        self.execute("INSERT INTO sluice.pipeline (name, table_schema, table_name) VALUES ('taps', 's', 't')")
        self.execute("INSERT INTO sluice.stream VALUES (%s, 'taps', 'c', 0)", STREAM)
        self.execute("INSERT INTO sluice.run (run_id, pipeline, holder) VALUES (%s, 'taps', 'h')", RUN)

    def start_by_airflow(self) -> None:
        """Put on record that a task of Airflow's started the run."""
        self.execute(
            "INSERT INTO sluice.airflow_try (dag_id, dag_run_id, task_id, try_number, pipeline, run_type, clear_number,"
            " run_id) VALUES ('taps', 'r', 'run', 1, 'taps', 'manual', 0, %s)",
            RUN,
        )

    def deliver(self, rows: int = 10, *, held: int = 0, at: dt.datetime | None = None, **columns: Any) -> int:
        """Put a delivery of the stream on record, of now or as it would have been committed then."""
        self.deliveries += 1
        number = self.deliveries
        self.execute(
            """INSERT INTO sluice.delivery (delivery_id, pipeline, stream_id, batch_id, commit_seq, run_id, rows_in,
            delivered, quarantined, malformed, checksum, quarantine_checksum, suite_digest, lookups, manifest,
            metadata_location, quarantine_metadata_location, committed_at)
            VALUES (%s, 'taps', %s, %s, %s, %s, %s, %s, %s, 0, 0, 0, '', '{}', '', '', '',
            coalesce(%s, clock_timestamp()))""",
            *(number, STREAM, number, number, RUN, rows, rows - held, held, at),
        )
        for name, value in columns.items():
            self.execute(f"UPDATE sluice.delivery SET {name} = %s WHERE delivery_id = %s", value, number)
        return number

    def stop(self) -> None:
        """Put on record that the stream's batch 1 broke its contract."""
        self.execute(
            "INSERT INTO sluice.stopped_batch (stream_id, batch_id, pipeline, stops, report)"
            " VALUES (%s, 1, 'taps', '{share}', '')",
            STREAM,
        )

    def decide(self) -> None:
        """Put on record that somebody has decided on it."""
        self.execute(
            "UPDATE sluice.stopped_batch SET decision = 'accept', decided_by = 'ann', why = 'fine',"
            " decided_at = clock_timestamp()"
        )
