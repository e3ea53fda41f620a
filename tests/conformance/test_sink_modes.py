"""Every mode of a sink keeps the same promises; what its tables then have is said here once more, without SQL.

The real stage, commit, ledger and both sinks, from Arrow batches. A new mode is one more entry of `CASES`.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pytest

from etl.common import steps
from etl.common.database import transaction
from etl.common.errors import NeedsPerson, RowsSwept, SetupError, StagingLost, TableRefused
from etl.common.settings import Settings
from etl.common.steps import Step
from etl.delivery import correction
from etl.delivery import deliver as delivery
from etl.delivery.batch import Receipt
from etl.delivery.commit import FREE_DRAFTS
from etl.delivery.correction import Correction
from etl.delivery.deliver import deliver_correction
from etl.operations.audit.audit import audit
from etl.operations.maintenance.sweep import SweepReport, sweep_lake
from etl.operations.serving import consumers
from etl.operations.serving.changes import Changes, changes
from etl.operations.serving.read import moment
from etl.pipeline import Append, Replace, Sink, Upsert
from etl.runs.heartbeat import make_known
from etl.services import Services
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.table import RETAINED_SNAPSHOTS
from etl.sinks.modes import SinkMode, mode_of
from etl.sinks.open import sink_problems
from etl.sinks.warehouse import staging
from tests.support import oracle
from tests.support.arrow_driver import reader
from tests.support.catalog import open_catalog
from tests.support.delivering import Delivering
from tests.support.events_run import waits_for_a_lock
from tests.support.killed.driver import ArrowLog
from tests.support.waiting import until

pytestmark = pytest.mark.long

Row = tuple[int | None, int, str]  # id, at, text
Batches = Sequence[Sequence[Row]]  # the rows of each live delivery, in the order of their commits

COLUMNS = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("text", pa.string())])
HELD: Row = (3, 10, "held")  # by the rule
NO_KEY: Row = (None, 10, "no id")
BATCHES: Batches = (
    [(1, 10, "a"), (2, 10, "b"), HELD, NO_KEY],
    [(2, 11, "newer"), (4, 11, "d"), (1, 9, "older")],
    [(4, 11, "as new"), (5, 12, "e")],
)
AGAIN: Sequence[Row] = [(2, 5, "older than the first"), (6, 5, "more")]  # what a replay brings


def every(batches: Batches) -> list[Row]:
    return [row for rows in batches for row in rows]


def last(batches: Batches) -> list[Row]:
    return list(batches[-1])


def latest(batches: Batches) -> list[Row]:
    """Return the newest row of each id; of equally new ones the one committed last."""
    found: dict[int | None, Row] = {}
    for row in every(batches):
        if row[0] not in found or row[1] >= found[row[0]][1]:
            found[row[0]] = row
    return list(found.values())


def any_row(_: Row) -> bool:
    return True


def has_key(row: Row) -> bool:
    return row[0] is not None


@dataclass(frozen=True, kw_only=True)
class Case:
    """A sink, and what its mode means."""

    sink: Sink
    takes: Callable[[Row], bool]  # whether such a row can be delivered
    table: Callable[[Batches], list[Row]]  # what PostgreSQL has
    lake: Callable[[Batches], list[Row]]

    @property
    def mode(self) -> SinkMode:
        return mode_of(self.sink)

    def delivered(self, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if row != HELD and self.takes(row)]


CASES: dict[type, Case] = {
    Append: Case(sink=Append(), takes=any_row, table=every, lake=every),
    Upsert: Case(sink=Upsert(keys=("id",), newest="at"), takes=has_key, table=latest, lake=every),
    Replace: Case(sink=Replace(), takes=any_row, table=last, lake=last),
}


@pytest.fixture(params=CASES.values(), ids=[kind.__name__ for kind in CASES])
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture
def events(services: Services, dsn: str, lake: Lake, tmp_path: Path, case: Case) -> Delivering:
    return Delivering.start(services, dsn, lake, tmp_path, COLUMNS, case.sink)


def table_of(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(COLUMNS.names, row, strict=True)) for row in rows], COLUMNS)


def deliver(events: Delivering, rows: Sequence[Row]) -> Receipt:
    return events.deliver(table_of(rows), bad=[at for at, row in enumerate(rows) if row == HELD])


def deliver_all(events: Delivering) -> list[int]:
    return [deliver(events, rows).delivery_id for rows in BATCHES]


def assert_holds(events: Delivering, case: Case, delivered: Batches) -> None:
    """Both sinks have what the mode makes of these deliveries, and an audit agrees."""
    assert reader(events.session).in_postgres(system=()) == Counter(case.table(delivered))
    assert on_lake(events, COLUMNS.names) == Counter(case.lake(delivered))
    assert audit(events.place, events.pipeline).differences == []


def on_lake(events: Delivering, columns: list[str]) -> oracle.Rows:
    """Return the rows that the table's pointer leads to."""
    eyes = reader(events.session)
    return eyes.rows_in(eyes.files(events.pipeline.name), columns)


