"""Transforms that keep state between batches, by whole runs: both sinks against a plain computation of the same."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter

import pytest
from pyspark.sql import SparkSession

from etl.common.errors import ContractBroken, SetupError, StateChanged, VerdictUnknown
from etl.operations.control.decide import record_decision
from etl.operations.control.state import read_state
from etl.operations.suites.what_if import what_if
from etl.quality.suite_file import suite_path
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from etl.spark.session import SHUFFLES, setting
from tests.support.catalog import open_catalog
from tests.support.data import taps
from tests.support.data.orders import rule
from tests.support.data.taps import (
    HOUR,
    NAME,
    assert_clean,
    declare,
    flat,
    hourly,
    in_force,
    land,
    land_all,
    openings,
    recipe,
)
from tests.support.home import Home


@pytest.mark.parametrize(
    "max_files",
    [
        pytest.param(1, id="many small batches"),
        pytest.param(100, id="one large batch", marks=pytest.mark.slow),
    ],
)
def test_an_aggregate_goes_on_over_batches_and_runs(home: Home, max_files: int) -> None:
    files = taps.taps(8, 50, seed=1)
    declare(home, max_files=max_files)
    land_all(home, files[:5])
    home.run(NAME)
    assert in_force(home) == hourly(flat(files[:5]))

    land_all(home, files[5:], first=5)
    home.run(NAME)
    assert in_force(home) == hourly(flat(files))
    assert_clean(home)


def test_append_delivers_each_hour_once_it_is_over(home: Home) -> None:
    files = taps.taps(8, 50, seed=2)
    declare(home, sink="Append()")
    land_all(home, files)
    summary = home.run(NAME)

    watermark = max(tap.at for tap in flat(files)) - 2 * HOUR
    wanted = hourly(flat(files), until=watermark)
    assert in_force(home) == wanted
    assert home.reader(NAME).on_lake(system=()) == wanted
    batches = home.ask("SELECT batch_id, rows_in FROM sluice.delivery ORDER BY batch_id")
    assert [number for number, _ in batches] == list(range(summary.batches)), "those without a row as well"
    assert home.ask("SELECT count(*) FROM sluice.delivery_input") == [(len(files),)]
    assert summary.batches > len(files), "the last hours came in a batch of no file"
    assert_clean(home)


def test_hours_that_a_killed_run_left_to_close_are_closed_by_the_next_one(home: Home) -> None:
    """Spark makes the batch that closes them in the query that read their records, and in no later one."""
    files = taps.taps(8, 50, seed=2)[:5]
    declare(home, sink="Append()")
    land_all(home, files)
    # to Spark's mark of the last batch with files, and not further
    with setting(home.spark, "spark.sql.streaming.noDataMicroBatches.enabled", "false"):
        killed = home.run(NAME)
    wanted = hourly(flat(files), until=max(tap.at for tap in flat(files)) - 2 * HOUR)
    assert killed.batches == len(files)
    assert in_force(home) < wanted

    assert home.run(NAME).batches == 1
    assert in_force(home) == wanted
    assert home.run(NAME).batches == 0
    assert_clean(home)


@pytest.mark.parametrize("grouped", ["rollup", pytest.param("cube", marks=pytest.mark.slow)])
def test_complete_replaces_the_whole_table(home: Home, grouped: str) -> None:
    files = taps.taps(3, 50, seed=3)
    body = taps.ROLLUP.replace("rollup", grouped)
    declare(home, body=body, sink="Replace()", columns=taps.ROLLUP_COLUMNS)
    for number, made in enumerate(files):
        land(home, number, made)
        home.run(NAME)
        wanted = taps.rolled_up(flat(files[: number + 1]))
        if grouped == "cube":
            actions = Counter(tap.action for tap in flat(files[: number + 1]))
            wanted.update(("all", action, count) for action, count in actions.items())
        assert in_force(home) == wanted
        eyes = home.reader(NAME)
        assert eyes.rows_in(eyes.files(NAME), home.columns.names) == wanted
    assert_clean(home)


def test_a_figure_of_the_same_type_that_is_computed_in_another_way_is_no_state_to_go_on_with(
    home: Home,
) -> None:
    files = taps.taps(2, 20, seed=12)
    declare(home)
    land(home, 0, files[0])
    home.run(NAME)
    land(home, 1, files[1])
    declare(home, body=taps.HOURLY.replace("F.count(F.lit(1))", "F.sum(F.lit(2))"))
    with pytest.raises(StateChanged, match=r"computing count\(1\)"):
        home.run(NAME)
    # as a ledger has it that is from before figures were kept: it is told by its keys
    home.ask(
        "UPDATE sluice.stream SET state = ARRAY(SELECT split_part(s, ' computing ', 1) FROM unnest(state) s) RETURNING 1"
    )
    declare(home)
    home.run(NAME)
    assert in_force(home) == hourly(flat(files))


@pytest.mark.parametrize("mode", ["append", "update"])
def test_a_part_of_the_rows_does_not_replace_the_table(home: Home, mode: str) -> None:
    declare(home, sink="Replace()", output_mode=mode)
    land_all(home, taps.taps(1, 20, seed=3))
    with pytest.raises(SetupError, match=f"outputs in {mode} mode, so each batch has a part of its rows"):
        home.run(NAME)
    assert home.ask("SELECT count(*) FROM sluice.delivery") == [(0,)]


@pytest.mark.slow
def test_sessions_come_when_they_are_over(home: Home) -> None:
    """A phone's taps with no gap of half an hour between them."""
    files = taps.taps(8, 50, seed=10)
    declare(home, body=taps.SESSIONS, sink="Append()", columns=taps.SESSION_COLUMNS)
    for number, made in enumerate(files):
        land(home, number, made)
        home.run(NAME)
    wanted = taps.sessions_over(files)
    assert in_force(home) == wanted
    assert home.reader(NAME).on_lake(system=()) == wanted
    assert_clean(home)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dropDuplicatesWithinWatermark", "dropDuplicates"])
