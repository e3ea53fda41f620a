"""What a batch's state promises about the delivered rows, through real commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from etl.airflow.command import tries
from etl.airflow.pages import pages
from etl.airflow.pages.records import PipelineRow, pipeline_rows, reading
from etl.airflow.pages.render import STATES, Frame
from etl.airflow.task_try import TaskTry
from etl.common.database import transaction
from etl.common.errors import (
    ContractBroken,
    PlaceMoved,
    SetupError,
    SluiceError,
    TableRefused,
    TooManyReleases,
)
from etl.common.outcome import RunOutcome
from etl.common.statements import SQL_FOLDER
from etl.ledger import attempts, leases
from etl.operations.control.decide import record_decision
from etl.pipeline import Append
from etl.quality.verdict import Counts, RuleResult, Severity, Verdict
from etl.runs.run import run
from etl.services import Services
from etl.sinks.lake.lake import Lake
from tests.support import oracle
from tests.support.delivering import Delivering
from tests.support.pages.drawn import shown

ROWS = pa.table({"id": pa.array(range(10), pa.int64())})
Judge = Callable[[Counts], Verdict]


def failed(severity: Severity, *, about_rows: bool) -> Judge:
    def judge(counts: Counts) -> Verdict:
        result = RuleResult(
            number=0,
            reason="the rule",
            expectation_type="expect_something",
            severity=severity,
            success=False,
            element_count=counts.rows if about_rows else None,
            unexpected_count=1 if about_rows else None,
            where="pass",
            stops=severity is Severity.CRITICAL,
            result={},
            rule_id="rule-1",
            dimension="accuracy",
            owner="ann",
        )
        stops = ("the rule failed",) if result.stops else ()
        return Verdict(
            success=False, stops=stops, results=(result,), quarantined=counts.held, suite_digest="d"
        )

    return judge


@pytest.fixture
def at(services: Services, dsn: str, lake: Lake, short_home: Path, tmp_path: Path) -> Delivering:
    return Delivering.start(services, dsn, lake, tmp_path / "home", ROWS.schema, Append())


def stands(at: Delivering) -> PipelineRow:
    with reading(at.dsn) as cursor:
        [row] = pipeline_rows(cursor, [at.pipeline.name])
    return row


@pytest.mark.parametrize(
    ("judged", "bad", "state"),
    [
        (None, (), "good"),
        (failed(Severity.INFO, about_rows=True), (), "noted"),
        (failed(Severity.INFO, about_rows=False), (), "noted"),
        (failed(Severity.WARNING, about_rows=True), (3,), "held"),
        (failed(Severity.INFO, about_rows=True), (3,), "held"),
        (failed(Severity.WARNING, about_rows=False), (), "flawed"),
        (failed(Severity.WARNING, about_rows=False), (3,), "flawed"),
        (failed(Severity.WARNING, about_rows=False), range(10), "held"),  # nothing of it was delivered
    ],
)
def test_a_batch_says_whether_its_delivered_rows_are_good(
    at: Delivering, judged: Judge | None, bad: tuple[int, ...], state: str
) -> None:
    at.deliver(ROWS, bad, **({"judged": judged} if judged else {}))
    assert stands(at).standing == state
    known = oracle.ask(at.dsn, "SELECT reason, rule_id, dimension, owner FROM sluice.quality_rule_history")
    assert known == [("the rule", "rule-1", "accuracy", "ann")] * bool(judged)


@pytest.mark.parametrize("bad", [(), (3,), range(10)])
def test_a_batch_of_which_rows_were_left_out_is_not_good_and_no_page_says_that_all_is_accounted_for(
    at: Delivering, bad: Sequence[int]
) -> None:
    at.deliver(ROWS, bad, records=1186, dropped=200)
    row, number = stands(at), stands(at).delivery_id or 0
    assert (row.standing, STATES[row.standing][1]) == ("partial", "Delivered, with rows left out")
    with reading(at.dsn) as cursor:
        whole = pages.batch(cursor, "events", Frame(up="../"), delivery=number).html
        one = pages.pipeline(cursor, "events", Frame()).html
        every = pages.overview(cursor, list, Frame()).html
    said = "200 rows, or groups of rows, came behind the watermark and are in neither sink"
    assert [said in whole, said in one] == [True, True]
    assert "Every row is accounted for" not in whole
    assert "<b>1,186</b> records read; <b>10</b> rows out" in whole
    assert "Delivered, with rows left out" in every
    assert oracle.ask(at.dsn, "SELECT records, dropped, state FROM sluice.quality_batch") == [
        (1186, 200, "partial")
    ]


@pytest.mark.parametrize(("records", "part", "told"), [(1186, 6 / 1186, "0.5 %"), (0, 0.6, "60.0 %")])
def test_the_share_held_of_a_transform_with_state_is_of_the_records_it_read(
    at: Delivering, records: int, part: float, told: str
) -> None:
    number = at.deliver(ROWS, range(6), records=records, dropped=0).delivery_id
    at.execute("UPDATE sluice.delivery SET malformed = 1 WHERE delivery_id = %s", number)
    [(share,)] = oracle.ask(at.dsn, "SELECT quarantined_share FROM sluice.quality_batch")
    assert share == pytest.approx(part)
    at.execute(
        "INSERT INTO sluice.airflow_try (dag_id, dag_run_id, task_id, try_number, pipeline, run_type, clear_number, run_id)"
        " SELECT 'events', 'one', 'run', 1, 'events', 'manual', 0, run_id FROM sluice.run"
    )
    with reading(at.dsn) as cursor:
        whole = pages.pipeline(cursor, "events", Frame())
        run = shown(pages.dag_run(cursor, "events", Frame(), dag="events", run_id="one"))
        every = shown(pages.overview(cursor, list, Frame()))
        batch = shown(pages.batch(cursor, "events", Frame(up="../"), delivery=number))
    assert "1 malformed or late record never became a row, and is held" in batch
    assert f"{records:,} records read; 9 rows out + 1 malformed or late = 4 delivered + 6 held" in batch
    assert f'<td class="n less">{told}</td>' in whole.html
    assert f"Share held last {told}" in shown(whole)
    assert "Rows out 9 + 1 malformed or late Delivered 4 Held in it 6 Held now" in shown(whole)
    assert "Records read Rows out Malformed or late Delivered Held Held share 0 " in shown(whole)
    assert f" {records:,} 9 1 4 6 " in shown(whole), "the row of the table"
    assert f"{records:,} records read; 9 rows out + 1 malformed or late = 4 delivered + 6 held" in run
    assert f"9 + 1 malformed or late, of {records:,} records" in every


def test_what_a_transform_with_state_left_out_nothing_of_is_accounted_for(at: Delivering) -> None:
    at.deliver(ROWS, records=1186, dropped=0)
    assert stands(at).standing == "good"
    with reading(at.dsn) as cursor:
        page = pages.batch(cursor, "events", Frame(up="../"), delivery=stands(at).delivery_id or 0)
    assert "Every row is accounted for" in page.html
    assert "<b>1,186</b> records read; <b>10</b> rows out" in page.html


def test_a_ledger_that_had_counted_what_was_left_out_says_so_after_the_migration(at: Delivering) -> None:
    at.deliver(ROWS, records=1186, dropped=200)
    oracle.ask(at.dsn, "UPDATE sluice.quality SET state = 'good'")
    oracle.ask(at.dsn, "DROP VIEW sluice.quality_batch")  # which has had more columns since
    oracle.ask(at.dsn, (SQL_FOLDER / "migrations" / "0024.partial.sql").read_text())
    assert stands(at).standing == "partial"


def test_a_stopped_batch_waits_for_a_decision_and_an_accepted_one_is_flawed(at: Delivering) -> None:
    at.deliver(ROWS)
    critical = failed(Severity.CRITICAL, about_rows=True)
    with pytest.raises(ContractBroken):
        at.deliver(ROWS, (1,), judged=critical)
    with transaction(at.dsn) as cursor:
        leases.end_run(cursor, at.session.lease, RunOutcome(outcome="ContractBroken"))
        leases.give_lease_back(cursor, at.session.lease)
    stopped = stands(at)
    assert (stopped.standing, stopped.state, stopped.stop_batch) == ("stopped", "good", 1)
    assert stopped.diagnosis.next == "sluice decide events --batch 1 --quarantine-all --why WHY"
    decided: dict[str, Any] = {"batch": 1, "stream": at.session.stream_id, "why": "known"}
    record_decision(at.place, at.pipeline, **decided, action="quarantine-all", who="Bob")
    said = record_decision(at.place, at.pipeline, **decided, action="accept", who="Ada")
    assert "which replaces quarantine-all by Bob" in said
    assert stands(at).diagnosis.next == "sluice run events"
    at.restart()
    at.deliver(ROWS, (1,), judged=critical)
    assert stands(at).standing == "flawed"
    with reading(at.dsn) as cursor:
        page = pages.batch(cursor, "events", Frame(up="../"), delivery=stands(at).delivery_id or 0)
    assert "<b>Ada</b> decided <b>accept</b>" in page.html


def test_the_page_of_a_batch_that_stops_once_more_says_why_its_decision_no_longer_holds(
    at: Delivering,
) -> None:
    critical = failed(Severity.CRITICAL, about_rows=True)
    with pytest.raises(ContractBroken):
        at.deliver(ROWS, (1,), judged=critical)
    decided: dict[str, Any] = {"batch": 0, "stream": at.session.stream_id, "why": "known"}
    record_decision(at.place, at.pipeline, **decided, action="accept", who="Ada")
    at.session = replace(at.session, suite_digest="another")
    with pytest.raises(ContractBroken):
        at.deliver(ROWS, (1,), judged=critical)
    with reading(at.dsn) as cursor:
        page = pages.stopped(cursor, "events", Frame())
    assert "It has stopped once more: Ada&#39;s decision accept (of " in page.html
    assert " UTC) no longer holds: the suite" in page.html
    assert "sluice decide events --batch 0 --accept" in page.html


def end(at: Delivering, outcome: str) -> None:
    """End the run of the pipeline as a command does that ends so."""
    with transaction(at.dsn) as cursor:
        leases.end_run(cursor, at.session.lease, RunOutcome(outcome=outcome, message="it said why"))
        leases.give_lease_back(cursor, at.session.lease)


def begin(at: Delivering) -> None:
    with transaction(at.dsn) as cursor:
        at.session = replace(at.session, lease=leases.take_lease(cursor, at.pipeline.name))


def pass_(at: Delivering, hours: str) -> None:
    """Let hours pass since all that the ledger has of runs and deliveries."""
    for change in (
        "UPDATE sluice.run SET started_at = started_at - {}, seen_at = seen_at - {}, ended_at = ended_at - {}",
        "UPDATE sluice.delivery SET committed_at = committed_at - {}",
    ):
        at.execute(change.replace("{}", f"interval '{hours}'"))


@pytest.mark.parametrize("outcome", ["CheckpointLost", "LedgerBehind", "Py4JJavaError", "FilesUnread"])
def test_a_pipeline_whose_runs_fail_since_its_last_good_batch_is_red_and_first(
    at: Delivering, outcome: str
) -> None:
    at.deliver(ROWS)
    end(at, outcome)
    first = at.execute("SELECT ended_at FROM sluice.run")
    begin(at)
    end(at, "ServiceAway")
    at.execute("INSERT INTO sluice.pipeline (name, table_schema, table_name) VALUES ('another', 'w', 'a')")
    row = stands(at)
    assert (row.standing, row.state, STATES[row.standing]) == ("failing", "good", ("■", "Failing"))
    assert [(row.failing_since,)] == first
    with reading(at.dsn) as cursor:
        one = pages.pipeline(cursor, "events", Frame()).html
        every = pages.overview(cursor, list, Frame()).html
    assert every.index('href="events/"') < every.index('href="another/"')
    assert '<span class="badge failing">■ Failing</span>' in every
    assert '<div class="banner failing">' in one
    assert "Every run since then has failed, or was killed: nothing newer is delivered." in one
    assert ": ✓ Good.</p>" in one
    view = "SELECT state, standing, failing_since FROM sluice.quality_pipeline WHERE pipeline = 'events'"
    assert at.execute(view) == [("good", "failing", first[0][0])]


def test_a_pipeline_that_has_delivered_nothing_and_whose_runs_fail_is_red(at: Delivering) -> None:
    end(at, "SetupError")
    assert (stands(at).standing, stands(at).state) == ("failing", None)
    with reading(at.dsn) as cursor:
        assert "Nothing was delivered before." in pages.pipeline(cursor, "events", Frame()).html


def test_a_killed_run_is_a_failed_one_before_and_after_another_takes_its_lease(at: Delivering) -> None:
    at.deliver(ROWS)
    at.execute("UPDATE sluice.run SET holder = 'elsewhere/1'")
    assert stands(at).standing == "good"
    pass_(at, "1 hour")
    assert stands(at).standing == "failing"
    begin(at)
    assert stands(at).standing == "failing"
    at.deliver(ROWS)
    assert stands(at).standing == "good"


def test_a_run_that_is_refused_before_it_begins_is_a_failed_one(at: Delivering) -> None:
    at.deliver(ROWS)
    end(at, "done")
    elsewhere = replace(at.pipeline, sink=Append(table="warehouse.elsewhere"))
    with pytest.raises(TableRefused, match=r"has delivered to warehouse\.events"):
        run(at.place, elsewhere)
    assert (stands(at).standing, stands(at).outcome) == ("failing", "TableRefused")
    nowhere = replace(at.place, services=replace(at.place.services, lake="s3://no-such-bucket/lake"))
    with pytest.raises(
        SetupError, match="Bucket no-such-bucket of the lake s3://no-such-bucket/lake is not there"
    ):
        run(nowhere, at.pipeline)
    assert (stands(at).standing, stands(at).outcome) == ("failing", "SetupError")


def exits(error: type[SluiceError]) -> Iterator[type[SluiceError]]:
    yield error
    for one in error.__subclasses__():
        yield from exits(one)


OF_NO_RUN = {PlaceMoved, TooManyReleases}
OUTAGES = sorted(one.__name__ for one in {*exits(SluiceError)} - OF_NO_RUN if one.exit_code == 75)


@pytest.mark.parametrize("outcome", [*OUTAGES, "Stopped"])
def test_an_outage_is_red_only_after_hours(at: Delivering, outcome: str) -> None:
    at.deliver(ROWS)
    pass_(at, "12 hours")
    at.execute("UPDATE sluice.run SET seen_at = now()")
    end(at, outcome)
    assert stands(at).standing == "interrupted"
    begin(at)
    pass_(at, "2 hours 55 minutes")
    at.execute("UPDATE sluice.run SET started_at = now(), seen_at = now() WHERE ended_at IS NULL")
    end(at, outcome)
    assert stands(at).standing == "interrupted"
    pass_(at, "6 minutes")
    assert stands(at).standing == "failing"


@pytest.mark.parametrize("ended", ["done", "stopped"])
def test_a_run_that_ends_well_is_the_end_of_trouble(at: Delivering, ended: str) -> None:
    at.deliver(ROWS)
    end(at, "CheckpointLost")
    begin(at)
    assert stands(at).standing == "failing"  # it may fail as well
    end(at, ended)
    assert (stands(at).standing, stands(at).failing_since) == ("good", None)


def test_a_run_that_stays_up_with_nothing_to_deliver_is_the_end_of_trouble(at: Delivering) -> None:
    at.deliver(ROWS)
    end(at, "ServiceAway")
    begin(at)
    pass_(at, "5 hours")
    at.execute("UPDATE sluice.run SET seen_at = now() WHERE ended_at IS NULL")
    assert stands(at).standing == "good"
    with transaction(at.dsn) as cursor:
        attempts.open_attempt(cursor, at.session.lease, at.session.stream_id, 1)
    assert stands(at).standing == "failing"  # it is in a batch, which no run since has got delivered


def test_a_batch_that_was_decided_on_is_no_failure_and_what_fails_after_it_is_one(at: Delivering) -> None:
    at.deliver(ROWS)
    with pytest.raises(ContractBroken):
        at.deliver(ROWS, (1,), judged=failed(Severity.CRITICAL, about_rows=True))
    end(at, "ContractBroken")
    assert stands(at).standing == "stopped"
    decided: dict[str, Any] = {"batch": 1, "stream": at.session.stream_id, "why": "known"}
    record_decision(at.place, at.pipeline, **decided, action="accept", who="Ada")
    assert stands(at).standing == "good"
    begin(at)
    end(at, "Py4JJavaError")
    assert stands(at).standing == "failing"


def test_the_page_of_a_release_that_failed_says_why_and_not_how_the_stream_ended(at: Delivering) -> None:
    at.deliver(ROWS, (3,))
    end(at, "CheckpointLost")
    asked = TaskTry(
        dag_id="events_replays",
        dag_run_id="release__1",
        task_id="run",
        try_number=1,
        run_type="manual",
        clear_number=0,
    )
    with pytest.raises(SetupError), tries.recorded(at.dsn, "events", asked):
        raise SetupError("1 of these never became rows", remedy="give them back corrected")
    with reading(at.dsn) as cursor:
        page = pages.dag_run(cursor, "events", Frame(), dag="events_replays", run_id="release__1")
    said = shown(page)
    assert "by SetupError : 1 of these never became rows Next: give them back corrected" in said
    assert '<div class="banner failing"><p><strong>■ Failed</strong> at 20' in page.html
    assert "CheckpointLost" not in said


@pytest.mark.parametrize("outcome", ["InputsDoubled", "OffsetsGone", "CommitTooLong"])
def test_an_end_that_needs_a_new_checkpoint_is_recovered_from(at: Delivering, outcome: str) -> None:
    at.deliver(ROWS)
    end(at, outcome)
    assert stands(at).diagnosis.next == "sluice recover events"


def test_since_when_counts_from_the_first_batch_that_was_not_good(at: Delivering) -> None:
    for bad in ((), (1,), (), (2,), (3,), (4,)):
        at.deliver(ROWS, bad)
    first = oracle.ask(at.dsn, "SELECT committed_at FROM sluice.delivery WHERE batch_id = 3")
    assert [(stands(at).state_since,)] == first
    at.deliver(ROWS)
    assert stands(at).state_since == stands(at).committed_at


def test_a_ledger_of_before_is_given_the_states_that_its_commits_would_have_written(at: Delivering) -> None:
    at.deliver(ROWS)
    at.deliver(ROWS, (1,))
    at.deliver(ROWS, judged=failed(Severity.INFO, about_rows=True))
    at.deliver(ROWS, judged=failed(Severity.WARNING, about_rows=False))
    query = "SELECT delivery_id, pipeline, commit_seq, state, good FROM sluice.quality ORDER BY 1"
    written = oracle.ask(at.dsn, query)
    oracle.ask(at.dsn, BEFORE)
    oracle.ask(at.dsn, (SQL_FOLDER / "migrations" / "0004.quality.sql").read_text())
    assert oracle.ask(at.dsn, query) == written
    assert [state for _, _, _, state, _ in written] == ["good", "held", "noted", "flawed"]


BEFORE = """
DROP VIEW sluice.quality_pipeline, sluice.quality_batch, sluice.quality_rule_history, sluice.quarantine_count;
ALTER TABLE sluice.quality DROP good, DROP state, DROP commit_seq, DROP pipeline;
DROP INDEX sluice.delivery_by_run, sluice.delivery_superseded_by, sluice.stopped_by_pipeline, sluice.run_by_pipeline;
"""


def test_every_column_of_the_views_for_dashboards_is_documented(dsn: str) -> None:
    query = """SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
               WHERE c.relnamespace = 'sluice'::regnamespace AND c.relkind = 'v' AND c.relname ~ '^qua'
                 AND col_description(c.oid, a.attnum) IS NULL"""
    assert oracle.ask(dsn, query) == []
    counted = "SELECT count(*) FROM pg_class WHERE relkind = 'v' AND relname ~ '^qua'"
    assert oracle.ask(dsn, counted + " AND relnamespace = 'sluice'::regnamespace") == [(4,)]
