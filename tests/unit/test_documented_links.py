"""Every link between pages of the documentation leads to a file, and to a heading in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.documented import pages, prose
from tests.support.environment import REPOSITORY

LINK = re.compile(r"\]\(([^)\s]+)\)")
DECISIONS = sorted((REPOSITORY / "docs/decisions").glob("*.md"))


def broken(page: Path, text: str) -> list[str]:
    """Return the links of a page's text that lead nowhere."""
    found = []
    for link in LINK.findall(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" in link:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


def anchors(page: Path) -> set[str]:
    """Return what a link to a part of the page may name: its headings, and the objects of Python that it shows."""
    text = prose(page)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", one).strip().lower()) for one in headings}
    return slugs | set(re.findall(r"^::: (\S+)", text, re.MULTILINE))


@pytest.mark.parametrize("page", [*pages(), *DECISIONS], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page, prose(page)) == []


def test_a_planted_link_is_found() -> None:
    page = REPOSITORY / "docs/quality.md"
    links = "[a](nowhere.md) [b](reading.md#nothing) [c](#nothing) [d](../etl/nothing.py)"
    assert len(broken(page, links)) == 4
    links = "[a](reading.md) [b](reading.md#json) [c](#data-docs) [d](../etl) [e](api.md#etl.pipeline.Scorer)"
    assert broken(page, links) == []


def test_each_picture_is_shown_and_small() -> None:
    pictures = {picture.name: picture for picture in (REPOSITORY / "docs/pictures").glob("*.[ps][nv]g")}
    assert {
        Path(link).name for page in pages() for link in re.findall(r"!\[.*?\]\((.*?)\)", prose(page))
    } == set(pictures)
    assert [name for name, picture in pictures.items() if picture.stat().st_size > 300_000] == []


def test_each_page_is_in_the_sites_navigation() -> None:
    navigation = (REPOSITORY / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    docs = REPOSITORY / "docs"
    ours = [str(page.relative_to(docs)) for page in pages() if page.is_relative_to(docs)]
    assert [
        page for page in ours if not re.search(rf"[ :]{re.escape(page)}$", navigation, re.MULTILINE)
    ] == []