def test_doubles_within_the_watermark_come_once(home: Home, how: str) -> None:
    files = taps.taps(6, 50, seed=4)
    declare(
        home,
        body=recipe("doubles").replace("dropDuplicatesWithinWatermark", how),
        sink="Append()",
        columns=taps.TAPS,
    )
    doubled = [made + made[:7] + before[-5:] for before, made in zip([[], *files], files, strict=False)]
    land_all(home, doubled)
    home.run(NAME)

    shown = home.sluice_here("state", NAME, "--rows", "3")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"^taps: operator 0 \(dedupe.*\), .*: [0-9]+ keys$", shown.stdout, re.MULTILINE), (
        shown.stdout
    )
    assert shown.stdout.count("phone=+45") >= 3
    wanted = taps.rows(flat(files))
    assert in_force(home) == wanted
    assert home.reader(NAME).on_lake(system=()) == wanted
    assert_clean(home)


def test_a_batch_that_was_delivered_and_not_marked_leaves_its_state_to_the_next(home: Home) -> None:
    files = taps.taps(6, 50, seed=5)
    declare(home)
    land_all(home, files[:3])
    stream = home.run(NAME).stream
    # As after a kill between the commit of both sinks and Spark's own mark: nothing of it is sure but the ledger.
    newest = max(home.ask("SELECT batch_id FROM sluice.delivery"))[0]
    unmark(home, stream, newest)

    land(home, 3, files[3])
    home.run(NAME)
    assert in_force(home) == hourly(flat(files[:4]))
    assert_clean(home)


def test_a_batch_that_stopped_counts_once_when_it_is_decided(home: Home) -> None:
    files = taps.taps(4, 50, seed=6)
    home.judge(rule("table_row_count_to_be_between", "few rows", "critical", max_value=1), name=NAME)
    declare(home, suite=NAME, max_files=4)
    land_all(home, files)
    with pytest.raises(ContractBroken):
        home.run(NAME)
    with pytest.raises(ContractBroken):
        home.run(NAME)
    record_decision(
        home.place, home.pipeline(NAME), batch=0, stream=None, action="accept", who="a test", why="a test"
    )
    home.judge(
        rule("column_values_to_not_be_null", "action is given", "critical", column="action"), name=NAME
    )
    home.run(NAME)
    assert in_force(home) == hourly(flat(files))


