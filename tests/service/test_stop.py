"""What `sluice stop` finds when it asks a run to stop: one that lives, one that does not, none."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from etl.common.database import transaction
from etl.common.errors import Busy, Stopped
from etl.common.outcome import RunOutcome
from etl.delivery.batch import DeliveryContext
from etl.ledger import activity, leases
from etl.ledger.diagnosis import Diagnosis, diagnose
from etl.operations.control.stop import Ended, beside, stop
from etl.runs.follow import RunControl, StopAsked
from etl.runs.heartbeat import leased
from tests.support import oracle
from tests.support.arrow_driver import start
from tests.support.events_run import EVENTS, silence, waits_for_a_lock
from tests.support.waiting import until

NAME = EVENTS.name
SOON = timedelta(seconds=1)


def asked_by(dsn: str) -> list[str | None]:
    return [one for (one,) in oracle.ask(dsn, "SELECT stop_asked_by FROM sluice.run ORDER BY started_at")]


def test_a_run_in_its_batch_stays_asked_when_nobody_waits_any_longer(run: DeliveryContext) -> None:
    dsn, told = run.sinks.dsn, list[str]()
    with pytest.raises(Busy, match="still in its batch after 1 s"):
        stop(dsn, NAME, who="me", timeout=SOON, on_asked=told.append)
    with pytest.raises(Busy):
        stop(dsn, NAME, who="another", timeout=SOON)
    with transaction(dsn) as cursor:
        assert leases.stop_asked(cursor, run.lease) == "me", "who asked first"
        leases.end_run(cursor, run.lease, RunOutcome(outcome="stopped"))
        leases.give_lease_back(cursor, run.lease)
    assert told == [leases.holder()]
    assert stop(dsn, NAME, who="me", timeout=SOON) is None


def test_a_run_that_is_silent_is_not_waited_for(run: DeliveryContext) -> None:
    silence(run)
    told: list[str] = []
    ended = stop(run.sinks.dsn, NAME, who="me", timeout=SOON, on_asked=told.append)
    assert ended == Ended(holder="elsewhere/1", outcome="died")
    assert told == [], "its process number may be another's by now"


def test_a_run_says_at_once_who_asked_it_to_stop(
    run: DeliveryContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.1)
    dsn, control = run.sinks.dsn, RunControl(every=SOON)
    said = f"{NAME} was asked to stop by ann on a: it ends after the batch in flight, if any"
    with caplog.at_level("INFO", "sluice"), leased(dsn, run.lease, control):
        with pytest.raises(Busy):
            stop(dsn, NAME, who="ann on a", timeout=timedelta(0))
        until(lambda: said in caplog.messages, "word of it", patience=60)
        assert control.stopping == "stopping after the batch in flight, asked by ann on a"
        with pytest.raises(StopAsked):
            control.refuse_next(dsn, run.lease)
    assert caplog.messages.count(said) == 1


def test_a_signal_that_a_run_heard_is_on_record_before_it_can_be_killed(
    run: DeliveryContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.1)
    dsn, control = run.sinks.dsn, RunControl()
    with leased(dsn, run.lease, control):
        control.by_signal = signal.SIGTERM
        until(lambda: asked_by(dsn) == ["SIGTERM"], "word of it", patience=60)


def test_a_replay_at_work_is_named_where_no_run_of_the_stream_can_be_asked(run: DeliveryContext) -> None:
    dsn = run.sinks.dsn
    assert beside(dsn, NAME) == []
    query = "UPDATE sluice.run SET kind = %s, seen_at = now() - %s::interval"
    for kind, ago, named in (("replay", "0", ["replay"]), ("replay", "1 hour", []), ("stream", "0", [])):
        oracle.ask(dsn, query, [kind, ago])
        assert [one.kind for one in beside(dsn, NAME)] == named


def test_a_recovery_that_was_stopped_names_the_command_it_was_begun_by(run: DeliveryContext) -> None:
    dsn, again = run.sinks.dsn, "sluice recover events --accept-gone --why 'it is late'"
    control = RunControl(correction_left="what it did stays", again=again)

    def recover() -> None:
        with leased(dsn, run.lease, control):
            with transaction(dsn) as cursor:
                control.ask_ledger(cursor, run.lease)
            control.require_going_on()

    def heeds(_: str) -> None:
        with pytest.raises(Stopped, match="me"):
            recover()

    ended = stop(dsn, NAME, who="me", timeout=SOON, on_asked=heeds)
    assert ended == Ended(holder=leases.holder(), outcome="Stopped", again=again)
    with transaction(dsn) as cursor:
        last = activity.last_ended(cursor, NAME)
    assert last is not None
    stands = diagnose(NAME, holder=None, stop=None, outcome=last.outcome, remedy=last.remedy)
    assert stands == Diagnosis(state="a recovery was stopped", next=again)


def test_the_next_run_is_not_asked(run: DeliveryContext) -> None:
    silence(run)
    stop(run.sinks.dsn, NAME, who="me", timeout=SOON)
    following = start(run.sinks.dsn, run.sinks.lake, EVENTS)
    with transaction(run.sinks.dsn) as cursor:
        assert leases.stop_asked(cursor, following.lease) is None
    assert asked_by(run.sinks.dsn) == ["me", None]


def test_a_signal_is_heeded_that_comes_while_the_ledger_is_asked(run: DeliveryContext) -> None:
    dsn, stay = run.sinks.dsn, RunControl(every=SOON)
    with ThreadPoolExecutor() as pool:
        with transaction(dsn) as holding:
            holding.execute("LOCK TABLE sluice.run IN ACCESS EXCLUSIVE MODE")
            asking = pool.submit(stay.refuse_next, dsn, run.lease)
            until(lambda: waits_for_a_lock(dsn), "question of the ledger", patience=60)
            stay.request_stop("SIGTERM")
        with pytest.raises(StopAsked, match="SIGTERM"):
            asking.result(60)
    assert (stay.stop_requested_by, stay.heeded) == ("SIGTERM", True)
