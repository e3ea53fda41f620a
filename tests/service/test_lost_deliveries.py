"""What the lake has of deliveries that PostgreSQL lost: put back, or named; none is left out without a word."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from etl.common.database import transaction
from etl.common.errors import Fenced, LedgerBehind, NeedsPerson
from etl.common.outcome import RunOutcome
from etl.common.steps import Step, listen
from etl.delivery import correction
from etl.delivery.correction import Correction
from etl.delivery.deliver import deliver, deliver_correction
from etl.ledger import deliveries, leases, names
from etl.ledger.inputs import Input
from etl.operations.audit.audit import audit
from etl.operations.maintenance.sweep import sweep, sweep_lake
from etl.pipeline import Append, Files, Rate
from etl.runs.recovery.recover import Recovered, recover
from etl.runs.run import run
from etl.services import Services
from etl.sinks.lake import marker, numbers
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.manifests import Named, manifests
from etl.sinks.lake.marker import read, tell, went_back
from etl.sinks.lake.s3 import bucket_of, s3_client, stored
from etl.sinks.lake.table import LakeTable
from etl.sources.evidence import look
from tests.support.backups import Backup
from tests.support.databases import database_name, drop
from tests.support.delivering import Delivering, without_detail

pytestmark = pytest.mark.long

TABLES = ("data", "quarantine")
COLUMNS = pa.schema([("id", pa.int64())])


def rows(start: int) -> pa.Table:
    return pa.table([pa.array(range(start, start + 10), pa.int64())], schema=COLUMNS)


@pytest.fixture
def backup(services: Services, dsn: str) -> Iterator[Backup]:
    database = database_name(dsn)
    found = Backup(server=services.postgres, database=database, name=f"{database}_backup")
    yield found
    drop(services.postgres, found.name)


@pytest.fixture
def events(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    """Return a pipeline that has delivered a batch."""
    return begun(services, dsn, lake, tmp_path, "events")


@pytest.fixture
def others(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    """Another pipeline on the same PostgreSQL."""
    return begun(services, dsn, lake, tmp_path, "others")


def begun(services: Services, dsn: str, lake: Lake, folder: Path, name: str) -> Delivering:
    new = Delivering.start(services, dsn, lake, folder / name, COLUMNS, Append(), name)
    new.pipeline = replace(new.pipeline, sources=(Files("*.jsonl"),))
    new.deliver(rows(0))
    return new


def end(events: Delivering) -> None:
    with transaction(events.dsn) as cursor:
        leases.end_run(cursor, events.session.lease, RunOutcome(outcome="died"))
        leases.give_lease_back(cursor, events.session.lease)


def recovered(events: Delivering) -> Recovered:
    """Run `recover` after the run has ended."""
    end(events)
    return recover(events.place, events.pipeline)


def in_table(events: Delivering) -> list[int]:
    return [number for (number,) in events.execute("SELECT id FROM {t} ORDER BY id")]


def replay(
    events: Delivering, table: pa.Table, replaced: Sequence[int] = (), landed: Sequence[Input] = ()
) -> int:
    """Deliver `table` beside the stream, in the place of what is `replaced`."""
    with transaction(events.dsn) as cursor:
        lease = correction.begin(cursor, "events", "replay", who="tests", why="again")
        files = [one for one in deliveries.delivered_files(cursor, "events") if one.delivery_id in replaced]
    change = Correction(
        name="replay",
        supersedes=tuple(replaced),
        removed=sum(one.rows for one in files if one.kind == "data"),
        files={kind: frozenset(one.path for one in files if one.kind == kind) for kind in TABLES},
        who="tests",
        why="again",
    )
    beside = replace(
        events.session, lease=lease, stream_id=lease.run_id, checkpoint=None, correction=change, on_step=None
    )
    batch = replace(events.batch(table), batch_id=0, landed=landed)
    return deliver_correction(beside, batch).delivery_id


def first_of(events: Delivering) -> int:
    query = "SELECT min(delivery_id) FROM sluice.delivery WHERE pipeline = %s"
    [(number,)] = events.execute(query, events.pipeline.name)
    return int(number)


def remove(events: Delivering, part: str) -> None:
    """Remove the objects below the pipeline's table whose names have this part."""
    client = s3_client(events.place.lake.store)
    named = [one.uri for one in stored(client, events.table.location) if part in one.uri]
    assert named
    for uri in named:
        bucket, key = bucket_of(uri)
        client.delete_object(Bucket=bucket, Key=key)


