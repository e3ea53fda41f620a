"""A pipeline that is delivered to batch by batch, without Spark, at a place like a command's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import etl.delivery.deliver
import etl.sinks.open
from etl.common.database import Cursor, transaction
from etl.common.outcome import RunOutcome
from etl.common.settings import Settings
from etl.common.steps import Listener, listen
from etl.delivery.batch import DeliveryContext, Receipt
from etl.delivery.deliver import deliver
from etl.ledger import leases
from etl.ledger.inputs import Input
from etl.pipeline import Pipeline, Sink
from etl.quality.verdict import StageRule
from etl.runs.workspace import Workspace
from etl.services import Services
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.table import LakeTable
from etl.sinks.open import quarantine_columns
from etl.sources.evidence import look
from tests.support import arrow_driver

RULE = StageRule(number=0, reason="rule", broken=0, columns=(), quarantines=True)


@dataclass(kw_only=True)
class LandedBatch(arrow_driver.ArrowBatch):
    """A batch whose input is a real file."""

    landed: Sequence[Input]

    @property
    def inputs(self) -> Sequence[Input]:
        return self.landed


@dataclass(kw_only=True)
class Delivering:
    place: Workspace
    pipeline: Pipeline
    columns: pa.Schema
    session: DeliveryContext
    batch_id: int = 0
    on_step: Listener | None = None

    @classmethod
    def start(
        cls,
        services: Services,
        dsn: str,
        lake: Lake,
        home: Path,
        columns: pa.Schema,
        sink: Sink | None = None,
        name: str = "events",
        **settings: Any,
    ) -> Delivering:
        (home / "landing").mkdir(parents=True)
        here = replace(services, postgres=dsn, lake=lake.root)
        place = Workspace(
            settings=Settings(home=home, landing=str(home / "landing"), **settings), services=here
        )
        pipeline = arrow_driver.pipeline(name)
        pipeline = replace(pipeline, sink=sink or pipeline.sink)
        run = arrow_driver.start(dsn, place.lake, pipeline, columns=columns, rules=(RULE,))
        return cls(place=place, pipeline=pipeline, columns=columns, session=run)

    @property
    def dsn(self) -> str:
        return self.place.services.postgres

    @property
    def landing(self) -> Path:
        return Path(self.place.settings.landing)

    @property
    def table(self) -> LakeTable:
        return self.session.sinks.table

    @property
    def quarantine(self) -> LakeTable:
        return self.session.sinks.quarantine

    def restart(self) -> None:
        """Start again as a new process after the old one died: take the lease, and fence open attempts."""
        self.end()
        self.session = arrow_driver.start(
            self.dsn,
            self.place.lake,
            self.pipeline,
            columns=self.columns,
            rules=(RULE,),
            stream_id=self.session.stream_id,
        )

    def end(self) -> None:
        """End the run as one that died, and give its lease back."""
        with transaction(self.dsn) as cursor:
            leases.end_run(cursor, self.session.lease, RunOutcome(outcome="died"))
            leases.give_lease_back(cursor, self.session.lease)

    def batch(self, rows: pa.Table, bad: Sequence[int] = (), **changes: Any) -> LandedBatch:
        """Make the next batch, from a landed file of its own, in two tasks; the rows at `bad` break the rule."""
        file = self.landing / f"{self.batch_id}.jsonl"
        file.write_text(f"batch {self.batch_id}\n")
        places = set(bad)
        flags = pa.array([int(place in places) for place in range(len(rows))], pa.int64())
        whole = rows.append_column("_flags0", flags).combine_chunks().to_batches()
        half = len(rows) // 2
        return LandedBatch(
            batch_id=self.batch_id,
            parts=[[part.slice(0, half) for part in whole], [part.slice(half) for part in whole]],
            landed=look([str(file)], landing=str(self.landing)),
            **changes,
        )

    def deliver(self, rows: pa.Table, bad: Sequence[int] = (), **changes: Any) -> Receipt:
        """Deliver `rows` as the next batch; `on_step` is told of each step."""
        listen(self.on_step)
        run = replace(self.session, on_step=self.on_step)
        try:
            receipt = deliver(run, self.batch(rows, bad, **changes))
        finally:
            listen(None)
        self.batch_id += 1
        return receipt

    def deliver_none(self, kind: str) -> int:
        """Deliver a batch without a row, on record as a release or a withdrawal; return its number."""
        newest = "SELECT max(delivery_id) FROM sluice.delivery WHERE pipeline = %s"
        [(before,)] = self.execute(newest, self.pipeline.name)
        number = self.deliver(self.columns.empty_table()).delivery_id
        origin = before if kind == "release" else None
        change = "UPDATE sluice.delivery SET kind = %s, released_from = %s WHERE delivery_id = %s"
        self.execute(change, kind, origin, number)
        return number

    def malformed(self, *records: tuple[str, str | None]) -> pa.RecordBatch:
        """Return malformed records, each a raw text and what is wrong with it, as a source hands them to a task."""
        raws, details = zip(*records, strict=True)
        texts = {"_raw": raws, "_source_path": ["file"] * len(raws), "_why": ["malformed"] * len(raws)}
        texts["_detail"] = details
        arrays = [pa.nulls(len(raws), column.type) for column in self.columns]
        arrays += [pa.array([0] * len(raws), pa.int64())]
        arrays += [pa.array(column, pa.string()) for column in texts.values()]
        return pa.RecordBatch.from_arrays(arrays, names=[*self.columns.names, "_flags0", *texts])

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Execute one statement in a transaction of its own; `{t}` is the pipeline's table."""
        with transaction(self.dsn) as cursor:
            cursor.execute(statement.replace("{t}", self.pipeline.table), values or None)
            return cursor.fetchall() if cursor.description else []

    def pointers(self) -> tuple[str, str]:
        def both(cursor: Cursor) -> tuple[str, str]:
            return self.table.pointer(cursor) or "", self.quarantine.pointer(cursor) or ""

        with transaction(self.dsn) as cursor:
            return both(cursor)


def without_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver as versions did whose quarantine on the lake had no column for what is wrong with a record."""

    def before(columns: pa.Schema) -> pa.Schema:
        now = quarantine_columns(columns)
        return now.remove(now.get_field_index("_detail"))

    for user in (etl.sinks.open, etl.delivery.deliver):
        monkeypatch.setattr(user, "quarantine_columns", before)


DECLARATION = """
from etl.pipeline import Append, Files, Pipeline, day

def events(frame):
    return frame

PIPELINE = Pipeline(
    name="events",
    sources=(Files("events/*.jsonl"),),
    schema="id bigint, at timestamp, text string",
    transform=events,
    sink=Append(partition_by=day("at")),
)
"""
