"""What a batch's state promises about the delivered rows, through real commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from etl.airflow.pages import pages
from etl.airflow.pages.records import PipelineRow, pipeline_rows, reading
from etl.airflow.pages.render import STATES, Frame
from etl.common.database import transaction
from etl.common.errors import ContractBroken
from etl.common.outcome import RunOutcome
from etl.common.statements import SQL_FOLDER
from etl.ledger import leases
from etl.operations.control.decide import record_decision
from etl.pipeline import Append
from etl.quality.verdict import Counts, RuleResult, Severity, Verdict
from etl.services import Services
from etl.sinks.lake.table import Lake
from tests.support import oracle
from tests.support.delivering import Delivering

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
    assert stands(at).shown == state


@pytest.mark.parametrize("bad", [(), (3,), range(10)])
def test_a_batch_of_which_rows_were_left_out_is_not_good_and_no_page_says_that_all_is_accounted_for(
    at: Delivering, bad: Sequence[int]
) -> None:
    at.deliver(ROWS, bad, records=1186, dropped=200)
    row, number = stands(at), stands(at).delivery_id or 0
    assert (row.shown, STATES[row.shown][1]) == ("partial", "Delivered, with rows left out")
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


def test_what_a_transform_with_state_left_out_nothing_of_is_accounted_for(at: Delivering) -> None:
    at.deliver(ROWS, records=1186, dropped=0)
    assert stands(at).shown == "good"
    with reading(at.dsn) as cursor:
        page = pages.batch(cursor, "events", Frame(up="../"), delivery=stands(at).delivery_id or 0)
    assert "Every row is accounted for" in page.html
    assert "<b>1,186</b> records read; <b>10</b> rows out" in page.html


def test_a_ledger_that_had_counted_what_was_left_out_says_so_after_the_migration(at: Delivering) -> None:
    at.deliver(ROWS, records=1186, dropped=200)
    oracle.ask(at.dsn, "UPDATE sluice.quality SET state = 'good'")
    oracle.ask(at.dsn, "DROP VIEW sluice.quality_batch")  # which has had more columns since
    oracle.ask(at.dsn, (SQL_FOLDER / "migrations" / "0024.partial.sql").read_text())
    assert stands(at).shown == "partial"


def test_a_stopped_batch_waits_for_a_decision_and_an_accepted_one_is_flawed(at: Delivering) -> None:
    at.deliver(ROWS)
    critical = failed(Severity.CRITICAL, about_rows=True)
    with pytest.raises(ContractBroken):
        at.deliver(ROWS, (1,), judged=critical)
    with transaction(at.dsn) as cursor:
        leases.end_run(cursor, at.session.lease, RunOutcome(outcome="ContractBroken"))
        leases.give_lease_back(cursor, at.session.lease)
    stopped = stands(at)
    assert (stopped.shown, stopped.state, stopped.stop_batch) == ("stopped", "good", 1)
    assert stopped.diagnosis.next == "sluice decide events --batch 1 …"
    decided: dict[str, Any] = {"batch": 1, "stream": at.session.stream_id, "why": "known"}
    record_decision(at.place, at.pipeline, **decided, action="quarantine-all", who="Bob")
    said = record_decision(at.place, at.pipeline, **decided, action="accept", who="Ada")
    assert "which replaces quarantine-all by Bob" in said
    assert stands(at).diagnosis.next == "sluice run events"
    at.restart()
    at.deliver(ROWS, (1,), judged=critical)
    assert stands(at).shown == "flawed"
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


@pytest.mark.parametrize("outcome", ["InputsDoubled", "OffsetsGone", "CommitTooLong"])
def test_an_end_that_needs_a_new_checkpoint_is_recovered_from(at: Delivering, outcome: str) -> None:
    at.deliver(ROWS)
    with transaction(at.dsn) as cursor:
        leases.end_run(cursor, at.session.lease, RunOutcome(outcome=outcome))
        leases.give_lease_back(cursor, at.session.lease)
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
