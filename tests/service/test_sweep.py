"""A sweep removes what dead attempts left, and nothing that a reader or a later commit may need."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError
from pyiceberg.table import StaticTable

from etl.common.database import Cursor, transaction
from etl.common.errors import ContractBroken, NeedsPerson, SetupError
from etl.common.steps import Step
from etl.ledger.telemetry.metrics import families
from etl.operations.audit.audit import audit
from etl.operations.maintenance.sweep import SweepReport, sweep, sweep_lake
from etl.pipeline import Append, Replace
from etl.services import Services
from etl.sinks.lake.bucket import (
    LEAST_SIZE,
    RULE,
    _end_uploads,
    _prefixes,
    _rule_id,
    end_uploads,
    look_at_bucket,
    require_bucket,
)
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.references import owner_of
from etl.sinks.lake.s3 import s3_client, stored, unfinished
from etl.sinks.lake.table import RETAINED_SNAPSHOTS
from etl.sinks.warehouse import staging
from tests.support import arrow_driver
from tests.support.delivering import Delivering
from tests.support.events_run import waits_for_a_lock
from tests.support.waiting import until

pytestmark = pytest.mark.long

COLUMNS = pa.schema([("id", pa.int64()), ("text", pa.string())])
NONE = dt.timedelta(0)
WEEK = dt.timedelta(days=7)
LONG_AGO = dt.timedelta(days=30)


def rows(count: int, start: int = 0) -> pa.Table:
    ids = range(start, start + count)
    return pa.table([pa.array(ids, pa.int64()), pa.array([f"row {n}" for n in ids])], schema=COLUMNS)


class KilledError(BaseException):
    """The process ends here: not an Exception, so the delivery does not close its attempt."""


@pytest.fixture
def events(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    new = Delivering.start(services, dsn, lake, tmp_path, COLUMNS, Append())
    new.deliver(rows(40), bad=range(4))
    return new


def kill(events: Delivering, at: Step, count: int = 30) -> int:
    """Kill a delivery's process at a step; return its attempt."""

    def die(step: Step) -> None:
        if step is at:
            raise KilledError

    events.on_step = die
    with pytest.raises(KilledError):
        events.deliver(rows(count, start=1000), bad=range(3))
    events.on_step = None
    return int(events.execute("SELECT max(delivery_id) FROM sluice.attempt")[0][0])


def age(events: Delivering, by: dt.timedelta = LONG_AGO) -> None:
    """Let everything that ended so far have ended long ago."""
    events.execute("UPDATE sluice.attempt SET closed_at = closed_at - %s", by)
    events.execute("UPDATE sluice.delivery SET committed_at = committed_at - %s", by)


def swept(events: Delivering, *, horizon: dt.timedelta = NONE, dry_run: bool = False) -> SweepReport:
    return sweep_lake(events.dsn, events.place.lake, events.pipeline, horizon=horizon, dry_run=dry_run)


def objects(events: Delivering) -> set[str]:
    client = s3_client(events.place.lake.store)
    return {one.uri for table in (events.table, events.quarantine) for one in stored(client, table.location)}


def of_attempt(events: Delivering, number: int) -> set[str]:
    return {uri for uri in objects(events) if (owner := owner_of(uri)) and owner.delivery_id == number}


def ids(events: Delivering, pointer: str, snapshot: int | None = None) -> list[int]:
    return sorted(events.table.at(pointer).scan(snapshot_id=snapshot).to_arrow().column("id").to_pylist())


@pytest.mark.parametrize("step", [Step.STAGED, Step.MANIFEST_WRITTEN, Step.POINTER_DRAFTED, Step.ROWS_MERGED])
def test_what_a_killed_attempt_left_vanishes(events: Delivering, step: Step) -> None:
    before = objects(events)
    number = kill(events, step)
    events.restart()
    left = of_attempt(events, number)
    assert left == objects(events) - before != set()
    report = swept(events)
    assert {one.uri for one in report.objects} == left
    assert {one.state for one in report.objects} == {"fenced"}
    assert objects(events) == before
    events.deliver(rows(30, start=40))
    assert audit(events.place, events.pipeline).clean
    assert swept(events).objects == []


