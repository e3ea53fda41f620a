"""What stops a run names its remedy, and after the remedy each record is in both sinks once."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from etl.common.errors import (
    CheckpointDamaged,
    CheckpointLost,
    ContractBroken,
    InputsChanged,
    LedgerAhead,
    VerdictUnknown,
)
from etl.common.steps import Step
from etl.delivery.batch import Receipt
from etl.runs.workspace import Workspace
from tests.support import oracle
from tests.support.data.orders import NEGATIVE, NO_CITY, RULES, UNIQUE, Landed, Order, orders, rule
from tests.support.histories import Histories
from tests.support.home import Home, delivered_in_two_batches, once_at
from tests.support.oracle import Rows

SECOND = 1_000_000_000  # nanoseconds


# A batch that broke its contract


@dataclass(frozen=True, kw_only=True)
class Decided:
    """What a decision must make of a stopped batch."""

    rules: tuple[dict[str, Any], ...]
    share: float
    decision: str
    held: Callable[[Order], tuple[str, ...]]


HELD = {
    "a critical rule, held": Decided(
        rules=RULES, share=1.0, decision="--quarantine-all", held=lambda order: order.reasons
    ),
    "a critical rule, accepted": Decided(rules=RULES, share=1.0, decision="--accept", held=lambda order: ()),
    "a table rule, held": Decided(
        rules=(*RULES, UNIQUE),
        share=1.0,
        decision="--quarantine-all",
        held=lambda order: (*order.reasons, "id is unique"),
    ),
    "too many held, held": Decided(
        rules=RULES[:1],
        share=0.01,
        decision="--quarantine-all",
        held=lambda order: (NEGATIVE,) if NEGATIVE in order.reasons else (),
    ),
}


@pytest.mark.parametrize("case", HELD.values(), ids=HELD.keys())
def test_a_batch_that_broke_its_contract_is_delivered_as_decided(home: Home, case: Decided) -> None:
    home.declare(share=case.share)
    home.judge(*case.rules)
    made = orders(0, 12, negative=[3])
    made += [Order(id=None, amount=-1.0), replace(made[5])]
    made = home.land("orders/a.jsonl", made).orders
    with pytest.raises(ContractBroken, match="nothing of it was delivered") as stop:
        home.run()
    assert stop.value.exit_code == 3
    assert "sluice decide orders --batch 0" in stop.value.remedy
    home.assert_holds(Landed())
    with pytest.raises(ContractBroken):
        home.run()  # it goes on with nothing before somebody has decided

    decided = home.sluice("decide", "orders", "--batch", "0", case.decision, "--why", "seen by hand")
    assert decided.returncode == 0, decided.stderr
    assert "next: `sluice run orders`" in decided.stdout
    assert home.run().rows_in == len(made)
    assert_decided(home, made, case)


def test_a_stop_is_over_with_the_stream_that_can_not_go_on(home: Home) -> None:
    """Its batch comes again under another number; one that nobody can have again waits for no decision."""
    home.declare(share=0.05)
    landed = home.land("orders/a.jsonl", orders(0, 8))
    stream = home.run().stream
    landed += home.land("orders/b.jsonl", orders(8, 8, negative=[9]))
    with pytest.raises(ContractBroken):
        home.run()
    shutil.rmtree(home.checkpoint(stream))
    with pytest.raises(CheckpointLost):
        home.run()
    home.recover()
    assert home.ask("SELECT count(*) FROM sluice.stopped_batch") == [(0,)]
    home.declare(share=1.0)
    home.run()
    home.assert_holds(landed)
    home.assert_clean()


def test_a_batch_of_too_many_held_is_accepted_once_though_malformed_records_stay_held(home: Home) -> None:
    """Accepted, its failing rows are delivered: fewer are held than the decision was on."""
    home.declare(share=0.05)
    home.judge(*RULES)
    made = orders(0, 20, negative=[3, 4])
    home.land("orders/a.jsonl", made, ["{broken"] * 3)
    held_for = r"(?s)5 of 23 records would be quarantined .*: malformed \(3\), amount is not negative \(2\)"
    malformed_in = r".*\n  malformed, most often: file:///\S+/orders/a\.jsonl.* \(3 records\)\n"
    with pytest.raises(ContractBroken, match=held_for + malformed_in):
        home.run()
    assert home.sluice("decide", "orders", "--batch", "0", "--accept", "--why", "seen").returncode == 0
    done = home.run()
    assert (done.delivered, done.quarantined, done.malformed) == (20, 3, 3)


def test_a_decision_does_not_outlive_the_lookup_that_it_was_made_with(home: Home) -> None:
    known = rule("column_values_to_not_be_null", NO_CITY, "warning", column="city")
    home.declare(share=0.05)
    home.judge(*RULES[:2], known)
    home.land("orders/a.jsonl", orders(0, 19, negative=[3, 4]))
    with pytest.raises(ContractBroken, match=r"amount is not negative \(2\)"):
        home.run()
    words = ("decide", "orders", "--batch", "0", "--accept", "--why", "seen by hand")
    assert home.sluice(*words).returncode == 0
    home.write("reference/shops.csv", "shop,city\n")
    lapsed = (
        r"decision accept \(of .* UTC, on 26\.32% of the records held\) no longer holds: the lookup shops has changed since;"
        r" 100\.00% would be held now"
    )
    with pytest.raises(ContractBroken, match=lapsed) as stop:
        home.run()
    assert "19 of 19 records would be quarantined" in stop.value.seen
    assert "sluice decide orders --batch 0" in stop.value.remedy
    home.assert_holds(Landed())
    assert home.sluice(*words).returncode == 0
    assert home.run().delivered == 19


def test_the_command_exits_3_at_a_broken_contract_and_0_once_it_is_decided_on(home: Home) -> None:
    made = [*orders(0, 12, negative=[3]), Order(id=None)]
    landed = home.land("orders/a.jsonl", made)
    stopped = home.sluice_here("run", "orders")
    assert stopped.returncode == 3, stopped.stderr
    assert "Batch 0 of orders broke its contract, and nothing of it was delivered" in stopped.stderr
    assert "sluice decide orders --batch 0" in stopped.stderr
    home.assert_holds(Landed())
    words = ("decide", "orders", "--batch", "0", "--quarantine-all", "--why", "seen by hand")
    decided = home.sluice(*words)
    assert decided.returncode == 0, decided.stderr
    done = home.sluice_here("run", "orders", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["rows_in"], summary["quarantined"], summary["outcome"]) == (13, 2, "done")
    home.assert_holds(landed)


def assert_decided(home: Home, made: list[Order], case: Decided) -> None:
    fates = [(order, case.held(order)) for order in made]
    passed: Rows = Rows(order.row for order, reasons in fates if not reasons)
    held: Rows = Rows((reasons, *order.row) for order, reasons in fates if reasons)
    eyes = home.reader()
    assert oracle.difference(eyes.in_postgres(system=()), passed) == ""
    assert oracle.difference(eyes.on_lake(system=()), passed) == ""
    kept = Rows()
    for (*row, reasons, _, _, _), count in eyes.held_on_lake().items():
        kept[(reasons, *row)] += count
    assert oracle.difference(kept, held) == ""
    texts = Rows((reasons, order.file, None, order.row_as_text, 0) for order, reasons in fates if reasons)
    assert oracle.difference(eyes.held_in_postgres(), texts) == ""
    home.assert_one_history()


def unexpected_rows(query: str) -> dict[str, Any]:
    found = rule("", "no strange rows", "critical", unexpected_rows_query=query)
    return {**found, "type": "unexpected_rows_expectation"}


NO_VERDICT = [
    (rule("column_values_to_match_json_schema", "tried", "info", column="shop", json_schema={}), "json"),
    (
        rule(
            "column_values_to_not_be_null",
            "tried",
            "info",
            column="id",
            row_condition="1 / (id - id) > 0",
            condition_parser="spark",
        ),
        "[DIVIDE_BY_ZERO]",
    ),
    (
        rule("column_values_to_match_regex", "tried", "info", column="shop", regex=r"^(\w+[ ,.]*)*$"),
        "a text is too long for a group that repeats in a regular expression: java.lang.StackOverflowError",
    ),
    (unexpected_rows("SELECT * FROM {batch} WHERE raise_error(shop) IS NULL"), ""),
]


def test_a_rule_that_can_not_be_evaluated_is_no_verdict_and_is_named(home: Home) -> None:
    """In the pass it fails in Python, in Spark and in Java; a query fails over the staged rows."""
    [long] = orders(6, 1)
    landed = home.land("orders/a.jsonl", [*orders(0, 6), replace(long, shop="word, " * 5000)])
    for failing, told in NO_VERDICT:
        home.judge(*RULES, failing)
        named = f"expectation 4 .{failing['meta']['name']}. could not be evaluated"
        with pytest.raises(VerdictUnknown, match=named) as stop:
            home.run()
        assert stop.value.seen.rpartition("evaluated: ")[2].startswith(told)
        assert stop.value.exit_code == 4
        home.assert_holds(Landed())
    home.judge(*RULES, unexpected_rows("SELECT * FROM {batch} WHERE id < 0"))
    home.run()
    home.assert_holds(landed)


# A checkpoint that is lost or damaged


@pytest.mark.parametrize(
    "part",
    ["offsets", *(pytest.param(one, marks=pytest.mark.slow) for one in ("commits", "sources", "metadata"))],
)
def test_a_checkpoint_without_a_part_is_replaced(histories: Histories, part: str) -> None:
    home, [landed, stream] = histories.begin(delivered_in_two_batches)
    remove(home.checkpoint(stream) / part)
    late = home.land("orders/late.csv", orders(60, 5))
    with pytest.raises(CheckpointDamaged) as stop:
        home.run()
    assert (stop.value.exit_code, stop.value.remedy) == (4, "`sluice recover orders`")
    home.assert_holds(landed)
    assert_recovered(home, landed, late)


def test_a_checkpoint_that_is_gone_is_replaced(histories: Histories) -> None:
    home, [landed, stream] = histories.begin(delivered_in_two_batches)
    remove(home.checkpoint(stream))
    late = home.land("orders/late.jsonl", orders(60, 5))
    refused = home.sluice("run", "orders")
    assert refused.returncode == 4, refused.stderr
    assert "is gone" in refused.stderr
    assert "next: `sluice recover orders`" in refused.stderr
    mended = home.sluice_here("recover", "orders")
    assert mended.returncode == 0, mended.stderr
    told = mended.stdout.splitlines()
    assert told[0] == "orders: recovered, and ready to run"
    assert told[1].startswith("  was: Checkpoint ")
    assert "is gone" in told[1]
    assert "knows the 4 delivered files" in mended.stdout
    assert "next: `sluice run orders`" in mended.stdout
    assert home.run().rows_in == 5
    home.assert_holds(landed + late)


def test_another_pipelines_checkpoint_is_not_taken_for_ones_own(histories: Histories) -> None:
    home, [landed, stream] = histories.begin(delivered_in_two_batches)
    home.declare("returns")
    home.write("returns/a.jsonl", orders(0, 1)[0].json)
    other = home.run("returns").stream
    ours = home.checkpoint(stream)
    ours.rename(ours.with_name("aside"))
    shutil.copytree(home.checkpoint(other, "returns"), ours)
    late = home.land("orders/late.jsonl", orders(60, 5))
    with pytest.raises(CheckpointLost, match=f"holds stream {other} of pipeline returns"):
        home.run()
    home.assert_holds(landed)
    assert_recovered(home, landed, late)


def test_a_checkpoint_restored_to_an_earlier_state_is_replaced(home: Home, tmp_path: Path) -> None:
    home.declare(max_files=1)
    landed = home.land("orders/a.jsonl", orders(0, 6))
    checkpoint = home.checkpoint(home.run().stream)
    shutil.copytree(checkpoint, tmp_path / "backup")
    landed += home.land("orders/b.jsonl", orders(10, 6))
    landed += home.land("orders/c.jsonl", orders(20, 6))
    assert home.run().batches == 2
    remove(checkpoint)
    shutil.copytree(tmp_path / "backup", checkpoint)
    late = home.land("orders/late.jsonl", orders(60, 5))
    with pytest.raises(LedgerAhead, match="the checkpoint went back in time"):
        home.run()
    assert_recovered(home, landed, late, files=3)


def assert_recovered(home: Home, landed: Landed, late: Landed, *, files: int = 4) -> None:
    """`recover` puts a new checkpoint in place, and the next run reads just what is new."""
    mended = home.recover()
    assert (mended.restored, mended.seen) == ((), files)
    home.assert_holds(landed)
    assert home.run().rows_in == len(late.orders)
    home.assert_holds(landed + late)
    assert home.recover().problem is None


def remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()


# Inputs that changed


def two_batches(home: Home) -> tuple[Landed, Landed, Path]:
    """Land two files, each a batch of its own; return what they hold and where the second one lies."""
    home.declare(max_files=1)
    first = home.land("orders/first.jsonl", orders(0, 6))
    second = home.land("orders/second.jsonl", orders(10, 6, negative=[12]))
    move(home.landing / "orders/first.jsonl", seconds=-60)
    move(home.landing / "orders/second.jsonl", seconds=-30)
    return first, second, home.landing / "orders/second.jsonl"


def move(file: Path, *, seconds: int) -> None:
    """Another time of last change."""
    was = file.stat()
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns + seconds * SECOND))


def stopped_by(home: Home, change: Callable[[], object]) -> InputsChanged:
    """Return the error of a run in which `change` happens after the first batch."""

    def meanwhile(receipt: Receipt) -> None:
        if receipt.batch_id == 0:
            change()

    with pytest.raises(InputsChanged) as stop:
        home.run(progress=meanwhile)
    assert stop.value.exit_code == 4
    assert "sluice recover orders" in stop.value.remedy
    return stop.value


def test_a_file_overwritten_before_its_batch_is_taken_as_it_is_after_recover(home: Home) -> None:
    first, _, _ = two_batches(home)
    new: list[Landed] = []
    stop = stopped_by(home, lambda: new.append(home.land("orders/second.jsonl", orders(50, 9))))
    assert "second.jsonl was changed after it was listed" in stop.seen
    home.assert_holds(first)
    mended = home.sluice_here("recover", "orders")
    assert mended.returncode == 0, mended.stderr
    assert "InputsChanged" in mended.stdout
    assert home.run().rows_in == 9
    home.assert_holds(first + new[0])


def test_a_file_truncated_before_its_batch_is_delivered_when_it_is_put_back(home: Home) -> None:
    first, second, file = two_batches(home)
    whole, was = file.read_bytes(), file.stat()
    stopped_by(home, lambda: file.write_bytes(whole[: len(whole) // 2]))
    with pytest.raises(InputsChanged):
        home.run()
    home.assert_holds(first)
    file.write_bytes(whole)
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert home.run().rows_in == 6
    home.assert_holds(first + second)


def test_a_file_removed_before_its_batch_is_delivered_when_it_comes_back(home: Home) -> None:
    first, _, file = two_batches(home)
    stop = stopped_by(home, file.unlink)
    assert "second.jsonl is gone" in stop.seen
    home.recover()
    assert home.run().batches == 0
    home.assert_holds(first)
    back = home.land("orders/second.jsonl", orders(10, 6, negative=[12]))
    home.run()
    home.assert_holds(first + back)


@pytest.mark.parametrize("change", ["overwritten", "removed"])
def test_a_file_that_changes_while_it_is_read_is_not_delivered(home: Home, change: str) -> None:
    landed = home.land("orders/a.jsonl", orders(0, 6))
    file = home.landing / "orders/a.jsonl"
    whole, was = file.read_bytes(), file.stat()

    def meanwhile() -> None:
        if change == "removed":
            file.unlink()
        else:
            home.land("orders/a.jsonl", orders(0, 7))

    with once_at(Step.STAGED, meanwhile), pytest.raises(InputsChanged, match=r"orders/a\.jsonl"):
        home.run()
    home.assert_holds(Landed())
    file.write_bytes(whole)
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    home.run()
    home.assert_holds(landed)


def test_a_file_overwritten_after_its_delivery_is_not_read_again(histories: Histories) -> None:
    home, [landed, _] = histories.begin(delivered_in_two_batches)
    home.land("orders/a.jsonl", orders(500, 20))
    before = home.history()
    assert home.run().batches == 0
    assert home.history() == before
    late = home.land("orders/late.jsonl", orders(60, 5))
    assert home.run().rows_in == 5
    home.assert_holds(landed + late)


def test_a_landing_that_was_moved_with_its_files(home: Home) -> None:
    """A file is known by its path below the landing: what was delivered is not read again, and nothing is lost."""
    landed = home.land("orders/0.jsonl", orders(0, 8))
    home.run()
    there = home.landing.rename(home.root / "elsewhere")
    settings = home.place.settings.model_copy(update={"landing": str(there)})
    moved = replace(home, place=Workspace(settings=settings, services=home.place.services))
    with pytest.raises(
        CheckpointDamaged, match=r"The landing is now .*elsewhere, and 1 file was delivered from"
    ):
        moved.run()
    moved.recover()
    assert moved.run().batches == 0
    landed += moved.land("orders/1.jsonl", orders(8, 8))
    assert moved.run().batches == 1
    moved.assert_rows(landed)