def objects(events: Delivering, part: str) -> dict[str, str]:
    """Return the objects below the pipeline's table whose names have this part, each with its content's tag."""
    client = s3_client(events.place.lake.store)
    named = [one.uri for one in stored(client, events.table.location) if part in one.uri]
    return {
        uri: client.head_object(Bucket=bucket, Key=key)["ETag"]
        for uri in named
        for bucket, key in [bucket_of(uri)]
    }


def give_out_unseen(events: Delivering) -> None:
    """Let the next number be given out without a look at the lake, as an older version did."""
    with transaction(events.dsn) as cursor:
        cursor.execute("UPDATE sluice.number_server k SET server = t.server FROM sluice.this_server t")


def test_lost_deliveries_behind_a_number_that_another_pipeline_was_given_are_named(
    events: Delivering, others: Delivering, backup: Backup
) -> None:
    backup.take()
    first, second = (events.deliver(rows(start)).delivery_id for start in (10, 20))
    remove(events, "/deliveries/LAST")  # as after deliveries of an older version
    backup.restore()
    give_out_unseen(events)
    assert others.deliver(rows(10)).delivery_id == first
    pruned = events.landing / "2.jsonl"
    content = pruned.read_bytes()
    pruned.unlink()
    with pytest.raises(NeedsPerson) as stop:
        recovered(events)
    assert f"Delivery {second} of events was lost" in stop.value.seen
    assert f"the one before it, {first}, was not put back" in stop.value.seen
    assert f"2.jsonl: only {events.table.location}/deliveries/{second}-" in stop.value.seen
    assert f"Delivery {first} " not in stop.value.seen, "its file is there, and is read again"
    pruned.write_bytes(content)
    done = recover(events.place, events.pipeline)
    assert done.seen == 1
    assert done.restored == ()


def test_a_lost_delivery_behind_one_that_is_not_whole_is_named(events: Delivering, backup: Backup) -> None:
    backup.take()
    first, second = (events.deliver(rows(start)).delivery_id for start in (10, 20))
    backup.restore()
    remove(events, f"/batch=1/{first}-")
    for batch in (1, 2):
        (events.landing / f"{batch}.jsonl").unlink()
    with pytest.raises(NeedsPerson) as stop:
        recovered(events)
    assert f"Delivery {first} of events was lost, it can't be put back because not all" in stop.value.seen
    assert f"Delivery {second} of events was lost" in stop.value.seen


def test_a_lost_delivery_whose_file_has_other_content_by_now_is_named(
    events: Delivering, backup: Backup
) -> None:
    backup.take()
    lost, other = (events.deliver(rows(start)).delivery_id for start in (10, 20))
    backup.restore()
    remove(events, f"/batch=1/{lost}-")
    landed = events.landing / "1.jsonl"
    content = landed.read_bytes()
    landed.write_bytes(content + b"and more\n")
    with pytest.raises(NeedsPerson) as stop:
        recovered(events)
    other_size = f"1.jsonl, which has {len(content) + 9} bytes and had {len(content)}"
    assert f"{other_size}: only {events.table.location}/deliveries/{lost}-" in stop.value.seen
    assert f"Delivery {other} " not in stop.value.seen, "its file is there, and is read again"
    landed.write_bytes(content)
    assert recover(events.place, events.pipeline).seen == 1


