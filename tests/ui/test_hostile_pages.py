"""The pages over hostile values, wherever anybody but Sluice writes: nothing raw."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import psycopg2
import pytest
from markupsafe import escape
from psycopg2.extras import Json

from etl.airflow.pages import columns, held_rows, pages
from etl.airflow.pages.held_rows import Wanted
from etl.airflow.pages.render import Frame, Page
from etl.services import Services
from tests.support import oracle
from tests.support.databases import new_database
from tests.support.pages.drawn import BELOW, Make, draw, shown
from tests.support.pages.history import Counting, seed

HOSTILE = [
    "<script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</textarea><img src=x onerror=alert(1)>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><animate onbegin=alert(1)>",
    "<iframe src=javascript:alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    '"><script>alert(1)</script>',
    "'><script>alert(1)</script>",
    '" onmouseover="alert(1)" x="',
    "' onmouseover='alert(1)' x='",
    "`><img src=x onerror=`alert(1)`>",
    "<body onload=alert(1)>",
    "<meta http-equiv=refresh content=0;url=//x.example>",
    "<base href=//x.example/>",
    "<link rel=stylesheet href=//x.example/x.css>",
    "<form action=//x.example><button>x",
    "<details open ontoggle=alert(1)>",
    "<!--><script>alert(1)</script>-->",
    "<![CDATA[<script>alert(1)</script>]]>",
    "{{ 7 * 7 }}<b>",
    "{% raw %}<b>{% endraw %}",
    "${7*7}<b>",
    "&lt;script&gt;<b>",
    "&#60;script&#62;<b>",
    "\u202e<b>gnp.exe",
    "<ſcript>alert(1)</ſcript>",
    "𝕏" * 2000 + "<b>",
    "../../etc/passwd?a=1&b=<b>#c",
]
PLAIN = ["plain", "other", "third"]  # what a page is made of otherwise


def test_there_are_thirty_hostile_payloads() -> None:
    assert len(set(HOSTILE)) >= 30


class Structure(HTMLParser):
    """The tags of a page with their attributes' names, and every address in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: set[tuple[str, tuple[str, ...]]] = set()
        self.addresses: set[str] = set()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add((tag, tuple(sorted(name for name, _ in attrs))))
        self.addresses |= {value or "" for name, value in attrs if name in ("href", "src", "action")}

    handle_startendtag = handle_starttag


@pytest.fixture(scope="module")
def poisoned(services: Services, template: str) -> Iterator[str]:
    """Deliver a batch for each payload, which is everywhere that anybody but Sluice writes; and one of plain words."""
    with new_database(services.postgres, template=template) as dsn:
        seed(dsn, "feed", batches=len(HOSTILE) + len(PLAIN), rules=2)
        connection = psycopg2.connect(dsn)
        with connection, connection.cursor() as cursor:
            for number, text in enumerate([*PLAIN, *HOSTILE], start=1):
                poison(cursor, number, text)
        connection.close()
        yield dsn


