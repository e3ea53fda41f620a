"""Records behind the watermark: each is held, as it was read; none is dropped without a word."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest

from etl.common.errors import SetupError
from etl.operations.suites.what_if import what_if
from tests.support.data import taps
from tests.support.data.orders import rule
from tests.support.data.taps import (
    FILES,
    HOUR,
    IN_TIME,
    LATE,
    NAME,
    assert_clean,
    declare,
    flat,
    hourly,
    in_force,
    land_all,
)
from tests.support.home import Home

TIMELESS = '{"phone": "+452", "action": "call"}'
Held = Counter[tuple[str, str | None, str | None]]  # reason, phone, action


@pytest.mark.parametrize(
    "max_files",
    [pytest.param(1, id="small batches"), pytest.param(2, id="large batches", marks=pytest.mark.slow)],
)
def test_each_batch_holds_what_is_behind_the_watermark(home: Home, max_files: int) -> None:
    declare(home, late="at", max_files=max_files)
    land_all(home, FILES[:6])
    first = home.run(NAME)
    assert first.reasons == {"late": 1}
    home.write(f"{NAME}/005b.jsonl", f"{TIMELESS}\n{{broken\n")
    land_all(home, FILES[6:], first=6)
    second = home.run(NAME)
    assert second.reasons == {"late": 3, "malformed": 1}
    assert home.ask("SELECT sum(late), sum(malformed) FROM sluice.delivery") == [(4, 5)]

    assert in_force(home) == hourly(flat(IN_TIME))
    wanted: Held = Counter(("late", tap.phone, tap.action) for late in LATE.values() for tap in late)
    wanted["late", "+452", "call"] += 1
    assert held(home) == wanted
    eyes = home.reader(NAME)
    assert len(list(eyes.held_on_lake().elements())) == sum(wanted.values()) + 1
    assert_clean(home)


@pytest.mark.slow
def test_late_records_are_no_rows_for_a_suite_that_is_tried(home: Home) -> None:
    declare(home, late="at")
    land_all(home, FILES)
    delivered = home.run(NAME).delivered
    home.judge(rule("column_values_to_not_be_null", "hour is given", "warning", column="hour"), name="tried")
    [suite] = home.root.rglob("tried.json")
    found = what_if(home.place, home.pipeline(NAME), suite, spark=home.spark)
    assert (found.totals["rows"], found.totals["newly_delivered"]) == (delivered, 0)
    assert sum(batch.malformed for batch in found.batches) == 3


def test_a_late_record_keeps_its_microseconds(home: Home) -> None:
    declare(home, late="at", max_files=1)
    land_all(home, IN_TIME[:6])
    home.write(
        f"{NAME}/006.jsonl", '{"phone": "+450", "at": "2020-01-01T10:00:00.123456Z", "action": "call"}\n'
    )
    assert home.run(NAME).reasons == {"late": 1}
    [(raw,)] = home.ask("SELECT raw FROM sluice.quarantine")
    assert json.loads(raw)["at"] == "2020-01-01T10:00:00.123456Z"


@pytest.mark.slow
def test_state_that_is_made_anew_leaves_the_late_ones_out_again(home: Home) -> None:
    declare(home, late="at", sink="Append()")
    land_all(home, FILES[:8])
    stream = home.run(NAME).stream
    shutil.rmtree(home.checkpoint(stream, NAME))
    before = held(home)
    home.recover(NAME)
    land_all(home, FILES[8:], first=8)
    home.run(NAME)
    assert in_force(home) == hourly(flat(IN_TIME), until=max(tap.at for tap in flat(IN_TIME)) - 2 * HOUR)
    assert held(home) == before
    assert_clean(home)


@pytest.mark.slow
def test_what_is_not_held_is_said(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    declare(home)
    land_all(home, FILES)
    summary = home.run(NAME)
    told = [one.getMessage() for one in caplog.records if "behind the watermark" in one.getMessage()]
    assert [one.partition(":")[0] for one in told] == ["batch 4 of taps", "batch 7 of taps"]
    counted = dict(home.ask("SELECT batch_id, late FROM sluice.delivery"))
    assert counted == {number: len(LATE.get(number, [])) for number in counted}
    assert [" read: 1 record)" in told[0], " read: 2 records)" in told[1]] == [True, True]
    assert summary.late == sum(map(len, LATE.values()))
    kept = dict(home.ask("SELECT batch_id, dropped FROM sluice.delivery WHERE dropped <> 0"))
    assert kept.keys() == {4, 7}
    assert summary.dropped == sum(kept.values()) > 0
    partial = home.ask("SELECT batch_id FROM sluice.quality_batch WHERE state = 'partial'")
    assert {batch for (batch,) in partial} == {4, 7}
    assert in_force(home) == hourly(flat(IN_TIME))


def test_the_column_must_be_a_moment_of_the_schema(home: Home) -> None:
    home.make_folder(NAME)
    declare(home, late="action")
    with pytest.raises(SetupError, match=r"late: 'action' is no timestamp column.*\n.*name one of at"):
        home.run(NAME)


def test_it_is_the_column_of_the_watermark(home: Home) -> None:
    """By the name that it has in what is read; a computed one may be of any."""
    home.make_folder(NAME)
    schema = f"{taps.SCHEMA}, sent timestamp"
    renamed = 'df = df.withColumnRenamed("at", "made").withColumn("at", F.col("made"))'
    for more in ("", f"    {renamed}\n"):
        declare(home, body=more + taps.HOURLY, schema=schema, late="sent")
        with pytest.raises(
            SetupError, match=r"late='sent', and the transform's watermark is on 'at'.*\n.*name 'at'"
        ):
            home.run(NAME)
    computed = 'df = df.withColumn("at", F.least("at", "sent"))'
    declare(home, body=f"    {computed}\n{taps.HOURLY}", schema=schema, late="sent")
    assert home.run(NAME).batches == 0


def held(home: Home) -> Held:
    rows = home.ask("SELECT reasons, raw FROM sluice.quarantine WHERE reasons <> '{malformed}'")
    values = [(reasons, json.loads(raw)) for reasons, raw in rows]
    return Counter((reason, row.get("phone"), row.get("action")) for [reason], row in values)


def test_a_limit_drops_no_malformed_record(home: Home) -> None:
    """Spark stops reading when it has enough rows, and would count no more."""
    made = taps.taps(1, 40, seed=6)[0]
    lines = [tap.json for tap in made]
    lines[20:20] = ["{broken", "no object"]
    declare(home, body="    return df.limit(3)", sink="Append()", columns=taps.TAPS)
    home.write(f"{NAME}/0.jsonl", "".join(f"{line}\n" for line in lines))
    home.run(NAME)
    assert home.ask("SELECT delivered, quarantined, rows_in FROM sluice.delivery WHERE batch_id = 0") == [
        (3, 2, 5)
    ]
    assert home.ask("SELECT raw FROM sluice.quarantine ORDER BY raw") == [("no object",), ("{broken",)]
