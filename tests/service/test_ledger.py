"""Who may commit, and what a commit does when another run comes between."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from etl.common import database
from etl.common.database import transaction
from etl.common.errors import (
    Busy,
    ContractBroken,
    Fenced,
    InputsChanged,
    LedgerBehind,
    ServiceAway,
)
from etl.common.outcome import RunOutcome
from etl.common.steps import Step
from etl.delivery.batch import DeliveryContext, Receipt
from etl.delivery.deliver import deliver
from etl.ledger import deliveries, leases, pipelines, stops, streams
from etl.quality.verdict import Counts, Verdict
from etl.runs.heartbeat import leased
from etl.sinks.open import open_sinks
from etl.sinks.warehouse import staging
from tests.support import oracle
from tests.support.arrow_driver import ArrowBatch, broken, file, of, reader, start
from tests.support.events_run import (
    EVENTS,
    assert_delivered,
    assert_nothing_visible,
    at,
    rob,
    rob_while_staging,
    silence,
    staged_left,
    waits_for_a_lock,
)

# Two runs at once


def test_a_living_holder_is_not_robbed(run: DeliveryContext) -> None:
    with pytest.raises(Busy) as refused:
        start(run.sinks.dsn, run.sinks.lake, EVENTS)
    assert refused.value.exit_code == 75


def test_a_holder_on_another_host_is_robbed_only_when_it_is_silent(run: DeliveryContext) -> None:
    oracle.ask(run.sinks.dsn, "UPDATE sluice.run SET holder = 'elsewhere/1'")
    with pytest.raises(Busy):
        start(run.sinks.dsn, run.sinks.lake, EVENTS)
    with transaction(run.sinks.dsn) as cursor:
        assert leases.heartbeat(cursor, run.lease)
    silence(run)
    assert start(run.sinks.dsn, run.sinks.lake, EVENTS).lease.run_id != run.lease.run_id
    with transaction(run.sinks.dsn) as cursor:
        assert not leases.heartbeat(cursor, run.lease)


ELSEWHERE = {
    "another boot": "UPDATE sluice.run SET process = regexp_replace(process, '^[^ ]+', 'other')",
    "another container": "UPDATE sluice.run SET process = regexp_replace(process, ' [^ ]+ ', ' pid:[1] ')",
    "nobody knows": "UPDATE sluice.run SET process = NULL",
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_a_living_holder_of_a_host_of_the_same_name_is_robbed_only_when_it_is_silent(
    run: DeliveryContext, where: str
) -> None:
    """Its process number is that of none here."""
    dsn = run.sinks.dsn
    died = subprocess.Popen([sys.executable, "-c", ""])
    died.wait()
    oracle.ask(dsn, "UPDATE sluice.run SET holder = %s", (f"{socket.gethostname()}/{died.pid}",))
    changed = oracle.ask(dsn, f"{ELSEWHERE[where]} RETURNING process")
    assert changed != [(leases.process(),)]
    with pytest.raises(Busy):
        start(dsn, run.sinks.lake, EVENTS)
    oracle.ask(dsn, "UPDATE sluice.run SET seen_at = now() - interval '1 hour'")
    assert start(dsn, run.sinks.lake, EVENTS).lease.run_id != run.lease.run_id


def test_a_holder_whose_process_number_another_process_has_by_now_is_robbed_at_once(
    run: DeliveryContext,
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        name = f"{socket.gethostname()}/{other.pid}"
        oracle.ask(run.sinks.dsn, "UPDATE sluice.run SET holder = %s", (name,))
        assert start(run.sinks.dsn, run.sinks.lake, EVENTS).lease.run_id != run.lease.run_id
        assert other.poll() is None
        other.communicate(b"\n")


def test_of_many_that_start_at_once_one_gets_the_lease(run: DeliveryContext) -> None:
    with transaction(run.sinks.dsn) as cursor:
        leases.end_run(cursor, run.lease, RunOutcome(outcome="done"))
        leases.give_lease_back(cursor, run.lease)

    def take(_: int) -> str:
        try:
            with transaction(run.sinks.dsn) as cursor:
                leases.take_lease(cursor, "events")
        except Busy:
            return "busy"
        return "taken"

    with ThreadPoolExecutor(6) as pool:
        assert Counter(pool.map(take, range(6))) == {"taken": 1, "busy": 5}


def test_a_run_whose_id_could_not_be_told_gives_its_lease_back(run: DeliveryContext) -> None:
    def away(_: str) -> None:
        raise ServiceAway("PostgreSQL does not answer", remedy="again")

    with pytest.raises(ServiceAway), leased(run.sinks.dsn, run.lease, began=away):
        raise AssertionError("nothing is done that nobody knows of")
    assert oracle.ask(run.sinks.dsn, "SELECT outcome FROM sluice.run") == [("ServiceAway",)]
    start(run.sinks.dsn, run.sinks.lake, EVENTS)  # which would be Busy


@pytest.mark.parametrize("reported", [staging.REPORTED_BYTES, 0], ids=["reported", "sent"])
def test_a_run_that_is_robbed_while_it_stages_is_fenced(
    run: DeliveryContext, made: list[oracle.MadeBatch], reported: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "REPORTED_BYTES", reported)
    batch = of(made[0])
    robbers = rob_while_staging(run, batch)
    with pytest.raises(Fenced) as fenced:
        deliver(run, batch)
    assert fenced.value.exit_code == 75
    assert_nothing_visible(run)
    deliver(robbers[0], of(made[0]))
    assert_delivered(run, made[:1])


@pytest.mark.parametrize("step", [Step.STAGED, Step.JUDGED, Step.MANIFEST_WRITTEN, Step.POINTER_DRAFTED])
def test_a_run_that_is_robbed_before_its_commit_is_fenced(
    run: DeliveryContext, made: list[oracle.MadeBatch], step: Step
) -> None:
    robbers: list[DeliveryContext] = []
    with pytest.raises(Fenced):
        deliver(at(run, step, lambda: robbers.append(rob(run, clean_up=False))), of(made[0]))
    assert_nothing_visible(run)
    deliver(robbers[0], of(made[0]))
    assert_delivered(run, made[:1])


def test_a_robber_waits_for_the_commit_under_way(run: DeliveryContext, made: list[oracle.MadeBatch]) -> None:
    merged, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        merged.set()
        assert go_on.wait(60)

    silence(run)
    with ThreadPoolExecutor(2) as pool:
        delivery = pool.submit(deliver, at(run, Step.ROWS_MERGED, pause), of(made[0]))
        assert merged.wait(60)
        robbery = pool.submit(rob, run)
        while not waits_for_a_lock(run.sinks.dsn):
            assert not robbery.done()
        go_on.set()
        assert delivery.result().batch_id == 0
        robber = robbery.result()
    with transaction(run.sinks.dsn) as cursor:
        assert deliveries.delivery_of_batch(cursor, robber.stream_id, 0) is not None
    with pytest.raises(Fenced):
        deliver(run, of(made[1]))
    deliver(robber, of(made[1]))
    assert_delivered(run, made[:2])


def test_who_waits_too_long_for_a_commit_is_told_so(
    run: DeliveryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(database.TIMEOUTS, "lock_timeout", "50ms")
    with transaction(run.sinks.dsn) as holding:
        pipelines.lock(holding, "events")
        with pytest.raises(Busy):
            start(run.sinks.dsn, run.sinks.lake, EVENTS)


def test_a_run_begins_while_another_writes_to_its_table(
    run: DeliveryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(database.TIMEOUTS, "lock_timeout", "50ms")
    with transaction(run.sinks.dsn) as replaying:
        replaying.execute("LOCK TABLE warehouse.events IN ROW EXCLUSIVE MODE")
        sinks = run.sinks
        open_sinks(sinks.pipeline, sinks.columns, dsn=sinks.dsn, lake=sinks.lake)


def test_a_zombie_is_fenced_even_when_it_asks_for_a_delivered_batch(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    deliver(run, of(made[0]))
    rob(run)
    with pytest.raises(Fenced):
        deliver(run, of(made[0]))


def test_only_the_current_stream_commits(
    run: DeliveryContext, dsn: str, made: list[oracle.MadeBatch]
) -> None:
    other = "00000000-0000-4000-8000-000000000000"
    with transaction(dsn) as cursor:
        streams.register_stream(
            cursor, run.lease.pipeline, run.lease.run_id, other, checkpoint="another", first_batch=0
        )
    with pytest.raises(Fenced):
        deliver(run, of(made[0]))
    assert_nothing_visible(run)


def test_a_run_that_was_robbed_makes_no_stream_the_current_one(run: DeliveryContext, dsn: str) -> None:
    """The seed of a recover takes a while, in which another run may take the lease and begin."""
    other = str(uuid.uuid4())
    robber = rob(run)
    with pytest.raises(Fenced), transaction(dsn) as cursor:
        streams.register_stream(
            cursor, run.lease.pipeline, run.lease.run_id, other, checkpoint="another", first_batch=0
        )
    assert oracle.ask(dsn, "SELECT current_stream::text FROM sluice.pipeline") == [(robber.stream_id,)]
    assert oracle.ask(dsn, "SELECT FROM sluice.stream WHERE stream_id = %s", (other,)) == []


@pytest.mark.parametrize(
    "lost",
    [
        "UPDATE sluice.attempt SET closed_at = now(), outcome = 'fenced'",
        "DELETE FROM sluice.attempt",
        """WITH other AS (
            INSERT INTO sluice.run (run_id, pipeline, holder) VALUES (gen_random_uuid(), 'events', 'h') RETURNING run_id
        ) UPDATE sluice.attempt SET lease_token = other.run_id FROM other""",
    ],
    ids=["closed", "lost by PostgreSQL", "another's by now"],
)
def test_only_an_open_attempt_of_its_own_run_commits(
    run: DeliveryContext, made: list[oracle.MadeBatch], lost: str
) -> None:
    with pytest.raises(Fenced):
        deliver(at(run, Step.POINTER_DRAFTED, lambda: oracle.ask(run.sinks.dsn, lost)), of(made[0]))
    assert reader(run).difference(oracle.expected([])) == ""
    assert oracle.ask(run.sinks.dsn, "SELECT 1 FROM sluice.delivery") == []


def test_a_stream_that_is_made_anew_is_known_before_it_is_current(run: DeliveryContext, dsn: str) -> None:
    """Its folder would look like a lost ledger's; what it begins with holds once it is the current one."""
    other = "00000000-0000-4000-8000-000000000000"
    begins: dict[str, Any] = {"checkpoint": "another", "first_batch": 7, "state": ["keys"]}
    with transaction(dsn) as cursor:
        streams.know_stream(cursor, "events", other, **begins)
        assert streams.unknown_streams(cursor, [other]) == []
        before = streams.current_stream(cursor, "events")
        assert before is not None and before.stream_id == run.stream_id
        streams.register_stream(cursor, run.lease.pipeline, run.lease.run_id, other, **begins)
        now = streams.current_stream(cursor, "events")
    assert now is not None
    assert (now.stream_id, now.first_batch, now.state) == (other, 7, ["keys"])