def told(events: Delivering) -> dict[str, float]:
    """Return what metrics tell of orphans, by their names."""
    with transaction(events.dsn, one_snapshot=True) as cursor:
        found = [one for one in families(cursor) if "orphan" in one.name]
    return {one.name: sample.value for one in found for sample in one.samples}


def test_what_nothing_refers_to_is_a_metric_as_the_last_audit_or_sweep_saw_it(events: Delivering) -> None:
    assert told(events) == {}
    left = of_attempt(events, kill(events, Step.STAGED))
    events.restart()
    size = sum(
        one.bytes
        for table in (events.table, events.quarantine)
        for one in stored(s3_client(events.place.lake.store), table.location)
        if one.uri in left
    )
    seen = []
    for look in (lambda: audit(events.place, events.pipeline), lambda: swept(events, horizon=WEEK)):
        look()  # within the horizon it stays
        found = told(events)
        assert found["sluice_orphaned_objects"] == len(left) > 0
        assert found["sluice_orphaned_bytes"] == size > 0
        seen.append(found["sluice_orphans_seen_timestamp_seconds"])
    assert seen == sorted(set(seen))
    age(events)
    swept(events, dry_run=True)
    assert told(events) == found
    swept(events)
    assert told(events)["sluice_orphaned_objects"] == told(events)["sluice_orphaned_bytes"] == 0


def test_what_was_found_is_told_where_it_can_not_be_put_on_record(
    events: Delivering, caplog: pytest.LogCaptureFixture
) -> None:
    number = kill(events, Step.STAGED)
    events.restart()
    left = of_attempt(events, number)
    with transaction(events.dsn) as cursor:
        cursor.execute("ALTER TABLE sluice.orphans ADD CHECK (objects < 0)")
    assert {one.uri for one in audit(events.place, events.pipeline).orphans} == left != set()
    assert {one.uri for one in swept(events).objects} == left
    assert objects(events).isdisjoint(left)
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert [
        "metrics keep the orphaned objects of events as they were seen before" in one for one in said
    ] == [
        True,
        True,
    ]
    assert told(events) == {}


def test_a_dry_run_removes_nothing(events: Delivering) -> None:
    number = kill(events, Step.STAGED)
    events.restart()
    before = objects(events)
    report = swept(events, dry_run=True)
    assert {one.uri for one in report.objects} == of_attempt(events, number)
    assert objects(events) == before
    assert any("would remove" in line for line in report.lines())


def test_an_open_attempt_keeps_its_objects(events: Delivering) -> None:
    number = kill(events, Step.POINTER_DRAFTED)
    before = of_attempt(events, number)
    report = swept(events)
    assert report.objects == []
    assert of_attempt(events, number) == before
    assert report.kept == {"their attempts are open, or still to be recovered": len(before)}
    assert report.staging_tables == []


def test_an_attempt_that_ended_within_the_horizon_keeps_its_objects(events: Delivering) -> None:
    number = kill(events, Step.POINTER_DRAFTED)
    events.restart()
    before = of_attempt(events, number)
    assert swept(events, horizon=WEEK).objects == []
    assert of_attempt(events, number) == before
    age(events)
    assert {one.uri for one in swept(events, horizon=WEEK).objects} == before


def test_objects_of_attempts_that_postgresql_does_not_know_stay(events: Delivering) -> None:
    """After PostgreSQL went back in time they may be all that is left of delivered rows."""
    number = kill(events, Step.MANIFEST_WRITTEN)
    left = of_attempt(events, number)
    events.execute("DELETE FROM sluice.attempt WHERE delivery_id = %s", number)
    events.restart()
    report = swept(events)
    assert report.objects == []
    assert left <= objects(events)
    assert report.kept == {"PostgreSQL does not know what wrote them": len(left)}


