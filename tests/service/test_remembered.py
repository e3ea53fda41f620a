"""A run goes by what the last one compared only while nothing of it has changed, and reads what has landed in any case."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from psycopg2.extensions import parse_dsn

from etl.common.errors import CheckpointDamaged, CheckpointLost, LedgerBehind, ServiceAway, SetupError
from etl.pipeline import Append, Files, intervals, patterns
from etl.runs.kinds.open import stream_of
from etl.runs.kinds.remembered import NAME
from etl.runs.recovery.recover import recover
from etl.runs.run import run
from etl.services import Services
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.marker import marker_of
from etl.sinks.lake.s3 import bucket_of, s3_client
from etl.sources import evidence
from etl.sources.listing import folder_states
from tests.support.backups import Backup
from tests.support.delivering import Delivering
from tests.support.listed import listed
from tests.support.waiting import until

pytestmark = pytest.mark.long

COLUMNS = pa.schema([("id", pa.int64())])
REST_NS = 50_000_000  # instead of two seconds: this machine's file systems keep finer times


def rows(start: int) -> pa.Table:
    return pa.table([pa.array(range(start, start + 10), pa.int64())], schema=COLUMNS)


@dataclass(kw_only=True)
class Case:
    """A pipeline of which two files are delivered, with folders `day1` and `day2` beside them, and its checkpoint."""

    events: Delivering

    @property
    def landing(self) -> Path:
        return self.events.landing

    @property
    def checkpoint(self) -> Path:
        [(stream,)] = self.events.execute("SELECT current_stream FROM sluice.pipeline")
        return self.events.place.settings.home / "checkpoints" / "events" / str(stream)

    def look(self, *, closed: bool = False) -> tuple[set[str], list[str]]:
        """Look as a run does when it starts; return what it is to read, and the folders that it listed."""
        stream = stream_of(self.events.place, self.events.pipeline)
        with listed(self.landing) as folders:
            stream_id = stream.begin(self.events.session.lease)
            if closed:
                stream.look_into_closed(stream_id)
            awaited = {*stream.awaited(stream_id)}
        if stream.nothing_new(stream.state(stream_id), awaited):
            stream.remember(stream_id)
        return awaited, sorted(folders)

    def rest(self) -> None:
        """Wait until every folder of the landing has been at rest for long enough."""
        newest = max(Path(folder).stat().st_ctime_ns for folder, _, _ in os.walk(self.landing))
        until(lambda: time.time_ns() > newest + 2 * REST_NS, "a rest", patience=60, every=0.01)

    def compare(self) -> None:
        """Look until all folders are remembered."""
        self.rest()
        assert self.look()[0] == set()
        assert self.look() == (set(), [])

    def deliver(self) -> None:
        """Deliver one more file, which a new checkpoint then counts as read."""
        self.events.restart()
        self.events.deliver(rows(10 * self.events.batch_id))
        self.recover()

    def recover(self) -> None:
        self.events.end()
        recover(self.events.place, self.events.pipeline)


@pytest.fixture
def case(services: Services, dsn: str, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(folder_states, "REST_NS", REST_NS)
    events = Delivering.start(services, dsn, lake, tmp_path, COLUMNS, Append())
    events.pipeline = replace(events.pipeline, sources=(Files("**/*.jsonl"),))
    for folder in ("day1", "day2"):
        (events.landing / folder).mkdir()
    for batch in range(2):
        events.deliver(rows(10 * batch))
    made = Case(events=events)
    made.recover()
    return made


def test_a_folder_is_listed_again_only_once_a_name_in_it_has_changed(case: Case) -> None:
    case.rest()
    assert case.look() == (set(), [".", "day1", "day2"])
    assert case.look() == (set(), [])
    summary = run(case.events.place, case.events.pipeline)
    assert (summary.batches, summary.outcome) == (0, "done")
    new = case.landing / "day2/new.jsonl"
    new.write_text("{}")
    assert case.look() == ({"day2/new.jsonl"}, ["day2"])
    new.rename(case.landing / "day2/_new.jsonl")
    assert case.look() == (set(), ["day2"])
    case.compare()
    (case.landing / "day1/deeper").mkdir()
    (case.landing / "day1/deeper/new.jsonl").write_text("{}")
    assert case.look() == ({"day1/deeper/new.jsonl"}, ["day1", "day1/deeper"])
    (case.landing / "day1/deeper/new.jsonl").unlink()
    (case.landing / "0.jsonl").unlink()
    assert case.look() == (set(), [".", "day1", "day1/deeper"])


def test_a_file_that_lands_in_the_moment_of_a_look_is_found(case: Case) -> None:
    """A folder is not known until it has been at rest: times of its file system may be those of a later change, too."""
    case.compare()
    for number in range(20):
        new = case.landing / f"day1/{number}.jsonl"
        assert case.look()[0] == set()
        new.write_text("{}")
        assert case.look()[0] == {f"day1/{number}.jsonl"}
        new.unlink()


def stamped_back(landing: Path) -> None:
    """Land as `rsync -a` does, which gives a folder the time of its source."""
    before = (landing / "day1").stat()
    (landing / "day1/new.jsonl").write_text("{}")
    os.utime(landing / "day1", ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(landing: Path) -> None:
    shutil.copytree(landing / "day1", landing.parent / "other")
    (landing.parent / "other/new.jsonl").write_text("{}")
    shutil.rmtree(landing / "day1")
    (landing.parent / "other").rename(landing / "day1")


def replaced_with_all_others(landing: Path) -> None:
    shutil.copytree(landing, landing.parent / "whole")
    (landing.parent / "whole/day1/new.jsonl").write_text("{}")
    landing.rename(landing.parent / "before")
    landing.symlink_to("whole")


def test_what_lands_with_its_folder_is_found(case: Case) -> None:
    for lands in (stamped_back, replaced, replaced_with_all_others):
        case.compare()
        lands(case.landing)
        assert case.look()[0] == {"day1/new.jsonl"}
        (case.landing / "day1/new.jsonl").unlink()


def test_what_a_link_leads_to_is_looked_at_each_time(case: Case) -> None:
    elsewhere = case.landing.parent / "elsewhere"
    elsewhere.mkdir()
    (case.landing / "day1/linked").symlink_to(elsewhere)
    (case.landing / "day2/later").symlink_to(case.landing.parent / "later")
    case.rest()
    for _ in range(2):
        assert case.look()[0] == set()
    assert case.look() == (set(), ["day1", "day2"])
    (elsewhere / "new.jsonl").write_text("{}")
    (case.landing.parent / "later").mkdir()
    (case.landing.parent / "later/new.jsonl").write_text("{}")
    assert case.look()[0] == {"day1/linked/new.jsonl", "day2/later/new.jsonl"}


def test_another_declaration_is_compared_anew(case: Case) -> None:
    (case.landing / "day1/a.json").write_text("{}")
    (case.landing / "day1/dt=2026-01-05.jsonl").write_text("{}")
    declared = case.events.pipeline
    since = replace(declared, interval="dt={interval:%Y-%m-%d}", start=dt.date(2026, 2, 1))
    case.events.pipeline = since
    case.compare()
    case.events.pipeline = replace(since, start=dt.date(2026, 1, 1))
    assert case.look()[0] == {"day1/dt=2026-01-05.jsonl"}
    case.events.pipeline = replace(since, sources=(Files("**/*.json*", format="json"),))
    assert case.look()[0] == {"day1/a.json"}


def test_what_is_remembered_in_vain_is_looked_at_anew(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release looked for files, the clock was set, the kernel was booted, or the file can't be read, or is gone."""
    case.compare()
    for module in (patterns, intervals, evidence):
        monkeypatch.setattr(module, "__file__", __file__)
        assert case.look() == (set(), [".", "day1", "day2"])
        assert case.look() == (set(), [])
    file = case.checkpoint / NAME
    kept = json.loads(file.read_text())
    set_ahead = {**kept["clock"], "ahead_ns": kept["clock"]["ahead_ns"] + folder_states.CLOCK_NS + 10**9}
    for text in (
        json.dumps({**kept, "clock": set_ahead}),
        json.dumps({**kept, "clock": {**kept["clock"], "boot": "another"}}),
        json.dumps(kept)[:-40],
        json.dumps({**kept, "folders": [1]}),
        json.dumps({**kept, "folders": {"**/*.jsonl": {"": [float("inf"), 1, 1]}}}),
        "[" * 100_000,
        "",
        None,
    ):
        file.unlink()
        if text is None:
            file.symlink_to(NAME)  # to itself: it can't be opened
        else:
            file.write_text(text)
        assert case.look() == (set(), [".", "day1", "day2"])
        assert case.look() == (set(), [])
    file.unlink()
    assert case.look() == (set(), [".", "day1", "day2"])


