"""The shipped join of impressions with their clicks, over real topics, against what the generator knows of each record."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support import oracle
from tests.support.data import ads
from tests.support.environment import REPOSITORY
from tests.support.home import Home
from tests.support.kafka.topics import Topics, ranges
from tests.support.killed.runs import kill, runs_of
from tests.support.oracle import Reader, Rows

NAME = "ad_attribution"
MOMENT = pa.timestamp("us", tz="UTC")
COLUMNS = pa.schema(
    [
        ("impression", pa.string()),
        ("ad", pa.string()),
        ("publisher", pa.string()),
        ("price", pa.decimal128(9, 4)),
        ("shown_at", MOMENT),
        ("click", pa.string()),
        ("clicked_at", MOMENT),
        ("seconds", pa.int64()),
    ]
)
SENT = {"impressions": 242, "clicks": 207}
# What is held, by reason: KINDS and its like, times the phases that have them.
HELD = {"malformed": 12, "late": 12, ads.PRICE: 6, ads.NO_CLICK: 6, ads.NO_IMPRESSION: 3}
ROWS, CLICKED = 234, 129
DOUBLES_AT_LAST = 6  # clicks that came twice, of those that are sent after the second phase


@pytest.fixture
def place(home: Home, topics: Topics) -> Home:
    """Return a place with the shipped pipeline and its suite, over topics of this test's own, in small batches."""
    text = (REPOSITORY / "etl" / "pipelines" / f"{NAME}.py").read_text()
    for shipped in ("ad-impressions", "ad-clicks"):
        assert text.count(f'"{shipped}"') == 1
        text = text.replace(shipped, topics.create(shipped, partitions=ads.PARTITIONS))
    assert text.count("100_000") == 2
    home.declare(NAME, text=text.replace("100_000", "100"))
    suite = (REPOSITORY / "expectations" / f"{NAME}.json").read_text()
    (home.root / "our-suites" / f"{NAME}.json").write_text(suite)
    return replace(home, columns=COLUMNS)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_impression_has_its_clicks_whatever_is_late_double_broken_or_killed(
    place: Home, topics: Topics, tmp_path: Path
) -> None:
    made, sent = ads.drawn(seed=5), ads.Ads()
    assert {"impressions": len(made.impressions), "clicks": len(made.clicks)} == SENT
    names = [name for (name,) in (source.topics for source in place.pipeline(NAME).sources)]
    held: Rows = Counter()
    for phase, (shown, clicked) in enumerate(made.phases):
        sent.impressions.extend(shown)
        sent.clicks.extend(clicked)
        for name, events in zip(names, (shown, clicked), strict=True):
            held += ads.held_records(events, topics.send(name, ads.records(events)))
        if phase == 2:
            shutil.rmtree(place.place.settings.checkpoints)
            place.recover(NAME)
        if phase == 1:
            killed_in_a_batch(place, tmp_path)
        place.run(NAME)
        assert_holds(place, sent, held)
    for name in names:
        assert_all_read(place, topics, name)
    delivered, held_rows = made.rows()
    assert (delivered.total(), sum(row[5] is not None for row in delivered.elements())) == (ROWS, CLICKED)
    by_reason = Counter(row[0] for row in held.elements()) + Counter(
        reason for row in held_rows.elements() for reason in row[0]
    )
    assert by_reason == HELD
    assert doubles(place) == sum(made.doubles(phase) for phase in (2, 3)) == DOUBLES_AT_LAST
    assert inner_join(place) == Counter(row for row in delivered.elements() if row[5] is not None)
    place.assert_clean(NAME)


def doubles(place: Home) -> int:
    """Count the duplicates that the current stream dropped; the stream before does not report what a killed run did last."""
    [(told,)] = place.ask(
        "SELECT sum(doubles)::bigint FROM sluice.batch_progress JOIN sluice.pipeline ON current_stream = stream_id"
    )
    return int(told)


def inner_join(place: Home) -> Rows:
    """Return the rows of the inner join, by the cookbook's query."""
    text = (REPOSITORY / "docs" / "cookbook" / "joins.md").read_text()
    [where] = re.findall(r"The inner join is its rows\nwith a click: `(.*?)`", text)
    return place.reader(NAME).in_postgres(system=(), where=where)


def killed_in_a_batch(place: Home, folder: Path) -> None:
    """Kill a run whose batch is in both sinks, when Spark has marked neither it nor its state."""
    count = "SELECT count(*) FROM sluice.delivery"
    [(before,)] = place.ask(count)
    with runs_of(place, folder) as runs:
        process = runs.start("committed", 0, NAME)
        kill(process, runs.wait_for_step(process))
    assert place.ask(count) == [(before + 1,)]


def assert_holds(place: Home, sent: ads.Ads, held: Rows) -> None:
    """Both sinks have exactly what must come of all that was sent so far; nothing was left out behind the watermark."""
    eyes = place.reader(NAME)
    delivered, held_rows = sent.rows()
    in_quarantine = held_in_postgres(eyes)
    found = {
        "PostgreSQL": (eyes.in_postgres(system=()), delivered),
        "Parquet": (eyes.on_lake(system=()), delivered),
        "held records": (in_quarantine[0], held),
        "held rows": (in_quarantine[1], held_rows),
    }
    wrong = {name: oracle.difference(*both) for name, both in found.items()}
    assert not any(wrong.values()), wrong
    assert eyes.held_on_lake().total() == held.total() + held_rows.total()
    assert place.ask("SELECT sum(dropped) FROM sluice.delivery") == [(0,)]
    place.assert_one_history(NAME)


def held_in_postgres(eyes: Reader) -> tuple[Rows, Rows]:
    """Return the records that came to no row, and the rows."""
    records: Rows = Counter()
    rows: Rows = Counter()
    for reasons, path, raw, row, _ in eyes.held_in_postgres().elements():
        if row is None:
            [reason] = reasons
            records[reason, path, ads.told(raw, reason)] += 1
        else:
            rows[reasons, path, raw, row] += 1
    return records, rows


def assert_all_read(place: Home, topics: Topics, topic: str) -> None:
    """Require each offset of the topic once in the ledger, range after range."""
    for number in range(ads.PARTITIONS):
        spans = [(start, end) for partition, start, end in ranges(place, topic) if partition == number]
        assert (spans[0][0], spans[-1][1]) == (0, topics.ends[topic, number])
        assert all(one[1] == then[0] for one, then in pairwise(spans))
