"""A user's own folders outside the repository, what lands there, and runs over it.

The sinks are read by tests/support/oracle.py, which shares no code with `etl`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyarrow import fs
from pyspark.sql import SparkSession

from etl.common.settings import Settings
from etl.common.steps import Step, listen
from etl.operations.audit.audit import audit
from etl.operations.audit.report import AuditReport
from etl.pipeline import Pipeline, load_pipeline
from etl.runs.kinds import remembered
from etl.runs.recovery.recover import Recovered, recover
from etl.runs.run import run
from etl.runs.summary import Progress, Summary
from etl.runs.workspace import Workspace
from etl.services import Services
from tests.support import commands, forked, oracle
from tests.support.data.orders import (
    COLUMNS,
    DECLARATION,
    MOMENTS,
    NAME,
    RULES,
    SHOPS,
    Landed,
    Order,
    orders,
)
from tests.support.environment import REPOSITORY
from tests.support.oracle import Rows


@dataclass(kw_only=True)
class Home:
    """One user's place: landing, pipelines and suites in three folders that have nothing in common."""

    root: Path
    place: Workspace
    spark: SparkSession | None
    columns: pa.Schema = COLUMNS

    @classmethod
    def at(
        cls,
        root: Path,
        dsn: str,
        services: Services,
        lake: str,
        settings_for: Callable[..., Settings],
        spark: SparkSession | None = None,
        **more: str,
    ) -> Self:
        """`more` are further settings."""
        folders = {name: root / name for name in ("my pipelines", "our-suites", "landing")}
        for folder in folders.values():
            folder.mkdir(parents=True)
        mine, ours, landing = folders.values()
        changes = {"postgres": dsn, "lake": lake, "spark_master": "local[2]", "landing": str(landing)} | more
        settings = settings_for(root / "home", pipelines=(mine,), suites=(ours,), **changes)
        home = cls(
            root=root,
            place=Workspace(settings=settings, services=replace(services, postgres=dsn, lake=lake)),
            spark=spark,
        )
        home.write("reference/shops.csv", SHOPS)
        home.declare()
        home.judge(*RULES)
        return home

    @property
    def dsn(self) -> str:
        return self.place.services.postgres

    @property
    def landing(self) -> Path:
        return Path(self.place.settings.landing)

    def declare(
        self, name: str = NAME, *, max_files: int | None = 2, share: float = 1.0, text: str = ""
    ) -> None:
        text = text or DECLARATION.format(name=name, max_files=max_files, share=share)
        (self.root / "my pipelines" / f"{name}.py").write_text(text)

    def judge(self, *rules: dict[str, Any], name: str = "orders") -> None:
        content = {"name": name, "expectations": list(rules)}
        (self.root / "our-suites" / f"{name}.json").write_text(json.dumps(content))

    def write(self, path: str, content: str | bytes) -> Path:
        """Land a file: it appears whole, a second after the one before it, for Spark takes them by age."""
        file = self.landing / path
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}")
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        moment = next(MOMENTS)
        os.utime(draft, ns=(moment, moment))
        return draft.replace(file)

    def uri(self, path: str) -> str:
        """Return the URI of a landed file, as Spark writes it."""
        return uri(self.landing / path)

    def make_folder(self, name: str) -> None:
        """Make a source's folder, which must be there even if nothing has landed."""
        (self.landing / name).mkdir(exist_ok=True)

    def land(self, path: str, made: Sequence[Order], malformed: Sequence[str] = ()) -> Landed:
        """Land a file of `made`, with the malformed records between them."""
        kind = path.rpartition(".")[2]
        lines = [order.json if kind == "jsonl" else order.csv for order in made]
        middle = len(lines) // 2
        lines[middle:middle] = malformed
        header = ["id,shop,amount,at"] if kind == "csv" else []
        self.write(path, "\n".join([*header, *lines]) + "\n")
        uri = self.uri(path)
        return Landed(
            orders=[replace(order, file=uri) for order in made], malformed=[(raw, uri) for raw in malformed]
        )

    def pipeline(self, name: str = NAME) -> Pipeline:
        return load_pipeline(name, self.place.settings.pipelines)

    def run(self, name: str = NAME, *, progress: Progress = lambda receipt: None) -> Summary:
        self.make_folder(name)
        return run(self.place, self.pipeline(name), progress=progress, spark=self.spark)

    def recover(self, name: str = NAME) -> Recovered:
        return recover(self.place, self.pipeline(name), spark=self.spark)

    def checkpoint(self, stream: str, name: str = NAME) -> Path:
        return Path(self.place.settings.checkpoints, name, stream)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment in which the command `sluice` works here."""
        settings = self.place.settings
        own = {
            "SLUICE_HOME": str(settings.home),
            "SLUICE_JARS": str(settings.jars),
            "SLUICE_PIPELINES": os.pathsep.join(map(str, settings.pipelines)),
            "SLUICE_SUITES": os.pathsep.join(map(str, settings.suites)),
            "SLUICE_LANDING": settings.landing,
            "SLUICE_CHECKPOINTS": settings.checkpoints,
            "SLUICE_POSTGRES": self.dsn,
            "SLUICE_LAKE": self.place.services.lake,
            "SLUICE_S3_ENDPOINT": self.place.services.s3_endpoint or "",
            "SLUICE_SPARK_MASTER": settings.spark_master,
        }
        if settings.kafka:
            own["SLUICE_KAFKA"] = settings.kafka
        return {**os.environ, **self.place.services.environment, **own, "PYTHONPATH": str(REPOSITORY)}

    def sluice(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command in a process of its own, which reads `given`, from a folder that is not the repository."""
        return forked.sluice(words, environment=self.environment, folder=self.root, given=given)

    def sluice_here(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command in this process and over its Spark, from a folder that is not the repository."""
        assert self.spark is not None
        return commands.sluice(words, self.spark, environment=self.environment, folder=self.root, given=given)

    def reader(self, name: str = NAME) -> oracle.Reader:
        services = self.place.services
        return oracle.Reader(
            dsn=self.dsn,
            endpoint=services.s3_endpoint,
            region=services.s3_region,
            pipeline=name,
            columns=self.columns,
        )

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return oracle.ask(self.dsn, query, values)

    def objects(self) -> Counter[tuple[str, int]]:
        """Return every object below the lake, with its size."""
        place = self.place.services.lake.removeprefix("s3://")
        found = self.reader().store.get_file_info(
            fs.FileSelector(place, recursive=True, allow_not_found=True)
        )
        return Counter((one.path, one.size) for one in found if one.type == fs.FileType.File)

    def assert_holds(self, landed: Landed) -> None:
        """Both sinks hold exactly what landed, row by row, and say the same of each row's delivery."""
        self.assert_rows(landed)
        self.assert_one_history()
        whole = len(landed.orders) + len(landed.malformed) + len(landed.released)
        query = "SELECT coalesce(sum(rows_in), 0) FROM sluice.delivery WHERE live AND pipeline = %s"
        assert self.ask(query, NAME) == [(whole,)]

    def assert_rows(self, landed: Landed) -> None:
        """Readers of both sinks see exactly what landed."""
        eyes = self.reader()
        found = {
            "PostgreSQL": (eyes.in_postgres(system=()), landed.delivered),
            "Parquet": (eyes.on_lake(system=()), landed.delivered),
            "held in PostgreSQL": (without_batch(eyes.held_in_postgres()), landed.held_in_postgres),
            "held on the lake": (without_batch(eyes.held_on_lake()), landed.held_on_lake),
        }
        wrong = {name: oracle.difference(*both) for name, both in found.items()}
        assert not any(wrong.values()), wrong

    def assert_one_history(self, name: str = NAME) -> None:
        """Ledger and sinks agree on every delivery; nothing is left open."""
        eyes, identity = self.reader(name), ("_stream_id", "_batch_id", "_delivery_id")
        assert eyes.in_postgres(system=identity) == eyes.on_lake(system=identity)
        wrong = self.ask(
            "SELECT * FROM (SELECT d.delivery_id, d.rows_in, d.delivered, d.quarantined,"
            f" (SELECT count(*) FROM warehouse.{eyes.pipeline} w WHERE w._delivery_id = d.delivery_id"
            "   AND w._stream_id = d.stream_id AND w._batch_id = d.batch_id) AS rows,"
            " (SELECT count(*) FROM sluice.quarantine q WHERE q.delivery_id = d.delivery_id) AS held"
            " FROM sluice.delivery d WHERE d.live AND d.pipeline = %s) found"
            " WHERE rows <> delivered OR held <> quarantined OR rows_in <> rows + held",
            eyes.pipeline,
        )
        assert wrong == []
        assert self.ask("SELECT delivery_id FROM sluice.attempt WHERE closed_at IS NULL") == []
        assert self.staging_tables() == []

    def assert_clean(self, name: str = NAME) -> AuditReport:
        """Require that the audit of a pipeline finds nothing."""
        report = audit(self.place, self.pipeline(name))
        assert report.clean, list(report.lines())
        return report

    def staging_tables(self) -> list[str]:
        query = "SELECT relname FROM pg_class WHERE relnamespace = 'sluice_stage'::regnamespace"
        return [str(name) for (name,) in self.ask(query)]

    def history(self) -> dict[str, Any]:
        """Return all that a run which finds nothing new must leave as it is."""
        tables = ("delivery", "delivery_input", "delivery_file", "quarantine", "attempt", "iceberg_tables")
        rows = {name: sorted(map(str, self.ask(f"SELECT t::text FROM sluice.{name} t"))) for name in tables}
        checkpoints = Path(self.place.settings.checkpoints)
        files = {
            str(file): file.stat().st_mtime_ns
            for file in checkpoints.rglob("*")
            if file.is_file() and file.name not in (remembered.NAME, f".{remembered.NAME}.crc")
        }
        return {**rows, "objects": self.objects(), "checkpoints": files}


@contextmanager
def once_at(step: Step, action: Callable[[], object]) -> Iterator[None]:
    """`action` is done once, when what runs within first comes to `step`; it fails when nothing comes there."""
    done = False

    def listener(at: Step) -> None:
        nonlocal done
        if at == step:
            listen(None)
            done = True
            action()

    listen(listener)
    try:
        yield
    finally:
        listen(None)
    assert done, f"nothing came to {step}"


class _Stopped(Exception):
    pass


@contextmanager
def failing_at(step: Step) -> Iterator[None]:
    """Fail the run within at `step`, with an error; require that it comes there."""

    def stop() -> None:
        raise _Stopped

    with once_at(step, stop), pytest.raises(_Stopped):
        yield


def uri(file: Path) -> str:
    """Return the URI as Spark writes it."""
    return "file://" + quote(str(file), safe="/=")


def without_batch(rows: Rows) -> Rows:
    found: Rows = Counter()
    for row, count in rows.items():
        found[row[:-1]] += count
    return found


def delivered_in_two_batches(home: Home) -> tuple[Landed, str]:
    """Deliver two batches; return what landed, and the stream."""
    landed = home.land("orders/a.jsonl", orders(0, 12, negative=[3]), ["{broken"])
    landed += home.land("orders/b.csv", orders(20, 6))
    landed += home.land("orders/c.jsonl", orders(30, 6, negative=[31]))
    landed += home.land("orders/d.jsonl", orders(40, 6))
    done = home.run()
    assert done.batches == 2
    return landed, done.stream
