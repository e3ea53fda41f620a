"""Taking objects out of an Iceberg table: exactly those, and at their own cost."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from etl.common.database import transaction
from etl.common.errors import NeedsPerson
from etl.pipeline import Append, Replace, Sink
from etl.services import Services
from etl.sinks.lake import table as lakes
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.snapshots import DraftedDelivery
from etl.sinks.lake.uploads import Uploads
from tests.support.catalog import open_catalog
from tests.support.delivering import Delivering

pytestmark = pytest.mark.long

COLUMNS = pa.schema([("id", pa.int64())])
BATCHES = 5


def rows(batch: int) -> pa.Table:
    return pa.table([pa.array(range(batch * 10, batch * 10 + 10), pa.int64())], schema=COLUMNS)


def delivered(services: Services, dsn: str, lake: Lake, home: Path, sink: Sink) -> Delivering:
    events = Delivering.start(services, dsn, lake, home, COLUMNS, sink)
    for number in range(BATCHES):
        events.deliver(rows(number))
    return events


@pytest.fixture(params=[100, 2], ids=["each batch's manifest its own", "manifests merged"])
def events(
    request: pytest.FixtureRequest,
    services: Services,
    dsn: str,
    lake: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Delivering:
    merged = {**lakes.TABLE_PROPERTIES, "commit.manifest.min-count-to-merge": str(request.param)}
    monkeypatch.setattr(lakes, "TABLE_PROPERTIES", merged)
    return delivered(services, dsn, lake, tmp_path, Append())


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the manifests that were read."""
    found: list[str] = []
    before = ManifestFile.fetch_manifest_entry

    def reading(self: ManifestFile, *values: Any, **named: Any) -> Any:
        found.append(self.manifest_path)
        return before(self, *values, **named)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", reading)
    return found


def now(events: Delivering) -> Table:
    with transaction(events.dsn) as cursor:
        return events.table.at(events.table.pointer(cursor) or "")


def take_out(events: Delivering, deliveries: list[int], uris: frozenset[str]) -> None:
    with transaction(events.dsn) as cursor:
        base = events.table.pointer(cursor) or ""
        draft = events.table.draft(
            base,
            [],
            written=events.table.files(base, COLUMNS, stream_id="x", batch_id=0).schema,
            delivery=DraftedDelivery(
                delivery_id=99,
                stream_id="x",
                batch_id=0,
                run_id=events.session.lease.run_id,
                manifest="",
            ),
            without=uris,
            of=deliveries,
        )
        assert events.table.swap(cursor, draft)


def objects(events: Delivering) -> dict[int, list[str]]:
    """Return the data files of each delivery."""
    found: dict[int, list[str]] = {}
    query = "SELECT delivery_id, path FROM sluice.delivery_file WHERE kind = 'data' ORDER BY 1, 2"
    for number, path in events.execute(query):
        found.setdefault(number, []).append(path)
    return found


