"""What the ledger keeps of Airflow's tries: each delivery is told of once, whichever run ends first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from etl.airflow.command import tries
from etl.airflow.command.score import score
from etl.airflow.command.tries import Untold
from etl.airflow.task_try import TaskTry
from etl.airflow.told import TOLD, event_extra
from etl.common.database import transaction
from etl.common.errors import ServiceAway, SetupError
from etl.ledger.deliveries import new_drift
from etl.pipeline import Append, Files
from etl.quality.verdict import Counts, RuleResult, Severity, Verdict
from etl.runs.recovery.recover import recover
from etl.runs.summary import Summary
from etl.services import Services
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.s3 import bucket_of, s3_client, stored
from tests.support.backups import Backup
from tests.support.databases import administer, database_name, drop
from tests.support.delivering import Delivering

COLUMNS = pa.schema([("id", pa.int64())])
ROWS = pa.table({"id": pa.array(range(4), pa.int64())})


def asked(run: str, dag: str = "events") -> TaskTry:
    return TaskTry(dag_id=dag, dag_run_id=run, task_id="run", try_number=1, run_type="manual", clear_number=0)


def told(
    events: Delivering, run: str, attempt: int = 1, dag: str = "events", event: Untold | int | None = None
) -> Untold:
    """Return what the run that has the lease now reports when it ends well.

    `event` is the newest asset event; a number is the commit up to which one of an older version tells.
    """
    this = replace(asked(run, dag), try_number=attempt)
    if isinstance(event, Untold):
        this = replace(this, **{name: getattr(event, name) for name in TOLD})
    else:
        this = replace(this, told_to=event)
    with tries.recorded(events.dsn, "events", this) as became:
        became(events.session.lease.run_id)
        return tries.untold(events.dsn, "events", this)


@pytest.fixture
def events(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    return Delivering.start(services, dsn, lake, tmp_path / "home", COLUMNS, Append())


def test_runs_that_overlap_tell_of_each_delivery_once(events: Delivering) -> None:
    first = events.deliver(ROWS).delivery_id  # of a run that fails
    events.restart()
    second = events.deliver(ROWS).delivery_id
    assert told(events, "backfill").deliveries == [first, second]
    events.restart()
    events.execute("UPDATE sluice.run SET started_at = '2020-01-01' WHERE outcome IS NULL")  # before that one
    third = events.deliver(ROWS).delivery_id
    assert told(events, "scheduled").deliveries == [third]
    events.restart()
    assert told(events, "nothing new").deliveries == []


def test_a_run_that_delivers_nothing_and_a_clock_that_went_back_leave_no_delivery_out_and_none_twice(
    events: Delivering,
) -> None:
    delivery = events.deliver(ROWS).delivery_id  # of a replay beside a run that looks, and finds nothing
    events.execute("UPDATE sluice.run SET started_at = '2020-01-01'")
    assert told(events, "looks").deliveries == [delivery]
    assert told(events, "next").deliveries == []
    events.restart()
    later = events.deliver(ROWS).delivery_id
    events.execute("UPDATE sluice.delivery SET committed_at = '2020-01-01' WHERE delivery_id = %s", later)
    assert told(events, "after").deliveries == [later]


def test_a_try_whose_success_can_not_be_recorded_is_none(events: Delivering, services: Services) -> None:
    """Airflow would tell of what it delivered, and so would the next one."""
    delivery = events.deliver(ROWS).delivery_id
    database = database_name(events.dsn)
    with pytest.raises(ServiceAway), tries.recorded(events.dsn, "events", asked("r")):  # noqa: PT012 - its end raises
        assert tries.untold(events.dsn, "events", asked("r")).deliveries == [delivery]
        administer(services.postgres, f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS false')
    administer(services.postgres, f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS true')
    assert told(events, "r", attempt=2).deliveries == [delivery]


def test_a_replay_beside_a_run_tells_of_its_own_and_the_run_of_all_else(events: Delivering) -> None:
    """Each before Airflow has heard of the other's success, and though either is tried again."""
    first = events.deliver(ROWS).delivery_id
    stream = asked("stream")
    with tries.recorded(events.dsn, "events", stream) as became:
        became(events.session.lease.run_id)
        events.restart()
        beside = events.deliver(ROWS).delivery_id
        assert told(events, "replay", dag="events_replays").deliveries == [beside]
        assert tries.untold(events.dsn, "events", stream).deliveries == [first]
        assert told(events, "replay", attempt=2, dag="events_replays").deliveries == [beside]
    events.restart()
    third = events.deliver(ROWS).delivery_id
    assert told(events, "next").deliveries == [third]


def test_what_a_try_told_that_airflow_tried_again_is_told_again(events: Delivering) -> None:
    """The command had ended well; its task was killed before Airflow heard of it."""
    delivery = events.deliver(ROWS).delivery_id
    assert told(events, "r").deliveries == [delivery]
    events.restart()
    assert told(events, "r", attempt=2).deliveries == [delivery]
    events.restart()
    assert told(events, "next").deliveries == []


