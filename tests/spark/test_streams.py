"""Streams of two schemas in one pipeline, and lookups that change while it runs: both sinks against plain Python."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest

from etl.common.errors import CheckpointLost, InputsDoubled, SetupError
from etl.delivery.batch import Receipt
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from tests.support.data import taps
from tests.support.data.taps import (
    HOUR,
    MOMENT,
    NAME,
    START,
    Tap,
    assert_clean,
    flat,
    in_force,
    land,
    land_all,
    recipe,
)
from tests.support.home import Home
from tests.support.oracle import Rows

FILES = taps.taps(10, 40, seed=51)
OWNERS = [
    (START + n * 1200, f"+45{n % 40}", f"owner {n}") for n in range(30)
]  # since, phone, who; one each 20 minutes
JOINED = pa.schema([("who", pa.string()), ("since", MOMENT), ("at", MOMENT), ("action", pa.string())])

TWO_STREAMS = """
from etl.pipeline import Append, Files, Pipeline, Stream

def transform(df, *, owners):
    from pyspark.sql import functions as F
{body}

PIPELINE = Pipeline(
    name="taps",
    sources=({sources}),
    schema="phone string, at timestamp, action string",
    streams={{"owners": Stream(schema="phone string, since timestamp, who string"{late})}},
    transform=transform,
    sink=Append(),
    max_quarantine_share=1.0,
)
"""
FIRST_HOUR = recipe("joins", 1)
SOURCES = 'Files("taps/*.jsonl", max_files=1), Files("owners/*.csv", stream="owners", max_files=1)'


def declare(home: Home, *, body: str = FIRST_HOUR, sources: str = SOURCES, late: str = "") -> None:
    home.columns = JOINED
    home.declare(NAME, text=TWO_STREAMS.format(body=body, sources=sources, late=late))


def land_owners(home: Home, number: int, made: Sequence[tuple[int, str, str]], *, more: str = "") -> None:
    lines = (
        f"{phone},{dt.datetime.fromtimestamp(since, dt.UTC).isoformat()},{who}" for since, phone, who in made
    )
    home.write(f"owners/{number:03}.csv", "\n".join(["phone,since,who", *lines, more]))


def first_hours(made: Sequence[Tap], *, over: int) -> Rows:
    """Return what each owner did in the first hour; nothing: known once all of it is `over`."""
    found: Rows = Counter()
    for since, phone, who in OWNERS:
        own = [tap for tap in made if tap.phone == phone and since <= tap.at < since + HOUR]
        found.update((who, since * 1_000_000, tap.at * 1_000_000, tap.action) for tap in own)
        if not own and since + HOUR <= over:
            found[who, since * 1_000_000, None, None] += 1
    return found


@pytest.mark.slow
def test_a_right_outer_join_of_two_schemas_goes_on_over_runs_and_a_lost_checkpoint(home: Home) -> None:
    declare(home)
    land_all(home, FILES[:6])
    for number in range(3):
        land_owners(
            home, number, OWNERS[number * 8 : number * 8 + 8], more="+450,broken\n" if number == 1 else ""
        )
    home.write(f"{NAME}/100.jsonl", '{"phone": broken\n')
    summary = home.run(NAME)
    assert summary.malformed == 2
    held = home.ask("SELECT raw FROM sluice.quarantine ORDER BY raw")
    assert held == [("+450,broken",), ('{"phone": broken',)]

    shutil.rmtree(home.checkpoint(summary.stream, NAME))
    with pytest.raises(CheckpointLost):
        home.run(NAME)
    home.recover(NAME)
    land_owners(home, 3, OWNERS[24:])
    land_all(home, FILES[6:], first=6)
    home.run(NAME)

    slower = min(max(tap.at for tap in flat(FILES)), OWNERS[-1][0]) - 2 * HOUR
    found = in_force(home)
    assert first_hours(flat(FILES), over=slower - HOUR) - found == Counter()
    assert found - first_hours(flat(FILES), over=slower + HOUR) == Counter()
    assert any(row[2] is None for row in found)
    assert home.reader(NAME).on_lake(system=()) == found
    assert_clean(home)


@pytest.mark.slow
def test_a_stream_of_its_own_has_its_own_late_records(home: Home) -> None:
    declare(home, late=', late="since"')
    land_all(home, FILES)
    for number in range(3):
        land_owners(home, number, OWNERS[number * 10 : number * 10 + 10])
    home.run(NAME)
    before = in_force(home)
    land_owners(home, 3, [(START, "+451", "nobody")])
    home.run(NAME)
    assert in_force(home) == before
    [(raw, reasons)] = home.ask("SELECT raw, reasons FROM sluice.quarantine")
    assert (json.loads(raw)["who"], reasons) == ("nobody", ["late"])
    assert_clean(home)


BOTH = 'df.selectExpr("action who", "at since", "at", "action")'
OWNED = 'owners.selectExpr("who", "since", "since at", "who action")'
ANOTHER = """df.sparkSession.readStream.format("rate").load().selectExpr(
        "string(value) who", "timestamp since", "timestamp at", "string(value) action")"""


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (f"{OWNED}.unionByName({BOTH})", r"in another order than declared: owners/\*.csv, taps/\*.jsonl"),
        (BOTH, r"does not use owners/\*.csv"),
        (f"{BOTH}.unionByName({OWNED}).unionByName({BOTH})", "more often than another"),
        ('df.sparkSession.sql("SELECT 1 AS who")', "uses none of its streams"),
        (f"{BOTH}.unionByName({OWNED}).unionByName({ANOTHER})", "a stream that is not among its sources"),
    ],
    ids=["order", "unread", "twice", "static", "another"],
)
def test_what_the_transform_makes_of_its_streams_is_checked_before_a_run(
    home: Home, made: str, told: str
) -> None:
    declare(home, body=f"    return {made}")
    land(home, 0, FILES[0])
    land_owners(home, 0, OWNERS)
    with pytest.raises(SetupError, match=told):
        home.run(NAME)
    assert home.ask("SELECT count(*) FROM sluice.delivery") == [(0,)]


@pytest.mark.slow
def test_streams_of_two_schemas_without_state_are_a_union(home: Home) -> None:
    declare(home, body=f"    return {BOTH}.unionByName({OWNED})")
    land(home, 0, FILES[0])
    land_owners(home, 0, OWNERS, more="+450,broken\n")
    assert (home.run(NAME).delivered, home.run(NAME).batches) == (len(FILES[0]) + len(OWNERS), 0)
    assert home.ask("SELECT raw FROM sluice.quarantine") == [("+450,broken",)]
    tried = home.sluice_here("try", NAME, "--input", str(home.landing / "owners/000.csv"), "--json")
    told = json.loads(tried.stdout)
    assert (told["delivered"], told["malformed"]) == (len(OWNERS), 1)
    assert_clean(home)


LOOKED_UP = """
from etl.pipeline import Append, Files, Lookup, Pipeline

