"""etl.read and etl.changes give Spark exactly the delivered rows, in the table's own columns and types."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from etl.common.settings import Settings
from etl.pipeline import Append, identity
from etl.services import Services
from etl.sinks.lake.lake import Lake
from tests.support.databases import dsn, lake, template
from tests.support.delivering import Delivering

__all__ = ["dsn", "lake", "template"]

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("amount", pa.decimal128(12, 2)),
        ("place", pa.string()),
    ]
)
DECLARED = """
from etl.pipeline import *
PIPELINE = Pipeline(name="events", sources=(Files("events/*.jsonl"),), schema="id bigint",
                    transform=lambda frame: frame, sink=Append(partition_by=identity("place")))
"""
# A process of its own: its session has S3A and the credentials of this lake, the shared one has not.
READER = """
import json, etl
from etl import services
from etl.common.errors import SetupError
from etl.common.settings import load_settings
from etl.spark.session import start
settings = load_settings()
spark = start(settings, services.up(settings))
def ids(**which):
    return sorted(row.id for row in etl.read(spark, "events", **which).collect())
try:
    etl.read(spark, "events", batches=[7])
except SetupError as error:
    refused = str(error)
whole = etl.read(spark, "events")
with etl.changes(spark, "events", consumer="delays") as new:
    changes = new.rows
    seen = sorted((row.id, row._delivery_id, row._change, row._changed_by, row._commit_seq) for row in changes.collect())
print(json.dumps({
    "schema": whole.schema.simpleString(), "all": ids(),
    "batch": ids(batches=[1]), "delivery": ids(deliveries=[1]),
    "both": ids(batches=[0], deliveries=[2]), "skipping": ids(deliveries=[2], skip_replaced=True), "refused": refused,
    "places": sorted({row.place for row in whole.collect()}),
    "changes": changes.schema.simpleString(), "seen": seen,
    "then": etl.changes(spark, "events", consumer="delays").rows.count(),
}))
"""


def rows(count: int, start: int) -> pa.Table:
    made = [
        {"id": n, "at": n * 10**6, "local": n * 10**6, "amount": n, "place": ["a b/c=d%e", "ü"][n % 2]}
        for n in range(start, start + count)
    ]
    return pa.Table.from_pylist(made, COLUMNS)


def test_spark_reads_exactly_what_was_delivered(
    services: Services, settings: Settings, dsn: str, lake: Lake, tmp_path: Path
) -> None:
    events = Delivering.start(services, dsn, lake, tmp_path, COLUMNS, Append(partition_by=identity("place")))
    events.deliver(rows(20, 0), bad=[0, 1])
    events.deliver(rows(10, 20))
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "events.py").write_text(DECLARED)
    (tmp_path / "sluice.toml").touch()
    own = {
        "SLUICE_CONFIG": str(tmp_path / "sluice.toml"),
        "SLUICE_HOME": str(tmp_path / "home"),
        "SLUICE_JARS": str(settings.jars),
        "SLUICE_PIPELINES": str(tmp_path / "pipelines"),
        "SLUICE_POSTGRES": dsn,
        "SLUICE_LAKE": events.place.services.lake,
        "SLUICE_S3_ENDPOINT": services.s3_endpoint or "",
        "SLUICE_SPARK_MASTER": "local[2]",
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [sys.executable, "-c", READER],
        env=os.environ | services.environment | own,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    columns = (
        "id:bigint,at:timestamp,local:timestamp_ntz,amount:decimal(12,2),place:string,"
        "_stream_id:string,_batch_id:bigint,_delivery_id:bigint"
    )
    assert found["schema"] == f"struct<{columns}>"
    assert found["changes"] == f"struct<{columns},_change:string,_changed_by:bigint,_commit_seq:bigint>"
    of = {1: range(2, 20), 2: range(20, 30)}
    assert found["seen"] == [[n, one, "insert", one, one] for one, numbers in of.items() for n in numbers]
    assert found["then"] == 0
    assert found["all"] == list(range(2, 30))
    assert found["batch"] == list(range(20, 30))
    assert found["delivery"] == list(range(2, 20))
    assert found["both"] == []
    assert found["skipping"] == found["batch"]
    assert found["places"] == ["a b/c=d%e", "ü"]
    assert "no live batch 7" in found["refused"]