def test_a_batch_before_its_time_is_refused(run: DeliveryContext, made: list[oracle.MadeBatch]) -> None:
    with pytest.raises(LedgerBehind):
        deliver(run, of(made[1]))
    assert_nothing_visible(run)


def test_a_pointer_that_moved_is_drafted_again(run: DeliveryContext, made: list[oracle.MadeBatch]) -> None:
    deliver(run, of(made[0]))
    table = run.sinks.table

    def maintain() -> None:
        """Somebody else's maintenance of the table."""
        with transaction(run.sinks.dsn) as cursor:
            base = table.pointer(cursor)
            assert base is not None
            other = table.at(base)
            with other.transaction() as change:
                change.set_properties({"by": "somebody else"})
            oracle.ask(
                run.sinks.dsn,
                "UPDATE sluice.iceberg_tables SET metadata_location = %s WHERE metadata_location = %s",
                (other.metadata_location, base),
            )

    deliver(at(run, Step.POINTER_DRAFTED, maintain), of(made[1]))
    with transaction(run.sinks.dsn) as cursor:
        assert table.load(table.pointer(cursor) or "").properties["by"] == "somebody else"
    assert_delivered(run, made[:2])


# Inputs


def test_a_delivered_batch_is_not_delivered_again(run: DeliveryContext, made: list[oracle.MadeBatch]) -> None:
    first = deliver(run, of(made[0]))
    again = deliver(run, of(made[0]))
    assert (again.delivered_before, again.delivery_id) == (True, first.delivery_id)
    assert_delivered(run, made[:1])


