"""What somebody changed by hand behind Sluice's back is told, and the command that is named leads back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from etl.common.errors import InputsChanged, NeedsPerson, TableRefused
from etl.operations.audit.audit import audit
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from tests.support.data.orders import Landed, orders
from tests.support.home import Home


@pytest.fixture
def landed(home: Home) -> Landed:
    """Two delivered batches; some rows of the first are held."""
    found = home.land("orders/a.jsonl", orders(0, 20, negative=[3, 4]), ["{broken"])
    found += home.land("orders/b.jsonl", orders(20, 10))
    home.declare(max_files=1)
    assert home.run().batches == 2
    return found


def again(home: Home, deliveries: str, *, accept: bool = True) -> None:
    """Replay the deliveries as `sluice replay --deliveries` does, with or without --accept-changed."""
    first, _, last = deliveries.partition("..")
    chosen = Selection(deliveries=((int(first), int(last or first)),))
    planned = plan(home.place, home.pipeline(), chosen)
    replay(home.place, home.pipeline(), planned, who="test", accept_changed=accept, spark=home.spark)


def named(home: Home) -> str:
    """Return the deliveries that an audit says to replay."""
    report = audit(home.place, home.pipeline())
    assert not report.clean
    [said] = [one for one in report.next if "sluice replay orders" in one]
    found = re.search(r"--deliveries (\S+) --accept-changed", said)
    assert found
    return found[1]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM warehouse.orders WHERE id = 0",
        pytest.param(
            "INSERT INTO warehouse.orders SELECT * FROM warehouse.orders WHERE id = 0", marks=pytest.mark.slow
        ),
        "UPDATE warehouse.orders SET amount = amount + 1 WHERE id = 0",
    ],
    ids=["deleted", "doubled", "changed"],
)
def test_rows_changed_by_hand_are_replayed_by_the_command_that_audit_names(
    home: Home, landed: Landed, statement: str
) -> None:
    home.ask(statement)
    deliveries = named(home)
    if not statement.startswith("UPDATE"):
        with pytest.raises(NeedsPerson, match="the ledger says 18"):
            again(home, deliveries, accept=False)
    again(home, deliveries)
    home.assert_rows(landed)
    home.assert_clean()


def test_an_object_removed_by_hand_comes_back_with_its_delivery(home: Home, landed: Landed) -> None:
    [(path,)] = home.ask("SELECT path FROM sluice.delivery_file WHERE delivery_id = 2 AND kind = 'data'")
    home.reader().store.delete_file(path.removeprefix("s3://"))
    assert named(home) == "2"
    again(home, "2")
    home.assert_rows(landed)
    home.assert_clean()


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE warehouse.orders DROP COLUMN amount",
        pytest.param(
            "ALTER TABLE warehouse.orders DROP COLUMN amount; ALTER TABLE warehouse.orders ADD amount double precision",
            marks=pytest.mark.slow,
        ),
        pytest.param("DROP TABLE warehouse.orders", marks=pytest.mark.slow),
        pytest.param("TRUNCATE warehouse.orders", marks=pytest.mark.slow),
    ],
)
def test_what_was_dropped_is_not_covered_up_by_new_batches(
    home: Home, landed: Landed, statement: str
) -> None:
    home.ask(statement)
    landed += home.land("orders/c.jsonl", orders(30, 5))
    with pytest.raises(
        TableRefused, match=r"is gone|(no longer|no value any more in) the columns amount|holds no row"
    ) as refused:
        home.run()
    found = re.search(r"--deliveries (\S+) --accept-changed", refused.value.remedy)
    assert found
    with pytest.raises(TableRefused):
        again(home, "2")  # would bring a part, over which runs went on
    again(home, found[1])
    assert home.run().delivered == 5
    home.assert_rows(landed)
    home.assert_clean()


def test_a_pointer_of_the_past_is_not_committed_on(home: Home, landed: Landed) -> None:
    home.ask(
        "UPDATE sluice.iceberg_tables SET metadata_location = previous_metadata_location WHERE table_name = 'orders'"
    )
    landed += home.land("orders/c.jsonl", orders(30, 5))
    with pytest.raises(
        NeedsPerson, match=r"went back in time: it is at .*, which lacks what delivery 2 published"
    ) as refused:
        home.run()
    statement = re.search("`(UPDATE .*?)`", refused.value.remedy)
    assert statement
    home.ask(statement[1])
    assert home.run().delivered == 5
    home.assert_rows(landed)
    home.assert_clean()


def test_a_file_that_was_taken_as_gone_and_comes_back_is_told(home: Home, landed: Landed) -> None:
    file = Path(home.landing, "orders/b.jsonl")
    away = file.rename(home.root / "b.jsonl")
    again(home, "2")
    away.rename(file)
    [told] = audit(home.place, home.pipeline()).changed_inputs
    assert told.startswith("orders/b.jsonl has ")
    with pytest.raises(InputsChanged, match=r"has .* bytes and had 0"):
        again(home, "3", accept=False)
    again(home, "3")
    home.assert_rows(landed)
    home.assert_clean()
