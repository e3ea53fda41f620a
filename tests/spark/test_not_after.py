"""Moments that are ahead of their bound: each record is held before a watermark sees it, by the clock of its batch."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Sequence

import pyarrow as pa
import pytest

from etl.common.errors import ContractBroken, SetupError
from etl.operations.suites.try_out import try_out
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from tests.support.data import taps
from tests.support.data.taps import (
    FILES,
    IN_TIME,
    NAME,
    Tap,
    assert_clean,
    declare,
    flat,
    hourly,
    in_force,
    land_all,
)
from tests.support.home import Home
from tests.support.waiting import until

NEXT_CENTURY = '{"phone": "+459", "at": "2125-01-01T00:00:00Z", "action": "call"}\n'
HOUR = dt.timedelta(hours=1)


@pytest.mark.parametrize("late", [pytest.param(None, marks=pytest.mark.slow), "at"])
def test_a_record_of_the_future_moves_no_watermark(home: Home, late: str | None) -> None:
    declare(home, late=late, not_after={"at": HOUR})
    land_all(home, IN_TIME[:3])
    home.write(f"{NAME}/002b.jsonl", NEXT_CENTURY)
    land_all(home, IN_TIME[3:], first=3)
    summary = home.run(NAME)
    assert (summary.reasons, summary.dropped, summary.late) == ({"future": 1}, 0, 0)
    assert in_force(home) == hourly(flat(IN_TIME))
    [(raw, detail, path)] = home.ask("SELECT raw, detail, source_path FROM sluice.quarantine")
    assert json.loads(raw)["at"].startswith("2125-01-01T00:00:00")
    assert detail.startswith("at: 2125-01-01 00:00:00 is after 20")
    assert detail.endswith(", 1:00:00 from when its batch began")
    assert path.endswith("/002b.jsonl")
    assert_clean(home)


@pytest.mark.slow
def test_state_that_is_made_anew_judges_by_the_clock_of_each_batch(home: Home) -> None:
    """What was of the future then stays held, though its time has come since."""
    declare(home, not_after={"at": HOUR}, sink="Append()")
    land_all(home, IN_TIME[:3])
    stream = home.run(NAME).stream
    soon = dt.datetime.now(dt.UTC) + HOUR + dt.timedelta(seconds=90)
    record = {"phone": "+459", "at": soon.isoformat(), "action": "call"}
    home.write(f"{NAME}/002b.jsonl", json.dumps(record) + "\n")
    home.run(NAME)
    assert home.ask("SELECT reasons FROM sluice.quarantine") == [(["future"],)]
    shutil.rmtree(home.checkpoint(stream, NAME))
    until(lambda: dt.datetime.now(dt.UTC) > soon - HOUR, "the record's time", patience=240)
    home.recover(NAME)
    land_all(home, IN_TIME[3:], first=3)
    home.run(NAME)
    newest = max(tap.at for tap in flat(IN_TIME))
    assert in_force(home) == hourly(flat(IN_TIME), until=newest - 2 * taps.HOUR)


def test_another_column_is_a_bound_as_well(home: Home) -> None:
    declare(
        home,
        body="    return df",
        sink="Append()",
        columns=taps.TAPS.append(pa.field("received", taps.MOMENT)),
        schema=f"{taps.SCHEMA}, received timestamp",
        not_after={"at": "received"},
    )
    records = [
        {"phone": "+1", "at": "2026-01-01T10:00:00Z", "action": "call", "received": "2026-01-01T10:00:00Z"},
        {"phone": "+2", "at": "2026-01-01T10:00:01Z", "action": "call", "received": "2026-01-01T10:00:00Z"},
        {"phone": "+3", "at": None, "action": "call", "received": "2026-01-01T10:00:00Z"},
        {"phone": "+4", "at": "2026-01-01T10:00:01Z", "action": "call"},
    ]
    home.write(f"{NAME}/0.jsonl", "".join(json.dumps(one) + "\n" for one in records))
    home.run(NAME)
    assert home.ask("SELECT raw::json->>'phone', reasons, detail FROM sluice.quarantine") == [
        ("+2", ["future"], "at: 2026-01-01 10:00:01 is after 2026-01-01 10:00:00, which received is")
    ]
    delivered = home.ask(f"SELECT phone FROM warehouse.{NAME} ORDER BY phone")
    assert delivered == [("+1",), ("+3",), ("+4",)]
    planned = plan(home.place, home.pipeline(NAME), Selection(batches=(0, 0)))
    replay(home.place, home.pipeline(NAME), planned, who="tests", spark=home.spark)
    assert home.ask(f"SELECT phone FROM warehouse.{NAME} ORDER BY phone") == delivered


def test_a_stop_says_what_is_ahead_of_what(home: Home) -> None:
    declare(home, not_after={"at": HOUR}, max_quarantine_share=0.0)
    home.write(f"{NAME}/0.jsonl", NEXT_CENTURY)
    with pytest.raises(
        ContractBroken, match=r"future \(1\)(.|\n)*0\.jsonl: at: 2125-01-01 00:00:00 is after"
    ) as stop:
        home.run(NAME)
    assert "fix the suite" not in stop.value.remedy


def test_a_try_tells_what_is_ahead(home: Home) -> None:
    declare(home, not_after={"at": HOUR})
    home.write(f"{NAME}/0.jsonl", lines(FILES[0]) + NEXT_CENTURY)
    tried = try_out(home.place, home.pipeline(NAME), [str(home.landing / NAME / "0.jsonl")], spark=home.spark)
    assert tried.malformed == 1
    [(raw, _, detail)] = tried.malformed_records
    assert "2125" in raw
    assert "is after" in (detail or "")


def test_fields_beyond_the_schema_are_told_though_their_record_is_held(home: Home) -> None:
    declare(home, not_after={"at": HOUR}, body="    return df", sink="Append()", columns=taps.TAPS)
    odd = {"phone": "+459", "at": "2125-01-01T00:00:00Z", "action": "call", "model": "x"}
    home.write(f"{NAME}/0.jsonl", json.dumps(odd) + "\n" + lines(FILES[0]))
    home.run(NAME)
    assert home.ask("SELECT unknown FROM sluice.delivery") == [({"model": 1},)]
    [(detail,)] = home.ask("SELECT detail FROM sluice.quarantine")
    assert "is after" in detail


def test_only_moments_of_the_schema_are_bounded(home: Home) -> None:
    home.make_folder(NAME)
    for bounds, wrong in (
        ({"action": HOUR}, "'action'"),
        ({"at": "phone"}, "'phone'"),
        ({"seen": HOUR}, "'seen'"),
    ):
        declare(home, not_after=bounds)
        with pytest.raises(
            SetupError, match=rf"not_after: {wrong} is no timestamp column.*\n.*name one of at"
        ):
            home.run(NAME)


def test_a_moment_of_the_future_that_nothing_bounds_is_warned_of(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    declare(home)
    land_all(home, IN_TIME[:2])
    home.write(f"{NAME}/001b.jsonl", NEXT_CENTURY)
    home.run(NAME)
    [told] = [message for message in caplog.messages if "ahead of the clock" in message]
    assert "batch 2 of taps" in told
    assert "2125-01-01" in told
    assert "`not_after=`" in told


def lines(made: Sequence[Tap]) -> str:
    return "".join(f"{tap.json}\n" for tap in made)