def replay(
    events: Delivering, case: Case, number: int, rows: Sequence[Row], *, as_found: bool = False
) -> Receipt:
    """Replace a delivery by `rows`, beside the stream; `as_found`: whatever is left of it."""
    files = events.execute("SELECT kind, path FROM sluice.delivery_file WHERE delivery_id = %s", number)
    [(removed,)] = events.execute("SELECT delivered FROM sluice.delivery WHERE delivery_id = %s", number)
    leaving = {kind: frozenset(path for of, path in files if of == kind) for kind in ("data", "quarantine")}
    change = Correction(
        name="replay",
        supersedes=(number,),
        removed=removed,
        as_found=as_found,
        files=leaving,
        who="tests",
        why="again",
    )
    return beside(events, case, rows, change)


def release(events: Delivering, case: Case, number: int) -> Receipt:
    """Let HELD out of a delivery's quarantine, mended."""
    query = "SELECT quarantine_id FROM sluice.quarantine WHERE delivery_id = %s AND 'rule' = ANY(reasons)"
    [(row,)] = events.execute(query, number)
    change = Correction(
        name="release", released_from=number, rows=(row,), files={}, who="tests", why="mended"
    )
    return beside(events, case, [HELD], change)


def beside(events: Delivering, case: Case, rows: Sequence[Row], change: Correction) -> Receipt:
    with transaction(events.dsn) as cursor:
        lease = correction.begin(cursor, events.pipeline.name, change.name, who=change.who, why=change.why)
    run = replace(events.session, lease=lease, stream_id=lease.run_id, checkpoint=None, correction=change)
    if case.mode.key and change.supersedes:
        log = ArrowLog(lake=events.place.lake, replaced=sorted(change.files["data"]))
        run = replace(run, change_log=log)
    return deliver_correction(run, replace(events.batch(table_of(rows)), batch_id=0, landed=()))


def refuses(call: Callable[[], object]) -> bool:
    try:
        call()
    except SetupError:
        return True
    return False


def test_every_mode_is_here() -> None:
    assert set(CASES) == set(get_args(Sink))
    assert {type(case.mode) for case in CASES.values()} == set(SinkMode.__subclasses__())


def test_both_sinks_have_what_the_mode_says_after_each_delivery(events: Delivering, case: Case) -> None:
    delivered = []
    for rows in BATCHES:
        receipt = deliver(events, rows)
        delivered.append(case.delivered(rows))
        assert receipt.delivered == len(delivered[-1])
        assert receipt.quarantined == len(rows) - receipt.delivered
        assert_holds(events, case, delivered)
    held = sorted(text for row in every(BATCHES) if not case.delivered([row]) for text in row[2:])
    texts = events.execute("SELECT row::json ->> 'text' FROM sluice.quarantine ORDER BY 1")
    assert [text for (text,) in texts] == held


def test_the_deliveries_in_force_are_those_that_the_lake_has(events: Delivering, case: Case) -> None:
    numbers = deliver_all(events)
    in_force = list(case.mode.in_force(numbers))
    assert in_force == [one for one in numbers if case.mode.is_in_force(one, newest=numbers[-1])]
    assert {number for (number,) in on_lake(events, ["_delivery_id"])} == set(in_force)
    now = moment(events.place, events.pipeline)
    assert [one.delivery_id for one in now.deliveries] == in_force
    assert {one.path for one in now.files} == set(reader(events.session).files("events"))
    assert now.replaced == {one: in_force[-1] for one in numbers if one not in in_force}


@pytest.mark.parametrize("at", [Step.DELIVERY_INSERTED, Step.ROWS_MERGED, Step.POINTER_SWAPPED])
def test_a_commit_that_fails_changes_nothing(events: Delivering, case: Case, at: Step) -> None:
    deliver(events, BATCHES[0])
    before = [case.delivered(BATCHES[0])]

    def fail(step: Step) -> None:
        if step is at:
            raise RuntimeError

    events.on_step = fail
    with pytest.raises(RuntimeError):
        deliver(events, BATCHES[1])
    events.on_step = None
    assert_holds(events, case, before)
    deliver(events, BATCHES[1])
    assert_holds(events, case, [*before, case.delivered(BATCHES[1])])