def test_what_a_last_try_told_that_was_no_success_for_airflow_is_told_by_the_next_run(
    events: Delivering,
) -> None:
    """Its command had ended well, then its task was marked failed: there is no event of it."""
    first = events.deliver(ROWS).delivery_id
    event = told(events, "a")
    assert (event.deliveries, event.told_to) == ([first], 1)
    events.restart()
    second = events.deliver(ROWS).delivery_id
    assert told(events, "lost", event=event).deliveries == [second]
    events.restart()
    third = events.deliver(ROWS).delivery_id
    found = told(events, "next", event=event)
    assert (found.deliveries, found.told_to) == ([second, third], 3)
    events.restart()
    nothing = told(events, "nothing new", event=found)
    assert (nothing.deliveries, nothing.told_to) == ([], 3)


def test_where_no_event_is_left_or_postgresql_went_back_the_ledger_says_what_was_told(
    events: Delivering,
) -> None:
    events.deliver(ROWS)
    assert told(events, "a").told_to == 1
    events.restart()
    second = events.deliver(ROWS).delivery_id
    assert told(events, "after airflow db clean").deliveries == [second]
    events.restart()
    third = events.deliver(ROWS).delivery_id
    assert told(events, "after a restore", event=9).deliveries == [third]


@pytest.mark.parametrize("put_back", [False, True])
def test_after_a_restore_an_event_counts_as_far_as_what_it_names_was_put_back(
    services: Services, events: Delivering, *, put_back: bool
) -> None:
    """Soon the ledger has as many commits again, and others than those that were told."""
    database = database_name(events.dsn)
    backup = Backup(server=services.postgres, database=database, name=f"{database}_backup")
    events.pipeline = replace(events.pipeline, sources=(Files("*.jsonl"),))
    events.deliver(ROWS)
    told(events, "a")
    events.restart()
    backup.take()
    lost = [events.deliver(ROWS).delivery_id for _ in range(2)]
    event = told(events, "b")
    assert (event.deliveries, event.told_to) == (lost, 3)
    backup.restore()
    drop(services.postgres, backup.name)
    events.batch_id, new = 1, []
    if put_back:
        events.end()
        assert [one.delivery_id for one in recover(events.place, events.pipeline).restored] == lost
    else:  # the lake went back, too
        client = s3_client(events.place.lake.store)
        for one in stored(client, f"{events.table.location}/deliveries"):
            bucket, key = bucket_of(one.uri)
            client.delete_object(Bucket=bucket, Key=key)
        events.restart()
        new += [events.deliver(ROWS).delivery_id for _ in range(3)]
        assert new[:2] == lost, "other deliveries under the same numbers"
    assert told(events, "c", event=event).deliveries == new


def test_a_dag_run_that_is_made_anew_under_its_id_tells_nothing_again(events: Delivering) -> None:
    events.deliver(ROWS)
    event = told(events, "scheduled__2020-01-01")
    events.restart()
    assert told(events, "scheduled__2020-01-01", event=event).deliveries == []


def test_an_event_names_no_more_than_a_bound_and_the_next_one_the_rest(
    events: Delivering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tries, "MOST", 2)

    def deliver() -> int:
        return events.deliver(ROWS).delivery_id

    numbers = [deliver(), deliver()]
    for _ in range(2):  # of another pipeline
        events.execute("SELECT nextval('sluice.delivery_number')")
        numbers.append(deliver())
    found = told(events, "a")
    assert (found.deliveries, found.told_to) == (numbers[:3], 3)
    events.restart()
    rest = told(events, "b", event=found)
    assert (rest.deliveries, rest.told_to, rest.rows) == (numbers[3:], 4, len(ROWS))


def test_what_was_replaced_before_anybody_was_told_is_named_with_what_it_had_replaced(
    events: Delivering,
) -> None:
    old = events.deliver(ROWS).delivery_id
    assert told(events, "first").replaced == []
    events.restart()
    lost, new = (events.deliver(ROWS).delivery_id for _ in range(2))
    replaced = "UPDATE sluice.delivery SET live = false, superseded_by = %s WHERE delivery_id = %s"
    events.execute(replaced, lost, old)  # by a replay whose run was killed
    events.execute(replaced, new, lost)  # by that of its retry
    found = told(events, "second")
    assert (found.deliveries, found.replaced) == ([new], [old, lost])


def test_what_the_other_dag_had_replaced_and_not_told_of_is_named_by_whoever_replaces_it_again(
    events: Delivering,
) -> None:
    old = events.deliver(ROWS).delivery_id
    assert told(events, "first").deliveries == [old]
    events.restart()
    beside = events.deliver(ROWS).delivery_id
    with tries.recorded(events.dsn, "events", asked("r", "events_replays"), lambda: "Fenced") as became:
        became(events.session.lease.run_id)
    events.restart()
    new = events.deliver(ROWS).delivery_id  # of a replay by the command line
    replaced = "UPDATE sluice.delivery SET live = false, superseded_by = %s WHERE delivery_id = %s"
    events.execute(replaced, beside, old)
    events.execute(replaced, new, beside)
    found = told(events, "next")
    assert (found.deliveries, found.replaced) == ([new], [old, beside])


