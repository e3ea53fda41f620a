"""The pages in a real browser, as wide as a window and as Airflow's frame: nothing is clipped or out of sight."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from etl.airflow.pages import columns, held_rows, pages
from etl.airflow.pages.deciding.choices import Choice, ReleaseRequest
from etl.airflow.pages.held_rows import Wanted
from etl.airflow.pages.render import Frame
from etl.services import Services
from tests.support import oracle
from tests.support.airflow.browser import browser
from tests.support.databases import new_database
from tests.support.pages.drawn import BELOW, Make, draw
from tests.support.pages.history import seed
from tests.support.pages.out_of_sight import OUT_OF_SIGHT

__all__ = ["browser"]

FEED = "deliveries_of_every_shop_in_every_country_by_the_hour"
RULE = "rule 1 about a column of the feed"
WIDTHS = (1280, 900, 700)  # a window, a small one, Airflow's frame beside its open panel
DECIDES = Frame(up="../", decides=frozenset({"release", "discard"}))

# what no word can be broken in, where people write or a machine does
LONG = "s3a://landing/" + "a_very_long_word_that_nobody_can_break/" * 6
CHANGES = """
UPDATE sluice.quality_rule SET reason = reason || repeat('_and_goes_on', 15) WHERE number = 2;
UPDATE sluice.column_metric SET column_name = column_name || repeat('_long', 20) WHERE number = 3;
UPDATE sluice.column_metric SET minimum = -1.2345e300, mean = 1.2345e-300 WHERE number = 4;
UPDATE sluice.delivery_input SET uri = %(long)s || path;
UPDATE sluice.delivery_file SET path = %(long)s || path;
UPDATE sluice.delivery SET manifest = %(long)s;
UPDATE sluice.delivery SET kind = 'replay' WHERE batch_id = 57;
UPDATE sluice.quarantine SET source_path = %(long)s, decided_by = %(long)s, why = %(long)s, decided_at = now();
UPDATE sluice.quarantine SET row = %(row)s WHERE quarantine_id %% 3 = 0;
UPDATE sluice.quarantine SET row = NULL, reasons = '{malformed}', raw = %(row)s,
    detail = %(long)s WHERE quarantine_id %% 5 = 0;
UPDATE sluice.airflow_try SET outcome = 'CheckpointLost', message = %(long)s, remedy = %(long)s,
    task_id = repeat('task_', 12);
UPDATE sluice.run SET outcome = 'CheckpointLost', message = %(long)s, remedy = %(long)s WHERE pipeline = 'failing';
UPDATE sluice.quality SET state = 'flawed' WHERE pipeline = 'flawed';
UPDATE sluice.delivery SET records = 1234567, dropped = 7654321 WHERE pipeline = 'flawed';
UPDATE sluice.pipeline SET consumer_lag_limit = interval '1 hour';
INSERT INTO sluice.consumer (pipeline, name, commit_seq, delivery_id, moved_at)
SELECT pipeline, %(long)s || commit_seq, commit_seq, delivery_id, now() FROM sluice.delivery WHERE batch_id < 3;
INSERT INTO sluice.stopped_batch (stream_id, batch_id, pipeline, stops, malformed, lapsed, report)
SELECT stream_id, 9999, pipeline, ARRAY[%(long)s], ARRAY[%(long)s], %(long)s,
       (SELECT report FROM sluice.quality ORDER BY delivery_id DESC LIMIT 1)
FROM sluice.stream WHERE pipeline = %(feed)s
"""


@pytest.fixture(scope="module")
def ledger(services: Services, template: str) -> Iterator[str]:
    with new_database(services.postgres, template=template) as dsn:
        seed(dsn, FEED, batches=60, rules=30)
        for first, name in enumerate(("failing", "flawed", "good"), start=1):
            seed(dsn, name, batches=3 * first, rules=3, first=1000 * first)
        row = json.dumps({f"column_{n}": n * "some words and " + LONG for n in range(20)})
        for change in CHANGES.split(";\n"):
            oracle.ask(dsn, change, {"long": LONG, "row": row, "feed": FEED})
        yield dsn


def of_feed(ledger: str, condition: str) -> int:
    """Return the number of a held row of the feed's last batch."""
    query = "SELECT min(quarantine_id) FROM sluice.quarantine WHERE delivery_id = 58 AND "
    [(number,)] = oracle.ask(ledger, query + condition)
    return int(number)


