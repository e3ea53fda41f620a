"""Rate and socket: each batch once in both sinks within a run, and after a crash a stream of its own, said so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from etl.airflow.pages import pages
from etl.airflow.pages.render import Frame
from etl.common.errors import ContractBroken, LedgerBehind, NeedsPerson, ServiceAway, SetupError
from etl.operations.control.decide import record_decision
from etl.operations.control.status import states
from etl.operations.maintenance.sweep import sweep
from etl.operations.suites.try_out import try_out
from etl.runs.follow import RunControl
from etl.runs.recovery.recover import recover
from etl.runs.replay.plan import Selection, plan
from etl.runs.run import run
from etl.runs.summary import Summary
from tests.support import oracle
from tests.support.backups import Backup
from tests.support.data.orders import CITIES, NAME, SHOPS, Landed, Order, orders
from tests.support.followed import ME, PATIENCE, Followed, following, rows_read
from tests.support.home import Home
from tests.support.killed.runs import kill, runs_of
from tests.support.live_sources import RATE, TICKS, Sender, declare, sending
from tests.support.pages.drawn import draw, shown
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def sender() -> Iterator[Sender]:
    with sending() as found:
        yield found


@pytest.fixture
def followed(home: Home) -> Iterator[Callable[[str], Followed]]:
    with following(home) as start:
        yield start


def assert_audited(home: Home, name: str = NAME) -> None:
    home.assert_one_history(name)
    home.assert_clean(name)


def streams(home: Home, name: str) -> list[tuple[str, int]]:
    """Return the streams, each with its deliveries, in order."""
    return home.ask(
        "SELECT stream_id::text, count(*) FROM sluice.delivery WHERE pipeline = %s GROUP BY 1 ORDER BY min(commit_seq)",
        name,
    )


def test_a_rate_is_followed_and_each_run_counts_from_0_in_a_stream_of_its_own(
    home: Home, followed: Callable[[str], Followed], caplog: pytest.LogCaptureFixture
) -> None:
    home.declare("ticks", text=RATE)
    home.columns = TICKS
    counted: oracle.Rows = Counter()
    runs: list[Summary] = []
    for _ in range(2):
        up = followed("ticks")
        up.wait(lambda: len(streams(home, "ticks")) > len(runs), "deliveries")
        up.wait_for_rows(rows_read(home, "ticks") + 21)  # in another batch
        runs.append(up.stop())
        counted += Counter((value, value % 7) for value in range(runs[-1].delivered))
        said = [one for one in caplog.messages if "not replayable" in one]
        assert len(said) == len(runs) and runs[-1].stream in said[-1], said
    eyes = home.reader("ticks")
    in_postgres, on_lake = eyes.in_postgres(system=()), eyes.on_lake(system=())
    assert in_postgres == on_lake
    assert Counter(row[:2] for row in in_postgres.elements()) == counted, "every value once, in each run"
    assert [(one.stream, one.batches) for one in runs] == streams(home, "ticks")
    assert_audited(home, "ticks")


def test_a_sockets_lines_are_delivered_or_held_each_once(
    home: Home, sender: Sender, followed: Callable[[str], Followed], monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(home, sender.port)
    up = followed(NAME)
    sender.accept()
    made, broken = orders(0, 40, negative=[3, 17]), ["{broken", '{"id": "four"}', '{"id": 1} {"id": 2}']
    landed = Landed(orders=made, malformed=[(raw, sender.uri) for raw in broken])
    sender.send([*(order.json for order in made[:20]), "", *broken, *(order.json for order in made[20:])])
    up.wait_for_rows(43)

    # a lookup that changes takes effect with the next batch, and the connection stays
    home.write("reference/shops.csv", SHOPS + "Y,Ystad\n")
    monkeypatch.setitem(CITIES, "Y", "Ystad")
    late = [*orders(100, 8, negative=[104]), Order(id=150, shop="Y")]
    sender.send([order.json for order in late])
    up.wait_for_rows(52)
    # the last line has no end, and the server goes at once
    last = orders(200, 1)
    sender.connected[-1].sendall(last[0].json.encode())
    sender.connected[-1].close()
    summary = up.ended()
    landed.orders += late + last
    assert summary.outcome == "done", "it ends by itself: Spark does not connect again"
    assert (summary.delivered, summary.quarantined, summary.malformed) == (47, 6, 3)
    home.assert_holds(landed)
    assert_audited(home)


@pytest.mark.slow
def test_after_a_kill_nothing_comes_again_by_itself_and_the_run_says_that_it_begins_anew(
    home: Home,
    sender: Sender,
    tmp_path: Path,
    followed: Callable[[str], Followed],
    caplog: pytest.LogCaptureFixture,
) -> None:
    declare(home, sender.port)
    made = {order.id: order for order in orders(0, 30)}
    with runs_of(home, tmp_path) as killed:
        process = killed.start(
            "committed", 1, how="follow"
        )  # the first batch with records; Spark has not marked it
        sender.accept()
        sender.send([order.json for order in list(made.values())[:20]])
        stopped = killed.wait_for_step(process)
        sender.send([order.json for order in list(made.values())[20:]])
        kill(process, stopped)
        assert "not replayable" in killed.log and "no more than at least once is promised" in killed.log
    before = {number for (number,) in home.ask(f"SELECT id FROM warehouse.{NAME}")}
    assert before and before < set(made)

    up = followed(NAME)
    sender.accept()
    up.wait(lambda: len(streams(home, NAME)) == 2, "first batch, which is of no record")
    assert rows_read(home, NAME) == len(before)
    again = made[min(before)]  # was delivered: sent once more it comes twice
    sender.send([order.json for order in made.values() if order.id not in before or order is again])
    up.wait_for_rows(len(made) + 1)
    summary = up.stop()
    assert [stream for stream, _ in streams(home, NAME)][1:] == [summary.stream]
    assert any(summary.stream in message for message in caplog.messages)
    home.assert_holds(Landed(orders=[*made.values(), again]))
    assert_audited(home)


@pytest.mark.slow
def test_a_batch_that_stops_can_not_come_again_and_the_next_run_begins_anew(
    home: Home, sender: Sender, followed: Callable[[str], Followed]
) -> None:
    declare(home, sender.port, kind="csv")
    up = followed(NAME)
    sender.accept()
    sender.send([",A,1.5,2020-01-01T00:00:00Z", "1,A,0.5,2020-01-01T00:00:00Z"])
    [error] = until(lambda: up.results, "end", patience=PATIENCE)
    assert isinstance(error, ContractBroken) and "can't be read again" in error.remedy
    with pytest.raises(SetupError, match="no run can have a stopped batch of it again"):
        record_decision(home.place, home.pipeline(), batch=1, stream=None, action="accept", who=ME, why="so")
    [state] = states(home.place, NAME)
    page, _ = draw(home.dsn, lambda cursor: pages.stopped(cursor, NAME, Frame()))
    assert f"sluice run {NAME} --follow" in shown(page) and "sluice decide" not in shown(page)
    assert state.next == f"sluice run {NAME} --follow" and "not replayable" in str(state.promise)
    with pytest.raises(NeedsPerson, match="is stopped at batch 1") as unswept:
        sweep(home.place, home.pipeline())
    assert unswept.value.remedy == f"`sluice run {NAME} --follow`"

    up = followed(NAME)
    sender.accept()
    lines = ["1,A,0.5,2020-01-01T00:00:00Z", "three,A,1,x", "4,B", '5,"B",-2,2020-01-01T00:00:00Z']
    sender.send([lines[0], "", *lines[1:]])
    up.wait_for_rows(4)
    assert up.stop().delivered == 1
    made = [Order(id=1, amount=0.5), Order(id=5, shop="B", amount=-2.0)]
    home.assert_holds(Landed(orders=made, malformed=[(raw, sender.uri) for raw in lines[1:3]]))
    assert home.ask("SELECT count(*) FROM sluice.stopped_batch") == [(0,)]
    assert_audited(home)


def test_what_postgresql_lost_is_put_back_before_a_run_begins_anew(
    home: Home, backup: Backup, followed: Callable[[str], Followed]
) -> None:
    home.declare("ticks", text=RATE)
    home.columns = TICKS
    up = followed("ticks")
    up.wait_for_rows(1)
    up.stop()
    backup.take()
    up = followed("ticks")
    up.wait(lambda: len(streams(home, "ticks")) == 2, "second run")
    up.wait_for_rows(rows_read(home, "ticks") + 1)
    up.stop()
    whole = home.reader("ticks").in_postgres(system=())
    backup.restore()
    pipeline = home.pipeline("ticks")
    with pytest.raises(LedgerBehind, match="sluice recover ticks"):
        run(home.place, pipeline, spark=home.spark, control=RunControl(every=timedelta(seconds=1)))
    assert recover(home.place, pipeline).restored
    assert home.reader("ticks").in_postgres(system=()) == whole
    assert recover(home.place, pipeline).problem is None
    assert_audited(home, "ticks")


def test_what_can_not_be_done_is_refused_with_the_next_command(home: Home, sender: Sender) -> None:
    declare(home, sender.port)
    once = home.sluice_here("run", NAME)
    assert once.returncode == 2 and f"next: `sluice run {NAME} --follow`" in once.stderr, once.stderr
    pipeline, stay = home.pipeline(), RunControl(every=timedelta(seconds=1))
    with pytest.raises(SetupError, match="can't be read again, as a replay would"):
        plan(home.place, pipeline, Selection(deliveries=((1, 1),)))
    with pytest.raises(SetupError, match="can't be read again, as a try would"):
        try_out(home.place, pipeline, [], spark=home.spark)

    transforms = {
        "df.dropDuplicates(['id'])": "keeps state between batches",
        "df.orderBy('id')": "Sorting is",
    }
    for code, why in transforms.items():
        declare(home, sender.port, transform=f"lambda df, shops: {code}")
        with pytest.raises(SetupError, match=why):
            run(home.place, home.pipeline(), spark=home.spark, control=stay)
    sender.server.close()
    declare(home, sender.port, kind="text", transform="lambda df, shops: df.join(shops, 'shop')")
    with pytest.raises(SetupError, match="are one string column"):
        run(home.place, home.pipeline(), spark=home.spark, control=stay)
    declare(home, sender.port)
    with pytest.raises(ServiceAway, match=r"Connection refused(.|\n)*then `sluice run orders --follow`"):
        run(home.place, home.pipeline(), spark=home.spark, control=stay)