def test_a_rule_that_fails_over_what_state_puts_out_is_named_and_the_batch_counts_once(home: Home) -> None:
    files = taps.taps(3, 50, seed=6)
    where = {"row_condition": "1 / (taps - taps) > 0", "condition_parser": "spark"}
    failing = rule("column_values_to_not_be_null", "tried", "info", column="taps", **where)
    home.judge(failing, name=NAME)
    declare(home, suite=NAME)
    land_all(home, files)
    with pytest.raises(
        VerdictUnknown, match=r"expectation 1 .tried. could not be evaluated: .DIVIDE_BY_ZERO"
    ):
        home.run(NAME)
    home.judge(
        rule("column_values_to_not_be_null", "action is given", "critical", column="action"), name=NAME
    )
    home.run(NAME)
    assert in_force(home) == hourly(flat(files))


def test_the_share_that_stops_a_batch_is_of_the_records_it_read(home: Home) -> None:
    """Few rows come out of many records, and a batch of no file closes the last hours."""
    files = taps.taps(8, 50, seed=16)
    home.judge(
        rule("column_values_to_be_in_set", "a call", "warning", column="action", value_set=["call"]),
        name=NAME,
    )
    declare(home, sink="Append()", suite=NAME, max_quarantine_share=0.2)
    land_all(home, files)
    summary = home.run(NAME)
    closed = hourly(flat(files), until=max(tap.at for tap in flat(files)) - 2 * HOUR)
    assert in_force(home) == Counter({row: count for row, count in closed.items() if row[1] == "call"})
    assert summary.quarantined > 0.5 * summary.rows_in
    assert summary.records == len(flat(files))
    again = what_if(
        home.place,
        home.pipeline(NAME),
        suite_path(home.pipeline(NAME), home.place.settings),
        spark=home.spark,
    )
    assert [one.stops for one in again.batches] == [()] * summary.batches


def test_what_spark_does_not_stream_is_told_before_anything_is_read(home: Home) -> None:
    land(home, 0, taps.taps(1, 5, seed=7)[0])
    declare(home, body='    return df.groupBy("phone", "at", "action").count()', sink="Append()")
    with pytest.raises(SetupError, match=r"as a stream: .*watermark"):
        home.run(NAME)