def test_the_same_batch_with_other_inputs_is_refused(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    deliver(run, of(made[0]))
    with pytest.raises(InputsChanged, match=r"events/0-1\.jsonl; events/else\.jsonl"):
        deliver(run, replace(of(made[0]), paths=("events/0-0.jsonl", "events/else.jsonl")))
    assert_delivered(run, made[:1])


def test_an_input_is_delivered_once_whatever_batch_it_comes_in(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    deliver(run, of(made[0]))
    with pytest.raises(InputsChanged, match=r"events/0-0\.jsonl") as refused:
        deliver(run, replace(of(made[1]), paths=("events/1-0.jsonl", "events/0-0.jsonl")))
    assert refused.value.exit_code == 4
    assert_delivered(run, made[:1])
    deliver(run, of(made[1]))
    assert_delivered(run, made[:2])


def test_an_input_that_changed_while_it_was_staged_stops_the_batch(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    with pytest.raises(InputsChanged, match="has 3 bytes"):
        deliver(run, replace(of(made[0]), changes=["events/0-0.jsonl has 3 bytes and had 1"]))
    assert_nothing_visible(run)


def test_inputs_are_recorded_with_their_evidence(run: DeliveryContext, made: list[oracle.MadeBatch]) -> None:
    receipt = deliver(run, of(made[0]))
    with transaction(run.sinks.dsn) as cursor:
        assert deliveries.inputs_of(cursor, receipt.delivery_id) == [file(path) for path in made[0].paths]
        assert deliveries.live_inputs(cursor, "events") == [file(path) for path in made[0].paths]


# A broken contract


def stopped(run: DeliveryContext, batch: oracle.MadeBatch, *, table_rule: bool) -> None:
    """Stop a batch that breaks its contract, and require that nothing of it is seen."""
    with pytest.raises(ContractBroken) as stop:
        deliver(run, replace(of(batch), judged=broken(oracle.NEGATIVE, table_rule=table_rule)))
    assert stop.value.exit_code == 3
    assert_nothing_visible(run)
    [(stops, attempt)] = oracle.ask(
        run.sinks.dsn, "SELECT stops, (SELECT max(outcome) FROM sluice.attempt) FROM sluice.stopped_batch"
    )
    assert (stops, attempt) == ([f"{oracle.NEGATIVE}: failed"], "stopped")


def decide(run: DeliveryContext, action: str) -> None:
    with transaction(run.sinks.dsn) as cursor:
        assert stops.decide(cursor, "events", run.stream_id, 0, action, who="me", why="so") is not None


def deliver_decided(run: DeliveryContext, batch: oracle.MadeBatch, *, table_rule: bool) -> Receipt:
    return deliver(run, replace(of(batch), judged=broken(oracle.NEGATIVE, table_rule=table_rule)))


@pytest.mark.parametrize("table_rule", [False, True])
def test_an_accepted_batch_is_delivered_but_for_what_no_sink_holds(
    run: DeliveryContext, made: list[oracle.MadeBatch], table_rule: bool
) -> None:
    stopped(run, made[0], table_rule=table_rule)
    decide(run, "accept")
    receipt = deliver_decided(run, made[0], table_rule=table_rule)
    limits = {oracle.NUL, oracle.TOO_EARLY, oracle.TOO_FAR}
    held = [set(one.reasons) & limits for one in made[0].rows if set(one.reasons) & limits]
    assert receipt.quarantined == len(held) + len(made[0].malformed)
    assert set(receipt.reasons) <= limits | {oracle.MALFORMED}
    assert reader(run).in_postgres().total() == len(made[0].rows) - len(held)
    assert reader(run).in_postgres() == reader(run).on_lake()


def test_quarantine_all_of_a_rule_about_rows_holds_the_failing_rows(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    stopped(run, made[0], table_rule=False)
    decide(run, "quarantine-all")
    deliver_decided(run, made[0], table_rule=False)
    assert_delivered(run, made[:1])


def test_quarantine_all_of_a_table_rule_holds_the_whole_batch(
    run: DeliveryContext, made: list[oracle.MadeBatch]
) -> None:
    stopped(run, made[0], table_rule=True)
    decide(run, "quarantine-all")
    receipt = deliver_decided(run, made[0], table_rule=True)
    assert (receipt.delivered, receipt.quarantined) == (0, len(made[0].rows) + len(made[0].malformed))
    assert receipt.reasons[oracle.NEGATIVE] >= receipt.quarantined
    assert staged_left(run) == []
    deliver(run, of(made[1]))
    assert reader(run).in_postgres() == reader(run).on_lake() == made[1].delivered


def test_an_error_of_the_judge_leaves_nothing(run: DeliveryContext, made: list[oracle.MadeBatch]) -> None:
    def fails(counts: Counts) -> Verdict:
        raise ZeroDivisionError(counts.rows)

    with pytest.raises(ZeroDivisionError):
        deliver(run, replace(of(made[0]), judged=fails))
    assert_nothing_visible(run)


def test_an_empty_batch_is_a_delivery(run: DeliveryContext) -> None:
    receipt = deliver(run, ArrowBatch(batch_id=0, parts=[[], []], paths=()))
    assert (receipt.delivered, receipt.quarantined, receipt.files) == (0, 0, 0)
    assert_delivered(run, [])
