"""No button and no command that can't work: what can't be released is not offered, what is printed can be pasted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict, replace
from html import unescape

import psycopg2
import pytest
import typer
from psycopg2.extras import Json

from etl.airflow.pages import held_rows, pages
from etl.airflow.pages.deciding.choices import Action, Choice, ReleaseRequest, rows_of
from etl.airflow.pages.render import Frame, Page
from etl.cli.app import app
from etl.ledger.stops import SHARE_STOP, Behind
from etl.services import Services
from tests.support.databases import new_database
from tests.support.pages.drawn import shown
from tests.support.pages.history import Counting, seed

DECIDES = Frame(up="../", decides=frozenset({"release", "discard"}))
LAST = 10  # a batch that holds five rows
NEVER_ROWS = (
    "UPDATE sluice.quarantine SET row = NULL, raw = '{', reasons = '{malformed}' WHERE delivery_id = 10"
)
NOT_AS_READ = "UPDATE sluice.quarantine SET reasons = '{postgres_encoding(shop)}' WHERE delivery_id = 10"
STOP = """INSERT INTO sluice.stopped_batch (stream_id, batch_id, pipeline, stops, malformed, report)
          SELECT stream_id, 99, pipeline, ARRAY['it stops'], ARRAY['one'], '{}' FROM sluice.stream"""
LATE_STOP = """
INSERT INTO sluice.stopped_batch (stream_id, batch_id, pipeline, stops, malformed, report, suite_digest, lookups, broken,
                                  behind)
SELECT stream_id, 99, pipeline, %s, ARRAY['late: the watermark has reached 2126-01-01 00:00:00 UTC (9 records)'], '{}', '',
       '{}', %s, %s