def test_another_number_of_shuffle_partitions_is_told_and_changes_nothing(
    home: Home, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    files = taps.taps(2, 30, seed=12)
    declare(home)
    for number, made in enumerate(files):
        land(home, number, made)
        spark.conf.set(SHUFFLES, str(2 + number))
        try:
            home.run(NAME)
        finally:
            spark.conf.set(SHUFFLES, "2")
    [told] = [one.getMessage() for one in caplog.records if "shuffle partitions" in one.getMessage()]
    assert "in 2 parts" in told
    assert "spark.sql.shuffle.partitions=3 has no effect" in told
    assert in_force(home) == hourly(flat(files))


def test_history_is_left_out_for_good_and_the_first_run_says_so(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    files = taps.taps(3, 20, seed=15)
    declare(home, interval="{interval:%Y}", start=dt.date(2028, 1, 1))
    land_all(home, files[:2], first=2027)  # a file a year
    home.run(NAME)
    land(home, 2029, files[2])
    home.run(NAME)
    [told] = [one.getMessage() for one in caplog.records if "no replay will load" in one.getMessage()]
    assert "before its start, 2028-01-01T00:00:00+00:00" in told
    assert in_force(home) == hourly(flat(files[1:]))


def test_a_transform_without_state_takes_its_input_once(home: Home) -> None:
    land(home, 0, taps.taps(1, 5, seed=14)[0])
    declare(home, body="    return df.unionByName(df)", sink="Append()", columns=taps.TAPS)
    with pytest.raises(SetupError, match="more than once"):
        home.run(NAME)


def test_no_batch_is_replayed_by_itself(home: Home) -> None:
    land(home, 0, taps.taps(1, 5, seed=8)[0])
    declare(home)
    home.run(NAME)
    planned = plan(home.place, home.pipeline(NAME), Selection(deliveries=((1, 1),)))
    assert any("refused" in line and "keeps state" in line for line in planned.lines())
    with pytest.raises(SetupError, match="keeps state between batches") as refused:
        replay(home.place, home.pipeline(NAME), planned, who="a test", spark=home.spark)
    assert "`sluice publish taps_2 --as SCHEMA.NAME`" in refused.value.remedy
    kept = "SELECT outcome, plan ->> 'chosen', ended_at IS NOT NULL FROM sluice.run WHERE kind = 'replay'"
    assert home.ask(kept) == [("SetupError", "deliveries 1", True)]


@pytest.mark.slow
def test_all_of_it_is_made_anew_beside_what_is_there(home: Home) -> None:
    """By the steps of docs/state.md: another name first, then readers of both sinks change over in one transaction."""
    files = taps.taps(5, 20, seed=9)
    declare(home)
    land_all(home, files[:4])
    home.run(NAME)
    declared = (home.root / "my pipelines" / f"{NAME}.py").read_text()
    opened = declared.replace('name="taps"', 'name="taps_2"').replace(
        "df.", "df.where(\"action = 'open'\").", 1
    )
    give(home, NAME)
    home.declare("taps_2", text=opened)
    home.run("taps_2")
    land(home, 4, files[4])
    for name in (NAME, "taps_2"):
        home.run(name)
        home.assert_clean(name)
    assert in_force(home) == hourly(flat(files))
    assert rows_shown(home) == rows_of(home, NAME)
    give(home, "taps_2")
    wanted = hourly(tap for tap in flat(files) if tap.action == "open")
    assert home.reader("taps_2").in_postgres(system=()) == wanted
    assert rows_shown(home) == rows_of(home, "taps_2") < rows_of(home, NAME)


def give(home: Home, name: str) -> None:
    """Give the name for readers to this pipeline."""
    done = home.sluice("publish", name, "--as", "reports.by_hour")
    assert done.returncode == 0, done.stderr


def rows_shown(home: Home) -> tuple[int, int]:
    """Count the rows that readers of the name see: in PostgreSQL, and by the catalog."""
    [(rows,)] = home.ask("SELECT count(*) FROM reports.by_hour")
    catalog = open_catalog(home.place)
    return int(rows), catalog.load_table("reports.by_hour").scan().count()


def rows_of(home: Home, name: str) -> tuple[int, int]:
    eyes = home.reader(name)
    return eyes.in_postgres(system=()).total(), eyes.on_lake(system=()).total()


def unmark(home: Home, stream: str, batch: int) -> None:
    """Take back Spark's mark of a batch, and what it has of the state after it."""
    checkpoint = home.checkpoint(stream, NAME)
    gone = [checkpoint / "commits" / str(batch), *checkpoint.glob(f"state/*/*/{batch + 1}.*")]
    assert len(gone) > 1
    for file in gone:
        file.unlink()
        (file.parent / f".{file.name}.crc").unlink()


@pytest.mark.slow
@pytest.mark.parametrize("max_files", [1, 100])
@pytest.mark.parametrize("how", ["inner", "leftOuter"])
def test_a_stream_joins_itself_within_bounds(home: Home, how: str, max_files: int) -> None:
    """Each opening of the app with the payments of the hour after it; those without one come when it is over."""
    files = taps.taps(8, 60, seed=9)
    declare(
        home,
        body=recipe("joins").replace("leftOuter", how),
        sink="Append()",
        columns=taps.OPENINGS,
        max_files=max_files,
    )
    land_all(home, files)
    home.write(f"{NAME}/008.jsonl", '{"phone": broken\n')
    summary = home.run(NAME)
    assert summary.malformed == 1

    pairs = openings(flat(files)) if how == "leftOuter" else taps.paid(flat(files))
    over = (max(tap.at for tap in flat(files)) - 4 * HOUR) * 1_000_000
    assert any(one.keys for one in read_state(home.place, home.pipeline(NAME), spark=home.spark))
    found = in_force(home)
    assert found - pairs == Counter()
    assert {row for row in pairs - found if row[1] < over} == set()
    assert home.reader(NAME).on_lake(system=()) == found
    assert_clean(home)
