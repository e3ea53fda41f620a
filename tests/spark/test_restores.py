"""A database that went back in time: a run stops, and what the lake has is put back; nothing is lost or doubled."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from etl.common import steps
from etl.common.errors import Fenced, LedgerBehind, SetupError, SluiceError
from etl.common.steps import Step
from etl.delivery.batch import Receipt
from etl.operations.serving.read import delivered
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from etl.sinks.lake.lake import TableLocation
from tests.support.backups import Backup
from tests.support.data.orders import Landed, orders
from tests.support.home import Home, delivered_in_two_batches

DELIVERIES = (
    "SELECT delivery_id, stream_id::text, batch_id, commit_seq, rows_in, delivered, quarantined, malformed,"
    " checksum::text, quarantine_checksum::text FROM sluice.delivery ORDER BY commit_seq"
)


def restored_at_rest(home: Home, backup: Backup) -> tuple[Landed, Landed, list[tuple[Any, ...]]]:
    """Restore the database; return what it still has, what it lost, and the ledger as it was before."""
    home.declare(max_files=1)
    kept = home.land("orders/a.jsonl", orders(0, 6, negative=[2]))
    home.run()
    backup.take()
    lost = home.land("orders/b.jsonl", orders(10, 6, negative=[11]), ["{broken"])
    lost += home.land("orders/c.jsonl", orders(20, 6))
    assert home.run().batches == 2
    before = home.ask(DELIVERIES)
    backup.restore()
    home.assert_holds(kept)
    return kept, lost, before


def test_deliveries_that_the_database_lost_come_back_from_the_lake(home: Home, backup: Backup) -> None:
    kept, lost, before = restored_at_rest(home, backup)
    refused = home.sluice("run", "orders")
    assert refused.returncode == 4, refused.stderr
    assert "PostgreSQL went back in time" in refused.stderr
    assert "next: `sluice recover orders`" in refused.stderr
    home.assert_holds(kept)
    mended = home.sluice_here("recover", "orders")
    assert mended.returncode == 0, mended.stderr
    assert mended.stdout.count("put back from the lake") == 2
    assert home.ask(DELIVERIES) == before
    home.assert_holds(kept + lost)
    late = home.land("orders/late.csv", orders(60, 5))
    assert home.run().rows_in == 5
    home.assert_holds(kept + lost + late)


@pytest.mark.slow
def test_a_replay_that_the_database_lost_is_named_and_the_batches_around_it_come_back(
    home: Home, backup: Backup
) -> None:
    home.declare(max_files=1)
    landed = home.land("orders/a.jsonl", orders(0, 6, negative=[2]))
    home.run()
    backup.take()
    landed += home.land("orders/b.jsonl", orders(10, 6))
    home.run()
    chosen = plan(home.place, home.pipeline(), Selection(batches=(0, 0)))
    replay(home.place, home.pipeline(), chosen, who="tests", spark=home.spark)
    landed += home.land("orders/c.jsonl", orders(20, 6))
    home.run()
    before = home.ask(DELIVERIES)
    backup.restore()
    with pytest.raises(LedgerBehind):
        home.run()
    done = home.recover()
    assert len(done.restored) == 2
    assert_a_place_in_what_was_lost_is_told(home, before[1:])
    [again] = done.to_redo
    assert "what it had replaced is in force again: `sluice replay orders --deliveries 1`" in again
    home.assert_holds(landed)


@pytest.mark.parametrize("gone", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_deliveries_that_nobody_has_any_more_are_read_again(home: Home, backup: Backup, gone: int) -> None:
    kept, lost, before = restored_at_rest(home, backup)
    remove_manifests(home, [delivery for delivery, *_ in before[1 : 1 + gone]])
    with pytest.raises(LedgerBehind):
        home.run()
    assert home.recover().restored == ()
    home.assert_holds(kept)
    late = home.land("orders/late.csv", orders(60, 5))
    home.run()
    home.assert_holds(kept + lost + late)
    assert_a_place_in_what_was_lost_is_told(home, before[1:])


def assert_a_place_in_what_was_lost_is_told(home: Home, lost: list[tuple[Any, ...]]) -> None:
    """Whoever had read up to a lost commit is told, and whoever had not finds all that came since."""
    for _, _, _, commit, *_ in lost:
        with pytest.raises(LedgerBehind, match=f"Commit {commit} of orders was read"):
            delivered(home.pipeline(), after=commit, settings=home.place.settings)
    now = [delivery for delivery, *_ in home.ask(DELIVERIES)]
    assert delivered(home.pipeline(), after=1, settings=home.place.settings).deliveries == now[1:]
    with pytest.raises(SetupError, match="orders has no commit 99; its newest is"):
        delivered(home.pipeline(), after=1, to=99, settings=home.place.settings)


def remove_manifests(home: Home, deliveries: list[int]) -> None:
    store, folder = home.reader().store, TableLocation.of(home.place.lake, "warehouse.orders").location
    found = store.get_file_info(fs.FileSelector(f"{folder.removeprefix('s3://')}/deliveries"))
    names = re.compile(r"([0-9]+)-[0-9a-f]+\.json")
    named = [one.path for one in found if (name := names.match(one.base_name)) and int(name[1]) in deliveries]
    assert len(named) == len(deliveries)
    for path in named:
        store.delete_file(path)


def test_a_database_from_before_the_first_run_gets_all_of_it_back(home: Home, backup: Backup) -> None:
    backup.take()
    landed, _ = delivered_in_two_batches(home)
    before = home.ask(DELIVERIES)
    backup.restore()
    with pytest.raises(LedgerBehind, match="Delivery 2 of orders was committed, says"):
        home.run()
    assert len(home.recover().restored) == 2
    assert home.ask(DELIVERIES) == before
    home.assert_holds(landed)
    late = home.land("orders/late.csv", orders(60, 5))
    home.run()
    home.assert_holds(landed + late)


def test_a_database_that_went_back_together_with_the_checkpoint_is_noticed(
    home: Home, backup: Backup, tmp_path: Path
) -> None:
    """Both come from a snapshot of one volume: they agree with each other, and files may be pruned."""
    home.declare(max_files=1)
    kept = home.land("orders/a.jsonl", orders(0, 6, negative=[2]))
    home.run()
    checkpoints = Path(home.place.settings.checkpoints)
    shutil.copytree(checkpoints, tmp_path / "snapshot")
    backup.take()
    lost = home.land("orders/b.jsonl", orders(10, 6)) + home.land("orders/c.jsonl", orders(20, 6))
    home.run()
    for name in ("b", "c"):
        (home.landing / "orders" / f"{name}.jsonl").unlink()
    shutil.rmtree(checkpoints)
    shutil.copytree(tmp_path / "snapshot", checkpoints)
    backup.restore()
    refused = home.sluice("run", "orders")
    assert refused.returncode == 4, refused.stderr
    assert "next: `sluice recover orders`" in refused.stderr
    chosen = plan(home.place, home.pipeline(), Selection(batches=(0, 0)))
    with pytest.raises(LedgerBehind):
        replay(home.place, home.pipeline(), chosen, who="tests", spark=home.spark)
    assert len(home.recover().restored) == 2
    home.assert_holds(kept + lost)
    late = home.land("orders/late.csv", orders(60, 5))
    home.run()
    home.assert_holds(kept + lost + late)


@dataclass(frozen=True, kw_only=True)
class Restore:
    """When a backup is taken and put back under a living run, and how the run ends."""

    taken_after: int  # the batch; batch 0 is delivered by an earlier run
    put_back_at: tuple[Step, int]  # the step, and how many batches the run has done before
    error: type[SluiceError]
    lost: int  # deliveries


RESTORES = {
    "the lease is lost too": Restore(taken_after=0, put_back_at=(Step.BATCH_DONE, 1), error=Fenced, lost=2),
    "the lease is there": Restore(
        taken_after=1, put_back_at=(Step.BATCH_DONE, 1), error=LedgerBehind, lost=1
    ),
    "a batch is staged": Restore(taken_after=1, put_back_at=(Step.JUDGED, 2), error=LedgerBehind, lost=1),
}


USUAL = "a batch is staged"
CASES = [
    pytest.param(case, id=name, marks=() if name == USUAL else pytest.mark.slow)
    for name, case in RESTORES.items()
]


@pytest.mark.parametrize("case", CASES)
def test_a_database_restored_under_a_run_stops_it(home: Home, backup: Backup, case: Restore) -> None:
    home.declare(max_files=1)
    landed = home.land("orders/a.jsonl", orders(0, 6))
    home.run()
    backup.take()
    landed += home.land("orders/b.jsonl", orders(10, 6, negative=[12]))
    landed += home.land("orders/c.jsonl", orders(20, 6))
    landed += home.land("orders/d.jsonl", orders(30, 6))
    landed += home.land("orders/e.jsonl", orders(40, 6))
    done: list[int] = []

    def meanwhile(receipt: Receipt) -> None:
        done.append(receipt.batch_id)
        if receipt.batch_id == case.taken_after:
            backup.take()

    def at(step: Step) -> None:
        if (step, len(done)) == case.put_back_at:
            backup.restore()

    steps.listen(at)
    try:
        with pytest.raises(case.error):
            home.run(progress=meanwhile)
    finally:
        steps.listen(None)
    assert done == [1, 2]
    with pytest.raises(LedgerBehind) as stop:
        home.run()
    assert "sluice recover orders" in stop.value.remedy
    assert len(home.recover().restored) == case.lost
    home.run()
    home.assert_holds(landed)