def makes(ledger: str) -> dict[str, Make]:
    """Return how each kind of page is drawn."""
    row, malformed = of_feed(ledger, "row IS NOT NULL"), of_feed(ledger, "row IS NULL")
    asked = ReleaseRequest(rows=3, who=LONG, why=LONG, state="queued", paused=True)
    return {
        "overview": lambda cursor: pages.overview(cursor, lambda names: names, Frame()),
        "nothing yet": lambda cursor: pages.overview(cursor, lambda _: [], Frame()),
        "pipeline": lambda cursor: pages.pipeline(cursor, FEED, Frame()),
        "pipeline that fails": lambda cursor: pages.pipeline(cursor, "failing", Frame()),
        "rule": lambda cursor: pages.rule(cursor, FEED, Frame(), known_by=RULE),
        "column": lambda cursor: columns.column(cursor, FEED, Frame(), column="c4"),
        "batch": lambda cursor: pages.batch(cursor, FEED, DECIDES, delivery=58),
        "run": lambda cursor: pages.dag_run(
            cursor, FEED, Frame(), dag=FEED, run_id="scheduled__5", task_id=LONG, release_request=asked
        ),
        "stopped": lambda cursor: pages.stopped(cursor, FEED, Frame()),
        "quarantine": lambda cursor: held_rows.quarantine(cursor, FEED, Frame(), wanted=Wanted()),
        "malformed": lambda cursor: held_rows.quarantine(
            cursor, FEED, Frame(), wanted=Wanted(rule="malformed")
        ),
        "row": lambda cursor: held_rows.held_row(cursor, FEED, DECIDES, number=row),
        "malformed row": lambda cursor: held_rows.held_row(cursor, FEED, DECIDES, number=malformed),
        "decision": lambda cursor: held_rows.decision(
            cursor, BELOW, choice=Choice(pipeline=FEED, action="release", delivery=58), sign=lambda _: "x"
        ),
        "problem": lambda _: pages.problem(Frame(), title=LONG, text=LONG, remedy=LONG),
    }


NAMES = (
    "overview",
    "nothing yet",
    "pipeline",
    "pipeline that fails",
    "rule",
    "column",
    "batch",
    "run",
    "stopped",
    "quarantine",
    "malformed",
    "row",
    "malformed row",
    "decision",
    "problem",
)

SHOWN = """box => { const r = box.getBoundingClientRect(), e = document.elementFromPoint(r.right - 3, r.bottom - 3);
  return r.left >= 0 && r.right <= document.documentElement.clientWidth && box.scrollWidth <= box.clientWidth
         && e !== null && box.contains(e); }"""


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_clipped_or_out_of_sight_without_a_hint(
    ledger: str, tab: Page, name: str, tmp_path: Path
) -> None:
    found: dict[int, Any] = {}
    html = draw(ledger, makes(ledger)[name])[0].html
    for width in WIDTHS:
        tab.set_viewport_size({"width": width, "height": 800})
        tab.set_content(html)
        found[width] = tab.evaluate(OUT_OF_SIGHT)
        for scheme in ("light", "dark"):
            tab.emulate_media(color_scheme=scheme)
            tab.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png", full_page=True)
    assert found == {width: [] for width in WIDTHS}


def test_every_kind_of_page_is_measured(ledger: str) -> None:
    assert tuple(makes(ledger)) == NAMES


@pytest.mark.parametrize("width", WIDTHS)
def test_what_comes_next_is_wholly_visible(ledger: str, tab: Page, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 1600})
    tab.set_content(draw(ledger, makes(ledger)["overview"])[0].html)
    cells = tab.locator("td.next").all()
    assert len(cells) == 4
    assert [cell.evaluate(SHOWN) for cell in cells] == [True] * 4
    commands = tab.locator("td.next code").all()
    assert [one.evaluate(SHOWN) for one in commands] == [True] * 4
    assert f"sluice decide {FEED} --batch 9999 " in " ".join(one.inner_text() for one in commands)


def test_a_map_says_that_it_scrolls_only_where_it_does(ledger: str, tab: Page) -> None:
    tab.set_content(draw(ledger, makes(ledger)["pipeline"])[0].html)
    seen = set()
    for width in range(400, 1400, 20):
        tab.set_viewport_size({"width": width, "height": 800})
        scrolls = tab.evaluate(
            "() => { const m = document.querySelector('.map'); return m.scrollWidth > m.clientWidth; }"
        )
        assert tab.locator(".hint").is_visible() == scrolls, width
        seen.add(scrolls)
    assert seen == {True, False}


def test_a_planted_fault_is_found(ledger: str, tab: Page) -> None:
    html = draw(ledger, makes(ledger)["overview"])[0].html
    tab.set_viewport_size({"width": 900, "height": 800})
    for fault in (
        "td.next code { white-space: nowrap; } .wide { background: none; }",
        "td.next { max-width: 50px; overflow: hidden; white-space: nowrap; }",
        "main { width: 2000px; }",
    ):
        tab.set_content(html.replace("</style>", fault + "</style>", 1))
        assert tab.evaluate(OUT_OF_SIGHT), fault
