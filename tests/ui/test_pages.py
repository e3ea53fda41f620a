"""The pages over a long history: bounded, and complete."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from urllib.parse import quote, unquote

import psycopg2
import pytest

from etl.airflow.pages import columns, formatting, held_rows, pages
from etl.airflow.pages.held_rows import Wanted
from etl.airflow.pages.records import LAST, PipelineRow, fetch_rows, reading
from etl.airflow.pages.render import Frame, NotThere, Page
from etl.ledger.stops import STATE_STOP
from etl.services import Services
from tests.support import oracle
from tests.support.databases import new_database
from tests.support.pages.drawn import BELOW, TRANSACTION, Make, draw, shown
from tests.support.pages.history import Counting, seed

BATCHES, RULES = 10_000, 30
MOST_QUERIES, MOST_BYTES = 12, 300_000


@pytest.fixture(scope="module")
def history(services: Services, template: str) -> Iterator[str]:
    with new_database(services.postgres, template=template) as dsn:
        seed(dsn, "feed", batches=BATCHES, rules=RULES)
        seed(dsn, "wide", batches=60, rules=400, first=1_000_000)
        oracle.ask(dsn, "UPDATE sluice.quality_rule SET reason = rpad(reason, 2000, 'x')" + WIDE)
        oracle.ask(dsn, "UPDATE sluice.quality_rule SET unexpected_count = 500, element_count = 1000" + WIDE)
        yield dsn


WIDE = " WHERE delivery_id >= 1000000"
RULE = "rule 1 about a column of the feed"
PAGES: dict[str, Make] = {
    "overview": lambda cursor: pages.overview(cursor, lambda names: names, Frame()),
    "pipeline": lambda cursor: pages.pipeline(cursor, "feed", Frame()),
    "pipeline, long ago": lambda cursor: pages.pipeline(cursor, "feed", Frame(), before=BATCHES // 2),
    "pipeline of 400 rules": lambda cursor: pages.pipeline(cursor, "wide", Frame()),
    "rule": lambda cursor: pages.rule(cursor, "feed", Frame(), known_by=RULE),
    "rule, long ago": lambda cursor: pages.rule(cursor, "feed", Frame(), known_by=RULE, before=BATCHES // 2),
    "column": lambda cursor: columns.column(cursor, "feed", Frame(), column="c3"),
    "column, long ago": lambda cursor: columns.column(
        cursor, "feed", Frame(), column="c3", before=BATCHES // 2
    ),
    "batch": lambda cursor: pages.batch(cursor, "feed", BELOW, delivery=BATCHES),
    "batch of 400 rules": lambda cursor: pages.batch(cursor, "wide", BELOW, delivery=1_000_057),
    "run": lambda cursor: pages.dag_run(cursor, "feed", Frame(), dag="feed", run_id="scheduled__999"),
    "run of 400 rules": lambda cursor: pages.dag_run(
        cursor, "wide", Frame(), dag="wide", run_id="scheduled__5"
    ),
    "stopped": lambda cursor: pages.stopped(cursor, "feed", Frame()),
    "quarantine": lambda cursor: held_rows.quarantine(cursor, "feed", Frame(), wanted=Wanted()),
    "quarantine of a rule": lambda cursor: held_rows.quarantine(
        cursor, "feed", Frame(), wanted=Wanted(rule=RULE)
    ),
    "row": lambda cursor: held_rows.held_row(cursor, "feed", BELOW, number=1),
}


@pytest.mark.parametrize("name", PAGES)
def test_no_page_grows_with_the_history(history: str, name: str) -> None:
    page, queries = draw(history, PAGES[name])
    assert queries <= MOST_QUERIES
    assert len(page.html.encode()) <= MOST_BYTES


def test_every_batch_of_a_history_can_be_reached_by_going_back(history: str) -> None:
    before, seen = BATCHES - 400, []
    while True:
        page, _ = draw(history, lambda cursor, b=before: pages.pipeline(cursor, "feed", Frame(), before=b))
        batches = [int(one) for one in re.findall(r'<th><a href="batch/(\d+)"', page.html)]
        seen += reversed(batches)
        older = re.search(r'\?before=(\d+)">← older', page.html)
        if older is None or len(seen) > 200:
            break
        before = int(older[1])
    assert seen == list(range(BATCHES - 401, BATCHES - 401 - len(seen), -1))


def test_every_held_row_is_reached_once_by_going_on(history: str) -> None:
    wanted, seen = Wanted(rule=RULE, batch=None), []
    for _ in range(5):
        page, _ = draw(
            history, lambda cursor, w=wanted: held_rows.quarantine(cursor, "feed", Frame(), wanted=w)
        )
        seen += [int(one) for one in re.findall(r'href="quarantine/(\d+)"', page.html)]
        older = re.search(r"before=(\d+)-(\d+)", page.html)
        assert older is not None
        wanted = Wanted(rule=RULE, before=(int(older[1]), int(older[2])))
    query = """SELECT quarantine_id FROM sluice.quarantine WHERE pipeline = 'feed' AND status = 'held'
               AND %s = ANY (reasons) ORDER BY delivery_id DESC, quarantine_id DESC LIMIT 250"""
    assert [(one,) for one in seen] == oracle.ask(history, query, [RULE])


def test_the_filters_of_the_quarantine_choose_together(history: str) -> None:
    wanted = Wanted(rule=RULE, batch=BATCHES - 3, status=None)
    page, _ = draw(history, lambda cursor: held_rows.quarantine(cursor, "feed", Frame(), wanted=wanted))
    rows = re.findall(r'href="quarantine/(\d+)"', page.html)
    query = "SELECT count(*) FROM sluice.quarantine WHERE delivery_id = %s AND %s = ANY (reasons)"
    assert oracle.ask(history, query, [BATCHES - 3, RULE]) == [(len(rows),)]
    assert len(rows) > 0
    for until, there in ((dt.date.max, True), (dt.date.min, False)):
        wanted = Wanted(until=until)
        page, _ = draw(
            history, lambda cursor, w=wanted: held_rows.quarantine(cursor, "feed", Frame(), wanted=w)
        )
        assert ('href="quarantine/' in page.html) == there
    none = Wanted(rule="no such rule", status="released")
    page, _ = draw(history, lambda cursor: held_rows.quarantine(cursor, "feed", Frame(), wanted=none))
    assert "No row is like that" in page.html


def test_a_cell_says_how_many_rows_of_the_batch_break_the_rule(history: str) -> None:
    page, _ = draw(history, PAGES["pipeline"])
    query = """SELECT r.delivery_id, r.number, r.unexpected_count FROM sluice.quality_rule r
               WHERE r.delivery_id = %s AND r.unexpected_count > 0"""
    broken = oracle.ask(history, query, [BATCHES])
    assert broken
    for delivery, number, count in broken:
        assert re.search(rf'href="batch/{delivery}#r{number}" title="[^"]*: {count} of 1,000', page.html)


def test_a_batch_shows_all_that_came_in_and_went_out(history: str) -> None:
    page, _ = draw(history, PAGES["batch"])
    text = shown(page)
    assert "1,000 rows in = 995 delivered + 5 held ✓" in text
    assert "another suite than" not in text
    for part in ("scheduled__999", "-1.25", "Inputs: 3 files", "Parquet files: 2", "_delivery_id", "by"):
        assert part in text
    ends = oracle.ask(
        history, "SELECT end_offset FROM sluice.delivery_range WHERE delivery_id = %s", [BATCHES]
    )
    assert len(ends) == 2 and all(f"{end:,}" in text for (end,) in ends)
    assert page.html.count('<td class="bad"') == 2 * 5  # both rules of each of the five held rows


def test_a_column_is_drawn_over_its_batches(history: str) -> None:
    page, _ = draw(history, PAGES["column"])
    text = shown(page)
    query = "SELECT mean, null_count FROM sluice.column_metric WHERE delivery_id = %s AND column_name = 'c3'"
    [(mean, nulls)] = oracle.ask(history, query, [BATCHES])
    for part in (
        f"Mean last {mean:,.4g}",
        "Null share last " + (f"{nulls / 10:.1f} %" if nulls else "0 %"),
        "≈ 903",
    ):
        assert part in text
    drawn = re.findall(r'class="bar-line0" d="(M[^"]*)"', page.html)
    assert len(drawn) == 3
    assert all(0 <= float(y) <= 96 for path in drawn for y in re.findall(r"[ML][\d.]+ (-?[\d.]+)", path))
    moments, _ = draw(history, lambda cursor: columns.column(cursor, "feed", Frame(), column="c9"))
    assert "Age of the newest row at delivery last 2 h" in shown(moments)
    assert "Mean" not in shown(moments).split("Batches")[0]
    with pytest.raises(NotThere):
        draw(history, lambda cursor: columns.column(cursor, "feed", Frame(), column="c10"))


def test_what_took_the_place_of_a_batch_and_what_was_let_out_of_it_is_told(history: str) -> None:
    connection = psycopg2.connect(history, cursor_factory=Counting)
    try:
        with connection.cursor() as cursor:  # rolled back
            for change in (
                """UPDATE sluice.delivery SET kind = 'replay' WHERE delivery_id = 9998;
                   UPDATE sluice.run SET who = 'Ada', why = 'late files'
                   WHERE run_id = (SELECT run_id FROM sluice.delivery WHERE delivery_id = 9998)""",
                "UPDATE sluice.delivery SET live = false, superseded_by = 9998 WHERE delivery_id IN (9990, 9991)",
                "UPDATE sluice.delivery SET kind = 'release', released_from = 9997 WHERE delivery_id = 10000",
            ):
                cursor.execute(change)
            old, new, origin, release = (
                shown(pages.batch(cursor, "feed", BELOW, delivery=number))
                for number in (9990, 9998, 9997, 10000)
            )
            whole = pages.pipeline(cursor, "feed", Frame())
    finally:
        connection.close()
    assert "superseded by delivery 9998" in old
    assert "Replay 9998 of feed" in new
    assert "It took the place of delivery 9990 , delivery 9991 ; asked for by Ada : late files" in new
    assert "Rows that it held were let out by delivery 10000" in origin
    assert "It let rows out of the quarantine of delivery 9997" in release
    drawn = re.findall(r'<th><a href="batch/(\d+)"', whole.html)
    assert {"9990", "9991"}.isdisjoint(drawn)  # the map has what is in force
    assert "Last batch 9998" in shown(whole)  # a release is no fresh data


@contextmanager
def changed(dsn: str, *changes: str) -> Iterator[Counting]:
    """Return a cursor that sees the history so changed; roll back at the end."""
    connection = psycopg2.connect(dsn, cursor_factory=Counting)
    try:
        with connection.cursor() as cursor:
            for change in changes:
                cursor.execute(change)
            yield cursor
    finally:
        connection.close()


def test_releases_after_the_last_batch_hide_none_of_the_rules_that_it_breaks(history: str) -> None:
    releases = "UPDATE sluice.delivery SET kind = 'release', released_from = 9997 WHERE delivery_id > 9997"
    with changed(history, releases) as cursor:
        text = shown(pages.pipeline(cursor, "feed", Frame()))
        long_ago = shown(pages.pipeline(cursor, "feed", Frame(), before=BATCHES // 2))
    [(count,)] = oracle.ask(
        history,
        "SELECT unexpected_count FROM sluice.quality_rule WHERE delivery_id = 9997 AND reason = %s",
        [RULE],
    )
    assert "Broken in the last batch, whose other rows are delivered" in text
    assert f"{RULE} warning – {count / 10:.1f} %: {count} of 1,000" in text
    assert "Broken in the last batch" not in long_ago  # the map has no column of it


def test_a_run_whose_batches_were_all_replaced_has_delivered_some(history: str) -> None:
    replaced = "UPDATE sluice.delivery SET live = false, superseded_by = 9990 WHERE delivery_id > 9990"
    with changed(history, replaced) as cursor:
        text = shown(PAGES["run"](cursor))
    assert "Good, with rows held – the worst of 10 batches, replaced since" in text
    assert "replaced since" not in shown(draw(history, PAGES["run"])[0])


def test_a_rule_page_leads_on_past_batches_that_it_did_not_judge(history: str) -> None:
    gap = f"DELETE FROM sluice.quality_rule WHERE delivery_id BETWEEN 9500 AND 9998 AND reason = '{RULE}'"
    metrics = "DELETE FROM sluice.column_metric WHERE delivery_id = 9990"
    with changed(history, gap, metrics) as cursor:
        first, second = (
            pages.rule(cursor, "feed", Frame(), known_by=RULE, before=before) for before in (LAST, 9761)
        )
        column = columns.column(cursor, "feed", Frame(), column="c3")
    assert [re.findall(r"before=(\d+)", page.html) for page in (first, second, column)] == [
        ["9761"],
        ["9521"],
        ["9761"],
    ]
    assert "No rule of this name judged these batches" in shown(second)
    last, _ = draw(history, lambda cursor: pages.rule(cursor, "feed", Frame(), known_by=RULE, before=241))
    assert "before=" not in last.html  # these were the first 240
    assert [">newest</a>" in page.html for page in (first, second, column, last)] == [
        False,
        True,
        False,
        True,
    ]


def test_a_rule_that_was_renamed_has_one_history_under_its_newest_name(history: str) -> None:
    renamed = f"""UPDATE sluice.quality_rule
                  SET rule_id = reason, reason = 'a <new> name', dimension = 'accuracy', owner = 'ann <b>'
                  WHERE delivery_id BETWEEN 9900 AND 10000 AND reason = '{RULE}'"""
    with changed(history, renamed) as cursor:
        page = pages.rule(cursor, "feed", Frame(), known_by=RULE)
        whole = pages.pipeline(cursor, "feed", Frame())
        batch = pages.batch(cursor, "feed", Frame(), delivery=10000)
        cursor.execute(
            "SELECT DISTINCT rule_id FROM sluice.quality_rule_history WHERE reason = 'a <new> name'"
        )
        assert cursor.fetchall() == [(RULE,)]
    assert "broken in 80 of the 240 batches looked at" in shown(page)
    assert "<h1>a &lt;new&gt; name</h1>" in page.html
    assert f"Also called: {RULE}" in shown(page)
    assert whole.html.count(f"rule?name={quote(RULE)}") == whole.html.count("a &lt;new&gt; name") > 0
    for one in (page, batch):
        assert "accuracy · ask ann &lt;b&gt;" in one.html


def test_only_the_newest_batches_say_since_when_a_rule_is_broken(history: str) -> None:
    [text, older] = [shown(draw(history, PAGES[name])[0]) for name in ("rule", "rule, long ago")]
    assert "Broken since batch 9999 ," in text
    assert "broken in 80 of the 240 batches looked at" in text
    assert "Broken in 80 of the 240 batches shown" in older
    assert "since batch" not in older
    release = "UPDATE sluice.delivery SET kind = 'release', released_from = 9997 WHERE delivery_id = 10000"
    with changed(history, release) as cursor:
        released = shown(PAGES["rule"](cursor))
        cursor.execute("DELETE FROM sluice.quality_rule WHERE delivery_id < 10000")
        alone = shown(PAGES["rule"](cursor))
    assert "Of these batches it judged releases alone" in alone
    assert "Held by every row of the last batch" in released  # a release is no fresh data
    assert "broken in 79 of the 239 batches looked at" in released


def test_what_is_wrong_with_a_malformed_record_is_on_its_page_and_in_the_list(history: str) -> None:
    malformed = """UPDATE sluice.quarantine SET reasons = '{malformed}', raw = '{"price": "much"}', row = NULL,
                       detail = 'price: no decimal(10,2)'
                   WHERE quarantine_id = (SELECT max(quarantine_id) FROM sluice.quarantine WHERE pipeline = 'feed')
                   RETURNING quarantine_id"""
    with changed(history, malformed) as cursor:
        [(number,)] = cursor.fetchall()
        one = shown(held_rows.held_row(cursor, "feed", BELOW, number=number))
        listed = shown(held_rows.quarantine(cursor, "feed", Frame(), wanted=Wanted(rule="malformed")))
    assert "could not be parsed by the declared schema: price: no decimal(10,2)" in one
    assert "malformed price: no decimal(10,2)" in listed
    assert (
        f"sluice quarantine export feed --id {number} -o rows.jsonl" in one
        and f"release feed --id {number}" not in one
    )


def test_fields_that_the_schema_does_not_name_are_told_of_the_batch_and_where_the_pipeline_stands(
    history: str,
) -> None:
    drifted = """UPDATE sluice.delivery SET unknown = '{"shop": 12, "note": 1}', missing = '{"price": 3}'
                 WHERE delivery_id = (SELECT max(delivery_id) FROM sluice.delivery WHERE pipeline = 'feed' AND live)"""
    with changed(history, drifted) as cursor:
        for page in (shown(PAGES["batch"](cursor)), shown(PAGES["pipeline"](cursor))):
            assert "fields that the schema does not name: shop (12 records); note (1 record)" in page
            assert "columns of the schema that files do not have: price (3 records)" in page


LONG_RULE = "rule 1 about a column of the feed".ljust(2000, "x")


def keys(page: Page, address: str) -> set[str]:
    """Return the rules that links of a page name."""
    found_ = re.findall(rf'href="(?:\.\./)?{address}=([^"&]*)', page.html)
    return {unquote(one) for one in found_}


def test_the_links_of_a_rule_with_a_long_name_lead_to_it(history: str) -> None:
    held = """UPDATE sluice.quarantine SET reasons = ARRAY[rpad(reasons[1], 2000, 'x'), reasons[2]]
              WHERE pipeline = 'wide'"""
    named = """UPDATE sluice.quality SET report = regexp_replace(report, '"rule (\\d+) [^"]*"',
                   '"rule \\1 about a column of the feed' || repeat('x', 2000) || '"', 'g')
               WHERE delivery_id = 1000057"""
    stop = """INSERT INTO sluice.stopped_batch (stream_id, batch_id, pipeline, stops, report)
              SELECT d.stream_id, 9999, 'wide', ARRAY['it stops'], q.report
              FROM sluice.delivery d JOIN sluice.quality q USING (delivery_id) WHERE delivery_id = 1000057"""
    with changed(history, held, named, stop) as cursor:
        whole = pages.pipeline(cursor, "wide", Frame())
        for page in (whole, pages.stopped(cursor, "wide", Frame())):
            [key] = [one for one in keys(page, r"rule\?name") if one.startswith("rule 1 ")]
            assert key == LONG_RULE[:300]
            assert "broken in 60 of the 60 batches" in shown(
                pages.rule(cursor, "wide", Frame(), known_by=key)
            )
        [key] = [one for one in keys(whole, r"quarantine\?rule") if one.startswith("rule 1 ")]
        rows = held_rows.quarantine(cursor, "wide", Frame(), wanted=Wanted(rule=key)).html
        [number, *_] = re.findall(r'href="quarantine/(\d+)"', rows)
        row = held_rows.held_row(cursor, "wide", BELOW, number=int(number))
    assert '<td class="bad"' in rows
    assert keys(row, r"rule\?name") >= {key}


FILE = "s3a://landing/in/part-7.csv.gz can't be read: java.io.EOFException: Unexpected end of input stream"


@pytest.mark.parametrize("keeps_state", [False, True])
def test_the_page_of_a_batch_with_a_file_that_can_not_be_read_names_it_and_the_ways_on(
    history: str, keeps_state: bool
) -> None:
    stops = [FILE, STATE_STOP] if keeps_state else [FILE]
    stop = """INSERT INTO sluice.stopped_batch (stream_id, batch_id, pipeline, stops, report)
              SELECT stream_id, 99999, 'feed', ARRAY[{}], '{{}}' FROM sluice.delivery
              WHERE pipeline = 'feed' LIMIT 1"""
    said = ", ".join("'" + one.replace("'", "''") + "'" for one in stops)
    with changed(history, stop.format(said)) as cursor:
        page, whole = (make(cursor, "feed", Frame()) for make in (pages.stopped, pages.pipeline))
    for html in (page.html, whole.html):
        assert "part-7.csv.gz" in html
        assert "Unexpected end of input stream" in html
        assert "sluice recover feed" in html
        assert "Correct the suite" not in html
        assert "--accept" not in html
    assert ("--quarantine-all" in page.html) is not keeps_state
    assert ("unreadable=" in page.html) is not keeps_state


def test_what_is_another_pipelines_is_not_there(history: str) -> None:
    for make in (
        lambda cursor: pages.batch(cursor, "wide", BELOW, delivery=BATCHES),
        lambda cursor: held_rows.held_row(cursor, "wide", BELOW, number=1),
        lambda cursor: pages.pipeline(cursor, "nobody", Frame()),
    ):
        with pytest.raises(NotThere):
            draw(history, make)


def test_a_hundred_pipelines_and_more_are_paged_with_those_in_trouble_first(history: str) -> None:
    names = [f"p{number:03}" for number in range(149)]
    with psycopg2.connect(history, cursor_factory=Counting) as connection, connection.cursor() as cursor:
        for name in names:
            cursor.execute(
                "INSERT INTO sluice.pipeline (name, table_schema, table_name) VALUES (%s, 'w', %s)",
                [name] * 2,
            )
        assert isinstance(cursor, Counting)
        cursor.executed = 0
        first = pages.overview(cursor, lambda known: known, Frame())
        assert cursor.executed + TRANSACTION <= MOST_QUERIES
        second = pages.overview(cursor, lambda known: known, Frame(), start=100)
        connection.rollback()
    listed = [re.findall(r'<a href="(\w+)/"><b>', page.html) for page in (first, second)]
    assert (len(listed[0]), len(listed[1])) == (100, 51)
    assert listed[0][0] == "feed"  # its last batch has held rows; the others are new
    assert sorted(listed[0] + listed[1]) == sorted([*names, "feed", "wide"])
    assert len(first.html) <= MOST_BYTES


def test_only_permitted_pipelines_are_in_the_overview(history: str) -> None:
    page, _ = draw(history, lambda cursor: pages.overview(cursor, lambda names: ["wide"], Frame()))
    assert 'href="wide/"' in page.html
    assert "feed" not in shown(page)


def test_a_page_can_write_nothing(history: str) -> None:
    with reading(history) as cursor, pytest.raises(psycopg2.errors.ReadOnlySqlTransaction):
        cursor.execute("UPDATE sluice.quality SET success = false")


HOW_IT_RUNS = (
    "Rows per second",
    "Time of a batch",
    "Rows of state",
    "Memory of the state",
    "Watermark behind",
    "Left out",
    "Doubles",
    "Records still on the topics",
)


def test_how_the_batches_ran_is_drawn_and_told_in_figures(history: str) -> None:
    page, _ = draw(history, PAGES["pipeline"])
    text = shown(page)
    [(rate, whole, rows, memory, dropped, doubles, behind)] = oracle.ask(
        history,
        """SELECT processed_rate, (durations_ms ->> 'triggerExecution')::float, state_rows, state_bytes, dropped,
                  doubles, behind
           FROM sluice.batch_progress WHERE batch_id = %s""",
        [BATCHES - 1],
    )
    for part in (
        f"Rows per second last {rate:,.4g} / 112.5",
        f"Time of a batch last {whole / 1000:.2f} s",
        f"Rows of state last {rows:,}",
        f"Memory of the state last {memory / 1e6:.1f} MB",
        "Watermark behind the clock last 1 h 59 min",
        f"Left out behind the watermark last {dropped}",
        "The last 20 batches in figures",
        f"Doubles left out last {doubles}",
        f"Records still on the topics last {formatting.rounded(behind)}",
        f" 31 {dropped} {doubles} {formatting.number(behind)} ",
    ):
        assert part in text
    # the parts of a batch's time end where the next begin, and together reach no higher than the chart
    parts = [re.findall(r"M([\d.]+) ([\d.]+)h[\d.]+v([\d.]+)", path) for path in drawn_as(page, "part")]
    assert [len(one) for one in parts] == [240] * 5
    for stack in zip(*parts, strict=True):
        for (x, y, _), (over_x, over_y, over_tall) in pairwise(stack):
            assert x == over_x
            assert float(over_y) + float(over_tall) == pytest.approx(
                float(y), abs=1.1
            )  # none is less than one high
        assert float(stack[-1][1]) >= 0
    older, _ = draw(history, PAGES["pipeline, long ago"])
    assert f'<tr><td><a href="batch/{BATCHES // 2 - 1}">' in older.html.split("in figures")[1]


def drawn_as(page: Page, kind: str) -> list[str]:
    return re.findall(rf'class="bar-{kind}\d" d="(M[^"]*)"', page.html)


def test_batches_of_which_nothing_was_told_are_no_fault(history: str) -> None:
    connection = psycopg2.connect(history, cursor_factory=Counting)
    try:
        with connection.cursor() as cursor:  # rolled back
            cursor.execute(
                "UPDATE sluice.batch_progress SET state_rows = NULL, state_bytes = NULL, dropped = NULL,"
                " doubles = NULL, behind = NULL,"
                " watermark = NULL, input_rate = NULL, processed_rate = NULL, phases_ms = '{}'"
            )
            plain = shown(pages.pipeline(cursor, "feed", Frame()))
            cursor.execute("DELETE FROM sluice.batch_progress")
            nothing = shown(pages.pipeline(cursor, "feed", Frame()))
    finally:
        connection.close()
    assert [part in plain for part in HOW_IT_RUNS] == [True, True, *[False] * 6]
    assert "Spark has told of none of these batches" in nothing
    assert not any(part in nothing for part in HOW_IT_RUNS)


def test_what_stands_is_read_from_the_view_that_dashboards_use(history: str) -> None:
    with reading(history) as cursor:
        [row] = fetch_rows(cursor, "pipeline_rows", PipelineRow, pipelines=["feed"], most=10, silence="1 s")
    view = oracle.ask(
        history,
        "SELECT delivery_id, state, state_since, stopped FROM sluice.quality_pipeline WHERE pipeline = 'feed'",
    )
    assert view == [(row.delivery_id, row.state, row.state_since, row.stopped)]
    assert row.held == 11  # counted no further
