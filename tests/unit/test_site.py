"""`make docs` builds the site, every link in it leads somewhere, and no page asks another host for anything."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support.environment import REPOSITORY

SITE = REPOSITORY / "site"
# What a browser fetches by itself; a link is followed by a person.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]* src=\"?(https?:)?//|<link[^>]* href=\"?(https?:)?//|url\((https?:)?//"
)


@pytest.mark.slow
def test_the_site_is_built_and_fetches_nothing_from_elsewhere() -> None:
    done = subprocess.run(["make", "docs"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(SITE.rglob("*.html"))
    assert len(pages) > 70
    files = [*pages, *SITE.rglob("*.css")]
    assert [file.name for file in files if FETCHED.search(file.read_text())] == []
    shown = (SITE / "declaration.html").read_text()
    assert "max_quarantine_share" in shown
    assert "max_quarantine_share" in (SITE / "search/search_index.json").read_text()
