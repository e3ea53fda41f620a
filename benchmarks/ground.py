"""The ground that every way stands on: one JVM, one PostgreSQL, one S3 server, the same files.

Before each measured round the JVM's garbage and PostgreSQL's dirty pages are cleared away, so that no way
pays for another's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg2
from psycopg2.extensions import parse_dsn

from benchmarks.events import SCHEMA, generate
from etl import services
from etl.common.settings import Settings
from etl.runs.workspace import Workspace
from etl.services import Services
from etl.spark.session import start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent
JARS = HERE.parent / ".sluice" / "jars"  # where `make install` puts Spark's classes
CORES = 2
DRIVER = "org.postgresql:postgresql:42.7.7"
SUPERUSER = "postgres"


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Where a measurement takes place."""

    place: Workspace
    spark: SparkSession
    folder: Path  # where events are kept
    files: int
    rows: int
    kind: str = "jsonl"  # suffix of the files
    malformed: float = 0  # share of the events

    @property
    def judged(self) -> str:
        """Name the pipeline of benchmarks/pipelines that reads the events and judges them by six rules."""
        return "bench_csv" if self.kind == "csv" else "bench_judged"

    @cached_property
    def events(self) -> list[Path]:
        """Generate the events, if they are not there yet."""
        return generate(
            self.folder, rows=self.rows, files=self.files, kind=self.kind, malformed=self.malformed
        )

    @property
    def dsn(self) -> str:
        return self.place.services.postgres

    def frame(self) -> DataFrame:
        """The events as Spark's own reader gives them."""
        reader, paths = self.spark.read.schema(SCHEMA), [str(path) for path in self.events]
        return reader.csv(paths, header=True) if self.kind == "csv" else reader.json(paths)

    def s3a(self, name: str) -> str:
        """A folder on S3 for what is written without Sluice."""
        return f"{self.place.services.lake.replace('s3://', 's3a://', 1)}/bench/{name}"

    def execute(self, *statements: str) -> None:
        """Run each statement, in one transaction."""
        with (
            contextlib.closing(psycopg2.connect(self.dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)

    def rest(self) -> None:
        """Clear away what the last measurement left behind."""
        self.spark._jvm.System.gc()  # type: ignore[union-attr]
        as_superuser(self.place.services, "CHECKPOINT")


@contextlib.contextmanager
def at_home(folder: Path, name: str) -> Iterator[Settings]:
    """Yield the settings of commands that run by themselves, over services of their own that end with the block."""
    home = folder / name
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    settings = Settings(
        home=home,
        jars=JARS,
        pipelines=(HERE / "pipelines",),
        suites=(HERE / "suites",),
        spark_master=f"local[{CORES}]",
    )
    os.environ.update(services.up(settings).environment)
    try:
        yield settings
    finally:
        services.down(settings)
        shutil.rmtree(home)


def environment(settings: Settings) -> dict[str, str]:
    """Return the variables by which a process has these settings."""
    place = {
        "PYSPARK_PYTHON": sys.executable,
        "SLUICE_HOME": settings.home,
        "SLUICE_JARS": settings.jars,
        "SLUICE_PIPELINES": HERE / "pipelines",
        "SLUICE_SUITES": HERE / "suites",
        "SLUICE_SPARK_MASTER": settings.spark_master,
    }
    return {**os.environ, **{name: str(value) for name, value in place.items()}}


def password(dsn: str, user: str | None = None) -> str:
    """The password of the DSN's user, or of `user`, from the passfile that the DSN names."""
    parts = parse_dsn(dsn)
    lines = Path(parts["passfile"]).read_text().splitlines()
    return next(line.split(":", 4)[4] for line in lines if line.split(":")[3] == (user or parts["user"]))


def as_superuser(found: Services, *statements: str) -> None:
    secret = password(found.postgres, SUPERUSER)
    connection = psycopg2.connect(found.postgres, user=SUPERUSER, password=secret, dbname=SUPERUSER)
    with contextlib.closing(connection), connection.cursor() as cursor:
        connection.autocommit = True
        for statement in statements:
            cursor.execute(statement)


@contextlib.contextmanager
def prepared(
    folder: Path, *, rows: int, files: int, jars: Path | None, kind: str = "jsonl"
) -> Iterator[Ground]:
    """Services and a session of our own below `folder`; events and jars found there are used again."""
    home = folder / "home"
    shutil.rmtree(home, ignore_errors=True)  # what a killed run left would be delivered first
    home.mkdir(parents=True)
    settings = Settings(
        home=home,
        jars=jars or folder / "jars",
        pipelines=(HERE / "pipelines",),
        suites=(HERE / "suites",),
        spark_master=f"local[{CORES}]",
        spark_conf=_conf(folder),
    )
    found = services.up(settings)
    try:
        os.environ.update(found.environment)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        # a vacuum that happens to run would be charged to whoever is being measured
        as_superuser(found, "ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()")
        spark = start(settings, found)
        spark.sparkContext.setLogLevel("ERROR")
        place = Workspace(settings=settings, services=found)
        yield Ground(place=place, spark=spark, folder=folder, files=files, rows=rows, kind=kind)
        spark.stop()
    finally:
        services.down(settings)
        shutil.rmtree(home)


def _conf(folder: Path) -> dict[str, str]:
    """Return the settings that the usual way needs beside Sluice's own, tuned as its users would."""
    return {
        "spark.driver.memory": "3g",
        "spark.jars.packages": DRIVER,
        "spark.jars.ivy": str(folder / "ivy"),
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    }
