"""Going back before a delivery: what it and all after it brought leaves both sinks, and the next run computes it anew."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pytest

from etl.airflow.pages import pages
from etl.airflow.pages.render import Frame
from etl.common.database import transaction
from etl.common.errors import (
    ContractBroken,
    Fenced,
    InputsChanged,
    LedgerBehind,
    SetupError,
    Stopped,
    TableRefused,
)
from etl.common.steps import Step
from etl.ledger import leases
from etl.ledger.quarantine import RowSelection, held_rows
from etl.operations.suites.stored_batches import stored_batches
from etl.runs.follow import RunControl
from etl.runs.recovery.withdrawal import Withdrawn, withdraw
from etl.runs.recovery.withdrawal_plan import WithdrawalPlan, plan_withdrawal
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.release import release
from tests.support.data import taps
from tests.support.data.orders import rule
from tests.support.data.taps import (
    IN_TIME,
    NAME,
    UPSERT,
    assert_clean,
    declare,
    flat,
    hourly,
    in_force,
    land,
    land_all,
)
from tests.support.histories import Histories
from tests.support.home import Home, failing_at, once_at
from tests.support.oracle import Rows
from tests.support.pages.drawn import BELOW, draw, shown

NEXT_CENTURY = '{"phone": "+459", "at": "2125-01-01T00:00:00Z", "action": "call"}\n'
BOUND = {"at": dt.timedelta(hours=1)}
GIVEN = IN_TIME[::2]
BEFORE = 3  # files, of which the first ones have closed an hour
BY_POISON = "SELECT delivery_id FROM sluice.delivery_input WHERE path LIKE '%%/poison.jsonl'"
WHY = "the clock of a device was wrong"


def test_a_poisoned_watermark_is_undone(histories: Histories) -> None:
    """Afterwards the sinks are those of a pipeline that had bounded its event time from the beginning."""
    home, poisoned = histories.begin(deliver_poisoned, sink="Append()")
    wrong = in_force(home)
    declare(home, sink="Append()", not_after=BOUND)
    done = go_back(home, poisoned)
    assert (done.receipt.delivered, done.receipt.kind) == (0, "withdrawal")
    assert in_force(home) == hourly(flat(GIVEN[:BEFORE]), until=closed_by(BEFORE - 2))
    assert_clean(home)

    home.run(NAME)
    wanted = hourly(flat(GIVEN), until=closed_by(len(GIVEN) - 1))
    assert in_force(home) == wanted != wrong
    assert home.ask("SELECT reasons, raw::json->>'phone' FROM sluice.quarantine WHERE status = 'held'") == [
        (["future"], "+459")
    ]
    assert_clean(home)
    home.assert_one_history(NAME)
    assert on_record(home) == [(done.receipt.delivery_id, "tests", WHY, "done")]

    declare(home, name="twin", sink="Append()", not_after=BOUND, max_files=len(GIVEN) + 1)
    for number, file in enumerate(
        sorted((home.landing / NAME).iterdir(), key=lambda one: one.stat().st_mtime)
    ):
        home.write(f"twin/{number:03}.jsonl", file.read_bytes())
    home.run("twin")
    assert in_force(home, "twin") == in_force(home)


def test_rows_that_leaving_ones_had_covered_come_back(home: Home) -> None:
    poisoned = deliver_poisoned(home, sink=UPSERT)
    declare(home, not_after=BOUND)
    go_back(home, poisoned)
    assert in_force(home) == hourly(flat(GIVEN[:BEFORE]))
    assert_clean(home)
    home.run(NAME)
    assert in_force(home) == hourly(flat(GIVEN))
    assert_clean(home)


def test_what_ends_it_has_changed_nothing_or_left_nothing_to_be_done(histories: Histories) -> None:
    home, poisoned = histories.begin(deliver_poisoned, sink="Append()")
    declare(home, sink="Append()", not_after=BOUND)
    before, deliveries = in_force(home), live(home)
    for step in (Step.POINTER_DRAFTED, Step.POINTER_SWAPPED):
        with failing_at(step):
            go_back(home, poisoned)
        assert (in_force(home), live(home)) == (before, deliveries), step
        home.run(NAME)
        assert live(home) == deliveries, "the stream goes on, and there is nothing new"
    asked = RunControl(stop_requested_by="ann on a", correction_left=Stopped.NOTHING_CHANGED)
    with pytest.raises(Stopped, match="ann on a") as stopped:
        go_back(home, poisoned, control=asked)
    assert (stopped.value.exit_code, stopped.value.left) == (75, Stopped.NOTHING_CHANGED)
    assert (in_force(home), live(home)) == (before, deliveries)
    with once_at(Step.STAGED, lambda: rob(home)), pytest.raises(Fenced):
        go_back(home, poisoned)
    assert (in_force(home), live(home)) == (before, deliveries), "another run has the stream's lease"
    home.ask("UPDATE sluice.pipeline SET lease_token = NULL RETURNING name")
    with failing_at(Step.COMMITTED):
        go_back(home, poisoned)
    assert in_force(home) == hourly(flat(GIVEN[:BEFORE]), until=closed_by(BEFORE - 2))
    home.run(NAME)
    assert in_force(home) == hourly(flat(GIVEN), until=closed_by(len(GIVEN) - 1))
    assert_clean(home)


def test_all_of_it_and_the_last_batch_alone_are_computed_anew(home: Home) -> None:
    """The last one has no file: it closes hours, by the watermark of the batches before it."""
    declare(home, sink="Append()")
    land_all(home, GIVEN[:BEFORE])
    home.run(NAME)
    wanted, numbers = in_force(home), live(home)
    go_back(home, numbers[-1])
    assert in_force(home) < wanted
    home.run(NAME)
    assert in_force(home) == wanted

    home.ask(f"TRUNCATE warehouse.{NAME}")
    with pytest.raises(
        TableRefused, match=f"(?s)holds no row, .*`sluice recover {NAME} --before {numbers[0]} --why WHY`"
    ):
        go_back(home, live(home)[-1])
    done = go_back(home, numbers[0])
    assert (in_force(home), done.plan.kept) == (Counter(), {})
    home.assert_clean(NAME)
    home.run(NAME)
    assert in_force(home) == wanted
    land_all(home, GIVEN[BEFORE:], first=BEFORE)
    home.run(NAME)
    assert in_force(home) == hourly(flat(GIVEN), until=closed_by(len(GIVEN) - 1))
    assert_clean(home)


def test_what_was_released_leaves_with_what_had_held_it(home: Home) -> None:
    home.judge(
        rule("column_values_to_be_in_set", "no pay", "warning", column="action", value_set=["call", "open"]),
        name=NAME,
    )
    declare(home, suite=NAME)
    land_all(home, GIVEN[:3])
    home.run(NAME)
    home.judge(rule("column_values_to_not_be_null", "given", "critical", column="action"), name=NAME)
    first, second, *_ = live(home)
    for number in (first, second):
        held = held_rows(home.dsn, NAME, RowSelection(delivery=number))
        assert release(home.place, home.pipeline(NAME), held, {}, who="tests", why="fine", spark=home.spark)
    planned = plan_withdrawal(home.place, home.pipeline(NAME), second)
    assert [one.released_from for one in planned.releases] == [second]
    kept = home.ask("SELECT delivery_id FROM sluice.delivery WHERE released_from = %s", first)

    home.judge(
        rule("column_values_to_be_in_set", "no pay", "warning", column="action", value_set=["call", "open"]),
        name=NAME,
    )
    go_back(home, second)
    assert [(number,) for number in live(home)[1:2]] == kept
    home.run(NAME)
    released = hourly(GIVEN[0])
    wanted: Rows = Counter(
        {row: count for row, count in hourly(flat(GIVEN[:3])).items() if row[1] != "pay"}
    ) + Counter({row: count for row, count in released.items() if row[1] == "pay"})
    assert in_force(home) == wanted
    assert_clean(home)


def test_the_command_tells_what_it_would_do_and_then_does_it(histories: Histories) -> None:
    home, poisoned = histories.begin(deliver_poisoned, sink="Append()")
    declare(home, sink="Append()", not_after=BOUND)
    of_spark = {"checkpoints": {}}  # whose maintenance of the state goes on in this process
    before = home.history() | of_spark
    planned = home.sluice_here("recover", NAME, "--before", str(poisoned), "--plan")
    assert (planned.returncode, planned.stderr) == (0, "")
    assert f"taps: back to before delivery {poisoned}: " in planned.stdout
    assert "read again 3 files, by the next run; 0 changed since, 0 can't be" in planned.stdout
    refused = home.sluice_here("recover", NAME, "--before", str(poisoned))
    assert (refused.returncode, "--why" in refused.stderr) == (2, True), refused.stderr
    assert home.history() | of_spark == before

    done = home.sluice_here("recover", NAME, "--before", str(poisoned), "--why", WHY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("next: `sluice run taps`, which reads 3 files again\n")
    home.run(NAME)
    assert in_force(home) == hourly(flat(GIVEN), until=closed_by(len(GIVEN) - 1))


def test_what_can_not_be_read_again_is_named_and_nothing_is_changed(histories: Histories) -> None:
    home, [first, second, third, *_] = histories.begin(deliver_four)
    before = in_force(home)
    folder = home.landing / NAME

    kept = (folder / "002.jsonl").rename(home.root / "kept")
    with pytest.raises(InputsChanged, match=r"1 input can't be: taps/002.jsonl is gone"):
        go_back(home, third)
    land(home, 2, GIVEN[3])
    planned = plan_withdrawal(home.place, home.pipeline(NAME), third)
    assert "taps/002.jsonl" in planned.found.changed[0]
    with pytest.raises(
        InputsChanged, match=r"state was computed from inputs that are not as they were: taps/002"
    ):
        go_back(home, live(home)[-1])
    kept.rename(folder / "002.jsonl")

    planned = plan_withdrawal(home.place, home.pipeline(NAME), second)
    second_file = folder / "001.jsonl"
    with (
        once_at(Step.STAGED, lambda: second_file.rename(home.root / "kept")),
        pytest.raises(InputsChanged, match="have gone since: taps/001"),
    ):
        go_back(home, second, planned)
    (home.root / "kept").rename(second_file)
    assert in_force(home) == before
    assert home.recover(NAME).problem is None  # the stream is as it was
    assert home.sluice("status", NAME).stdout.count("InputsChanged") == 0
    go_back(home, second)
    home.run(NAME)
    assert in_force(home) == before
    with pytest.raises(SetupError, match=f"Delivery {second} of taps is in neither sink any more"):
        go_back(home, second)
    with pytest.raises(Fenced, match="other deliveries came after this was planned"):
        go_back(home, first, planned=plan_and_deliver(home, first))
    with pytest.raises(SetupError, match="has no delivery 4711"):
        go_back(home, 4711)


def test_who_can_not_go_back_is_told_the_way(home: Home) -> None:
    land_all(home, GIVEN[:2])
    declare(home, body="    return df", sink="Append()", columns=taps.TAPS)
    home.run(NAME)
    with pytest.raises(SetupError, match=r"keeps no state(.|\n)*`sluice replay taps --deliveries 1`"):
        go_back(home, 1)
    declare(home, name="all", sink="Replace()")
    with pytest.raises(SetupError, match="the rows of before a delivery are nowhere to go back to"):
        plan_withdrawal(home.place, home.pipeline("all"), 1)


def test_a_withdrawal_that_postgresql_lost_is_asked_for_again(histories: Histories) -> None:
    home, poisoned = histories.begin(deliver_poisoned, sink="Append()")
    declare(home, sink="Append()", not_after=BOUND)
    wrong = in_force(home)
    lost = go_back(home, poisoned).receipt.delivery_id
    home.run(NAME)
    right = in_force(home)
    histories.database_of(home).restore()
    with pytest.raises(LedgerBehind):
        home.run(NAME)
    with pytest.raises(LedgerBehind):
        go_back(home, poisoned)
    done = home.recover(NAME)
    again = f"`sluice recover taps --before {poisoned} --why WHY`"
    assert done.to_redo == (f"withdrawal {lost}: what it had taken out is in force again: {again}",)
    assert (in_force(home), done.restored) == (wrong, ())
    go_back(home, poisoned)
    home.run(NAME)
    assert in_force(home) == right
    assert_clean(home)


def test_a_withdrawal_is_no_batch(histories: Histories) -> None:
    """Neither a rebuilt state nor a later withdrawal takes it for one, and what it took out is not there to be replayed."""
    home, [first, second, *_] = histories.begin(deliver_four)
    withdrawn = go_back(home, second).receipt.delivery_id
    home.run(NAME)
    assert not plan(home.place, home.pipeline(NAME), Selection(deliveries=((second, second),))).deliveries
    assert [one.delivery_id for one in stored_batches(home.dsn, home.pipeline(NAME))] == batches(home)
    page, _ = draw(home.dsn, lambda cursor: pages.batch(cursor, NAME, BELOW, delivery=withdrawn))
    told = f"It brought nothing and took out of both sinks delivery {second}"
    assert (told in shown(page), f"asked for by tests : {WHY}" in shown(page)) == (True, True), shown(page)
    assert "No suite judged it." in shown(page)
    [(last,)] = home.ask("SELECT delivery_id FROM sluice.quality_pipeline WHERE pipeline = %s", NAME)
    assert last == batches(home)[-1]
    done = go_back(home, first)
    assert withdrawn in done.plan.numbers
    assert withdrawn not in done.plan.leaving
    home.run(NAME)
    assert in_force(home) == hourly(flat(GIVEN[:4]))
    assert_clean(home)


def test_a_batch_that_stops_behind_a_watermark_of_the_future_names_what_set_it(home: Home) -> None:
    declare(home, sink="Append()", late="at")
    land_all(home, GIVEN[:2])
    home.write(f"{NAME}/poison.jsonl", NEXT_CENTURY)
    home.run(NAME)
    [(poisoned,)] = home.ask(BY_POISON)
    declare(home, sink="Append()", late="at", max_quarantine_share=0.5)
    land_all(home, GIVEN[2:4], first=2)
    with pytest.raises(ContractBroken, match="late: the watermark has reached 2") as stopped:
        home.run(NAME)
    assert stopped.value.remedy.startswith("a record's time is ahead of the clock: bound it by `not_after=`")
    assert (
        f"delivery {poisoned}, which set the watermark (it read {NAME}/poison.jsonl)" in stopped.value.remedy
    )
    back = f"sluice recover {NAME} --before {poisoned} --why WHY"
    assert f"`{back}`" in stopped.value.remedy
    stop, _ = draw(home.dsn, lambda cursor: pages.stopped(cursor, NAME, Frame()))
    stood, _ = draw(home.dsn, lambda cursor: pages.pipeline(cursor, NAME, Frame()))
    assert f"delivery {poisoned} set: it read {NAME}/poison.jsonl" in shown(stop)
    assert (back in stop.html, back in stood.html) == (True, True)
    assert ("Correct the declaration" in stop.html, "--accept" in stop.html) == (False, False)
    said = home.sluice("status", NAME).stdout
    assert f"next: {back}" in said
    assert "next: a record's time is ahead of the clock: bound it by `not_after=`" in said
    declare(home, sink="Append()", late="at", not_after=BOUND)
    go_back(home, poisoned)
    assert home.run(NAME).reasons == {"future": 1}
    assert in_force(home) == hourly(flat(GIVEN[:4]), until=closed_by(3))


def deliver_poisoned(home: Home, *, sink: str) -> int:
    """Deliver some files, a record of the next century and the other files; return the delivery that had the record."""
    declare(home, sink=sink)
    land_all(home, GIVEN[:BEFORE])
    home.write(f"{NAME}/poison.jsonl", NEXT_CENTURY)
    land_all(home, GIVEN[BEFORE:], first=BEFORE)
    assert home.run(NAME).late > 0
    [(poisoned,)] = home.ask(BY_POISON)
    return int(poisoned)


def deliver_four(home: Home) -> list[int]:
    """Deliver four files, each a batch of its own; return the numbers of their deliveries."""
    declare(home)
    land_all(home, GIVEN[:4])
    home.run(NAME)
    return live(home)


def go_back(
    home: Home, before: int, planned: WithdrawalPlan | None = None, control: RunControl | None = None
) -> Withdrawn:
    pipeline = home.pipeline(NAME)
    planned = planned or plan_withdrawal(home.place, pipeline, before)
    return withdraw(home.place, pipeline, planned, who="tests", why=WHY, spark=home.spark, control=control)


def rob(home: Home) -> None:
    """Give the lease to another run, as if this one had been silent for too long."""
    with transaction(home.dsn) as cursor:
        cursor.execute(
            "UPDATE sluice.run SET seen_at = now() - interval '1 hour' WHERE ended_at IS NULL AND kind = 'stream'"
        )
        leases.take_lease(cursor, NAME)


def plan_and_deliver(home: Home, before: int) -> WithdrawalPlan:
    """Plan to go back, then deliver one more file."""
    planned = plan_withdrawal(home.place, home.pipeline(NAME), before)
    land(home, 4, GIVEN[4])
    home.run(NAME)
    return planned


def live(home: Home) -> list[int]:
    query = "SELECT delivery_id FROM sluice.delivery WHERE live ORDER BY commit_seq"
    return [number for (number,) in home.ask(query)]


def batches(home: Home) -> list[int]:
    query = "SELECT delivery_id FROM sluice.delivery WHERE live AND kind = 'stream' ORDER BY commit_seq"
    return [number for (number,) in home.ask(query)]


def on_record(home: Home) -> list[tuple[int, str, str, str]]:
    return home.ask(
        "SELECT d.delivery_id, r.who, r.why, r.outcome FROM sluice.delivery d JOIN sluice.run r USING (run_id)"
        " WHERE d.kind = 'withdrawal'"
    )


def closed_by(last: int) -> int:
    """Return up to when hours are over once this file was read, for a watermark that waits two hours."""
    return max(tap.at for tap in flat(GIVEN[: last + 1])) - 2 * taps.HOUR