def test_objects_of_another_stream_with_the_same_number_stay(events: Delivering) -> None:
    """A number that was given out again after a restore, or by another database that shares the lake."""
    number = kill(events, Step.STAGED)
    events.restart()
    other = str(uuid.uuid4())
    events.execute("INSERT INTO sluice.stream VALUES (%s, 'events', 'none', 0)", other)
    events.execute("UPDATE sluice.attempt SET stream_id = %s WHERE delivery_id = %s", other, number)
    left = of_attempt(events, number)
    assert swept(events).objects == []
    assert left <= objects(events)


def test_metadata_of_another_run_with_the_same_number_stays(events: Delivering) -> None:
    """Another database shares the lake: both count from 1, and the names end alike."""
    number = kill(events, Step.POINTER_DRAFTED)
    events.restart()
    left = {uri for uri in of_attempt(events, number) if "/data/" not in uri}
    assert {uri.split("/")[-2] for uri in left} == {"metadata", "deliveries"}
    assert {uri.rpartition(".")[2] for uri in left} == {"json", "avro"}
    [(ours,)] = events.execute("SELECT lease_token FROM sluice.attempt WHERE delivery_id = %s", number)
    other = str(uuid.uuid4())
    events.execute("INSERT INTO sluice.run (run_id, pipeline, holder) VALUES (%s, 'events', 'other')", other)
    events.execute("UPDATE sluice.attempt SET lease_token = %s WHERE delivery_id = %s", other, number)
    swept(events)
    assert of_attempt(events, number) == left
    events.execute("UPDATE sluice.attempt SET lease_token = %s WHERE delivery_id = %s", ours, number)
    assert {one.uri for one in swept(events).objects} == left


def test_a_draft_of_the_names_before_runs_were_in_them_stays(events: Delivering) -> None:
    number = kill(events, Step.STAGED)
    events.restart()
    name = uuid.UUID(bytes=uuid.uuid4().bytes[:10] + number.to_bytes(6, "big"))
    uri = f"{events.table.location}/metadata/{name}-m0.avro"
    events.place.lake.write_text(uri, "")
    swept(events)
    assert uri in objects(events)


def test_an_attempt_that_recover_adopted_keeps_its_objects_until_it_is_delivered(events: Delivering) -> None:
    number = kill(events, Step.STAGED)
    events.restart()
    left = of_attempt(events, number)
    events.execute("UPDATE sluice.attempt SET adopted = true WHERE delivery_id = %s", number)
    assert swept(events).objects == []
    events.execute("UPDATE sluice.attempt SET adopted = false WHERE delivery_id = %s", number)
    assert {one.uri for one in swept(events).objects} == left


def test_a_sweep_waits_for_the_commit_under_way_and_reads_the_pointers_after_it(events: Delivering) -> None:
    """Its objects were listed when no pointer had them, and its attempt has ended by the time that the sweep decides."""
    merged, go_on = threading.Event(), threading.Event()

    def pause(step: Step) -> None:
        if step is Step.ROWS_MERGED:
            merged.set()
            assert go_on.wait(60)

    events.on_step = pause
    with ThreadPoolExecutor(2) as pool:
        delivery = pool.submit(events.deliver, rows(10, start=40))
        assert merged.wait(60)
        sweeping = pool.submit(swept, events)
        until(lambda: waits_for_a_lock(events.dsn), "the sweep waits for the commit", patience=60)
        go_on.set()
        number = delivery.result().delivery_id
        report = sweeping.result()
    assert report.objects == []
    assert report.kept == {}, (
        "each object of the delivery is needed by a pointer, or a manifest of the ledger"
    )
    assert of_attempt(events, number) != set()
    assert audit(events.place, events.pipeline).clean


def test_what_is_written_after_the_sweep_has_listed_stays(events: Delivering) -> None:
    """It has not looked at whether a pointer has it."""
    number = kill(events, Step.STAGED)
    events.restart()
    [left, *_] = sorted(of_attempt(events, number))
    late = left.replace(f"/{number}-", f"/{number}-late-")

    def write(_: Cursor) -> None:
        events.place.lake.write_text(late, "")

    report = sweep_lake(events.dsn, events.place.lake, events.pipeline, horizon=NONE, check=write)
    assert left in {one.uri for one in report.objects}
    assert of_attempt(events, number) == {late}
    assert {one.uri for one in swept(events).objects} == {late}


