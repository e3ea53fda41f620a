"""Data Docs of the history show every value as text, whatever it is, and ask no other host for anything."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from great_expectations.core import ExpectationSuiteValidationResult
from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
from great_expectations.render.view.view import DefaultJinjaPageView

from etl.ledger.quarantine import RowSelection, held_rows
from etl.operations.suites.data_docs import build_docs, history, suite_result
from etl.runs.replay.plan import Selection as Batches
from etl.runs.replay.plan import plan
from etl.runs.replay.release import release
from etl.runs.replay.replay import replay
from tests.support.data.orders import RULES, Order, orders
from tests.support.home import Home

PAYLOADS = [
    "<script>alert(1)</script>",
    "<SCRIPT SRC=//evil.example/x.js></SCRIPT>",
    "</script><script>alert(2)</script>",
    "<img src=x onerror=alert(3)>",
    '"><img src=x onerror=alert(4)>',
    "'><svg/onload=alert(5)>",
    "<svg><script>alert(6)</script></svg>",
    "<iframe src=javascript:alert(7)>",
    "<a href='javascript:alert(8)'>x</a>",
    "[x](javascript:alert(9))",
    "![x](https://evil.example/x.png)",
    "<https://evil.example/auto>",
    "https://evil.example/plain",
    '" onmouseover="alert(10)" x="',
    "' onfocus='alert(11)' autofocus='",
    "<body onload=alert(12)>",
    "<style>*{display:none}</style>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<base href=//evil.example/>",
    "<!-- <b>never closed",
    "]]><script>alert(13)</script>",
    "&lt;script&gt;alert(14)&lt;/script&gt;",
    "&#60;script&#62;alert(15)&#60;/script&#62;",
    "{{ 7 * 7 }}{% for a in b %}",
    "${alert(16)} $column $$PARAMETER",
    "\\u003cscript\\u003ealert(17)\\u003c/script\\u003e",
    "\\ue03cscript\\ue03ealert(18)",
    "\ue03cscript\ue03ealert(19)\ue03c/script\ue03e",
    "`</td></tr></table><form action=//evil.example><button>go</button></form>`",
    "javascript:alert(20)//",
    "<math><mtext></mtext><mglyph><style><img src=x onerror=alert(21)>",
]
COLUMN_NAMES = ["<img src=x onerror=alert(1)>", "\"'><svg onload=alert(2)>", "{{ 7*7 }} & $column"]
FILE_NAMES = ["<img src=x onerror=alert(1)>", "\" onmouseover='alert(1)' ", "&lt;script&gt;", "${a} it's"]
DECLARED = """
from etl.pipeline import Append, Files, Pipeline

NAMES = {names!r}

def with_odd_names(df):
    from pyspark.sql import functions as F
    return df.select("id", "shop", "amount", *(F.col("shop").alias(name) for name in NAMES))

