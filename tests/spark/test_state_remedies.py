"""What a transform kept is lost, damaged or of another transform: each stops with its remedy, and the remedy is right."""

from __future__ import annotations

import gzip
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from etl.common.errors import (
    CheckpointDamaged,
    CheckpointLost,
    InputsChanged,
    InputsUnreadable,
    LedgerBehind,
    StateChanged,
)
from etl.runs.recovery.recover import Recovered, recover
from tests.support.backups import Backup
from tests.support.data import taps
from tests.support.data.taps import (
    NAME,
    assert_clean,
    declare,
    flat,
    hourly,
    in_force,
    land_all,
    openings,
    recipe,
)
from tests.support.home import Home, uri

FILES = taps.taps(14, 20, seed=11)
ONCE = recipe("doubles")
EACH_TAP = """
    hour = F.date_trunc("hour", "at").alias("hour")
    return df.select(hour, "action", F.lit(1).cast("bigint").alias("taps"), F.col("at").alias("latest"))
"""


def remove_checkpoint(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)


def remove_state(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "state")


def tear_state(checkpoint: Path) -> None:
    """Cut off the newest piece of each partition's state."""
    for partition in checkpoint.glob("state/0/[0-9]*"):
        newest = max(partition.glob("*.changelog"), key=lambda file: int(file.stem))
        newest.write_bytes(newest.read_bytes()[:9])
        (partition / f".{newest.name}.crc").unlink()


@pytest.mark.parametrize(
    ("harm", "error"),
    [
        pytest.param(remove_checkpoint, CheckpointLost, marks=pytest.mark.slow),
        pytest.param(remove_state, CheckpointDamaged, marks=pytest.mark.slow),
        (tear_state, CheckpointDamaged),
    ],
)
def test_lost_state_is_made_anew(home: Home, harm: Callable[[Path], None], error: type[Exception]) -> None:
    declare(home)
    land_all(home, FILES[:12])
    stream = home.run(NAME).stream
    harm(home.checkpoint(stream, NAME))
    before = in_force(home)

    land_all(home, FILES[12:13], first=12)
    with pytest.raises(error, match="sluice recover taps"):
        home.run(NAME)
    assert in_force(home) == before

    told: list[tuple[int, int]] = []
    done = mend(home, told)
    batches = home.ask("SELECT count(*) FROM sluice.delivery")[0][0]
    assert told == [(number, batches) for number in range(1, batches + 1)]
    assert done.stream not in (None, stream)
    assert in_force(home) == before, "nothing was delivered"
    home.run(NAME)
    assert in_force(home) == hourly(flat(FILES[:13]))

    land_all(home, FILES[13:], first=13)
    home.run(NAME)
    assert in_force(home) == hourly(flat(FILES))
    assert_clean(home)


@pytest.mark.slow
def test_state_that_was_made_anew_closes_the_same_hours(home: Home) -> None:
    """Appended hours come once the watermark has passed them: it has to be where it was."""
    declare(home, sink="Append()")
    land_all(home, FILES[:7])
    stream = home.run(NAME).stream
    remove_checkpoint(home.checkpoint(stream, NAME))
    mend(home)
    land_all(home, FILES[7:], first=7)
    home.run(NAME)
    newest = max(tap.at for tap in flat(FILES))
    assert in_force(home) == hourly(flat(FILES), until=newest - 2 * taps.HOUR)
    assert_clean(home)


@pytest.mark.slow
def test_the_state_of_a_join_is_made_anew(home: Home) -> None:
    """It has two watermarks, of which the slower one counts, and batches with records of one side alone."""
    files = taps.taps(12, 60, seed=15)
    files = [[one for one in made if n not in (5, 6) or one.action == "open"] for n, made in enumerate(files)]
    declare(home, body=recipe("joins"), sink="Append()", columns=taps.OPENINGS)
    land_all(home, files[:7])
    stream = home.run(NAME).stream
    remove_checkpoint(home.checkpoint(stream, NAME))
    mend(home)
    land_all(home, files[7:], first=7)
    home.run(NAME)

    found, wanted = in_force(home), openings(flat(files))
    assert found - wanted == Counter()
    over = (max(tap.at for tap in flat(files)) - 5 * taps.HOUR) * 1_000_000
    assert {row for row in wanted - found if row[1] < over} == set()
    assert_clean(home)


def test_a_transform_that_keeps_other_state_stops_before_it_runs(home: Home) -> None:
    declare(home, body=ONCE, sink="Append()", columns=taps.TAPS)
    land_all(home, FILES[:3])
    home.run(NAME)
    declare(home, body=ONCE.replace(', "action"', ""), sink="Append()", columns=taps.TAPS)
    land_all(home, FILES[3:4], first=3)
    with pytest.raises(StateChanged, match=r"by phone, at, action; now it is .* by phone, at\n"):
        home.run(NAME)
    declare(home, body=ONCE, sink="Append()", columns=taps.TAPS)
    home.run(NAME)
    wanted = taps.rows(flat(FILES[:4]))
    assert in_force(home) == wanted, "put back as it was, it goes on"


