"""What Airflow's runs tell of in their asset events: each delivery once, whichever run ends first."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from etl import tries
from etl.airflow_try import AirflowTry
from etl.lake import Lake
from etl.pipeline import Append
from etl.services import Services
from tests.service.delivering import Delivering

COLUMNS = pa.schema([("id", pa.int64())])
ROWS = pa.table({"id": pa.array(range(4), pa.int64())})


def asked(run: str) -> AirflowTry:
    return AirflowTry(
        dag_id="events", dag_run_id=run, task_id="run", try_number=1, run_type="manual", clear_number=0
    )


def told(events: Delivering, run: str) -> list[int]:
    """What the run that has the lease now tells of when it ends well."""
    number = events.session.lease.run_id
    with tries.recorded(events.dsn, "events", asked(run)) as became:
        became(number)
        found, _ = tries.unreported(events.dsn, "events", number)
    return found


def test_runs_that_overlap_tell_of_each_delivery_once(
    services: Services, dsn: str, lake: Lake, tmp_path: Path
) -> None:
    events = Delivering.start(services, dsn, lake, tmp_path / "home", COLUMNS, Append())
    first = events.deliver(ROWS).delivery_id  # of a run that fails
    events.restart()
    second = events.deliver(ROWS).delivery_id
    assert told(events, "backfill") == [first, second]
    events.restart()
    events.execute("UPDATE sluice.run SET started_at = '2020-01-01' WHERE outcome IS NULL")  # before that one
    third = events.deliver(ROWS).delivery_id
    assert told(events, "scheduled") == [third]
    events.restart()
    assert told(events, "nothing new") == []
