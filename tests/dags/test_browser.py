"""A person's way through Airflow's pages, in a real browser: sign in, unpause, trigger, watch, read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import FrameLocator, Page, expect

from etl.pipeline.dag_names import replays_of
from tests.support.airflow.browser import sign_in, signed_in
from tests.support.airflow.orders_stack import PATIENCE, Stack
from tests.support.data.orders import NAME, NEGATIVE, RULES, Order
from tests.support.pages.out_of_sight import OUT_OF_SIGHT

BESIDE = replays_of(NAME)
pytestmark = pytest.mark.timeout(600)


def test_a_person_triggers_a_run_and_reads_what_it_did(stack: Stack, page: Page, tmp_path: Path) -> None:
    stack.land()
    stack.api.pause(NAME)
    sign_in(page, stack, "admin")
    page.goto(f"/dags/{NAME}")
    with page.expect_response(lambda answer: answer.request.method == "PATCH") as unpaused:
        page.locator("label", has=page.get_by_role("checkbox")).first.click()
    assert unpaused.value.ok
    expect(page.get_by_role("checkbox").first).to_be_checked()
    assert not stack.api.is_paused(NAME)

    page.get_by_test_id("trigger-dag-button").click()
    page.locator("#element_driver_memory").fill("1g")
    page.screenshot(path=tmp_path / "trigger.png")
    with page.expect_response(
        lambda answer: answer.request.method == "POST" and "dagRuns" in answer.url
    ) as asked:
        page.get_by_test_id("trigger-dag-submit").click()
    run = asked.value.json()["dag_run_id"]

    page.goto(f"/dags/{NAME}/runs/{quote(run, safe='')}/tasks/run")
    expect(
        page.get_by_text(re.compile("orders batch [0-9]+: 8 rows delivered, 2 quarantined"))
    ).to_be_visible(timeout=PATIENCE * 1000)
    page.screenshot(path=tmp_path / "log.png")
    expect(page.get_by_text(re.compile("^success$", re.IGNORECASE)).first).to_be_visible(
        timeout=PATIENCE * 1000
    )
    assert stack.ended(run) == "success"
    stack.newest = run
    page.goto(f"/dags/{NAME}/runs/{quote(run, safe='')}/tasks/run/asset_events")
    expect(page.get_by_text("orders (lake)").first).to_be_visible()
    page.screenshot(path=tmp_path / "events.png")
    stack.assert_exactly_once()


def test_a_viewer_can_look_and_not_trigger(stack: Stack, page: Page) -> None:
    signed_in(page, stack, "viewer")
    page.goto(f"/dags/{NAME}")
    expect(page.get_by_text(NAME, exact=True).first).to_be_visible()
    page.get_by_test_id("trigger-dag-button").click()
    with page.expect_response(
        lambda answer: answer.request.method == "POST" and "dagRuns" in answer.url
    ) as asked:
        page.get_by_test_id("trigger-dag-submit").click()
    assert asked.value.status == 403


def test_a_stranger_is_asked_to_sign_in(stack: Stack, page: Page) -> None:
    page.goto(f"/dags/{NAME}")
    page.wait_for_url(re.compile("/auth/login"))


def quality(page: Page) -> FrameLocator:
    """Return the Data quality page within Airflow's own."""
    return page.frame_locator('iframe[title="Data quality"]')


def room(page: Page) -> tuple[int, int]:
    """Return how wide Airflow's frame for the page is, and how wide what is in it."""
    wide, content = quality(page).locator("html").evaluate("root => [root.clientWidth, root.scrollWidth]")
    return int(wide), int(content)


def out_of_sight(page: Page) -> list[str]:
    """Name the boxes of the page within Airflow's frame that are clipped, or scroll without a hint."""
    found: list[str] = quality(page).locator("html").evaluate(OUT_OF_SIGHT)
    return found