FROM sluice.stream"""
SHARE = f"9 of 10 records would be quarantined (90.00%), {SHARE_STOP} (5.00%): late (9)"
CENTURY_AHEAD = Behind(watermark_ms=4_922_899_200_000, ahead=True, set_by=7, files=("in/poison\n.jsonl",))
ACCEPT = "sluice decide feed --batch 99 --accept --why WHY"
COMMANDS = typer.main.get_command(app)


@pytest.fixture
def cursor(services: Services, template: str) -> Iterator[Counting]:
    with new_database(services.postgres, template=template) as dsn:
        seed(dsn, "feed", batches=10, rules=3)
        connection = psycopg2.connect(dsn, cursor_factory=Counting)
        with connection, connection.cursor() as found:
            assert isinstance(found, Counting)
            yield found
        connection.close()


def held(cursor: Counting) -> list[int]:
    cursor.execute("SELECT quarantine_id FROM sluice.quarantine WHERE delivery_id = 10 ORDER BY 1")
    return [number for (number,) in cursor.fetchall()]


def chosen(cursor: Counting, action: Action) -> tuple[int, int]:
    """Return on how many rows the form for the whole batch decides, and how many it leaves."""
    rows = rows_of(cursor, Choice(pipeline="feed", action=action, delivery=LAST))
    return len(rows.ids), rows.uncorrected


def commands(page: Page) -> list[str]:
    """Return the commands of Sluice that the page prints."""
    return [one for one in coded(page) if one.startswith("sluice ")]


def coded(page: Page) -> list[str]:
    """Return what the page prints as code."""
    found = re.findall(r"<code>(.*?)</code>", page.html, re.DOTALL)
    return [unescape(re.sub("<[^>]*>", "", one)) for one in found]


@pytest.mark.parametrize("change", [NEVER_ROWS, NOT_AS_READ])
def test_a_batch_all_of_whose_held_rows_need_corrections_offers_no_release(
    cursor: Counting, change: str
) -> None:
    cursor.execute(change)
    page = pages.batch(cursor, "feed", DECIDES, delivery=LAST)
    row = held_rows.held_row(cursor, "feed", DECIDES, number=held(cursor)[0])
    for one, named in ((page, "--delivery 10"), (row, f"--id {held(cursor)[0]}")):
        assert "/release" not in one.html
        assert "/discard" in one.html
        assert commands(one) == [
            f"sluice quarantine export feed {named} -o rows.jsonl",
            "sluice quarantine release feed --corrections rows.jsonl --why WHY",
            f"sluice quarantine discard feed {named} --why WHY",
        ]
    assert (chosen(cursor, "release"), chosen(cursor, "discard")) == ((0, 5), (5, 0))


def test_a_pipeline_that_airflow_has_no_dag_of_offers_no_release_and_says_why(cursor: Counting) -> None:
    gone = Frame(up="../", decides=frozenset({"discard"}), declared=False)
    page = pages.batch(cursor, "feed", gone, delivery=LAST)
    row = held_rows.held_row(cursor, "feed", gone, number=held(cursor)[0])
    for one, named in ((page, "--delivery 10"), (row, f"--id {held(cursor)[0]}")):
        assert "Airflow has no DAG of feed: its declaration is gone, or has a mistake." in one.html
        assert "/release" not in one.html
        assert commands(one) == [f"sluice quarantine discard feed {named} --why WHY"]
    of_all = pages.pipeline(cursor, "feed", gone)
    assert commands(of_all) == ["sluice retire feed --why WHY"]
    cursor.execute("UPDATE sluice.pipeline SET replaces = true")
    assert "sluice replay" not in pages.batch(cursor, "feed", gone, delivery=LAST).html
    every = pages.overview(cursor, list, Frame(), declared=lambda _: [])
    assert (commands(every), "Airflow has no DAG of it" in every.html) == ([], True)
    cursor.execute(STOP)
    decide = "UPDATE sluice.stopped_batch SET decision = 'accept', decided_by = 'Ada', decided_at = now(), why = 'w'"
    for changed in (None, decide):
        if changed:
            cursor.execute(changed)
        assert commands(pages.stopped(cursor, "feed", gone)) == []
        assert commands(pages.stopped(cursor, "feed", replace(gone, declared=True)))


def test_a_batch_some_of_whose_held_rows_need_corrections_says_how_many_are_left(cursor: Counting) -> None:
    first, second, *others = held(cursor)
    cursor.execute(f"{NEVER_ROWS} AND quarantine_id = {first}")
    cursor.execute(f"{NOT_AS_READ} AND quarantine_id = {second}")
    page = pages.batch(cursor, "feed", DECIDES, delivery=LAST)
    assert 'action="10/release"' in page.html
    assert commands(page)[0] == "sluice quarantine release feed --delivery 10 --why WHY"
    assert "But for 2, which stay held" in shown(page)
    assert (chosen(cursor, "release"), chosen(cursor, "discard")) == ((3, 2), (5, 0))
    choice = Choice(pipeline="feed", action="release", delivery=LAST)
    form = shown(held_rows.decision(cursor, DECIDES, choice=choice, sign=str))
    assert "Release 3 rows" in form
    assert "without 2 that could not be read whole: these need corrections" in form
    whole = held_rows.held_row(cursor, "feed", DECIDES, number=others[0])
    assert f'action="{others[0]}/release"' in whole.html
    assert "export" not in shown(whole)


def test_a_batch_that_late_records_stop_offers_the_way_back_and_nothing_that_can_not_help(
    cursor: Counting,
) -> None:
    back = "sluice recover feed --before 7 --why WHY"
    hold = "sluice decide feed --batch 99 --quarantine-all --why WHY"
    for behind, broken, stops, ways in (
        (CENTURY_AHEAD, {}, [SHARE], [back, "sluice run feed", "--plan", hold]),
        (replace(CENTURY_AHEAD, set_by=None, files=()), {}, [SHARE], [hold]),
        (
            CENTURY_AHEAD,
            {"a rule": 1},
            [SHARE],
            [back, "sluice run feed", "--plan", hold, ACCEPT, "sluice run feed"],
        ),
        (None, {}, ["a rule fails"], [hold, ACCEPT, "sluice run feed"]),
    ):
        cursor.execute("DELETE FROM sluice.stopped_batch")
        cursor.execute(LATE_STOP, [stops, Json(broken), Json(asdict(behind)) if behind else None])
        page, whole = pages.stopped(cursor, "feed", Frame()), pages.pipeline(cursor, "feed", Frame())
        *found, acting = [one for one in coded(page) if one.startswith(("sluice ", "--plan"))]
        assert (found, acting) == (ways, "sluice run feed")
        assert "Correct the declaration" not in page.html
        assert ("they stay held" in page.html) is (ACCEPT in ways)
        shows_back = back in ways
        assert (back in commands(whole)) is shows_back
        assert ("bound it by `not_after=`" in shown(page)) is (behind is not None)
        assert ("bound it by `not_after=`" in shown(whole)) is (behind is not None)
        assert ('<a href="batch/7">delivery 7</a> set: it read in/poison\\n.jsonl' in page.html) is shows_back


def test_every_command_can_be_pasted(cursor: Counting) -> None:
    first, *_ = held(cursor)
    cursor.execute(f"{NEVER_ROWS} AND quarantine_id = {first}")
    before = pages.overview(cursor, lambda names: names, Frame())
    cursor.execute(STOP)
    choice = Choice(pipeline="feed", action="release", delivery=LAST)
    drawn = [
        before,
        pages.overview(cursor, lambda names: names, Frame()),
        pages.overview(cursor, lambda _: [], Frame()),
        pages.pipeline(cursor, "feed", Frame()),
        pages.stopped(cursor, "feed", Frame()),
        pages.batch(cursor, "feed", DECIDES, delivery=LAST),
        held_rows.held_row(cursor, "feed", DECIDES, number=first),
        held_rows.decision(cursor, DECIDES, choice=choice, sign=str),
    ]
    found = {one for page in drawn for one in commands(page)}
    assert "sluice decide feed --batch 99 --quarantine-all --why WHY" in found
    assert len(found) >= 10
    for one in found:
        assert one.isascii(), one
        _, *words = shlex.split(
            one.replace("--why WHY", "--why 'as agreed'")
        )  # which nobody else can fill in
        understood(words)
    with pytest.raises(Exception, match="Missing parameter: why"):
        understood(["decide", "feed", "--batch", "5", "--quarantine-all"])


def understood(words: list[str]) -> None:
    """Read the words as the command line does, and run nothing."""
    context = typer.Context(COMMANDS, info_name="sluice")
    command: object = COMMANDS
    while isinstance(command, typer.core.TyperGroup):
        name, command, words = command.resolve_command(context, words)
    assert isinstance(command, typer.core.TyperCommand)
    command.make_context(name, words, parent=context)


@pytest.mark.parametrize(
    ("state", "paused", "follows", "said"),
    [
        ("queued", False, True, "the run is queued; this page is loaded again every few seconds"),
        ("running", False, True, "the run is running; this page is loaded again every few seconds"),
        ("running", True, True, "the run is running; this page is loaded again every few seconds"),
        (
            "queued",
            True,
            False,
            "its DAG is paused: it starts once that is not so; load this page again then",
        ),
        ("success", False, False, "the run is success."),
        ("failed", False, False, "the run is failed."),
    ],
)
def test_the_page_of_a_release_follows_its_run_to_the_end(
    cursor: Counting, state: str, paused: bool, follows: bool, said: str
) -> None:
    asked = ReleaseRequest(rows=3, who="Ada", why="known", state=state, paused=paused)
    page = pages.dag_run(
        cursor, "feed", Frame(), dag="feed_replays", run_id="release__1", release_request=asked
    )
    assert ('<meta http-equiv="refresh" content="5">' in page.html) is follows
    assert said in shown(page)
    plain = pages.dag_run(cursor, "feed", Frame(), dag="feed", run_id="scheduled__0")
    assert "refresh" not in plain.html
