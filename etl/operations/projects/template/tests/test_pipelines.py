"""The declarations and suites have no mistake, and the sample becomes what it should."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import etl

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def settings_of_this_project(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLUICE_") and name != "SLUICE_JARS"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(PROJECT)


def test_no_declaration_and_no_suite_has_a_mistake() -> None:
    assert [mistake for checked in etl.check() for mistake in checked.mistakes] == []


def test_an_order_has_its_total_and_a_negative_price_is_held() -> None:
    """It starts Spark, and the embedded services, which stay up until `sluice down`; it writes to neither sink."""
    tried = etl.try_out("orders", PROJECT / "samples" / "orders.jsonl")
    totals = [row[list(tried.columns).index("total")] for row in tried.rows]
    assert [str(total) for total in totals[:2]] == ["25.00", "39.90"]
    assert (tried.delivered, tried.reasons) == (7, {"the price is not negative": 1})
    assert not tried.stops
