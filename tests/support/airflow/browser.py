"""A real browser over Airflow's pages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.support.airflow.orders_stack import Stack

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