def test_rows_that_postgresql_lost_of_a_staging_table_are_missed(
    events: Delivering, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "REPORTED_BYTES", 0)
    deliver(events, BATCHES[0])

    def lose(step: Step) -> None:
        if step is Step.JUDGED:
            names = events.execute(
                "SELECT relname FROM pg_class WHERE relnamespace = 'sluice_stage'::regnamespace"
                " AND relkind = 'r' AND relname ~ '^d[0-9]+_[0-9a-f]{8}(_rows)?$' ORDER BY 1"
            )
            [name] = names[-1]  # of rows, where there is one
            events.execute(
                f"DELETE FROM sluice_stage.{name} WHERE ctid = (SELECT min(ctid) FROM sluice_stage.{name})"
            )

    events.on_step = lose
    with pytest.raises(StagingLost):
        deliver(events, BATCHES[1])
    assert_holds(events, case, [case.delivered(BATCHES[0])])


def test_a_replay_of_the_newest_takes_its_place(events: Delivering, case: Case) -> None:
    *_, newest = deliver_all(events)
    case.mode.refuse_replay("events", [newest], newest=newest)
    replay(events, case, newest, AGAIN)
    assert_holds(events, case, [*map(case.delivered, BATCHES[:-1]), AGAIN])


@pytest.mark.parametrize("case", [CASES[Append], CASES[Upsert]], ids=["Append", "Upsert"])
def test_a_replay_beside_a_stream_that_commits_at_each_of_its_drafts_is_committed(
    events: Delivering, case: Case
) -> None:
    *_, newest = deliver_all(events)
    replaying, beside_it = threading.current_thread(), list[Future[Receipt]]()
    streamed = [[(2, 20 + number, f"streamed {number}")] for number in range(FREE_DRAFTS + 1)]

    def commit_another(step: Step) -> None:
        if step is not Step.POINTER_DRAFTED or threading.current_thread() is not replaying:
            return
        batch = events.batch(table_of(streamed[len(beside_it)]))
        events.batch_id += 1
        beside_it.append(pool.submit(delivery.deliver, events.session, batch))
        until(
            lambda: beside_it[-1].done() or waits_for_a_lock(events.dsn),
            "its commit, or its wait",
            patience=60,
        )

    events.session = replace(events.session, on_step=commit_another)
    with ThreadPoolExecutor(1) as pool:
        steps.listen(commit_another)
        replay(events, case, newest, AGAIN)
        for one in beside_it:
            one.result()
    steps.listen(None)
    assert len(beside_it) == len(streamed)
    assert_holds(events, case, [*map(case.delivered, BATCHES[:-1]), *streamed[:-1], AGAIN, streamed[-1]])


def test_a_replay_of_an_older_one_takes_its_place_or_is_refused(events: Delivering, case: Case) -> None:
    _, older, newest = deliver_all(events)
    batches = [case.delivered(rows) for rows in BATCHES]
    if refuses(lambda: case.mode.refuse_replay("events", [older], newest=newest)):
        with pytest.raises(NeedsPerson, match="replaced all before it"):
            replay(events, case, older, AGAIN, as_found=True)
        assert_holds(events, case, batches)
    else:
        replay(events, case, older, AGAIN)
        assert_holds(events, case, [batches[0], batches[2], AGAIN])


def test_a_replay_takes_out_what_others_put_into_the_lake_where_a_delivery_would(
    events: Delivering, case: Case
) -> None:
    *_, newest = deliver_all(events)
    catalog = open_catalog(events.place)
    table = catalog.load_table(f"warehouse.{events.pipeline.name}")
    table.append(table.scan().to_arrow().slice(0, 1))
    replay(events, case, newest, AGAIN)
    batches = [*map(case.delivered, BATCHES[:-1]), AGAIN]
    others = 0 if case.mode.only_newest else 1
    assert on_lake(events, COLUMNS.names).total() == len(list(case.lake(batches))) + others


def test_what_is_released_is_added_or_no_dag_offers_it(events: Delivering, case: Case) -> None:
    first, *_ = deliver_all(events)
    refused = refuses(lambda: case.mode.refuse_release("events", [first]))
    assert refused is not events.pipeline.has_replays_dag
    if not refused:
        release(events, case, first)
        assert_holds(events, case, [*map(case.delivered, BATCHES), [HELD]])


def test_a_sweep_takes_nothing_that_is_in_force(events: Delivering, case: Case) -> None:
    deliver_all(events)
    sweep_lake(events.dsn, events.place.lake, events.pipeline, horizon=dt.timedelta(0))
    assert_holds(events, case, [case.delivered(rows) for rows in BATCHES])


