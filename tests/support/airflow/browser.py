"""A real browser over Airflow's pages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from etl.airflow import api
from tests.support.airflow.orders_stack import Stack

BROWSER = shutil.which("chromium")
SHOWN_WITHIN = 60_000  # milliseconds
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=SHOWN_WITHIN)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        yield started
        started.close()


@pytest.fixture
def page(stack: Stack, browser: Browser) -> Iterator[Page]:
    """Open a page of somebody who has not been there before."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, base_url=stack.found.address)
    context.set_default_timeout(SHOWN_WITHIN)
    yield context.new_page()
    context.close()


def sign_in(page: Page, stack: Stack, user: str) -> None:
    page.goto("/")
    page.locator("input[name=username]").fill(user)
    page.locator("input[name=password]").fill(json.loads(stack.found.login.read_text())[user])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda address: "login" not in address)


def signed_in(page: Page, stack: Stack, user: str) -> None:
    """Give the page's browser what it has once the user has signed in."""
    token = api.sign_in(stack.found.address, stack.found.login, user).token
    page.context.add_cookies([{"name": "_token", "value": token, "url": stack.found.address}])
