"""Consumers on the pages: where each is, how far behind, and which is further behind than it may be."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from etl.airflow.pages import consumers, pages
from etl.airflow.pages.render import Frame
from etl.services import Services
from tests.support import oracle
from tests.support.airflow.browser import browser
from tests.support.databases import new_database
from tests.support.pages.drawn import draw, shown
from tests.support.pages.history import seed

__all__ = ["browser"]

BATCHES = 8  # one an hour, each of 995 delivered rows
CHANGES = (
    "UPDATE sluice.delivery SET committed_at = now() - interval '1 hour' * (8 - commit_seq) - interval '10 minutes'",
    "UPDATE sluice.delivery SET rows_in = 995, delivered = 995, quarantined = 0, malformed = 0",
    "UPDATE sluice.pipeline SET consumer_lag_limit = interval '2 hours' WHERE name = 'feed'",
    """INSERT INTO sluice.consumer (pipeline, name, commit_seq, delivery_id, moved_at, created_at) VALUES
       ('feed', 'up to date', 8, 8, '2026-01-02 03:04', '2026-01-01'),
       ('feed', 'an hour <b>late</b>', 7, 7, '2026-01-02 03:04', '2026-01-01'),
       ('feed', 'stuck', 3, 3, '2026-01-02 03:04', '2026-01-01'),
       ('feed', 'new', 0, NULL, NULL, '2026-01-01 00:00')""",
)
READS_CELLS = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))"


@pytest.fixture(scope="module")
def ledger(services: Services, template: str) -> Iterator[str]:
    with new_database(services.postgres, template=template) as dsn:
        seed(dsn, "feed", batches=BATCHES, rules=2)
        seed(dsn, "alone", batches=2, rules=2, first=1000)
        for change in CHANGES:
            oracle.ask(dsn, change)
        yield dsn


def test_a_pipelines_page_lists_its_consumers_the_furthest_behind_first(
    ledger: str, browser: Browser
) -> None:
    html = draw(ledger, lambda cursor: pages.pipeline(cursor, "feed", Frame()))[0].html
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_content(html)
    heading = page.locator("#consumers")
    assert heading.inner_text() == "Consumers"
    table = heading.locator("xpath=following-sibling::div[contains(@class, 'wide')][1]")
    assert table.locator("tbody tr").evaluate_all(READS_CELLS) == [
        ["new", "nothing", "8", "7,960", "▲ 7 h 10 min", "2026-01-01 00:00 UTC when it was made"],
        ["stuck", "delivery 3", "5", "4,975", "▲ 4 h 10 min", "2026-01-02 03:04 UTC"],
        ["an hour <b>late</b>", "delivery 7", "1", "995", "10 min", "2026-01-02 03:04 UTC"],
        ["up to date", "delivery 8", "0", "0", "–", "2026-01-02 03:04 UTC"],
    ]
    assert table.locator("a").first.get_attribute("href") == "batch/3"
    assert "2 consumers are behind by more than 2 h" in page.locator("main").inner_text()
    page.close()


def test_those_that_are_late_are_counted_beyond_what_is_shown(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "MOST", 1)
    text = shown(draw(ledger, lambda cursor: pages.pipeline(cursor, "feed", Frame()))[0])
    assert "2 consumers are behind by more than 2 h" in text
    assert "3 more are not shown" in text


def test_the_page_of_all_pipelines_names_what_is_late_and_leads_there(ledger: str) -> None:
    page = draw(ledger, lambda cursor: pages.overview(cursor, lambda names: names, Frame()))[0]
    assert re.findall(r'href="([^"]*)#consumers"', page.html) == ["feed/"]
    assert "▲ Behind new and 1 more by 7 h 10 min" in shown(page)


def test_without_consumers_there_is_no_section_and_without_a_limit_none_is_late(ledger: str) -> None:
    alone = draw(ledger, lambda cursor: pages.pipeline(cursor, "alone", Frame()))[0]
    assert "Consumers" not in shown(alone)
    oracle.ask(ledger, "UPDATE sluice.pipeline SET consumer_lag_limit = NULL")
    for make in (
        lambda cursor: pages.pipeline(cursor, "feed", Frame()),
        lambda cursor: pages.overview(cursor, lambda names: names, Frame()),
    ):
        assert "Behind for" in (text := shown(draw(ledger, make)[0])) or "Last batches" in text
        assert "▲ Behind" not in text