@pytest.fixture
def asked(
    events: Delivering, settings_for: Callable[..., Settings], tmp_path: Path
) -> Callable[..., Changes]:
    """`etl.changes` of the pipeline's own place, without Spark, by consumer `sums` unless told."""
    settings = settings_for(tmp_path / "home", postgres=events.dsn, lake=events.place.services.lake)
    return lambda consumer="sums": changes(None, events.pipeline, consumer=consumer, settings=settings)


def take_over(rows: Counter[Row], new: Changes) -> None:
    """Add the rows that came, and take away those that left: each was there."""
    for row in new.to_arrow().to_pylist():
        values: Row = (row["id"], row["at"], row["text"])
        assert row["_change"] in ("insert", "replace", "release", "delete")
        rows[values] += -1 if row["_change"] == "delete" else 1


def test_a_consumer_that_adds_what_came_and_takes_away_what_left_has_what_the_lake_has(
    events: Delivering, case: Case, asked: Callable[..., Changes]
) -> None:
    rows, kinds = Counter[Row](), Counter[str]()

    def read() -> None:
        with asked() as new:
            take_over(rows, new)
            kinds.update({one.change for one in new.changes})
        assert rows - Counter() == on_lake(events, COLUMNS.names)
        assert min(rows.values()) >= 0
        assert not asked()

    numbers = [deliver(events, BATCHES[0]).delivery_id]
    read()
    numbers += [deliver(events, batch).delivery_id for batch in BATCHES[1:]]
    read()
    again = replay(events, case, numbers[-1], AGAIN).delivery_id
    replay(events, case, again, BATCHES[2])
    read()
    if not case.mode.only_newest:
        release(events, case, numbers[0])
        replay(events, case, numbers[1], AGAIN)
        read()
    events.deliver_none("withdrawal")
    deliver(events, BATCHES[1])
    read()
    wanted = {"replace", "delete"} if case.mode.only_newest else {"insert", "replace", "release", "delete"}
    assert kinds.keys() == wanted


def test_a_sweep_keeps_the_rows_that_a_consumer_has_still_to_take_back(
    events: Delivering, case: Case, asked: Callable[..., Changes]
) -> None:
    def swept() -> SweepReport:
        return sweep_lake(events.dsn, events.place.lake, events.pipeline, horizon=dt.timedelta(0))

    *_, newest = deliver_all(events)
    rows, other = Counter[Row](), asked("other")
    other.advance()
    with asked() as new:
        take_over(rows, new)
    replay(events, case, newest, AGAIN)
    for number in range(RETAINED_SNAPSHOTS):  # the table's own metadata has them for as long
        deliver(events, [(9, number, "later")])
    assert any("consumer has still to take" in why for why in swept().kept)
    with asked() as new:
        assert newest in new.replaced
        take_over(rows, new)
    assert rows - Counter() == on_lake(events, COLUMNS.names)
    swept()
    assert asked("other").to_arrow().num_rows > 0, "it has them still to take back"
    consumers.forget(events.place, "events", "other")
    assert not any("consumer" in why for why in swept().kept)
    consumers.put(events.place, "events", "other", str(newest))
    behind = asked("other")
    with pytest.raises(
        RowsSwept, match=f"is to take back the rows of {newest}, and 2 objects of them are gone"
    ):
        behind.to_arrow()
    behind.advance()
    assert not asked("other")


def test_only_what_stays_in_force_is_read_delivery_by_delivery(case: Case) -> None:
    refused = refuses(lambda: case.mode.refuse_increments("events"))
    assert refused is (list(case.mode.in_force([1, 2])) != [1, 2])


@pytest.mark.parametrize("other", CASES.values(), ids=[kind.__name__ for kind in CASES])
def test_deliveries_that_are_out_of_force_come_back_by_no_change_of_the_sink(
    events: Delivering, case: Case, other: Case
) -> None:
    deliver_all(events)
    changed = replace(events.pipeline, sink=other.sink)
    with transaction(events.dsn) as cursor:
        if len(case.mode.in_force([1, 2])) < len(other.mode.in_force([1, 2])):
            with pytest.raises(TableRefused, match="delivered by replace"):
                make_known(cursor, changed)
        else:
            make_known(cursor, changed)


def test_columns_that_the_sink_names_must_be_there(case: Case) -> None:
    named = {name for names in case.mode.named_columns.values() for name in names}
    assert sink_problems(case.sink, COLUMNS) == []
    found = sink_problems(case.sink, pa.schema([("other", pa.int64())]))
    assert {name for name in named if any(f"{name!r}" in one for one in found)} == named
    assert len(found) == len(named)
    if case.mode.key:
        assert named >= {*case.mode.key.columns, case.mode.key.newest}


def test_what_an_aggregate_puts_out_by_itself_is_taken(case: Case) -> None:
    case.mode.refuse_output("events", ["Aggregate"], case.mode.output_mode)