def test_folders_of_a_file_system_that_may_tell_late_are_listed_each_time(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_states, "TRUSTED", frozenset())
    case.rest()
    for _ in range(3):
        assert case.look() == (set(), [".", "day1", "day2"])


def test_a_folder_is_closed_once_it_was_compared_when_its_time_was_up(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long no run had been: what was compared before its time was up does not close it."""
    monkeypatch.setattr(
        folder_states, "TRUSTED", frozenset()
    )  # so that each folder that is not closed is listed
    by_day = Files("**/*.jsonl", open_for=dt.timedelta(days=3))
    case.events.pipeline = replace(case.events.pipeline, sources=(by_day,), interval="dt={interval:%Y-%m-%d}")
    today = dt.datetime.now(dt.UTC)
    old, young = (f"dt={today - dt.timedelta(days=days):%Y-%m-%d}" for days in (9, 2))
    for folder in (old, young):
        (case.landing / folder).mkdir()
    opened = [".", "day1", "day2", young]
    assert case.look() == (set(), sorted([*opened, old]))
    late = case.landing / old / "late.jsonl"
    late.write_text("{}")
    assert case.look() == (set(), opened)
    assert case.look(closed=True)[0] == {f"{old}/late.jsonl"}
    assert case.look() == (set(), opened)

    file = case.checkpoint / NAME
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "began": str(today - dt.timedelta(days=6))}))  # then no run
    assert case.look()[0] == {f"{old}/late.jsonl"}
    file.write_text(json.dumps({**kept, "began": str(today + dt.timedelta(days=6))}))  # clock set back
    assert case.look() == (set(), opened)
    file.unlink()
    assert case.look()[0] == {f"{old}/late.jsonl"}


def test_a_checkpoint_that_lost_a_file_of_its_log_is_damaged_though_the_landing_is_as_it_was(
    case: Case,
) -> None:
    case.compare()
    (case.checkpoint / "sources/0/0").unlink()
    with pytest.raises(CheckpointDamaged, match="sources/0/0 is missing"):
        case.look()


def test_an_older_checkpoint_is_not_believed_for_what_is_remembered_in_it(case: Case) -> None:
    case.compare()
    older = case.landing.parent / "older"
    shutil.copytree(case.checkpoint, older)
    case.deliver()
    case.compare()
    now = case.checkpoint
    shutil.rmtree(now)
    older.rename(now)
    with pytest.raises(CheckpointLost, match="holds stream"):
        case.look()


def test_an_older_ledger_is_compared_anew(case: Case, services: Services) -> None:
    database = parse_dsn(case.events.dsn)["dbname"]
    backup = Backup(server=services.postgres, database=database, name=f"{database}_backup")
    backup.take()
    case.deliver()
    case.compare()
    backup.restore()
    with pytest.raises(LedgerBehind):
        run(case.events.place, case.events.pipeline)
    # Also where neither the lake nor a checkpoint's folder tells of it.
    bucket, key = bucket_of(marker_of(case.events.table))
    s3_client(case.events.place.lake.store).delete_object(Bucket=bucket, Key=key)
    with pytest.raises(LedgerBehind, match="streams"):
        run(case.events.place, case.events.pipeline)


def test_inputs_that_left_force_are_compared_though_landing_and_checkpoint_are_as_they_were(
    case: Case,
) -> None:
    case.compare()
    [(stream,)] = case.events.execute("SELECT current_stream FROM sluice.pipeline")
    case.events.restart()
    case.events.deliver_none("withdrawal")
    case.events.end()
    case.events.execute("UPDATE sluice.pipeline SET current_stream = %s", stream)
    case.events.execute("UPDATE sluice.delivery_input SET live = false WHERE path = '0.jsonl'")
    with pytest.raises(CheckpointDamaged, match="counts 1 file as read that no delivery has"):
        case.look()


def test_a_folder_that_is_away_is_not_one_where_nothing_has_landed(case: Case) -> None:
    case.compare()
    case.landing.rename(case.landing.parent / "away")
    with pytest.raises(ServiceAway, match="its storage is away"):
        case.look()


def test_a_pipe_that_is_called_like_a_delivered_file_is_refused(case: Case) -> None:
    case.compare()
    (case.landing / "0.jsonl").unlink()
    os.mkfifo(case.landing / "0.jsonl")
    with pytest.raises(SetupError, match="is a named pipe"):
        case.look()
