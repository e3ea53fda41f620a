"""A drafted suite is Great Expectations' own, passes on what it was drawn from, and tells the odd row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import great_expectations as gx
import pytest

from etl.cli.shared import write_output
from etl.common.errors import SetupError
from etl.operations.suites.suggest import Suggestion
from etl.operations.suites.what_if import what_if
from tests.support.data.orders import RULES, Order, orders
from tests.support.home import Home

DECLARED = """
from etl.pipeline import Append, Files, Pipeline

def widened(df):
    return df.selectExpr(
        "id", "shop", "amount", "at",
        "concat('N', lpad(id % 7919, 4, '0'), shop) AS code",
        "element_at(array('plain', 'it''s', '<b>'), cast(id % 3 AS int) + 1) AS `odd name`",
        "concat_ws('-', substring('abcdefghij', 1, cast(id % 9 AS int) + 1), lower(shop)) AS words",
        "cast(amount * 3 AS decimal(12,2)) AS price", "cast(id % 4 AS smallint) AS few",
        "if(id % 10 = 0, null, amount > 50) AS flag", "cast(null AS string) AS nothing",
        "cast(if(id % 50 = 7, 'NaN', amount) AS float) AS ratio", "cast(at AS date) AS day",
    )

PIPELINE = Pipeline(
    name="orders", sources=(Files("orders/*.jsonl", max_files=1),),
    schema="id bigint, shop string, amount double, at timestamp", transform=widened, suite="orders",
    sink=Append(), max_quarantine_share=1.0,
)
"""
BETWEEN, IN_SET, REGEX, LENGTHS, NOT_NULL = (
    f"expect_column_{name}"
    for name in (
        "values_to_be_between",
        "values_to_be_in_set",
        "values_to_match_regex",
        "value_lengths_to_be_between",
        "values_to_not_be_null",
    )
)


@pytest.fixture
def delivered(home: Home) -> Home:
    home.declare(text=DECLARED)
    home.judge(*RULES[:2])
    home.land("orders/a.jsonl", orders(0, 400, negative=[17, 18]), ["{broken"])
    home.land("orders/b.jsonl", orders(400, 300, negative=[401]))
    assert home.run().batches == 2
    return home


def drawn(home: Home, file: Path) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the draft's expectations by column and type."""
    done = home.sluice_here("suggest", "orders", "--output", str(file))
    assert done.returncode == 0, done.stderr
    suite = json.loads(file.read_text())
    return {(one["kwargs"].get("column", ""), one["type"]): one for one in suite["expectations"]}


def test_a_drafted_suite_passes_on_its_batches_and_holds_the_odd_row(delivered: Home) -> None:
    file = delivered.root / "drafted.json"
    found = drawn(delivered, file)

    assert found["code", REGEX]["kwargs"]["regex"] == "^(?:N[0-9]{4}[A-Z])$".replace("N", "[A-Z]", 1)
    assert found["odd name", IN_SET]["kwargs"]["value_set"] == ["<b>", "it's", "plain"]
    assert found["few", IN_SET]["kwargs"]["value_set"] == [0, 1, 2, 3]
    assert (found["shop", IN_SET]["severity"], found["few", IN_SET]["severity"]) == ("warning", "info")
    assert found["words", REGEX]["kwargs"]["regex"] == r"^(?:[a-z]+\-[a-z]|[a-z]\-[a-z])$"
    assert found["amount", BETWEEN]["kwargs"]["min_value"] == 0
    assert found["amount", BETWEEN]["kwargs"]["mostly"] < 1, "held rows are judged, and break it"
    assert found["flag", NOT_NULL]["severity"] == "info"
    assert 0.8 < found["flag", NOT_NULL]["kwargs"]["mostly"] < 0.9
    assert found["price", "expect_column_values_to_be_of_type"]["kwargs"]["type_"] == "DecimalType"
    assert ("id", BETWEEN) not in found, "a key has no usual range"
    assert ("nothing", NOT_NULL) not in found
    assert all("2 batches" in one["notes"] for one in found.values())

    opened = gx.ExpectationSuite(**json.loads(file.read_text()))
    assert [one.expectation_type for one in opened.expectations] == [kind for _, kind in found]

    pipeline = delivered.pipeline()
    tried = what_if(delivered.place, pipeline, file, spark=delivered.spark)
    rules = [rule for batch in tried.batches for rule in batch.rules if rule.now is not None]
    assert len(rules) == 2 * len(found)
    assert [rule for rule in rules if rule.now is not None and not rule.now.success] == []
    assert (tried.totals["newly_held"], tried.totals["batches_that_stop"]) == (0, 0)

    delivered.land("orders/c.jsonl", [*orders(700, 50), Order(id=9_000, shop="?", amount=1e6)])
    delivered.run()
    (odd,) = what_if(delivered.place, pipeline, file, last=1, spark=delivered.spark).batches
    assert odd.newly_held == 1
    held = {rule.reason for rule in odd.rules if rule.newly_held}
    assert {"shop is one of the known", "code has a known pattern", "amount is in its usual range"} <= held


def test_a_file_that_is_there_is_left_alone_unless_forced(home: Home) -> None:
    file = home.root / "mine.json"
    file.write_text("mine")
    refused = home.sluice_here("suggest", "orders", "--output", str(file))
    assert (refused.returncode, file.read_text()) == (2, "mine")
    assert "exists already; it was not changed" in refused.stderr
    drafted = Suggestion(suite={"name": "orders", "expectations": []}, batches=1, rows=1)
    with pytest.raises(SetupError, match="exists"):
        write_output(drafted.text, file, force=False)
    write_output(drafted.text, file, force=True)
    assert json.loads(file.read_text())["name"] == "orders"