PIPELINE = Pipeline(
    name="orders", sources=(Files("orders/*.jsonl"),), schema="id bigint, shop string, amount double, at timestamp",
    transform=with_odd_names, suite="orders", sink=Append(),
)
"""
TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "nav",
    "a",
    "aside",
    "main",
    "div",
    "ul",
    "li",
    "strong",
    "span",
    "h1",
    "h5",
    "h6",
    "p",
    "i",
    "hr",
    "br",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "code",
}


def info(kind: str, name: str, notes: str = "", **kwargs: Any) -> dict[str, Any]:
    found = {"type": f"expect_{kind}", "kwargs": kwargs, "meta": {"name": name}, "severity": "info"}
    return found | ({"notes": notes} if notes else {})


def hostile_suite() -> list[dict[str, Any]]:
    where = {"condition_parser": "spark"}
    halves = [
        info("column_values_to_be_in_set", half, column="shop", value_set=["A"], row_condition=half, **where)
        for half in ("id < 16", "id >= 16 and shop <> '<script>'")
    ]
    named = [
        info("column_values_to_be_in_set", f"{name} set", column=name, value_set=[*PAYLOADS[:3], "<b>"])
        for name in COLUMN_NAMES
    ]
    noted = [info("column_values_to_not_be_null", text, notes=text, column="id") for text in PAYLOADS]
    distinct = info("column_distinct_values_to_be_in_set", "distinct", column="shop", value_set=["A"])
    both = {"column_A": "shop", "column_B": COLUMN_NAMES[0]}
    pairs = info("column_pair_values_to_be_in_set", "pair", value_pairs_set=[["A", "<b>"]], **both)
    compared = {"type": "comparison", "column": {"name": "amount"}, "operator": "<", "parameter": 5}
    with_condition = info("column_values_to_be_null", "compared", column="shop", row_condition=compared)
    return [*halves, *named, *noted, distinct, pairs, with_condition]


class Page(HTMLParser):
    """What a browser would make of a page: elements and their attributes, and the text that is seen."""

    def __init__(self, file: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def shows(self, text: str) -> bool:
        def plain(whole: str) -> str:
            return "".join(whole.split())

        return plain(text) in plain(self.text)


def assert_inert(page: Page, folder: Path) -> None:
    """Nothing in the page runs, loads, or leads out of the folder."""
    assert {tag for tag, _ in page.elements} <= TAGS
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "action")]
        if (target := attributes.get("href")) is not None:
            assert tag == "a"
            assert target.startswith("#") or (folder / target).is_file(), target
    policies = [
        a.get("content") for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


@pytest.fixture
def judged(home: Home) -> Home:
    """Judge a batch whose values, columns, files, rules and notes are all hostile."""
    home.declare(text=DECLARED.format(names=COLUMN_NAMES))
    home.judge(*hostile_suite())
    made = [Order(id=number, shop=text) for number, text in enumerate(PAYLOADS)]
    for number, name in enumerate(FILE_NAMES):
        home.land(f"orders/{name}.jsonl", made[number :: len(FILE_NAMES)])
    assert home.run().delivered == len(PAYLOADS)
    return home


def test_hostile_values_names_notes_and_files_are_text_in_every_page(judged: Home) -> None:
    folder = judged.root / "docs"
    done = judged.sluice("docs", "orders", "--output", str(folder))
    assert done.returncode == 0, done.stderr
    files = sorted(folder.iterdir())
    assert [file.name.partition("-")[0] for file in files] == ["delivery", "index.html", "suite"]
    assert Page(folder / "index.html").shows("The verdict on the last batch.")
    pages = {file.name.partition("-")[0]: Page(file) for file in files}
    for page in pages.values():
        assert_inert(page, folder)
    for payload in PAYLOADS:
        shown = "".join("\ufffd" if "\ue000" <= character <= "\ue07f" else character for character in payload)
        assert pages["delivery"].shows(shown), f"a value {payload}"
        assert pages["suite"].shows(shown), f"a note {payload}"
    for name in COLUMN_NAMES:
        assert pages["delivery"].shows(name)
        assert pages["suite"].shows(name)
    for name in FILE_NAMES:
        assert pages["delivery"].shows(name), f"a file {name}"
    for condition in ("shop <> '<script>'", "amount < 5"):
        assert pages["suite"].shows(condition)
    raw = "".join(file.read_text() for file in files)
    assert [text for text in PAYLOADS if text in raw and set(text) & set("<>\"'")] == []


def test_the_history_loads_as_great_expectations_own_results(judged: Home) -> None:
    (kept,) = history(judged.place, judged.pipeline())
    result = suite_result(kept.content())
    assert type(result) is ExpectationSuiteValidationResult
    ((report,),) = judged.ask("SELECT report FROM sluice.quality")
    assert result.to_json_dict()["results"] == json.loads(report)["results"]
    assert result.success is json.loads(report)["success"] is False
    assert len(result.get_failed_validation_results().results) == kept.failed > 0

    # What would be without our way round: GX's own pages hold what was in the data as markup.
    by_gx = DefaultJinjaPageView().render(ValidationResultsPageRenderer().render(result))
    assert "<td" in by_gx
    assert PAYLOADS[0] in by_gx


def test_replays_are_named_as_such_the_table_is_named_and_releases_are_said_to_have_no_page(
    home: Home,
) -> None:
    home.declare(max_files=1)
    for number in range(2):
        home.land(f"orders/{number}.jsonl", orders(number * 10, 10, negative=[number * 10]))
    home.run()
    options: dict[str, Any] = {"who": "tests", "why": "looked at", "spark": home.spark}
    replay(home.place, home.pipeline(), plan(home.place, home.pipeline(), Batches(batches=(0, 0))), **options)
    home.judge(*RULES[1:])
    folder = home.root / "docs"
    kept = build_docs(home.place, home.pipeline(), folder)
    assert Page(folder / "index.html").shows("Releases from quarantine have no page: none was delivered")
    release(home.place, home.pipeline(), held_rows(home.dsn, "orders", RowSelection()), {}, **options)
    kept = build_docs(home.place, home.pipeline(), folder)
    [(number,)] = home.ask("SELECT delivery_id FROM sluice.delivery WHERE kind = 'replay'")
    assert [one.batch.title for one in kept] == ["batch 1", f"replay {number}"]
    index, page = Page(folder / "index.html"), Page(folder / kept[1].file)
    assert index.shows(f"replay {number}") and not index.shows("batch 0")
    assert index.shows("Releases from quarantine have no page: 2 were delivered since the first of these.")
    assert page.shows(f"replay {number}") and not page.shows("batch 0")
    assert page.shows("Data asset: warehouse.orders")
    assert not page.shows("None")


def test_pages_are_built_anew_and_no_other_file_is_touched(home: Home) -> None:
    home.land("orders/first.jsonl", [Order(id=1)])
    home.run()
    folder = home.root / "docs"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    first = build_docs(home.place, home.pipeline(), folder)
    home.land("orders/more.jsonl", [Order(id=100)])
    home.run()
    second = build_docs(home.place, home.pipeline(), folder)
    assert (len(first), len(second)) == (1, 2)
    assert {file.name for file in folder.iterdir()} == {
        "mine.txt",
        "index.html",
        *(kept.file for kept in second),
        second[0].suite_file,
    }
    assert Page(folder / "index.html").shows("The verdicts on the last 2 batches")
