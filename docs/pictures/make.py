"""Makes the pictures of the documentation anew, from the product as it runs: `make pictures`.

A local Airflow of its own delivers forty days of flights, two days a batch, and a browser looks at its pages. Meanwhile a
Prometheus of its own scrapes it, and has the data of the dashboard.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import dashboard
from playwright.sync_api import FrameLocator, Page, sync_playwright

from etl.airflow.api import Api, sign_in
from etl.airflow.local.installation import Airflow
from etl.airflow.local.stack import up
from etl.common.settings import load_settings
from etl.services.process import HOST, free_ports
from tests.support.prometheus import Prometheus, scraping
from tests.support.waiting import until

PICTURES = Path(__file__).parent
PATIENCE = 120_000  # milliseconds
RUNS_WITHIN = 600  # seconds
DAYS = "2013-01-01..2013-02-09"
# Two files a batch, so that the pages have batches to compare.
SMALL_BATCHES = """
from dataclasses import replace
from etl.pipelines.{name} import PIPELINE as SHIPPED
PIPELINE = replace(SHIPPED, sources=tuple(replace(one, max_files=1) for one in SHIPPED.sources))
"""
PIPELINES = ("flights", "departures_per_hour")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="sluice") as folder:
        home = Path(folder)
        home.chmod(0o711)  # PostgreSQL's own user passes through
        for name in PIPELINES:
            file = home / "pipelines" / f"{name}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(SMALL_BATCHES.format(name=name))
        os.environ |= {"SLUICE_HOME": f"{home}/home", "SLUICE_PIPELINES": str(file.parent)}
        os.environ.setdefault("SLUICE_JARS", str(Path(".sluice/jars").resolve()))
        try:
            sluice("land", "flights", "--days", DAYS)
            with scraped(home) as seen:
                began = time.time()
                sluice("run", "departures_per_hour")
                sluice("consumers", "departures_per_hour", "report", "--after", "start")
                found = up(load_settings())
                sluice("trigger", "flights")
                sluice("audit", "flights")
                counted = 'sluice_orphaned_bytes{pipeline="flights"}'
                until(lambda: seen.ask(counted), "a scrape after the audit", patience=60)
                dashboard.draw(seen, PICTURES / "dashboard.png", start=began, end=time.time(), folder=home)
                said("dashboard")
            draw(found)
        finally:
            sluice("down")


def sluice(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "etl.cli", *words], check=True)


@contextmanager
def scraped(home: Path) -> Iterator[Prometheus]:
    """Yield a Prometheus that scrapes what `sluice metrics` says."""
    [port] = free_ports(1)
    metrics = subprocess.Popen([sys.executable, "-m", "etl.cli", "metrics", "--listen", str(port)])
    try:
        with scraping(f"{HOST}:{port}", home / "prometheus", every=1) as seen:
            yield seen
    finally:
        metrics.terminate()
        metrics.wait()


def draw(found: Airflow) -> None:
    """Take every picture."""
    signed_in = sign_in(found.address, found.login)
    with browser(signed_in, "light") as page:
        page.goto("/dags/flights")
        frame = quality_tab(page)
        frame.locator(".map a").first.wait_for()
        take(page, "quality")

        page.get_by_test_id("trigger-dag-button").click()
        page.locator("#element_driver_memory").fill("1g")
        take(page, "trigger")
        page.get_by_text("Backfill", exact=True).click()
        for number, day in enumerate(("2013/01/01", "2013/01/31")):
            page.get_by_test_id("datetime-input").nth(number).click()
            page.get_by_placeholder("YYYY/MM/DD").fill(day)
            page.get_by_text("Date Range", exact=True).click()
            page.get_by_placeholder("YYYY/MM/DD").wait_for(state="detached")
        page.get_by_text("All Runs", exact=True).click()
        page.get_by_text("31 runs will be triggered.").wait_for()
        take(page, "backfill")

        page.goto(f"/dags/flights/runs/{quote(next(iter(signed_in.runs('flights'))), safe='')}/tasks/run")
        page.get_by_text("rows delivered").first.wait_for()
        take(page, "run")

    with browser(signed_in, "dark") as page:
        page.goto("/dags/flights")
        frame = quality_tab(page)
        frame.get_by_role("link", name="look at all").click()
        frame.locator("td.bad").first.wait_for()
        take(page, "quarantine")

    with browser(signed_in, "light") as page:
        page.goto("/data-quality/flights/quarantine")
        page.locator('td a[href*="batch/"]').first.click()
        page.get_by_role("heading", name="Held rows").wait_for()
        take(page, "quality-batch")
        page.goto("/data-quality/flights/column?name=dep_delay")
        page.get_by_role("heading", name="dep_delay").wait_for()
        take(page, "column")
        page.goto("/data-quality/departures_per_hour/")
        page.get_by_text("in figures").click()
        page.get_by_role("heading", name="How it runs").evaluate("one => one.scrollIntoView()")
        take(page, "how-it-runs")

        page.set_viewport_size({"width": 1280, "height": 960})  # the choices are below the question
        page.goto(f"/dags/flights/runs/{quote(run_that_asks(signed_in), safe='')}/tasks/run/required_actions")
        page.get_by_role("button", name="Hold the bad rows").wait_for()
        take(page, "question")


def run_that_asks(signed_in: Api) -> str:
    """Land a day with flights from another city, run it, and return the run once it asks a person."""
    landed = Path(load_settings().landing, "flights")
    newest = max(landed.glob("dt=*/*.jsonl"))
    strangers = landed / "dt=2013-02-10" / newest.name
    strangers.parent.mkdir()
    strangers.write_text(newest.read_text().replace('"LGA"', '"LHR"'))
    signed_in.unpause("flights")  # a question in a paused DAG fails its run
    run = signed_in.trigger("flights")
    asks = (one.state == "awaiting_input" for one in signed_in.follow("flights", run, within=RUNS_WITHIN))
    if not any(asks):
        raise SystemExit(f"{run} of flights ended without a question")
    return run


@contextmanager
def browser(signed_in: Api, scheme: Literal["light", "dark"]) -> Iterator[Page]:
    """Yield a browser's page of somebody who has signed in to Airflow."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = chromium.new_context(
            viewport={"width": 1280, "height": 800}, base_url=signed_in.address, color_scheme=scheme
        )
        context.set_default_timeout(PATIENCE)
        context.add_cookies([{"name": "_token", "value": signed_in.token, "url": signed_in.address}])
        yield context.new_page()
        chromium.close()


def quality_tab(page: Page) -> FrameLocator:
    page.get_by_role("link", name="Data quality").first.click()
    return page.frame_locator('iframe[title="Data quality"]')


def take(page: Page, name: str) -> None:
    page.screenshot(path=PICTURES / f"{name}.png", animations="disabled")
    said(name)


def said(name: str) -> None:
    print(f"{name}.png: {(PICTURES / f'{name}.png').stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