def transform(df, *, known):
    return df.join(known, "action", {how!r}){more}

PIPELINE = Pipeline(
    name="taps",
    sources=(Files("taps/*.jsonl", max_files=1),),
    schema="phone string, at timestamp, action string",
    lookups={{"known": Lookup("reference/known.csv", schema="action string, means string", key=("action",))}},
    transform=transform,
    sink=Append(),
    max_quarantine_share=1.0,
)
"""
TOLD_TAPS = pa.schema(
    [("action", pa.string()), ("phone", pa.string()), ("at", MOMENT), ("means", pa.string())]
)


ONCE = '.withWatermark("at", "2 hours").dropDuplicatesWithinWatermark(["phone", "at", "action"])'


def look_up(home: Home, *, how: str, known: str, more: str = "") -> None:
    home.columns = TOLD_TAPS
    home.write("reference/known.csv", f"action,means\n{known}")
    home.declare(NAME, text=LOOKED_UP.format(how=how, more=more))


@pytest.mark.parametrize(
    "more",
    [pytest.param("", id="without state", marks=pytest.mark.slow), pytest.param(ONCE, id="with state")],
)
def test_each_batch_joins_its_lookups_as_they_are_when_it_begins(home: Home, more: str) -> None:
    look_up(home, how="left", known="pay,first\n", more=more)
    land_all(home, FILES[:4])

    def another_meaning(receipt: Receipt) -> None:
        if receipt.batch_id in (0, 2):
            home.write("reference/known.csv", f"action,means\npay,after batch {receipt.batch_id}\n")

    assert home.run(NAME, progress=another_meaning).batches == 4 + bool(more)
    means = ["first", "after batch 0", "after batch 0", "after batch 2"]
    wanted: Rows = Counter(
        (tap.action, tap.phone, tap.at * 1_000_000, means[number] if tap.action == "pay" else None)
        for number, made in enumerate(FILES[:4])
        for tap in made
    )
    assert len({row[3] for row in wanted}) == 4, "each of them has taps"
    assert in_force(home) == wanted
    sizes = home.ask("SELECT lookups->'known'->0->>'size' FROM sluice.delivery ORDER BY batch_id LIMIT 4")
    assert [int(size) for (size,) in sizes] == [len(f"action,means\npay,{one}\n") for one in means]
    assert_clean(home)


def test_a_join_with_an_empty_lookup_still_holds_what_is_malformed(home: Home) -> None:
    """In a replay, which is no stream, Spark sees that nothing can come of it, and reads no input."""
    look_up(home, how="inner", known="")
    land(home, 0, FILES[0])
    home.write(f"{NAME}/001.jsonl", '{"phone": broken\n')
    summary = home.run(NAME)
    assert (summary.batches, summary.delivered, summary.malformed) == (2, 0, 1)
    planned = plan(home.place, home.pipeline(NAME), Selection(deliveries=((1, 2),)))
    replay(home.place, home.pipeline(NAME), planned, who="a test", spark=home.spark)
    assert home.ask("SELECT kind, delivered, malformed FROM sluice.delivery WHERE live") == [("replay", 0, 1)]
    assert home.ask("SELECT raw FROM sluice.quarantine WHERE status = 'held'") == [('{"phone": broken',)]


def test_a_file_that_two_patterns_match_is_refused_and_delivered_once_only_one_does(home: Home) -> None:
    declare(home, sources='Files("taps/**/*.jsonl"), Files("taps/late/*.jsonl", stream="owners")')
    land(home, 0, FILES[0])
    (home.landing / NAME / "late").mkdir()
    home.write(f"{NAME}/late/1.jsonl", FILES[1][0].json)
    with pytest.raises(
        InputsDoubled, match=r"late/1.jsonl is matched by taps/\*\*/\*.jsonl and by taps/late/\*.jsonl"
    ):
        home.run(NAME)
    assert home.ask("SELECT count(*) FROM sluice.delivery") == [(0,)]
    declare(home, sources='Files("taps/*.jsonl"), Files("taps/late/*.jsonl", stream="owners")')
    assert home.recover(NAME).problem == "the last run ended with InputsDoubled"
    home.run(NAME)
    read = "SELECT path, source FROM sluice.delivery_input WHERE live ORDER BY path"
    assert home.ask(read) == [("taps/000.jsonl", 0), ("taps/late/1.jsonl", 1)]
