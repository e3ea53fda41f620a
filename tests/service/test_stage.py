"""What is staged comes out row by row as the oracle says, and the oracle sees where it does not."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etl.delivery.batch import DeliveryContext
from etl.delivery.deliver import deliver
from etl.sinks.lake.lake import Lake
from tests.support import oracle
from tests.support.arrow_driver import of, pipeline, reader, start

pytestmark = pytest.mark.long

DUPLICATE = """
INSERT INTO sluice.quarantine (pipeline, delivery_id, stream_id, batch_id, reasons, raw, row)
SELECT pipeline, delivery_id, stream_id, batch_id, reasons, raw, row FROM sluice.quarantine LIMIT 1
"""


@pytest.fixture
def delivered(dsn: str, lake: Lake) -> tuple[DeliveryContext, list[oracle.MadeBatch]]:
    """Three batches, delivered."""
    run = start(dsn, lake, pipeline("events"))
    made = oracle.make(seed=1, batches=3)
    for batch in made:
        deliver(run, of(batch))
    return run, made


def test_both_sinks_hold_what_the_oracle_says(
    delivered: tuple[DeliveryContext, list[oracle.MadeBatch]],
) -> None:
    run, made = delivered
    assert reader(run).difference(oracle.expected(made)) == ""


@pytest.mark.parametrize(
    "fault",
    [
        "INSERT INTO warehouse.events SELECT * FROM warehouse.events LIMIT 1",
        "DELETE FROM warehouse.events WHERE ctid = (SELECT ctid FROM warehouse.events LIMIT 1)",
        "UPDATE warehouse.events SET id = -1 WHERE ctid = (SELECT min(ctid) FROM warehouse.events)",
    ],
    ids=["duplicate", "loss", "changed value"],
)
def test_the_oracle_sees_one_fault_in_postgres(
    delivered: tuple[DeliveryContext, list[oracle.MadeBatch]], fault: str
) -> None:
    run, made = delivered
    oracle.ask(run.sinks.dsn, fault)
    found = reader(run).difference(oracle.expected(made))
    assert found.startswith("PostgreSQL: ")
    assert "Parquet" not in found


@pytest.mark.parametrize("fault", ["duplicate", "loss", "changed value"])
@pytest.mark.parametrize(
    ("table", "told"), [("events", "Parquet: "), ("events_quarantine", "quarantine on the lake: ")]
)
def test_the_oracle_sees_one_fault_in_parquet(
    delivered: tuple[DeliveryContext, list[oracle.MadeBatch]], table: str, told: str, fault: str
) -> None:
    run, made = delivered
    eyes = reader(run)
    path = eyes.files(table)[0].removeprefix("s3://")
    with eyes.store.open_input_file(path) as source:
        rows = pq.ParquetFile(source).read()
    if fault == "duplicate":
        rows = pa.concat_tables([rows, rows.slice(0, 1)])
    elif fault == "loss":
        rows = rows.slice(1)
    else:
        ids = pa.concat_arrays([pa.array([-1], pa.int64()), rows.column("id").combine_chunks().slice(1)])
        rows = rows.set_column(0, rows.schema.field(0), ids)
    with eyes.store.open_output_stream(path) as sink:
        pq.write_table(rows, sink)
    found = eyes.difference(oracle.expected(made))
    assert found.startswith(told)
    assert len(found.splitlines()) == 1


@pytest.mark.parametrize(
    "fault",
    [
        DUPLICATE,
        "DELETE FROM sluice.quarantine WHERE ctid = (SELECT min(ctid) FROM sluice.quarantine)",
        "UPDATE sluice.quarantine SET reasons = '{z}' WHERE ctid = (SELECT min(ctid) FROM sluice.quarantine)",
    ],
    ids=["duplicate", "loss", "another reason"],
)
def test_the_oracle_sees_one_fault_in_quarantine(
    delivered: tuple[DeliveryContext, list[oracle.MadeBatch]], fault: str
) -> None:
    run, made = delivered
    oracle.ask(run.sinks.dsn, fault)
    assert reader(run).difference(oracle.expected(made)).startswith("quarantine in PostgreSQL: ")
