"""What `recover` and the start of a run demand of the checkpoint, the lease and the ledger."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from etl.common.database import transaction
from etl.common.errors import Busy, LedgerBehind
from etl.common.outcome import RunOutcome
from etl.common.steps import Step
from etl.ledger import leases
from etl.pipeline import Append, Files
from etl.runs.kinds.open import stream_of
from etl.runs.recovery.base import RecoveryRequest, Seeded
from etl.runs.recovery.recover import recover
from etl.runs.run import run
from etl.services import Services
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.marker import marker_of
from etl.sinks.lake.s3 import bucket_of, s3_client
from tests.support.delivering import Delivering
from tests.support.events_run import waits_for_a_lock
from tests.support.waiting import until

pytestmark = pytest.mark.long

COLUMNS = pa.schema([("id", pa.int64())])


def rows(start: int) -> pa.Table:
    return pa.table([pa.array(range(start, start + 10), pa.int64())], schema=COLUMNS)


@pytest.fixture
def events(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    """Return a pipeline that has delivered a batch, and whose run is alive."""
    new = Delivering.start(services, dsn, lake, tmp_path, COLUMNS, Append())
    new.pipeline = replace(new.pipeline, sources=(Files("*.jsonl"),))
    new.deliver(rows(0))
    return new


def end(events: Delivering) -> None:
    with transaction(events.dsn) as cursor:
        leases.end_run(cursor, events.session.lease, RunOutcome(outcome="died"))
        leases.give_lease_back(cursor, events.session.lease)


def test_nothing_is_recovered_beside_a_living_run(events: Delivering) -> None:
    with pytest.raises(Busy):
        recover(events.place, events.pipeline)
    assert events.deliver(rows(10)).delivered == 10


def test_what_is_committed_while_a_stream_is_seeded_is_in_the_seed(events: Delivering) -> None:
    """A file that the seed lacked would come twice; one that it had too many would never be read."""
    merged, go_on = threading.Event(), threading.Event()

    def pause(step: Step) -> None:
        if step is Step.ROWS_MERGED:
            merged.set()
            assert go_on.wait(60)

    def seeded() -> Seeded:
        asked = RecoveryRequest(
            lease=events.session.lease, command="`…`", on_progress=lambda *_: None, accepted=None
        )
        with stream_of(events.place, events.pipeline).recovery(asked, None) as recovery:
            return recovery.next_stream()

    events.on_step = pause
    with ThreadPoolExecutor(2) as pool:
        delivery = pool.submit(events.deliver, rows(10))
        assert merged.wait(60)
        seeding = pool.submit(seeded)
        until(lambda: waits_for_a_lock(events.dsn), "the seed waits for the commit", patience=60)
        go_on.set()
        assert delivery.result().delivered == 10
        found = seeding.result()
    assert found.seen == 2
    checkpoint = stream_of(events.place, events.pipeline).checkpoints.of(found.stream_id)
    assert {Path(uri).name for uri in checkpoint.uris_until(0).to_pylist()} == {"0.jsonl", "1.jsonl"}


def test_a_checkpoint_that_is_ahead_of_the_ledger_shows_by_itself_that_deliveries_were_lost(
    events: Delivering,
) -> None:
    """The marker on the lake may never have been written."""
    end(events)
    stream = recover(events.place, events.pipeline).stream
    assert stream is not None
    folder = Path(events.place.settings.checkpoints, "events", stream)
    bucket, key = bucket_of(marker_of(events.table))
    s3_client(events.place.lake.store).delete_object(Bucket=bucket, Key=key)
    for part in ("offsets", "commits"):  # as Spark does when a batch is delivered
        shutil.copy(folder / part / "0", folder / part / "1")
    with pytest.raises(LedgerBehind, match="has finished batch 1; the ledger's last is 0"):
        run(events.place, events.pipeline)
    assert recover(events.place, events.pipeline).stream != stream