def assert_fits(page: Page) -> int:
    """Require that nothing of the page sticks out of Airflow's frame or is out of sight, in a window and in a small one.

    Return how wide the frame is in the window.
    """
    widths = []
    for width in (900, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        beside, content = room(page)
        assert content <= beside, f"{content} px in a frame of {beside}, in a window of {width}"
        assert out_of_sight(page) == [], f"in a frame of {beside}"
        widths.append(beside)
    return widths[-1]


@pytest.fixture(scope="module")
def run(stack: Stack) -> str:
    """Return the id of a run that has delivered, and held a row and a malformed record."""
    return stack.newest or stack.deliver()


def test_the_data_quality_tabs_show_what_was_held_and_why(
    stack: Stack, page: Page, run: str, tmp_path: Path
) -> None:
    batch, _ = made_by(stack, run)
    refused: list[str] = []
    page.on("console", lambda said: refused.append(said.text) if "Content Security" in said.text else None)
    signed_in(page, stack, "viewer")

    page.goto(f"/dags/{NAME}")
    page.get_by_role("link", name="Data quality").first.click()
    shown = quality(page)
    expect(shown.get_by_role("strong").first).to_have_text("◐ Good, with rows held")
    expect(shown.get_by_role("link", name=NEGATIVE).first).to_be_visible()
    expect(shown.locator('.map a[href^="batch/"][title*="of "]').first).to_be_visible()
    assert assert_fits(page) < 1000, "Airflow's panel is open"
    page.screenshot(path=tmp_path / "pipeline.png")
    shown.locator(".map").first.evaluate("map => { map.style.cssText = 'width: 90px; background: none'; }")
    assert out_of_sight(page), "a planted fault is found"

    page.goto(f"/dags/{NAME}/runs/{quote(run, safe='')}")
    page.get_by_role("link", name="Data quality").first.click()
    expect(quality(page).get_by_text("10 rows in = 8 delivered + 2 held")).to_be_visible()
    assert_fits(page)
    page.screenshot(path=tmp_path / "run.png")

    page.goto(f"/dags/{NAME}/runs/{quote(run, safe='')}/tasks/run")
    page.get_by_role("link", name="Data quality").first.click()
    shown = quality(page)
    expect(shown.get_by_role("heading", name="Task run of run")).to_be_visible()
    shown.locator("td").get_by_role("link", name=str(batch), exact=True).click()
    expect(shown.get_by_role("heading", name=f"Batch {batch} of {NAME}")).to_be_visible()
    expect(shown.locator("td.bad").first).to_be_visible()
    assert_fits(page)
    page.screenshot(path=tmp_path / "batch.png")
    shown.get_by_role("link", name="All 2 in the quarantine").click()
    expect(shown.get_by_role("heading", name=f"Quarantine of {NAME}")).to_be_visible()
    expect(shown.get_by_text("{broken")).to_be_visible()
    assert_fits(page)
    page.screenshot(path=tmp_path / "quarantine.png")
    shown.locator("tr", has=shown.locator("td.bad")).get_by_role("link").first.click()
    expect(shown.get_by_role("heading", name="Quarantined row")).to_be_visible()
    assert_fits(page)
    page.screenshot(path=tmp_path / "row.png")

    page.goto("/plugin/data-quality-nav")
    expect(quality(page).get_by_role("heading", name="Data quality of all pipelines")).to_be_visible()
    page.screenshot(path=tmp_path / "all.png")
    assert_fits(page)
    quality(page).get_by_role("link", name=NAME, exact=True).click()
    expect(quality(page).get_by_role("heading", name=f"Data quality of {NAME}")).to_be_visible()
    assert refused == []


def made_by(stack: Stack, run: str) -> tuple[int, int]:
    """Return the id of the batch that the run has delivered, and the number of the row that it holds."""
    query = (
        "SELECT d.batch_id, q.quarantine_id FROM sluice.airflow_delivery a JOIN sluice.delivery d USING (delivery_id)"
        " JOIN sluice.quarantine q USING (delivery_id) WHERE a.dag_run_id = %s AND q.row IS NOT NULL"
    )
    [(batch, row)] = stack.home.ask(query, run)
    return batch, row


def test_the_tasks_link_leads_to_its_runs_page(stack: Stack, page: Page, run: str) -> None:
    signed_in(page, stack, "viewer")
    found = stack.api.get(f"/api/v2/dags/{NAME}/dagRuns/{quote(run, safe='')}/taskInstances/run/links")
    page.goto(found["extra_links"]["Data quality"])
    expect(page.get_by_role("heading", name="Task run of run")).to_be_visible()


@pytest.fixture
def lenient(stack: Stack) -> Iterator[None]:
    """Let the suite allow negative amounts while the block runs."""
    stack.home.judge(*RULES[1:])
    yield
    stack.home.judge(*RULES)


@pytest.mark.slow
def test_a_person_releases_a_held_row_and_it_is_delivered_once(
    stack: Stack, page: Page, run: str, lenient: None, tmp_path: Path
) -> None:
    _, row = made_by(stack, run)
    refused: list[str] = []
    page.on("console", lambda said: refused.append(said.text) if "Content Security" in said.text else None)
    signed_in(page, stack, "admin")

    page.goto(f"/dags/{NAME}/runs/{quote(run, safe='')}")
    page.get_by_role("link", name="Data quality").first.click()
    shown = quality(page)
    shown.get_by_role("link", name="Look at the held rows").click()
    shown.get_by_role("link", name=str(row), exact=True).click()
    shown.get_by_role("button", name="Release this row…").click()
    expect(shown.get_by_role("heading", name=f"Release 1 row of {NAME}")).to_be_visible()
    page.screenshot(path=tmp_path / "confirm.png")
    note = shown.locator("input[name=note]").get_attribute("value") or ""
    shown.get_by_label("Why").fill("negative amounts are refunds")
    shown.get_by_role("button", name="Release 1 row").click()
    told = shown.get_by_text("Release asked for: run release__")
    expect(told).to_be_visible()
    page.screenshot(path=tmp_path / "asked.png")
    asked = told.inner_text().rpartition(" ")[2]
    form, place = {"note": note, "why": "sent twice"}, f"/data-quality/{NAME}/quarantine/{row}/release"
    for origin, status in ((stack.found.address, 303), ("http://elsewhere.example", 403)):
        sent = page.request.post(place, form=form, headers={"Origin": origin}, max_redirects=0)
        assert sent.status == status
    assert list(stack.api.runs(BESIDE)) == [asked]
    assert stack.ended(asked, BESIDE) == "success"
    # the page follows the run to its end, within Airflow's frame
    expect(shown.get_by_text("1 row in = 1 delivered + 0 held")).to_be_visible()

    page.goto(f"/dags/{BESIDE}/runs/{quote(asked, safe='')}")
    page.get_by_role("link", name="Data quality").first.click()
    expect(quality(page).get_by_text("1 row in = 1 delivered + 0 held")).to_be_visible()
    page.screenshot(path=tmp_path / "released.png")
    assert refused == []
    query = "SELECT status, decided_by, why FROM sluice.quarantine WHERE quarantine_id = %s"
    assert stack.home.ask(query, row) == [("released", "admin", "negative amounts are refunds")]
    actions = [(one["action"], one["released"]) for one in stack.told_by(asked)]
    assert actions == [("released", [row])] * 2
    stack.landed.released += [one for one in stack.landed.orders[-9:] if NEGATIVE in one.reasons]
    stack.assert_exactly_once()

    page.goto(f"/dags/{BESIDE}")
    page.get_by_role("link", name="Data quality").first.click()
    expect(quality(page).get_by_role("heading", name=f"Data quality of {NAME}")).to_be_visible()
    place = f"/api/v2/dags/{BESIDE}/dagRuns/{quote(asked, safe='')}/taskInstances/run/links"
    page.goto(stack.api.get(place)["extra_links"]["Data quality"])
    expect(page.get_by_role("heading", name="Task run of run")).to_be_visible()

    stack.clear(asked, BESIDE)  # it has nothing left to release
    assert stack.ended(asked, BESIDE) == "success"
    stack.assert_exactly_once()


def test_a_person_corrects_a_held_row_on_its_page_and_it_is_delivered(
    stack: Stack, page: Page, tmp_path: Path
) -> None:
    stack.deliver()
    query = "SELECT max(quarantine_id) FROM sluice.quarantine WHERE status = 'held' AND reasons = %s"
    [(row,)] = stack.home.ask(query, [NEGATIVE])
    signed_in(page, stack, "admin")
    page.goto(f"/data-quality/{NAME}/quarantine/{row}")
    page.get_by_role("button", name="Correct this row…").click()
    page.get_by_label("The columns to be set").fill('{"amount": 3.25}')
    page.screenshot(path=tmp_path / "correct.png")
    page.get_by_label("Why").fill("a sign too many")
    page.get_by_role("button", name="Correct and release 1 row").click()
    told = page.get_by_text("Release asked for: run release__")
    expect(told).to_be_visible()
    assert stack.ended(told.inner_text().rpartition(" ")[2], BESIDE) == "success"
    decided = "SELECT status, decided_by, why FROM sluice.quarantine WHERE quarantine_id = %s"
    assert stack.home.ask(decided, row) == [("released", "admin", "a sign too many")]
    numbered = "SELECT (row::jsonb ->> 'id')::bigint FROM sluice.quarantine WHERE quarantine_id = %s"
    [(number,)] = stack.home.ask(numbered, row)
    [order] = [one for one in stack.landed.orders if one.id == number]
    stack.landed.released.append(replace(order, amount=3.25))
    stack.assert_exactly_once()


def test_a_person_decides_on_the_page_of_a_stopped_batch_and_the_run_that_waits_goes_on(
    stack: Stack, page: Page, tmp_path: Path
) -> None:
    nobody = Order(id=None)
    stack.landed += stack.home.land("orders/seen.jsonl", [nobody, Order(id=66_666)])
    waits = stack.run()
    stack.question(waits)
    signed_in(page, stack, "viewer")
    page.goto(f"/data-quality/{NAME}/stopped")
    expect(page.get_by_text("Hold the bad rows, deliver the rest")).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)
    signed_in(page, stack, "admin")
    page.goto(f"/data-quality/{NAME}/stopped")
    expect(page.get_by_role("link", name="in Airflow")).to_have_attribute(
        "href", f"/dags/{NAME}/runs/{quote(waits, safe='')}/tasks/run/required_actions"
    )
    page.screenshot(path=tmp_path / "stopped.png")
    page.get_by_role("button", name="Hold the bad rows").click()
    page.get_by_label("Why").fill("<b>no number</b>")
    page.screenshot(path=tmp_path / "why.png")
    page.get_by_role("button", name="Hold the bad rows").click()
    expect(page.get_by_text(re.compile("^admin decided|No batch of orders is stopped"))).to_be_visible()
    assert stack.ended(waits) == "success"
    decided = "SELECT decision, decided_by, why FROM sluice.stopped_batch ORDER BY stopped_at DESC LIMIT 1"
    assert stack.home.ask(decided) == [("quarantine-all", "admin", "<b>no number</b>")]
    stack.assert_exactly_once()