def test_a_window_of_another_width_is_other_state(home: Home) -> None:
    """It keeps its name, and Spark would go on with windows of both widths."""
    declare(home)
    land_all(home, FILES[:2])
    home.run(NAME)
    declare(home, body=taps.HOURLY.replace('"1 hour"', '"30 minutes"'))
    land_all(home, FILES[2:3], first=2)
    with pytest.raises(StateChanged, match=r"window \(at, .*3600000000L.*; now it is .*1800000000L"):
        home.run(NAME)


@pytest.mark.slow
def test_a_transform_that_begins_to_keep_state_takes_up_what_was_delivered(home: Home) -> None:
    """And one that keeps none any more goes on without."""
    declare(home, body=EACH_TAP)
    land_all(home, FILES[:3])
    home.run(NAME)
    declare(home)
    land_all(home, FILES[3:4], first=3)
    with pytest.raises(StateChanged):
        home.run(NAME)
    gone = home.landing / NAME / "001.jsonl"
    kept = gone.rename(home.root / "kept")
    for _ in range(2):  # a recover that broke off has settled nothing, nor made another think so
        with pytest.raises(InputsChanged, match=r"001.jsonl is gone"):
            mend(home)
    kept.rename(gone)
    mend(home)
    home.run(NAME)
    touched = hourly(FILES[3]).keys()
    hours = {row[:2] for row in touched}
    assert {row for row in in_force(home) if row[:2] in hours} == {
        row for row in hourly(flat(FILES[:4])) if row[:2] in hours
    }

    declare(home, body=EACH_TAP)
    land_all(home, FILES[4:5], first=4)
    with pytest.raises(StateChanged, match="now it is none"):
        home.run(NAME)
    mend(home)
    assert home.run(NAME).batches == 1
    assert_clean(home)


@pytest.mark.slow
def test_a_file_that_is_needed_and_gone_is_named(home: Home) -> None:
    declare(home)
    land_all(home, FILES[:3])
    stream = home.run(NAME).stream
    remove_checkpoint(home.checkpoint(stream, NAME))
    gone = home.landing / NAME / "001.jsonl"
    kept = gone.rename(home.root / "kept")
    with pytest.raises(InputsChanged, match=r"001.jsonl is gone"):
        mend(home)
    with pytest.raises(CheckpointLost):
        home.run(NAME)
    kept.rename(gone)
    mend(home)
    land_all(home, FILES[3:4], first=3)
    home.run(NAME)
    assert in_force(home) == hourly(flat(FILES[:4]))


def test_a_file_that_can_not_be_read_to_its_end_stops_until_it_is_whole(home: Home) -> None:
    declare(home)
    land_all(home, FILES[:2])
    home.run(NAME)
    text = "".join(f"{tap.json}\n" for tap in FILES[2])
    declared = (home.root / "my pipelines" / "taps.py").read_text()
    home.declare(NAME, text=declared.replace('"taps/*.jsonl"', '"taps/*.jsonl*", format="json"'))
    whole = gzip.compress(text.encode())
    file = home.write(f"{NAME}/002.jsonl.gz", whole[: len(whole) // 2])
    with pytest.raises(InputsUnreadable, match=r"keeps state.*002.jsonl.gz can't be read: .*it ends early"):
        home.run(NAME)
    [(batch, stops)] = home.ask("SELECT batch_id, stops FROM sluice.stopped_batch")
    assert stops[0].startswith(f"{uri(file)} can't be read: ")
    decided = home.sluice("decide", NAME, "--batch", str(batch), "--quarantine-all", "--why", "never mind")
    assert (decided.returncode, "`sluice recover taps`" in decided.stderr) == (2, True), decided.stderr
    assert home.ask("SELECT decision FROM sluice.stopped_batch") == [(None,)]
    file.unlink()
    home.write(f"{NAME}/002.jsonl.gz", whole)
    mend(home)
    home.run(NAME)
    assert in_force(home) == hourly(flat(FILES[:3]))


@pytest.mark.slow
def test_a_database_that_went_back_is_put_forward_and_the_state_is_as_it_was(
    home: Home, backup: Backup
) -> None:
    declare(home)
    land_all(home, FILES[:2])
    stream = home.run(NAME).stream
    backup.take()
    land_all(home, FILES[2:4], first=2)
    lost = home.run(NAME).batches
    said_of_each = "SELECT batch_id, records, dropped, watermark_ms FROM sluice.delivery ORDER BY batch_id"
    said = home.ask(said_of_each)
    backup.restore()
    land_all(home, FILES[4:5], first=4)
    with pytest.raises(LedgerBehind):
        home.run(NAME)
    told: list[tuple[int, int]] = []
    done = mend(home, told)
    assert (len(done.restored), done.stream, told) == (lost, stream, []), "nothing had to be made anew"
    assert home.ask(said_of_each) == said
    home.run(NAME)
    assert in_force(home) == hourly(flat(FILES[:5]))
    assert_clean(home)


def mend(home: Home, told: list[tuple[int, int]] | None = None) -> Recovered:
    heard = told if told is not None else []
    done = recover(
        home.place, home.pipeline(NAME), on_progress=lambda *both: heard.append(both), spark=home.spark
    )
    assert done.problem is not None
    return done