def test_a_refused_recover_leaves_the_marker_that_tells_of_what_is_lost(
    events: Delivering, backup: Backup
) -> None:
    end(events)
    backup.take()
    events.restart()
    back, lost = (events.deliver(rows(start)).delivery_id for start in (10, 20))
    told = read(events.table)
    assert told is not None and told.delivery_id == lost
    backup.restore()
    remove(events, f"/batch=2/{lost}-")
    for batch in (1, 2):
        (events.landing / f"{batch}.jsonl").unlink()
    with pytest.raises(NeedsPerson, match=f"Delivery {lost} of events was lost"):
        recover(events.place, events.pipeline)
    assert in_table(events) == list(range(20)), f"delivery {back} was put back"
    assert read(events.table) == told
    assert went_back(events.dsn, events.place.lake, events.pipeline) is not None
    with pytest.raises(LedgerBehind, match=f"Delivery {lost} of events was committed"):
        run(events.place, events.pipeline)


def test_a_lost_delivery_of_a_live_source_that_is_not_whole_is_named(
    events: Delivering, backup: Backup
) -> None:
    """Its rows came from a source that nobody can read again, so that only its objects had them."""
    events.pipeline = replace(events.pipeline, sources=(Rate(),))
    backup.take()
    lost = deliver(events.session, replace(events.batch(rows(10)), landed=())).delivery_id
    backup.restore()
    remove(events, f"/batch=1/{lost}-")
    with pytest.raises(NeedsPerson) as stop:
        recovered(events)
    assert f"Delivery {lost} of events was lost, it can't be put back because not all" in stop.value.seen
    assert f"{events.table.location}/deliveries/{lost}-" in stop.value.seen
    assert "bring the objects that are gone back" in stop.value.remedy


def test_a_delivery_whose_attempt_is_in_the_backup_is_put_back(events: Delivering, backup: Backup) -> None:
    """A busy stream has an attempt open at nearly any moment."""

    def at(step: Step) -> None:
        if step is Step.JUDGED:
            events.on_step = None
            backup.take()

    events.on_step = at
    events.deliver(rows(10))
    events.deliver(rows(20))
    backup.restore()
    for batch in (1, 2):
        (events.landing / f"{batch}.jsonl").unlink()
    assert len(recovered(events).restored) == 2
    assert in_table(events) == list(range(30))


