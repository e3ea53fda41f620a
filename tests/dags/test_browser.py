"""A person's way through Airflow's pages, in a real browser: sign in, unpause, trigger, watch, read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.dags.orders_stack import PATIENCE, Stack
from tests.spark.runs import NAME

BROWSER = shutil.which("chromium")
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def page(stack: Stack) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        page = browser.new_page(viewport={"width": 1280, "height": 800}, base_url=stack.found.address)
        page.set_default_timeout(60_000)
        yield page
        browser.close()


def sign_in(page: Page, stack: Stack, user: str) -> None:
    page.goto("/")
    page.locator("input[name=username]").fill(user)
    page.locator("input[name=password]").fill(json.loads(stack.found.login.read_text())[user])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda address: "login" not in address)


def test_a_person_triggers_a_run_and_reads_what_it_did(stack: Stack, page: Page, tmp_path: Path) -> None:
    stack.land()
    stack.api.pause(NAME)
    sign_in(page, stack, "admin")
    page.goto(f"/dags/{NAME}")
    page.locator("label", has=page.get_by_role("checkbox")).first.click()
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
    assert stack.ended(run) == "success"
    page.goto(f"/dags/{NAME}/runs/{quote(run, safe='')}/tasks/run/asset_events")
    expect(page.get_by_text("orders (lake)").first).to_be_visible()
    page.screenshot(path=tmp_path / "events.png")
    stack.assert_exactly_once()


def test_a_viewer_can_look_and_not_trigger(stack: Stack, page: Page) -> None:
    sign_in(page, stack, "viewer")
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