def test_every_retained_snapshot_reads_after_a_sweep(events: Delivering) -> None:
    for batch in range(1, 4):
        events.deliver(rows(10, start=batch * 100), bad=[0])
    age(events)
    swept(events)
    current, quarantine = events.pointers()
    snapshots = events.execute("SELECT snapshot_id FROM sluice.delivery ORDER BY commit_seq")
    assert [len(ids(events, current, snapshot)) for (snapshot,) in snapshots] == [36, 45, 54, 63]
    assert events.quarantine.at(quarantine).scan().count() == 7
    assert audit(events.place, events.pipeline).clean


@pytest.mark.slow
def test_a_pointer_restored_within_the_horizon_reads_after_a_sweep(
    services: Services, dsn: str, lake: Lake, tmp_path: Path
) -> None:
    """A replaced table's files go one by one: what the restored metadata has must be what was kept."""
    replaced = Delivering.start(services, dsn, lake, tmp_path, COLUMNS, Replace())
    pointers = []
    for batch in range(24):  # beyond the snapshots that a table's metadata retains
        replaced.deliver(rows(4, start=batch * 100), bad=[0])
        pointers.append(replaced.pointers())
    age(replaced)
    replaced.execute("UPDATE sluice.delivery SET committed_at = now() WHERE batch_id >= 2")
    assert swept(replaced, horizon=WEEK).objects == []  # the first ones are in the third's own snapshots
    replaced.execute("UPDATE sluice.delivery SET committed_at = now() - %s WHERE batch_id < 23", LONG_AGO)
    report = swept(replaced, horizon=WEEK)
    assert {one.state for one in report.objects} == {"delivered"}
    gone = {one.delivery_id for one in report.objects if "/events/data/" in one.uri}
    assert gone == {1, 2}  # the metadata before the last has twenty snapshots, from the third on
    for batch in (21, 22, 23):
        assert ids(replaced, pointers[batch][0]) == [batch * 100 + place for place in (1, 2, 3)]
        assert replaced.quarantine.at(pointers[batch][1]).scan().count() == batch + 1
    assert audit(replaced.place, replaced.pipeline).clean


def test_an_unfinished_upload_of_a_dead_attempt_is_ended(events: Delivering) -> None:
    client = s3_client(events.place.lake.store)
    number = kill(events, Step.STAGED)
    folder = f"{events.table.location}/data/stream={events.session.stream_id}/batch=1"
    known = f"{folder}/{number}-00009-ffff.parquet"
    unknown = known.replace(f"/{number}-", "/999999-")
    for uri in (known, unknown):
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        client.create_multipart_upload(Bucket=bucket, Key=key)
    assert swept(events).uploads == []  # its attempt is open
    events.restart()
    assert swept(events).uploads == [known]
    assert [one.uri for one in unfinished(client, events.table.location) or []] == [unknown]


def test_staging_tables_of_ended_attempts_are_dropped(
    events: Delivering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "REPORTED_BYTES", 0)
    number = kill(events, Step.STAGED)
    assert swept(events).staging_tables == []
    events.execute("UPDATE sluice.attempt SET closed_at = now(), outcome = 'fenced' WHERE closed_at IS NULL")
    report = swept(events)
    assert report.staging_tables == [f"d{number}_{events.session.lease.run_id[:8]}"]
    assert swept(events).staging_tables == []


def test_nothing_is_swept_while_a_batch_is_stopped(events: Delivering) -> None:
    number = kill(events, Step.STAGED)
    events.restart()
    with pytest.raises(ContractBroken):
        events.deliver(rows(10, start=900), judged=arrow_driver.broken("rule", table_rule=True))
    left = of_attempt(events, number)
    with pytest.raises(NeedsPerson, match="is stopped at batch 1"):
        swept(events)
    assert of_attempt(events, number) == left != set()


def test_nothing_is_swept_when_the_checkpoint_does_not_fit(events: Delivering) -> None:
    kill(events, Step.STAGED)
    events.restart()
    before = objects(events)
    with pytest.raises(NeedsPerson, match=r"Checkpoint .* is gone"):
        sweep(events.place, events.pipeline)
    assert objects(events) == before