def entries(table: Table) -> dict[str, tuple[Any, ...]]:
    """Return what the manifests say of each object that is in the table."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return {
        one.data_file.file_path: (one.snapshot_id, one.sequence_number, one.file_sequence_number)
        for manifest in snapshot.manifests(table.io)
        for one in manifest.fetch_manifest_entry(table.io)
    }


def present(table: Table) -> set[str]:
    return {task.file.file_path for task in table.scan().plan_files()}


@pytest.mark.parametrize("place", [0, 2, 4])
def test_exactly_the_objects_leave_and_one_manifest_is_read(
    events: Delivering, read: list[str], place: int
) -> None:
    every = objects(events)
    chosen = sorted(every)[place]
    gone, *kept = every[chosen]
    assert kept
    before = entries(now(events))
    read.clear()
    take_out(events, [chosen], frozenset([gone]))
    assert len(read) == 1
    table = now(events)
    assert present(table) == {path for paths in every.values() for path in paths} - {gone}
    assert entries(table) == {path: said for path, said in before.items() if path != gone}
    summary = table.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert (summary["deleted-data-files"], summary["total-data-files"]) == ("1", str(2 * BATCHES - 1))
    assert summary["total-records"] == "45"
    take_out(events, [chosen], frozenset(kept))
    assert present(now(events)) == {path for one, paths in every.items() if one != chosen for path in paths}


def test_an_object_that_is_not_in_the_table_stops_the_draft(events: Delivering) -> None:
    [(_, (path, _)), *_] = objects(events).items()
    before = now(events).metadata_location
    with pytest.raises(NeedsPerson, match="1 of the 2 objects to be replaced are no longer in Iceberg table"):
        take_out(events, [], frozenset([path, f"{path}.other"]))
    assert now(events).metadata_location == before


def test_what_every_batch_replaces_leaves_no_manifest_behind(
    services: Services, dsn: str, lake: Lake, tmp_path: Path
) -> None:
    events = delivered(services, dsn, lake, tmp_path, Replace())
    table = now(events)
    assert len(table.current_snapshot().manifests(table.io)) <= 2  # type: ignore[union-attr]
    assert present(table) == set(objects(events)[max(objects(events))])


def test_a_snapshot_that_a_tag_or_a_branch_holds_stays_and_stops_no_batch(
    services: Services, dsn: str, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lakes, "RETAINED_SNAPSHOTS", 2)
    events = Delivering.start(services, dsn, lake, tmp_path, COLUMNS, Append())
    events.deliver(rows(0))
    table = open_catalog(events.place).load_table("warehouse.events")
    held = table.current_snapshot()
    assert held is not None
    with table.manage_snapshots() as change:
        change.create_tag(held.snapshot_id, "audited")
    for number in (1, 2, 3):
        events.deliver(rows(number))
    with table.refresh().manage_snapshots() as change:
        change.create_branch(newest(events), "trial")
    branched = newest(events)
    for number in (4, 5, 6):
        events.deliver(rows(number))
    found = now(events)
    ids = [one.snapshot_id for one in found.metadata.snapshots]
    assert len(ids) == 4
    assert ids[:2] == [held.snapshot_id, branched]
    assert found.scan(snapshot_id=held.snapshot_id).count() == 10
    assert found.scan().count() == 70


def test_a_table_that_was_rolled_back_is_not_committed_on(
    services: Services, dsn: str, lake: Lake, tmp_path: Path
) -> None:
    """Its properties stay as they were, and so the number of the last delivery does."""
    events = Delivering.start(services, dsn, lake, tmp_path, COLUMNS, Append())
    events.deliver(rows(0))
    table = open_catalog(events.place).load_table("warehouse.events")
    first = newest(events)
    events.deliver(rows(1))
    with table.refresh().manage_snapshots() as change:
        change.rollback_to_snapshot(first)
    assert newest(events) == first
    with pytest.raises(
        NeedsPerson, match=r"went back in time: .* lacks what delivery 2 published"
    ) as refused:
        events.deliver(rows(2))
    statement = re.search("`(UPDATE .*?)`", refused.value.remedy)
    assert statement
    events.execute(statement[1])
    events.deliver(rows(2))
    assert now(events).scan().count() == 30


def test_a_table_that_others_committed_to_is_committed_on_though_the_delivered_snapshot_was_expired(
    services: Services, dsn: str, lake: Lake, tmp_path: Path
) -> None:
    events = Delivering.start(services, dsn, lake, tmp_path, COLUMNS, Append())
    events.deliver(rows(0))
    delivered_one = newest(events)
    table = open_catalog(events.place).load_table("warehouse.events")
    for others in range(2):
        table.append(table.scan().to_arrow().slice(0, others + 1))
    events.deliver(rows(1))
    for others in range(2):
        table.refresh().append(table.scan().to_arrow().slice(0, others + 1))
    gone = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != newest(events)]
    assert delivered_one in gone
    table.maintenance.expire_snapshots().by_ids(gone).commit()
    assert len(now(events).metadata.snapshots) == 1
    events.deliver(rows(2))
    assert now(events).scan().count() == 36


def newest(events: Delivering) -> int:
    snapshot = now(events).current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def test_manifest_and_drafts_are_all_sent_before_one_has_arrived(
    services: Services, dsn: str, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery's manifest; a manifest, a list of them and the metadata of each of the two tables."""
    events = delivered(services, dsn, lake, tmp_path, Append())
    all_sent, write = threading.Barrier(7), Lake.write_bytes

    def sent(self: Lake, uri: str, content: bytes) -> None:
        all_sent.wait(30)
        write(self, uri, content)

    monkeypatch.setattr(Lake, "write_bytes", sent)
    events.deliver(rows(BATCHES), bad=[0])
    assert len(now(events).scan().to_arrow()) == 10 * (BATCHES + 1) - 1


def test_each_object_that_can_not_be_written_is_told_of(lake: Lake) -> None:
    missing = Lake("s3://there-is-none", lake.store)

    def send(*names: str, ends: Exception | None = None) -> None:
        with Uploads(missing) as uploads:
            for name in names:
                uploads.send(f"s3://there-is-none/{name}", b"")
            if ends:
                raise ends

    with pytest.raises(OSError, match="key 'one'") as told:
        send("one", "another")
    assert ["key 'another'" in note for note in told.value.__notes__] == [True]
    with pytest.raises(ValueError, match="drafting") as told:
        send("one", ends=ValueError("drafting"))
    assert ["key 'one'" in note for note in told.value.__notes__] == [True]
