"""A year delivered day by day; then a rule and the transform change, and March is backfilled from the form of Airflow's UI.

Half an hour: `make year`.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import Page, expect

from tests.support.airflow.browser import sign_in
from tests.support.airflow.orders_stack import Stack
from tests.support.data.flights import packaged
from tests.support.data.orders import rule
from tests.support.environment import REPOSITORY
from tests.support.waiting import until

NAME = "flights"
FIRST, LAST = dt.date(2013, 1, 1), dt.date(2013, 12, 31)
MARCH = dt.date(2013, 3, 1), dt.date(2013, 3, 31)
DAYS = list(pd.date_range(*MARCH).date)
PATIENCE = 3600  # seconds
TOO_LATE = 300  # minutes; at three hours the storm of 8 March would break the contract
WITHIN = "it left within five hours"
RULE = rule("column_values_to_be_between", WITHIN, "warning", column="dep_delay", max_value=TOO_LATE)
ANEW = "(month = 3 OR (month, day) = (12, 31))"  # delivered after the change
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE)]


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """Return each flight as the package has it, with its day."""
    rows = packaged("flights.csv.zip", dtype=str, keep_default_na=False).replace("NA", "")
    days = pd.to_datetime(rows[["year", "month", "day"]].astype(int)).dt.date
    return rows[days.between(FIRST, LAST)].assign(on=days)


def declare(stack: Stack, *, after: bool) -> None:
    """Declare the shipped pipeline, a delivery a day; after the change it tells who left late, and holds the latest."""
    text = (REPOSITORY / "etl" / "pipelines" / f"{NAME}.py").read_text()
    sources = text[text.index("SOURCES = (") : text.index("SCHEMA = ")]
    text = text.replace(sources, 'SOURCES = (Files("flights/**/*.csv", max_files=1),)\n')
    text = text.replace('interval="scheduled_departure"', 'interval="dt={interval:%Y-%m-%d}"')
    rules = json.loads((REPOSITORY / "expectations" / f"{NAME}.json").read_text())["expectations"]
    if after:
        text = text.replace(
            "    return (\n        df.",
            '    return (\n        df.withColumn("left_late", F.col("dep_delay") > 15).',
        )
        rules.append(RULE)
    stack.home.judge(*rules, name=NAME)
    stack.home.declare(NAME, text=text)


def land(stack: Stack, flights: pd.DataFrame) -> None:
    for day, rows in flights.groupby("on"):
        stack.home.write(f"{NAME}/dt={day}/flights.csv", rows.drop(columns="on").to_csv(index=False))


def live(stack: Stack) -> dict[dt.date, int]:
    """Return the delivery of each day."""
    query = (
        "SELECT substring(path from 'dt=([-0-9]+)')::date, delivery_id FROM sluice.delivery_input"
        " JOIN sluice.delivery d USING (delivery_id) WHERE d.pipeline = %s AND d.live"
    )
    return dict(stack.home.ask(query, NAME))


def test_march_is_backfilled_from_the_form(
    stack: Stack, page: Page, flights: pd.DataFrame, tmp_path: Path
) -> None:
    assert stack.home.sluice("land", NAME, "--days", str(FIRST)).returncode == 0  # for the lookups
    shutil.rmtree(stack.home.landing / NAME)
    declare(stack, after=False)
    land(stack, flights[flights.on < LAST])
    stack.wait_for_dag(NAME)
    stack.api.unpause(NAME)
    [scheduled] = until(lambda: stack.api.runs(NAME), "the scheduled run", patience=120)
    assert stack.ended(scheduled, NAME, within=PATIENCE) == "success"
    before = live(stack)
    assert len(before) == (LAST - FIRST).days

    declare(stack, after=True)
    backfill(stack, page, tmp_path)
    land(stack, flights[flights.on == LAST])
    between = stack.api.trigger(NAME)
    assert stack.ended(between, NAME) == "success"
    assert len(replaced(stack)) < len(DAYS), "the stream goes on while the backfill does"
    runs = [stack.ended(run, NAME, within=PATIENCE) for run in stack.backfilled(NAME, len(DAYS))]

    # every day of March once, in their order, and nothing else
    assert runs == ["success"] * len(DAYS)
    after = live(stack)
    assert {day for day in before if after[day] != before[day]} == set(DAYS)
    assert replaced(stack) == {before[day] for day in before if MARCH[0] <= day <= MARCH[1]}
    spans = stack.home.ask(
        "SELECT interval_start::date, started_at, ended_at FROM sluice.airflow_try"
        " WHERE dag_id = %s AND run_type = 'backfill' ORDER BY started_at",
        NAME,
    )
    assert [day for day, *_ in spans] == DAYS
    assert all(one[2] <= following[1] for one, following in itertools.pairwise(spans))

    assert_rows(stack, flights)
    stack.home.assert_clean(NAME)


def backfill(stack: Stack, page: Page, tmp_path: Path) -> None:
    """Start the backfill as a person does."""
    sign_in(page, stack, "admin")
    page.goto(f"/dags/{NAME}")
    page.get_by_test_id("trigger-dag-button").click()
    page.get_by_text("Backfill", exact=True).click()
    for number, day in enumerate(MARCH):
        page.get_by_test_id("datetime-input").nth(number).click()
        page.get_by_placeholder("YYYY/MM/DD").fill(f"{day:%Y/%m/%d}")
        page.get_by_text("Date Range", exact=True).click()
        expect(page.get_by_placeholder("YYYY/MM/DD")).to_have_count(0)
    page.get_by_text("All Runs", exact=True).click()
    expect(page.get_by_text(f"{len(DAYS)} runs will be triggered.")).to_be_visible()
    page.screenshot(path=tmp_path / "backfill.png")
    page.get_by_role("button", name="Run Backfill").click()
    expect(page.get_by_text("Backfill jobs have been successfully triggered.").first).to_be_visible()


def replaced(stack: Stack) -> set[int]:
    return {
        one for (one,) in stack.home.ask("SELECT delivery_id FROM sluice.replaced WHERE pipeline = %s", NAME)
    }


def assert_rows(stack: Stack, flights: pd.DataFrame) -> None:
    """Require that rows delivered after the change have the new column and rule, others not, and none is lost."""
    anew = flights.on.between(*MARCH) | (flights.on == LAST)
    delay = pd.to_numeric(flights.dep_delay)
    held = (
        "SELECT count(*), count(*) FILTER (WHERE %s = ANY(reasons)), count(row::json ->> 'left_late'),"
        " count(*) FILTER (WHERE (row::json ->> 'left_late')::boolean) FROM sluice.quarantine"
        " JOIN sluice.delivery d USING (delivery_id) WHERE d.pipeline = %s AND d.live"
    )
    [(all_held, too_late, *held_anew)] = stack.home.ask(held, WITHIN, NAME)
    assert too_late == int((anew & (delay > TOO_LATE)).sum()) > 0
    delivered = (
        "SELECT count(*), count(left_late), count(*) FILTER (WHERE left_late)"
        f" FROM warehouse.{NAME} WHERE {ANEW} IS %s"
    )
    [(rows, *delivered_anew)] = stack.home.ask(delivered, True)
    departed, left_late = (int((anew & chosen).sum()) for chosen in (delay.notna(), delay > 15))
    assert [sum(both) for both in zip(delivered_anew, held_anew, strict=True)] == [departed, left_late]
    [(others, *neither)] = stack.home.ask(delivered, False)
    assert neither == [0, 0]
    assert rows + others + all_held == len(flights)