def test_a_sweep_goes_by_the_backup_horizon_of_the_settings(
    services: Services, dsn: str, lake: Lake, tmp_path: Path
) -> None:
    events = Delivering.start(services, dsn, lake, tmp_path, COLUMNS, Append(), backup_horizon=WEEK)
    events.place.checkpoints(events.pipeline).of(events.session.stream_id).create(events.session.stream_id)
    number = kill(events, Step.STAGED)
    events.restart()
    left = of_attempt(events, number)
    report = sweep(events.place, events.pipeline)
    assert report.objects == []
    assert report.kept == {"their attempts ended within the backup horizon": len(left)}
    age(events)
    assert {one.uri for one in sweep(events.place, events.pipeline).objects} == left


def test_nothing_is_swept_when_current_metadata_is_not_whole(events: Delivering) -> None:
    kill(events, Step.STAGED)
    events.restart()
    before = objects(events)
    lists = events.table.load(events.pointers()[0]).snapshots[0].manifest_list
    bucket, _, key = lists.removeprefix("s3://").partition("/")
    s3_client(events.place.lake.store).delete_object(Bucket=bucket, Key=key)
    with pytest.raises(NeedsPerson, match="is not whole"):
        swept(events)
    assert objects(events) == before - {lists}


def test_what_a_delivery_published_is_read_within_the_horizon_when_its_snapshot_has_left_the_table(
    events: Delivering,
) -> None:
    [(where,)] = events.execute("SELECT metadata_location FROM sluice.delivery")
    [snapshot] = events.table.load(where).snapshots
    for number in range(RETAINED_SNAPSHOTS):
        events.deliver(rows(1, start=100 + number))
    swept(events, horizon=WEEK)
    assert snapshot.snapshot_id not in {
        one.snapshot_id for one in events.table.load(events.pointers()[0]).snapshots
    }
    then = StaticTable.from_metadata(where, events.place.lake.properties()).scan().to_arrow()
    assert sorted(then["id"].to_pylist()) == list(range(4, 40))


def test_a_live_file_that_no_metadata_has_stays(events: Delivering) -> None:
    """A pointer that somebody moved back by hand makes delivered files look like orphans."""
    first = events.pointers()[0]
    events.deliver(rows(10, start=100))
    age(events)
    second = events.pointers()[0]
    for table in ("iceberg_tables", "delivery"):
        change = f"UPDATE sluice.{table} SET metadata_location = %s WHERE metadata_location = %s"
        events.execute(change, first, second)
    files = {path for (path,) in events.execute("SELECT path FROM sluice.delivered_file")}
    report = swept(events)
    assert files <= objects(events)
    assert sum(count for why, count in report.kept.items() if "live" in why) == 2


def test_tables_that_share_a_folder_are_not_swept(events: Delivering) -> None:
    kill(events, Step.STAGED)
    events.restart()
    events.execute(
        "INSERT INTO sluice.iceberg_tables SELECT catalog_name, 'other', table_name, metadata_location"
        " FROM sluice.iceberg_tables"
    )
    with pytest.raises(SetupError, match="share their folder"):
        swept(events)


def test_the_lakes_bucket_is_checked(services: Services, lake: Lake) -> None:
    require_bucket(lake)
    assert lake.root in end_uploads(lake, ["warehouse"])
    assert end_uploads(lake, ["warehouse"])  # again: nothing is added twice
    assert services.lake in look_at_bucket(services.lake, ["warehouse"])
    with pytest.raises(SetupError, match="is not there"):
        require_bucket(Lake(f"s3://{uuid.uuid4().hex}/lake", lake.store))


