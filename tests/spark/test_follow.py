"""A run that stays up delivers what lands meanwhile, and ends between two batches when it is asked to."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psutil
import psycopg2
import pytest
from pyspark.sql import SparkSession

from etl.common.database import transaction
from etl.common.errors import Fenced, FilesUnread
from etl.common.outcome import RunOutcome
from etl.common.steps import Step
from etl.ledger import leases
from etl.operations.control.stop import Ended, stop
from etl.runs.follow import RunControl
from tests.support.data.orders import CITIES, DECLARATION, NAME, SHOPS, Landed, Order, orders
from tests.support.followed import ME, PATIENCE, Followed
from tests.support.home import Home, once_at

SOON = 20  # seconds
FOLLOWS = ("run", NAME, "--follow", "--every", "1s", "--json")
ENDLESS = """
    import threading
    from pathlib import Path
    from pyspark.sql import functions as F

    def never(city):
        print("a word of a worker", flush=True)
        Path({mark!r}).touch()
        threading.Event().wait()

    df = df.withColumn("shop", F.udf(never)("shop"))
    return"""
NOISY = """
    import os

    print("a word of the transform")
    os.write(1, b"a word of a library\\n")
    os.system("echo a word of a child")
    df.printSchema()
    return"""
pytestmark = pytest.mark.timeout(600)


@dataclass(kw_only=True)
class Landing(Followed):
    """Over files that land one by one; also as the command, in a process of its own."""

    log: Path
    name: str = NAME
    landed: Landed = field(default_factory=Landed)
    files: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start_process(self, *given: str) -> None:
        words = [sys.executable, "-m", "etl.cli", *(given or FOLLOWS)]
        with self.log.open("wb") as log, self.log.with_suffix(".json").open("wb") as out:
            self.process = subprocess.Popen(
                words, env=self.home.environment, cwd=self.home.root, stdout=out, stderr=log
            )

    def require_up(self, what: str) -> None:
        super().require_up(what)
        assert self.process is None or self.process.poll() is None, f"ended before {what}: {self.said}"

    def land(self, made: list[Order] | None = None) -> None:
        """Land one more file, by default with a row to be held and a malformed record."""
        start = self.files * 100
        given = orders(start, 9, negative=[start + 4]) if made is None else made
        self.landed += self.home.land(f"orders/{self.files}.jsonl", given, ["{broken"])
        self.files += 1

    def wait_for_deliveries(self, count: int) -> None:
        self.wait(lambda: self.deliveries == count, f"{count} deliveries")

    def wait_till_up(self) -> None:
        self.wait(lambda: "stays up" in self.said, "query")

    def wait_till_it_waits(self) -> None:
        self.wait(lambda: self.control.waiting, "trigger that finds nothing")

    def wait_for_triggers(self) -> None:
        """Two at least that find nothing; a heartbeat after them tells that the run is still up."""
        [(now,)] = self.home.ask("SELECT now()")
        query = "SELECT max(seen_at) > %s + interval '2.5 s' FROM sluice.run"
        self.wait(lambda: self.home.ask(query, now) == [(True,)], "heartbeat")

    @contextmanager
    def held_in_the_commit(self, *words: str, land: bool = True) -> Iterator[None]:
        """Stop the next batch within its transaction, before the merge, until the block is left.

        It is of the process that home, or of one that is started with `words`.
        """
        connection = psycopg2.connect(self.home.dsn)
        connection.cursor().execute(f"LOCK TABLE warehouse.{NAME} IN SHARE MODE")
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock' AND query ~ '(LOCK TABLE|INSERT INTO|DELETE FROM) \"warehouse\"'"
        )
        try:
            if land:
                self.land()
            if words:
                self.start_process(*words)
            self.wait(lambda: self.home.ask(query) != [(0,)], "commit under way")
            yield
        finally:
            connection.close()

    @property
    def deliveries(self) -> int:
        if self.home.ask("SELECT to_regclass('sluice.delivery')") == [(None,)]:
            return 0
        [(count,)] = self.home.ask("SELECT count(*) FROM sluice.delivery")
        return int(count)

    @property
    def settled(self) -> bool:
        """Tell whether Spark has marked every batch that it planned as done."""
        [(stream,)] = self.home.ask("SELECT current_stream::text FROM sluice.pipeline")
        return self.home.place.checkpoints(self.home.pipeline()).of(stream).settled

    @property
    def outcomes(self) -> list[str | None]:
        return [one for (one,) in self.home.ask("SELECT outcome FROM sluice.run ORDER BY started_at")]

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @property
    def printed(self) -> dict[str, object]:
        """Return the summary that was printed."""
        found: dict[str, object] = json.loads(self.log.with_suffix(".json").read_text())
        return found

    def declare_endless(self) -> Path:
        """Declare the pipeline anew: its transform does not end, and makes the file that is returned when it has begun."""
        mark = self.log.with_name("begun")
        text = DECLARATION.format(name=NAME, max_files=1, share=1.0)
        self.home.declare(text=text.replace("    return", ENDLESS.format(mark=str(mark)), 1))
        return mark

    def family(self) -> list[psutil.Process]:
        """Return all processes of the command."""
        assert self.process is not None
        head = psutil.Process(self.process.pid)
        found = [head, *head.children(recursive=True)]
        assert "java" in {one.name() for one in found}
        return found

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def exit_code(self, within: float = PATIENCE) -> int:
        assert self.process is not None
        return self.process.wait(within)

    def assert_exactly_once(self) -> None:
        self.home.assert_holds(self.landed)
        self.home.assert_clean()


@pytest.fixture
def followed(home: Home, tmp_path: Path) -> Iterator[Landing]:
    home.declare(max_files=1)
    home.make_folder("orders")
    found = Landing(home=home, log=tmp_path / "log")
    yield found
    if found.process is not None and found.process.poll() is None:  # the test failed
        found.process.kill()
        found.process.wait(PATIENCE)
    found.leave()


def test_what_lands_meanwhile_is_delivered_with_its_lookups_as_they_are_then(
    followed: Landing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    home = followed.home
    followed.start()
    followed.wait_till_it_waits()  # with nothing landed at all
    for count in (1, 2):
        followed.land()
        followed.wait_for_deliveries(count)

    followed.wait(lambda: followed.settled, "mark")
    idle = home.history()
    followed.wait_for_triggers()
    assert home.history() == idle, "triggers that find nothing write nothing"
    assert followed.outcomes == [None]

    # a lookup that changes takes effect with the next batch
    home.write("reference/shops.csv", SHOPS + "Y,Ystad\n")
    monkeypatch.setitem(CITIES, "Y", "Ystad")
    followed.land([Order(id=1000 + number, shop="Y") for number in range(4)])
    followed.wait_for_deliveries(3)
    said = "\n".join(caplog.messages)
    assert "Y,Ystad" not in said and "goes on with its lookups and models as they are now" in said
    summary = followed.stop()
    assert (summary.outcome, summary.batches, summary.rows_in) == ("stopped", 3, 25)
    followed.assert_exactly_once()


def test_a_run_that_stays_up_names_what_spark_passes_over_and_goes_on(
    followed: Landing, caplog: pytest.LogCaptureFixture
) -> None:
    (followed.home.landing / "orders/caf\udce9.jsonl").write_text("{}")
    followed.land()
    followed.start()
    passed_over = r"orders/caf\xe9.jsonl. The run goes on"
    followed.wait(lambda: any(passed_over in message for message in caplog.messages), "warning")
    assert followed.deliveries == 1, "it is known once all is read"
    followed.land()
    followed.wait_for_deliveries(2)
    followed.control.request_stop(ME)
    assert isinstance(followed.error(), FilesUnread)
    assert followed.outcomes == ["FilesUnread"]
    followed.assert_exactly_once()


def test_a_signal_stops_after_the_whole_batch_and_a_second_one_at_once(followed: Landing) -> None:
    home = followed.home
    followed.start_process()
    followed.wait_till_up()
    followed.land()
    followed.wait_for_deliveries(1)
    with followed.held_in_the_commit():
        followed.signal(signal.SIGINT)
        followed.signal(signal.SIGTERM)
        # Its statement would wait for the lock for 30 s.
        assert followed.exit_code(within=25) == 128 + signal.SIGTERM, followed.said
        assert followed.deliveries == 1
    assert "could not be recorded" not in followed.said
    assert followed.outcomes == ["Stopped"]

    followed.start_process()
    followed.wait_for_deliveries(2)
    with followed.held_in_the_commit():
        followed.signal(signal.SIGTERM)
    assert followed.exit_code() == 0, followed.said
    assert followed.deliveries == 3, "the batch in flight is delivered"
    assert followed.settled, "and Spark has marked it: there is nothing to repair"
    assert followed.outcomes == ["Stopped", "stopped"]
    assert home.ask("SELECT lease_token FROM sluice.pipeline") == [(None,)]
    summary = followed.printed
    assert (summary["outcome"], summary["batches"], summary["rows_in"]) == ("stopped", 2, 20)
    assert home.run().batches == 0
    followed.assert_exactly_once()


@pytest.mark.slow
def test_a_signal_ends_a_run_that_does_not_stay_after_the_batch_in_flight(followed: Landing) -> None:
    home = followed.home
    home.declare(text=DECLARATION.format(name=NAME, max_files=1, share=1.0).replace("    return", NOISY, 1))
    followed.land()
    assert home.run().batches == 1
    followed.land()
    with followed.held_in_the_commit("run", NAME, "--json"):
        followed.signal(signal.SIGINT)
        heard = "stopping after this batch; Ctrl-C again to stop now"
        followed.wait(lambda: heard in followed.said, "word of it")
    assert followed.exit_code() == 128 + signal.SIGINT, followed.said
    assert "sluice: stopped by SIGINT; the next run goes on from the ledger" in followed.said
    assert (followed.printed["outcome"], followed.printed["batches"]) == ("stopped", 1)
    for said in ("a word of the transform", "a word of a library", "a word of a child", " |-- shop: string"):
        assert said in followed.said, "what a transform prints is in the log, and no part of the result"
    assert followed.deliveries == 2
    assert home.run().batches == 1

    with followed.held_in_the_commit("run", NAME, "--json"):
        followed.signal(signal.SIGTERM)
    assert followed.exit_code() == 0, "nothing was left: " + followed.said
    assert followed.printed["outcome"] == "done"
    assert followed.outcomes == ["done", "stopped", "done", "done"]
    followed.assert_exactly_once()


@pytest.mark.slow
def test_a_second_signal_ends_a_run_while_spark_computes(followed: Landing) -> None:
    followed.land()
    mark = followed.declare_endless()
    followed.start_process("run", NAME)
    followed.wait(mark.exists, "Spark to compute")
    family = followed.family()
    followed.signal(signal.SIGINT)
    followed.wait(lambda: "stopping after this batch" in followed.said, "word of it")
    followed.signal(signal.SIGINT)
    assert followed.exit_code(within=SOON) == 128 + signal.SIGINT, followed.said
    assert "stopped by SIGINT" in followed.said and "unexpected" not in followed.said
    _, left = psutil.wait_procs(family, SOON)
    assert left == []
    assert (followed.deliveries, followed.outcomes) == (0, ["Stopped"])
    followed.home.declare(max_files=1)
    assert followed.home.run().batches == 1
    followed.assert_exactly_once()


@pytest.mark.slow
def test_a_run_whose_jvm_dies_tells_what_its_log_ends_with_and_no_other_run_empties_it(
    followed: Landing,
) -> None:
    followed.land()
    mark = followed.declare_endless()
    followed.start_process("run", NAME)
    followed.wait(mark.exists, "Spark to compute")
    [jvm] = [one for one in followed.family() if one.name() == "java"]
    jvm.kill()
    assert followed.exit_code() == 70, followed.said
    logs = followed.home.place.settings.home / "logs"
    [log] = logs.iterdir()
    assert f"Spark's log, {log}, ends with:\n" in followed.said
    assert "  a word of a worker\n" in followed.said
    *_, error, remedy = followed.said.splitlines()
    assert error.startswith("sluice: Spark's JVM is gone") and f"its log is {log}; then" in remedy
    followed.home.declare(max_files=1)
    followed.start_process("run", NAME)
    assert followed.exit_code() == 0, followed.said
    assert len(list(logs.iterdir())) == 2
    assert "a word of a worker" in log.read_text()
    followed.assert_exactly_once()


@pytest.mark.slow
def test_a_signal_ends_a_replay_with_nothing_changed_or_after_its_commit(followed: Landing) -> None:
    home = followed.home
    followed.land()
    [delivery] = home.run().deliveries
    mark = followed.declare_endless()
    followed.start_process("replay", NAME, "--deliveries", str(delivery))
    followed.wait(mark.exists, "Spark to compute")
    followed.signal(signal.SIGINT)
    assert followed.exit_code(within=SOON) == 128 + signal.SIGINT, followed.said
    assert "stopped by SIGINT; nothing was changed" in followed.said
    assert followed.deliveries == 1

    home.declare(max_files=1)
    with followed.held_in_the_commit("replay", NAME, "--deliveries", str(delivery), land=False):
        asked = home.sluice("stop", NAME).stdout
        assert asked.startswith(f"{NAME}: no run of the stream is at work\na replay runs on ")
        assert "which `sluice stop` does not ask: `kill " in asked
        followed.signal(signal.SIGTERM)
    assert followed.exit_code() == 0, followed.said
    assert "stopping after this commit; SIGTERM again to stop now" in followed.said
    assert home.ask("SELECT delivery_id FROM sluice.replaced") == [(delivery,)]
    assert followed.outcomes == ["done", "Stopped", "done"]
    followed.assert_exactly_once()


def test_sluice_stop_waits_for_the_batch_in_flight_and_begins_no_other(followed: Landing) -> None:
    home = followed.home
    followed.land()
    followed.start()
    followed.wait_for_deliveries(1)
    with followed.held_in_the_commit():
        followed.land()
        late = home.sluice("stop", NAME, "--timeout", "1s")
        assert late.returncode == 75, late.stderr
        assert "still in its batch after 1 s" in late.stderr
        assert followed.results == []
        words = [sys.executable, "-m", "etl.cli", "stop", NAME]
        asking = subprocess.Popen(
            words, env=home.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert asking.stderr is not None
        told = asking.stderr.readline()
        assert "to stop after the batch in flight" in told
        assert f"a second signal: `kill {os.getpid()}` on {socket.gethostname()}, twice." in told
    said, _ = asking.communicate(timeout=PATIENCE)
    assert asking.returncode == 0 and "has stopped; every batch that it began is delivered" in said
    summary = followed.ended()
    assert (summary.outcome, summary.batches) == ("stopped", 2)
    assert followed.outcomes == ["stopped"]
    [(asked_by,)] = home.ask("SELECT stop_asked_by FROM sluice.run")
    assert " on " in asked_by
    [(state,)] = [(one["state"],) for one in json.loads(home.sluice("status", NAME, "--json").stdout)]
    assert state == "idle, stopped on request"
    again = home.sluice("stop", NAME)
    assert (again.returncode, again.stdout) == (0, f"{NAME}: nothing runs\n")
    assert home.run().batches == 1, "that which had landed behind it"
    followed.assert_exactly_once()


@pytest.mark.slow
def test_a_run_that_does_not_stay_is_stopped_between_two_batches_too(followed: Landing) -> None:
    home = followed.home
    for _ in range(3):
        followed.land()

    def ask() -> None:
        threading.Thread(
            target=lambda: ended.append(stop(home.dsn, NAME, who=ME, timeout=timedelta(seconds=PATIENCE)))
        ).start()
        followed.wait(lambda: home.ask("SELECT stop_asked_by FROM sluice.run") == [(ME,)], "asking")

    ended: list[Ended | None] = []
    with once_at(Step.STAGED, ask):
        summary = home.run()
    assert (summary.outcome, summary.batches) == ("stopped", 1)
    followed.wait(lambda: [one.outcome for one in ended if one] == ["stopped"], "answer")
    assert home.run().batches == 2
    assert followed.outcomes == ["stopped", "done"]
    followed.assert_exactly_once()


def test_a_trigger_that_finds_nothing_starts_no_job_of_spark(
    followed: Landing, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.control = RunControl(every=timedelta(seconds=0.2))
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 1)
    for day in range(40):  # Spark would list so many by a job
        (followed.home.landing / f"orders/dt={day}").mkdir(parents=True)
    followed.start()
    followed.land()
    followed.wait_for_deliveries(1)
    followed.wait_till_it_waits()
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    before = scheduler.numTotalJobs()
    followed.wait_for_triggers()
    assert scheduler.numTotalJobs() == before
    followed.land()
    followed.wait_for_deliveries(2)
    assert scheduler.numTotalJobs() > before
    followed.stop()
    assert spark.conf.get("spark.sql.sources.parallelPartitionDiscovery.threshold") == "32"


def test_a_run_that_waits_ends_when_another_has_taken_its_lease(followed: Landing) -> None:
    followed.start()
    followed.land()
    followed.wait_for_deliveries(1)
    followed.wait_till_it_waits()
    with transaction(followed.home.dsn) as cursor:  # as if it had been silent for long
        cursor.execute("UPDATE sluice.run SET seen_at = now() - interval '1 hour'")
        other = leases.take_lease(cursor, NAME)
    assert isinstance(followed.error(), Fenced)
    with transaction(followed.home.dsn) as cursor:
        leases.end_run(cursor, other, RunOutcome(outcome="done"))
        leases.give_lease_back(cursor, other)
    followed.land()
    assert followed.home.run().batches == 1
    followed.assert_exactly_once()