def test_lost_deliveries_are_put_back_over_the_first_that_has_details(
    services: Services,
    dsn: str,
    lake: Lake,
    tmp_path: Path,
    backup: Backup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the backup's table has the column, nor have the objects of the first lost delivery."""
    without_detail(monkeypatch)
    events = begun(services, dsn, lake, tmp_path, "events")
    end(events)
    backup.take()
    events.restart()
    first = events.deliver(rows(10), bad=[1], malformed=[events.malformed(("{", None))])
    assert "_detail" not in events.quarantine.at(events.pointers()[1]).schema().column_names
    monkeypatch.undo()
    events.restart()
    second = events.deliver(rows(20), malformed=[events.malformed(("[", "an array, not an object"))])
    backup.restore()
    for batch in (1, 2):
        (events.landing / f"{batch}.jsonl").unlink()
    restored = recover(events.place, events.pipeline).restored
    assert [one.delivery_id for one in restored] == [first.delivery_id, second.delivery_id]
    held = events.execute("SELECT raw, detail FROM sluice.quarantine ORDER BY quarantine_id")
    assert held == [(None, None), ("{", None), ("[", "an array, not an object")]
    assert audit(events.place, events.pipeline).differences == []


def test_an_attempt_that_failed_after_its_manifest_needs_nobody(events: Delivering) -> None:
    def fail(step: Step) -> None:
        if step is Step.POINTER_DRAFTED:
            raise RuntimeError

    events.on_step = fail
    with pytest.raises(RuntimeError):
        events.deliver(rows(10))
    events.on_step = None
    done = recovered(events)
    assert (done.restored, done.seen) == ((), 1)


def test_a_number_that_was_lost_is_given_to_nobody_else(
    events: Delivering, others: Delivering, backup: Backup
) -> None:
    backup.take()
    lost = [events.deliver(rows(start)).delivery_id for start in (10, 20)]
    backup.restore()
    assert others.deliver(rows(10)).delivery_id > max(lost)
    for batch in (1, 2):
        (events.landing / f"{batch}.jsonl").unlink()
    assert [one.delivery_id for one in recovered(events).restored] == lost
    assert in_table(events) == list(range(30))


def test_a_held_rows_number_that_was_lost_is_given_to_no_other_row(
    events: Delivering,
    others: Delivering,
    services: Services,
    lake: Lake,
    tmp_path: Path,
    backup: Backup,
) -> None:
    """Whoever exported corrections before the restore would else correct another row."""

    def held() -> set[int]:
        return {number for (number,) in events.execute("SELECT quarantine_id FROM sluice.quarantine")}

    backup.take()
    kept, seen = held(), list[int]()
    events.deliver(rows(10), bad=range(4))
    seen += held() - kept
    backup.restore()
    others.deliver(rows(10), bad=range(5))
    seen += held() - kept
    backup.restore()
    younger = begun(services, events.dsn, lake, tmp_path, "younger")
    younger.deliver(rows(10), bad=range(6))
    seen += held() - kept
    assert len(set(seen)) == len(seen) >= 15
    assert max(seen) < 2**53, "JSON's numbers stay whole"


def test_the_numbers_of_a_pipeline_that_is_younger_than_the_backup_are_given_to_nobody_else(
    events: Delivering, services: Services, lake: Lake, tmp_path: Path, backup: Backup
) -> None:
    """The restored ledger does not know it, and only the lake has its deliveries."""
    backup.take()
    younger = begun(services, events.dsn, lake, tmp_path, "younger")
    lost = [first_of(younger), *(younger.deliver(rows(start)).delivery_id for start in (10, 20))]
    backup.restore()
    assert events.deliver(rows(10)).delivery_id > max(lost)


def test_no_number_is_given_out_that_a_delivery_has_which_the_newest_came_after(
    events: Delivering, others: Delivering, backup: Backup
) -> None:
    """A replay reserves its number, and commits when the stream has delivered under higher ones."""
    backup.take()
    higher: list[int] = []

    def meanwhile(step: Step) -> None:
        if step is Step.ATTEMPT_OPENED:
            listen(None)
            higher.extend(events.deliver(rows(start)).delivery_id for start in (10, 20))

    listen(meanwhile)
    replayed = replay(events, rows(30))
    told = read(events.table)
    assert told is not None and told.delivery_id == replayed < min(higher)
    backup.restore()
    assert others.deliver(rows(10)).delivery_id > max(higher)


def test_what_a_lost_delivery_wrote_is_not_overwritten_under_its_number(
    events: Delivering, backup: Backup
) -> None:
    backup.take()
    lost = events.deliver(rows(10)).delivery_id
    written = objects(events, f"/{lost}-")
    assert written
    remove(events, "/deliveries/LAST")
    backup.restore()
    give_out_unseen(events)
    events.restart()
    events.batch_id = 1
    assert events.deliver(rows(20)).delivery_id == lost
    assert in_table(events) == [*range(10), *range(20, 30)]
    assert written.items() <= objects(events, f"/{lost}-").items()


def test_a_run_whose_lease_the_database_lost_is_fenced_by_the_next(
    events: Delivering, backup: Backup
) -> None:
    """A lease that was counted in PostgreSQL would be the same one again."""
    end(events)
    backup.take()
    events.restart()
    living = events.session
    backup.restore()
    events.restart()
    with pytest.raises(Fenced):
        deliver(living, events.batch(rows(10)))
    assert in_table(events) == list(range(10))
    events.deliver(rows(20))
    assert in_table(events) == [*range(10), *range(20, 30)]


def test_a_delivery_id_is_one_deliverys_of_whatever_pipeline(
    events: Delivering, others: Delivering, backup: Backup
) -> None:
    """An attempt that is open while PostgreSQL goes back has a number that another pipeline is given then."""

    def meanwhile(step: Step) -> None:
        if step is Step.POINTER_DRAFTED:
            [(number,)] = events.execute("SELECT max(delivery_id) FROM sluice.attempt")
            events.execute(
                "UPDATE sluice.attempt SET delivery_id = delivery_id + 1000 WHERE delivery_id = %s", number
            )
            events.execute("SELECT setval('sluice.delivery_number', %s)", number - 1)
            events.on_step = None
            taken.append(others.deliver(rows(10)).delivery_id)
            assert taken == [number]

    taken: list[int] = []
    events.on_step = meanwhile
    with pytest.raises(Fenced, match="the ledger has another delivery of this number") as fenced:
        events.deliver(rows(10))
    assert fenced.value.remedy.startswith("`sluice run events`, which takes another number")
    owners = "SELECT delivery_id, pipeline FROM sluice.delivery WHERE delivery_id = %s"
    assert events.execute(owners, taken[0]) == [(taken[0], "others")]
    assert in_table(events) == list(range(10))


def test_nobody_waits_while_the_lake_is_asked_which_numbers_are_free(
    events: Delivering, others: Delivering, backup: Backup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With millions of manifests that takes longer than PostgreSQL lets a transaction be idle."""
    backup.take()
    lost = [events.deliver(rows(start)).delivery_id for start in (10, 20)]
    backup.restore()
    seen, one_at_a_time = list[tuple[int, int]](), threading.Lock()
    idle = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in %%'"
    )

    def listed(table: LakeTable) -> list[Named]:
        with one_at_a_time:
            [(waiting,)] = events.execute(idle)
            free = events.execute("SELECT one FROM sluice.number_server FOR UPDATE NOWAIT")
        seen.append((waiting, len(free)))
        return manifests(table)

    monkeypatch.setattr(numbers, "manifests", listed)
    assert others.deliver(rows(10)).delivery_id > max(lost)
    assert seen
    assert set(seen) == {(0, 1)}


def test_a_server_that_is_another_by_the_time_the_lake_was_asked_is_asked_about_again(
    events: Delivering, others: Delivering, backup: Backup, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup.take()
    lost: list[int] = []
    backup.restore()

    def listed(table: LakeTable) -> list[Named]:
        """List the manifests, and let some more be lost when none of them is seen any more."""
        found = manifests(table)
        if not lost and table.name == "others":
            monkeypatch.setattr(numbers, "manifests", manifests)
            lost.extend(events.deliver(rows(start)).delivery_id for start in (10, 20))
            backup.restore()
        return found

    monkeypatch.setattr(numbers, "REQUESTS", 1)
    monkeypatch.setattr(numbers, "manifests", listed)
    assert others.deliver(rows(10)).delivery_id > max(lost)


def with_history(events: Delivering) -> list[Input]:
    """Let the stream leave a landed file out, as one of before its start; return that file."""
    sources = (Files("*.jsonl"), Files("dt=*/*.jsonl"))
    start = dt.date(2024, 1, 2)
    events.pipeline = replace(
        events.pipeline, sources=sources, interval="dt={interval:%Y-%m-%d}", start=start
    )
    file = events.landing / "dt=2024-01-01" / "h.jsonl"
    file.parent.mkdir()
    file.write_text("history\n")
    return look([str(file)], landing=str(events.landing), source=1)


@pytest.mark.parametrize("chain", ["whole", "broken"])
def test_a_lost_load_of_history_is_named_and_where_its_files_are_gone_a_person_decides(
    events: Delivering, backup: Backup, chain: str
) -> None:
    history = with_history(events)
    backup.take()
    before = events.deliver(rows(10)).delivery_id
    lost = replay(events, rows(30), landed=history)
    events.deliver(rows(20))
    backup.restore()
    if chain == "broken":
        remove(events, f"/batch=1/{before}-")
    pruned = events.landing / history[0].path
    content = pruned.read_bytes()
    pruned.unlink()
    with pytest.raises(NeedsPerson) as stop:
        recovered(events)
    assert f"Delivery {lost} of events was lost, a replay, which is not put back by itself" in stop.value.seen
    assert "no replay will find 1 of its 1 input file, such as dt=2024-01-01/h.jsonl: only" in stop.value.seen
    assert f"{events.table.location}/deliveries/{lost}-" in stop.value.seen
    assert went_back(events.dsn, events.place.lake, events.pipeline) is not None, "the marker still tells"
    pruned.write_bytes(content)
    [advice] = recover(events.place, events.pipeline).to_redo
    assert advice.startswith(f"replay {lost}: 1 file of history that it had loaded is in no delivery again")
    assert "dt=2024-01-01/h.jsonl: `sluice replay events --interval START END`" in advice
    assert in_table(events) == list(range(30 if chain == "whole" else 10))


def test_a_pointer_of_the_past_is_refused_though_what_came_last_has_a_lower_number(
    events: Delivering,
) -> None:
    """A replay reserves its number, and commits when the stream has delivered under a higher one."""

    def meanwhile(step: Step) -> None:
        if step is Step.ATTEMPT_OPENED:
            listen(None)
            events.deliver(rows(10))

    listen(meanwhile)
    last = replay(events, rows(30))
    assert last < max(number for (number,) in events.execute("SELECT delivery_id FROM sluice.delivery"))
    events.execute(
        "UPDATE sluice.iceberg_tables SET metadata_location = previous_metadata_location"
        " WHERE table_name = 'events'"
    )
    with pytest.raises(NeedsPerson, match=f"which lacks what delivery {last} published"):
        events.deliver(rows(20))


def test_a_restored_database_is_noticed_without_a_checkpoint(events: Delivering, backup: Backup) -> None:
    """PostgreSQL and the checkpoint were restored together, from one snapshot of their volume."""
    end(events)
    backup.take()
    events.restart()
    lost = events.deliver(rows(10)).delivery_id
    backup.restore()
    (events.landing / "1.jsonl").unlink()
    for refused in (run, sweep):
        with pytest.raises(
            LedgerBehind, match=f"Delivery {lost} of events was committed, says .*/LAST"
        ) as stop:
            refused(events.place, events.pipeline)
        assert "`sluice recover events`" in stop.value.remedy
    report = audit(events.place, events.pipeline)
    assert [one.kind for one in report.differences] == ["ledger"] and report.next == [stop.value.remedy]
    assert [one.delivery_id for one in recover(events.place, events.pipeline).restored] == [lost]
    assert in_table(events) == list(range(20)) and audit(events.place, events.pipeline).clean
    assert went_back(events.dsn, events.place.lake, events.pipeline) is None
    assert recover(events.place, events.pipeline).problem is None


def test_what_can_not_be_put_back_and_lands_again_is_told_once(events: Delivering, backup: Backup) -> None:
    backup.take()
    lost = events.deliver(rows(10)).delivery_id
    backup.restore()
    remove(events, f"/deliveries/{lost}-")
    end(events)
    with pytest.raises(LedgerBehind):
        run(events.place, events.pipeline)
    assert recover(events.place, events.pipeline).restored == ()
    assert recover(events.place, events.pipeline).problem is None


def test_a_stream_that_the_ledger_lost_is_noticed_and_known_again(events: Delivering) -> None:
    """PostgreSQL was restored to before a recover, which had begun the stream."""
    assert recovered(events).stream
    there = Path(events.place.settings.checkpoints, "events")
    lost = there / str(uuid.uuid4())
    lost.mkdir()
    with pytest.raises(LedgerBehind, match=f"the ledger does not know: {lost.name}"):
        run(events.place, events.pipeline)
    assert recover(events.place, events.pipeline).problem is not None
    assert recover(events.place, events.pipeline).problem is None


def test_the_slower_of_two_writers_hides_no_newer_delivery(events: Delivering) -> None:
    older = read(events.table)
    newer = events.deliver(rows(10)).delivery_id
    assert older is not None and older.delivery_id < newer
    tell(events.dsn, events.table, "events", older)
    assert (now := read(events.table)) is not None and now.delivery_id == newer


def test_a_writer_whose_delivery_was_lost_meanwhile_leaves_what_tells_of_it(
    events: Delivering, backup: Backup
) -> None:
    backup.take()
    older = read(events.table)
    events.deliver(rows(10))
    lost = read(events.table)
    assert older is not None and lost is not None and older != lost
    backup.restore()
    marker._write(events.table, older)
    tell(events.dsn, events.table, "events", lost)
    assert read(events.table) == lost


def test_what_was_lost_with_a_rename_is_put_back_or_named_by_the_new_name(
    events: Delivering, backup: Backup
) -> None:
    """PostgreSQL went back to before the replay: the lake has a manifest by the old name, and one by the new."""

    def rename() -> None:
        with transaction(events.dsn) as cursor:
            names.rename(cursor, "events", "visits", who="tests")

    first = first_of(events)
    renamed = replace(events.pipeline, name="visits", sink=Append(table=events.pipeline.table))
    backup.take()
    replay(events, rows(30), [first])
    events.end()
    rename()
    events.pipeline = renamed
    events.restart()
    last = events.deliver(rows(10)).delivery_id
    backup.restore()
    events.execute(
        "UPDATE sluice.pipeline SET lease_token = NULL"
    )  # of the run that was up when the backup was taken
    rename()
    found = recovered(events)
    assert [one.delivery_id for one in found.restored] == [last]
    assert f"`sluice replay visits --deliveries {first}`" in found.to_redo[0]
    assert {one for (one,) in events.execute("SELECT pipeline FROM sluice.attempt")} == {"visits"}


def test_a_run_that_stays_up_delivers_nothing_over_a_replay_that_was_lost(
    events: Delivering, backup: Backup
) -> None:
    """PostgreSQL failed over to a standby that lacked the replay, and nothing of the run's own stream."""
    first = first_of(events)
    events.deliver(rows(10))
    backup.take()
    lost = replay(events, rows(30), [first])
    backup.restore()
    assert in_table(events) == list(range(20)), "what was wrong is in force again"
    for _ in range(2):
        with pytest.raises(LedgerBehind, match=f"Delivery {lost} of events was committed, says .*/LAST"):
            events.deliver(rows(20))
    assert in_table(events) == list(range(20))
    assert (told := read(events.table)) is not None and told.delivery_id == lost
    [advice] = recovered(events).to_redo
    assert f"replay {lost}: what it had replaced is in force again" in advice
    assert f"`sluice replay events --deliveries {first}`" in advice
    assert went_back(events.dsn, events.place.lake, events.pipeline) is None


def test_a_batch_that_is_in_flight_when_a_replay_is_lost_hides_nothing(
    events: Delivering, backup: Backup, caplog: pytest.LogCaptureFixture
) -> None:
    first, lost = first_of(events), []

    def at(step: Step) -> None:
        if step is Step.JUDGED and not lost:
            listen(None)
            backup.take()
            lost.append(replay(events, rows(30), [first]))
            backup.restore()

    events.on_step = at
    number = events.deliver(rows(10)).delivery_id
    events.on_step = None
    assert in_table(events) == list(range(20))
    assert (told := read(events.table)) is not None and [told.delivery_id] == lost
    assert any(
        f"delivery {number} of events is committed" in one and f"names delivery {lost[0]}, which" in one
        for one in caplog.messages
    )
    with pytest.raises(LedgerBehind, match=f"Delivery {lost[0]} of events was committed"):
        events.deliver(rows(20))
    assert [f"replay {lost[0]}:" in one for one in recovered(events).to_redo] == [True]


def test_a_marker_that_was_not_written_fails_no_batch_and_is_made_up_for(
    events: Delivering, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = read(events.table)
    with monkeypatch.context() as patch:
        patch.setattr(marker, "marker_of", lambda _: "s3://no-such-bucket-of-ours/LAST")
        number = events.deliver(rows(10)).delivery_id
    told = f"delivery {number} of events is committed, and its marker could not be written"
    assert any(told in message for message in caplog.messages)
    assert read(events.table) == before
    assert went_back(events.dsn, events.place.lake, events.pipeline) is None
    assert (now := read(events.table)) is not None and now.delivery_id == number


def test_the_marker_is_no_orphan_and_is_not_swept(events: Delivering) -> None:
    assert audit(events.place, events.pipeline).orphans == []
    report = sweep_lake(events.dsn, events.place.lake, events.pipeline, horizon=dt.timedelta(0))
    assert (report.objects, report.kept) == ([], {})
    assert read(events.table) is not None