class RulesOnly:
    """S3's own way with a bucket's lifecycle: each name once, or nothing is changed; what a PUT leaves out is gone."""

    def __init__(self, *rules: dict[str, Any], least: str | None = None) -> None:
        self.rules, self.least, self.written = list(rules), least, 0

    def head_bucket(self, **_: str) -> None: ...

    def list_objects_v2(self, **_: Any) -> None: ...

    def get_bucket_lifecycle_configuration(self, **_: str) -> dict[str, Any]:
        return {"Rules": self.rules} | ({LEAST_SIZE: self.least} if self.least else {})

    def put_bucket_lifecycle_configuration(self, **said: Any) -> None:
        self.rules = said["LifecycleConfiguration"]["Rules"]
        self.least = said.get(LEAST_SIZE, "all_storage_classes_128K")
        self.written += 1
        names = [rule["ID"] for rule in self.rules]
        if len(set(names)) < len(names):
            error: Any = {
                "Error": {"Message": "Rule ID must be unique"},
                "ResponseMetadata": {"HTTPStatusCode": 400},
            }
            raise ClientError(error, "PutBucketLifecycleConfiguration")


def rule(name: str, prefix: str, status: str = "Enabled") -> dict[str, Any]:
    return {
        "ID": name,
        "Status": status,
        "Filter": {"Prefix": prefix},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
    }


def covered(s3: RulesOnly) -> list[str]:
    return [one["Filter"]["Prefix"] for one in s3.rules]


def test_each_lake_of_a_bucket_has_its_rule() -> None:
    s3: Any = RulesOnly(rule("theirs", "logs/"), rule(RULE, "old/"))
    assert "end by a rule" in _end_uploads(s3, "b", ["old/"])
    assert len(s3.rules) == 2
    for prefix in ("one/", "two/"):
        assert f"below {prefix} now end" in _end_uploads(s3, "b", [prefix])
        assert "end by a rule" in _end_uploads(s3, "b", [prefix])
    assert covered(s3) == ["logs/", "old/", "one/", "two/"]
    s3.rules[3]["Status"] = "Disabled"
    assert "now end" in _end_uploads(s3, "b", ["two/"])
    assert [one["Status"] for one in s3.rules] == ["Enabled"] * 4


def test_a_lake_at_a_buckets_root_ends_uploads_below_its_tables_schemas_alone() -> None:
    assert _prefixes("lake/", ["warehouse", "shop"]) == ["lake/"]
    both = _prefixes("", ["warehouse", "shop", "warehouse"])
    assert both == ["shop/", "warehouse/"]
    s3: Any = RulesOnly(rule("theirs", "logs/"), rule(_rule_id(""), ""))  # the whole bucket's, as it once was
    assert "now end" in _end_uploads(s3, "b", ["warehouse/"])
    assert covered(s3) == ["logs/", "warehouse/"]
    assert "below shop/ now end" in _end_uploads(s3, "b", both)
    assert covered(s3) == ["logs/", "warehouse/", "shop/"]
    theirs: Any = RulesOnly(rule("theirs", ""))
    assert "end by a rule" in _end_uploads(theirs, "b", both)
    assert theirs.written == 0


@pytest.mark.parametrize("least", [None, "varies_by_storage_class"])
def test_what_else_a_buckets_lifecycle_says_stays(least: str | None) -> None:
    moves = {"ID": "moves", "Status": "Enabled", "Prefix": "logs/", "Transitions": [{"Days": 30}]}
    s3: Any = RulesOnly(moves, least=least)
    assert "now end" in _end_uploads(s3, "b", ["lake/"])
    assert s3.rules[0] is moves
    assert s3.least == (least or "all_storage_classes_128K"), "S3's own where nothing was said"


def test_doctor_tells_of_a_rule_that_is_missing_and_adds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    s3 = RulesOnly(rule("theirs", "logs/"))
    monkeypatch.setattr("etl.sinks.lake.bucket.chained_client", lambda: s3)
    said = look_at_bucket("s3://b", ["warehouse"])
    assert said == (
        "s3://b: no rule of the bucket ends unfinished uploads below warehouse/ yet; a run adds it"
    )
    assert (covered(s3), s3.written) == (["logs/"], 0)


def test_a_bucket_without_rights_is_a_setup_error(
    services: Services, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing at all")
    with pytest.raises(SetupError, match="S3 refuses it"):
        require_bucket(Lake(lake.root, lake.store))
    with pytest.raises(SetupError, match="refused access"):
        look_at_bucket(lake.root, ["warehouse"])