def test_a_clear_after_a_clear_that_failed_still_names_what_had_succeeded(events: Delivering) -> None:
    number = events.session.lease.run_id
    told(events, "r")
    with pytest.raises(ZeroDivisionError), tries.recorded(events.dsn, "events", cleared(1)):
        raise ZeroDivisionError
    assert tries.runs_before_clear(events.dsn, cleared(2)) == (number,)
    assert tries.runs_before_clear(events.dsn, replace(cleared(1), dag_run_id="other")) == ()


def test_a_task_that_was_cleared_alone_names_what_had_succeeded_and_is_replayed_once_for_each_clear(
    events: Delivering,
) -> None:
    """Its DAG run was not: the number of its clears is the same."""
    number = events.session.lease.run_id
    told(events, "r")
    alone = replace(asked("r"), try_number=2, tries_before_clear=1)
    assert tries.runs_before_clear(events.dsn, replace(asked("r"), try_number=2)) == (), "it is a retry"
    assert tries.runs_before_clear(events.dsn, alone) == (number,)
    events.restart()
    replayed = events.session.lease.run_id
    events.deliver(ROWS)
    events.execute("UPDATE sluice.delivery SET kind = 'replay' WHERE run_id = %s", replayed)
    with tries.recorded(events.dsn, "events", alone) as became:
        became(replayed)
    retried = replace(alone, try_number=3)
    assert tries.replayed_before(events.dsn, retried) == replayed
    again = replace(alone, try_number=3, tries_before_clear=2)
    assert tries.replayed_before(events.dsn, again) is None
    assert tries.runs_before_clear(events.dsn, again) == (number, replayed)


def cleared(times: int) -> TaskTry:
    return replace(asked("r"), clear_number=times, try_number=1 + times)


def test_fields_that_the_delivery_before_did_not_have_are_told_as_new(events: Delivering) -> None:
    def new(*unknown: str) -> list[str]:
        deliveries = [events.deliver(ROWS, unknown=dict.fromkeys(unknown, 2)).delivery_id for _ in range(2)]
        with transaction(events.dsn) as cursor:
            return new_drift(cursor, "events", deliveries)

    assert new() == []
    assert new("shop", 'a "b"') == ['a "b"', "shop"]
    assert new("shop", "note") == ["note"]
    assert new("shop", "note") == []
    events.deliver_none("release")
    assert new("shop", "note") == []
    withdrawn = events.deliver_none("withdrawal")
    gone = "UPDATE sluice.delivery SET live = false, superseded_by = %s WHERE unknown ? 'note'"
    events.execute(gone, withdrawn)
    assert new("shop", "note") == []
    assert new("shop", "note", "new") == ["new"]


def test_a_try_keeps_why_it_failed_until_it_begins_again(events: Delivering) -> None:
    error = SetupError("3 of these never became rows", remedy="`sluice quarantine export events`")
    with pytest.raises(SetupError), tries.recorded(events.dsn, "events", asked("r")):  # before it has a run
        raise error
    kept = "SELECT outcome, message, remedy FROM sluice.airflow_try"
    assert events.execute(kept) == [("SetupError", error.seen, error.remedy)]
    with tries.recorded(events.dsn, "events", asked("r")):
        assert events.execute(kept) == [(None, None, None)]
    assert events.execute(kept) == [("done", None, None)]


def judging(**came_out: tuple[Severity, bool]) -> Callable[[Counts], Verdict]:
    """Return what judges a batch by rules of these names, which came out so."""

    def judge(counts: Counts) -> Verdict:
        results = tuple(
            RuleResult(
                number=number,
                reason=name,
                rule_id="renamed" if name.startswith("renamed") else None,
                expectation_type="expect_something",
                severity=severity,
                success=held,
                element_count=None,
                unexpected_count=None,
                where="pass",
                stops=False,
                result={},
            )
            for number, (name, (severity, held)) in enumerate(came_out.items())
        )
        return Verdict(success=True, stops=(), results=results, quarantined=counts.held, suite_digest="d")

    return judge


def test_an_event_scores_what_it_tells_of_by_the_worst_that_each_rule_saw(events: Delivering) -> None:
    info, warning, critical = Severity
    first = judging(a=(critical, True), b=(warning, False), c=(info, True), renamed=(critical, False))
    second = judging(a=(critical, True), b=(warning, True), c=(info, False), renamed_since=(critical, True))
    deliveries = [events.deliver(ROWS, judged=judge).delivery_id for judge in (first, second)]
    found = score(events.dsn, events.pipeline, deliveries, "run")
    expected = {
        "run_uid": "run",
        "ruleset": events.pipeline.suite,
        "table": events.pipeline.table,
        "score": 0.625,
        "passed": 1,
        "warned": 2,
        "failed": 1,
        "errored": 0,
        "failed_rules": ["renamed_since"],
        "warned_rules": ["b", "c"],
    }
    assert found == expected
    assert score(events.dsn, events.pipeline, [], "run") is None
    summary = Summary(pipeline="events", stream="s", run="run", quality=found)
    assert event_extra(summary)["airflow.dataquality.result"] == expected
    assert "airflow.dataquality.result" not in event_extra(Summary(pipeline="events", stream="s", run="run"))