def poison(cursor: psycopg2.extensions.cursor, delivery: int, text: str) -> None:
    here = {"delivery": delivery, "text": text, "row": json.dumps({text: text, "n": "\ud800\x00"})}
    result = {
        "success": False,
        "expectation_config": {
            "type": text,
            "severity": text,
            "kwargs": {"column": text, text: text},
            "meta": {"name": text},
            "notes": [text, text],
        },
        "result": {
            "element_count": 3,
            "unexpected_count": 1,
            "observed_value": text,
            text: text,
            "partial_unexpected_list": [text, {text: text}, None],
        },
    }
    here["fields"] = Json({text: 3})
    here["report"] = Json(
        {"results": [result, result], "decision": {"action": text, "who": text, "why": text}}
    )
    for statement in (
        """UPDATE sluice.quality_rule SET reason = %(text)s, expectation = %(text)s, success = false,
               unexpected_count = 1, element_count = 3, severity = 'warning'
           WHERE delivery_id = %(delivery)s AND number = 0""",
        "UPDATE sluice.column_metric SET column_name = %(text)s WHERE delivery_id = %(delivery)s AND number = 0",
        "UPDATE sluice.quality SET report = %(report)s, state = 'held' WHERE delivery_id = %(delivery)s",
        """UPDATE sluice.delivery SET manifest = %(text)s, suite_digest = %(text)s, quarantined = 1, delivered = 999,
               malformed = 0, run_id = md5('feed' || 0)::uuid, unknown = %(fields)s, missing = %(fields)s
           WHERE delivery_id = %(delivery)s""",
        "DELETE FROM sluice.delivery_input WHERE delivery_id = %(delivery)s",
        """INSERT INTO sluice.delivery_input (delivery_id, pipeline, path, uri, size, mtime_ms, source)
           VALUES (%(delivery)s, 'feed', left(%(text)s, 500), %(text)s, 1, 1, 0)""",
        """INSERT INTO sluice.delivery_file (delivery_id, kind, path, rows, bytes)
           VALUES (%(delivery)s, 'data', left(%(text)s, 500), 1, 1)""",
        "DELETE FROM sluice.quarantine WHERE delivery_id = %(delivery)s",
        """INSERT INTO sluice.quarantine (pipeline, delivery_id, stream_id, batch_id, reasons, source_path, raw, row,
                                          detail)
           SELECT 'feed', delivery_id, stream_id, batch_id, ARRAY[%(text)s, 'malformed'], %(text)s, %(text)s, %(row)s,
                  %(text)s
           FROM sluice.delivery WHERE delivery_id = %(delivery)s""",
        """INSERT INTO sluice.quarantine (pipeline, delivery_id, stream_id, batch_id, reasons, source_path, raw, row)
           SELECT 'feed', delivery_id, stream_id, batch_id, ARRAY[%(text)s], %(text)s, %(text)s, %(row)s
           FROM sluice.delivery WHERE delivery_id = %(delivery)s""",
        """UPDATE sluice.quarantine SET decided_by = %(text)s, why = %(text)s, decided_at = now()
           WHERE delivery_id = %(delivery)s""",
        """UPDATE sluice.run SET who = %(text)s, why = %(text)s, holder = %(text)s, outcome = %(text)s
           WHERE run_id = md5('feed' || 0)::uuid""",
        """INSERT INTO sluice.stopped_batch (stream_id, batch_id, pipeline, stops, report, decision, decided_by, why,
                                             decided_at)
           SELECT stream_id, batch_id, 'feed', ARRAY[%(text)s], %(report)s, 'accept', %(text)s, %(text)s, now()
           FROM sluice.delivery WHERE delivery_id = %(delivery)s""",
        """INSERT INTO sluice.consumer (pipeline, name, commit_seq, delivery_id)
           SELECT 'feed', %(text)s, commit_seq, delivery_id FROM sluice.delivery WHERE delivery_id = %(delivery)s""",
        "UPDATE sluice.pipeline SET consumer_lag_limit = interval '1 second'",
        """INSERT INTO sluice.airflow_try (dag_id, dag_run_id, task_id, try_number, pipeline, run_type, clear_number,
                                           outcome, message, remedy, run_id)
           VALUES (left(%(text)s, 200), left(%(text)s, 500), %(text)s, 1, 'feed', %(text)s, 0, %(text)s, %(text)s, %(text)s,
                   md5('feed' || 0)::uuid)""",
    ):
        cursor.execute(statement, here)


def every_page(dsn: str, delivery: int, text: str) -> list[Page]:
    rows = oracle.ask(dsn, "SELECT quarantine_id FROM sluice.quarantine WHERE delivery_id = %s", [delivery])
    makes: list[Make] = [
        lambda cursor: pages.overview(cursor, lambda names: names, Frame()),
        lambda cursor: pages.pipeline(cursor, "feed", Frame(), before=delivery + 1),
        lambda cursor: pages.rule(cursor, "feed", Frame(), known_by=text),
        lambda cursor: columns.column(cursor, "feed", Frame(), column=text),
        lambda cursor: pages.batch(cursor, "feed", BELOW, delivery=delivery),
        lambda cursor: pages.dag_run(
            cursor, "feed", Frame(), dag=text[:200], run_id=text[:500], task_id=text
        ),
        lambda cursor: held_rows.quarantine(
            cursor, "feed", Frame(), wanted=Wanted(rule=text, status=None, before=(delivery + 1, 2**63 - 1))
        ),
        *(lambda cursor, n=n: held_rows.held_row(cursor, "feed", BELOW, number=n) for (n,) in rows),
        lambda _: pages.problem(Frame(), title=text, text=text, remedy=text),
    ]
    return [draw(dsn, make)[0] for make in makes]


