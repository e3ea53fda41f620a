"""`sluice try` of pipelines that keep state: what a new stream of the files puts out."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from etl.common.errors import SetupError
from etl.operations.datasets.generated import count_fates, generated
from etl.operations.suites.try_out import Tried, try_out
from etl.pipeline import load_pipeline
from tests.support.data import taps
from tests.support.data.taps import Tap
from tests.support.home import Home
from tests.support.oracle import Row, Rows

FILES = taps.falling_silent(taps.taps(7, 40, seed=31), after=2)
FILES[-1] += FILES[-1][:3]
KINDS: dict[str, tuple[dict[str, Any], Callable[[Sequence[Tap]], Rows]]] = {
    "update": ({}, taps.hourly),
    "append": (
        {"sink": "Append()"},
        lambda made: taps.hourly(made, until=max(tap.at for tap in made) - 2 * taps.HOUR),
    ),
    "complete": ({"body": taps.ROLLUP, "sink": "Replace()", "columns": taps.ROLLUP_COLUMNS}, taps.rolled_up),
    "doubles": (
        {"body": taps.recipe("doubles"), "sink": "Append()", "columns": taps.TAPS},
        lambda made: taps.rows(set(made)),
    ),
    "timers": (
        {"body": taps.recipe("timers"), "sink": "Append()", "columns": taps.SILENCES},
        lambda made: taps.silences([made, []])[0],
    ),
}


def tried(home: Home, name: str = taps.NAME) -> Tried:
    """Over all that has landed."""
    pipeline = load_pipeline(name, home.place.settings.pipelines)
    files = [str(file) for file in sorted(home.landing.rglob("*.jsonl"))]
    return try_out(home.place, pipeline, files, most=10_000, spark=home.spark)


@pytest.mark.slow
def test_the_folder_for_temporary_files_may_have_a_blank(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a b%20ü"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    taps.declare(home)
    taps.land_all(home, FILES[:2])
    assert Counter(map(plain, tried(home).rows)) == taps.hourly(taps.flat(FILES[:2]))
    home.run(taps.NAME)
    assert taps.in_force(home) == taps.hourly(taps.flat(FILES[:2]))


USUAL = ("append", "timers", "doubles")
CASES = [
    pytest.param(*kind, id=name, marks=() if name in USUAL else pytest.mark.slow)
    for name, kind in KINDS.items()
]


@pytest.mark.parametrize(("declared", "wanted"), CASES)
def test_it_shows_what_a_new_stream_puts_out(
    home: Home, declared: dict[str, Any], wanted: Callable[[Sequence[Tap]], Rows]
) -> None:
    taps.declare(home, **declared)
    taps.land_all(home, FILES)
    said = tried(home)
    assert Counter(map(plain, said.rows)) == wanted(taps.flat(FILES))
    assert said.delivered == len(said.rows) > 5
    assert home.ask("SELECT to_regclass('warehouse.taps')") == [(None,)]
    assert not home.objects()


def plain(row: Sequence[Any]) -> Row:
    """Moments in microseconds, as the oracle has them."""
    return tuple(micros(one) if isinstance(one, str) and one.startswith("2020-") else one for one in row)


def micros(iso: str) -> int:
    return int(dt.datetime.fromisoformat(iso).timestamp()) * 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["device_events", pytest.param("device_alerts", marks=pytest.mark.slow)])
def test_a_shipped_pipeline_is_tried_on_a_day(shipped: Home, name: str) -> None:
    files = generated("devices", [dt.date(2026, 1, 1)], seed=3)
    for file in files:
        shipped.write(file.path, file.content)
    said, known = tried(shipped, name), count_fates(files)
    assert said.malformed == known["malformed"] > 0
    assert said.delivered > 10
    assert said.held == (known["implausible"] if name == "device_events" else 0)
    assert not said.stops


def test_a_file_from_anywhere_is_tried_whatever_its_name(home: Home) -> None:
    taps.declare(home, late="at")
    long_ago = Tap(at=0, phone="+450", action="call")
    sample = home.root / "sample.ndjson"
    sample.write_text("".join(f"{tap.json}\n" for tap in [*FILES[0], long_ago]))
    said = try_out(home.place, home.pipeline(taps.NAME), [str(sample)], most=1000, spark=home.spark)
    assert Counter(map(plain, said.rows)) == taps.hourly(FILES[0])
    assert said.malformed == 1, "it is not newer than the watermark of a stream that begins"
    assert len(said.malformed_records) == 1


def test_a_file_that_ends_early_is_told(home: Home) -> None:
    taps.declare(home)
    home.write(f"{taps.NAME}/000.jsonl.gz", b"\x1f\x8b\x08\x00")
    with pytest.raises(SetupError, match=r"read to their end: .*000\.jsonl\.gz"):
        try_out(
            home.place,
            home.pipeline(taps.NAME),
            [str(home.landing / taps.NAME / "000.jsonl.gz")],
            spark=home.spark,
        )