def stopped_page(dsn: str, stream: str, text: str) -> Page:
    """Draw the page of a stopped batch whose report and reasons are `text`."""
    connection = psycopg2.connect(dsn, cursor_factory=Counting)
    try:
        with connection.cursor() as cursor:  # rolled back
            poison_report = "SELECT report FROM sluice.quality ORDER BY delivery_id LIMIT 1"
            cursor.execute(
                f"""INSERT INTO sluice.stopped_batch (stream_id, batch_id, pipeline, stops, malformed, report)
                    VALUES (%s, 9999, 'feed', ARRAY[%s], ARRAY[%s], replace(({poison_report}), 'plain', %s))""",
                [stream, text, text, json.dumps(text)[1:-1]],
            )
            return pages.stopped(cursor, "feed", Frame())
    finally:
        connection.close()


def test_no_page_has_a_hostile_value_raw(poisoned: str) -> None:
    [(stream,)] = oracle.ask(poisoned, "SELECT stream_id FROM sluice.stream")
    expected: set[tuple[str, tuple[str, ...]]] = set()
    for number, text in enumerate(PLAIN, start=1):
        for page in [*every_page(poisoned, number, text), stopped_page(poisoned, stream, text)]:
            expected |= Structure(page.html).found
    assert not {tag for tag, _ in expected} & {"script", "iframe", "object", "embed", "img", "link", "base"}
    assert not [name for _, names in expected for name in names if name == "style" or name.startswith("on")]
    for number, text in enumerate(HOSTILE, start=1 + len(PLAIN)):
        told = 0
        for page in [*every_page(poisoned, number, text), stopped_page(poisoned, stream, text)]:
            html = page.html.encode("utf-8", "replace").decode()
            seen = Structure(html)
            assert text not in html
            told += str(escape(text))[:20] in html
            assert seen.found <= expected, text
            assert not [one for one in seen.addresses if re.match(r"\s*([a-z]+:|//)", one, re.IGNORECASE)]
        assert told >= 8  # of 10: it is left out nowhere but in the overview


def test_what_runs_where_and_what_ended_the_last_run_is_told_and_never_raw(poisoned: str) -> None:
    plain: set[tuple[str, tuple[str, ...]]] = set()
    for text in [*PLAIN, *HOSTILE]:
        connection = psycopg2.connect(poisoned, cursor_factory=Counting)
        try:
            with connection.cursor() as cursor:  # rolled back
                cursor.execute(
                    "UPDATE sluice.run SET outcome = %(text)s, message = %(text)s, remedy = %(text)s",
                    {"text": text},
                )
                failed = pages.pipeline(cursor, "feed", Frame())
                cursor.execute(
                    """UPDATE sluice.run SET ended_at = NULL, holder = %s, seen_at = now(), kind = 'stream'
                       WHERE run_id = md5('feed' || 0)::uuid""",
                    [f"{text}/4711"],
                )
                runs = pages.pipeline(cursor, "feed", Frame())
        finally:
            connection.close()
        for page in (failed, runs):
            html = page.html.encode("utf-8", "replace").decode()
            seen = Structure(html).found
            plain |= seen if text in PLAIN else set()
            assert seen <= plain, text
            assert text in PLAIN or text not in html
        assert f"by <b>{escape(text[:60] if len(text) <= 60 else text[:59] + '…')}</b>" in failed.html
        assert ", process " in shown(runs)


def test_a_report_of_any_shape_is_no_reason_to_show_nothing(poisoned: str) -> None:
    for report in (
        "",
        "null",
        "[]",
        "[" * 100_000,
        '{"results": [null, 1, {"result": 1}]}',
        '{"results": {"a": NaN}}',
    ):
        oracle.ask(poisoned, "UPDATE sluice.quality SET report = %s WHERE delivery_id = 1", [report])
        page, _ = draw(poisoned, lambda cursor: pages.batch(cursor, "feed", BELOW, delivery=1))
        assert "plain" in page.html
