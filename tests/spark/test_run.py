"""A run delivers all that has landed to both sinks, once; declared and judged in a user's own folders."""

from __future__ import annotations

import json
import os
import shutil
import threading
from dataclasses import replace
from itertools import cycle
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.metadata import TableMetadata
from pyspark.sql import SparkSession

from etl.common.errors import Busy, FilesUnread, InputsDoubled, NeedsPerson, ServiceAway, SetupError
from etl.delivery.batch import Receipt
from etl.pipeline import declaration
from etl.runs.kinds.files import LITTLE_BYTES, LITTLE_FILES
from etl.runs.kinds.open import stream_of
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from etl.runs.run import run
from etl.runs.summary import Summary
from etl.sinks.lake.lake import Lake
from etl.sources.listing import folder_states
from tests.support import oracle
from tests.support.data.names import ODD
from tests.support.data.orders import (
    DECLARATION,
    NAME,
    NEGATIVE,
    NO_CITY,
    RULES,
    UNIQUE,
    Landed,
    orders,
    rule,
)
from tests.support.databases import sessions
from tests.support.environment import REPOSITORY
from tests.support.home import Home
from tests.support.listed import listed

CONTRACT = {
    "pipeline",
    "stream",
    "run",
    "batches",
    "deliveries",
    "rows_in",
    "delivered",
    "quarantined",
    "malformed",
    "seconds",
    "outcome",
}


WHOLE = DECLARATION.format(name="whole", max_files=None, share=1.0).replace("Append", "Replace")
COUNTED = """
from etl.pipeline import Files, Pipeline, Upsert

PIPELINE = Pipeline(
    name="counted",
    sources=(Files("counted/*.jsonl"),),
    schema="id bigint, shop string, amount double, at timestamp",
    transform=lambda df: df.groupBy("shop").count(),
    sink=Upsert(keys=("shop",), newest="count"),
)
"""


def test_a_backlog_comes_in_batches_and_as_one_where_a_part_of_it_would_be_another_table(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sluice")
    home.declare(max_files=None)
    landed = home.land("orders/0.jsonl", orders(0, 10, negative=[3]))
    for number in range(1, 3):
        landed += home.land(f"orders/{number}.jsonl", orders(10 * number, 10))
    file = (home.landing / "orders/1.jsonl").stat().st_size
    monkeypatch.setattr(declaration, "BATCH_BYTES", 2 * (file + 1))  # of two sources
    assert home.run().batches == 3
    home.assert_holds(landed)
    [told] = [
        message for message in caplog.messages if message.startswith("batch 0 of orders takes 1 file of ")
    ]
    assert "and 2 files that had landed come later" in told

    for name, text in (("whole", WHOLE), ("counted", COUNTED)):
        home.declare(name, text=text)
        for number in range(3):
            home.land(f"{name}/{number}.jsonl", orders(10 * number, 10))
        assert home.run(name).batches == 1


def test_all_that_landed_is_in_both_sinks_and_a_second_run_lists_no_folder_and_changes_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_states, "REST_NS", 1_000_000)  # this machine's file systems keep finer times
    landed = home.land("orders/dt=1/a.jsonl", orders(0, 40, negative=[3, 8]), ["{broken"])
    landed += home.land("orders/dt=1/b.jsonl", orders(40, 10))
    landed += home.land("orders/dt=2/deep/c.jsonl", orders(50, 10, negative=[50]))
    landed += home.land("orders/dt=1/d.csv", orders(60, 20, negative=[61]), ["x,A,1.0,2020-01-01"])
    landed += home.land("orders/dt=2/e.csv", orders(80, 5))
    assert not home.root.is_relative_to(REPOSITORY)

    done = home.run()
    home.assert_holds(landed)
    found = json.loads(json.dumps(done.json(), default=str))
    assert set(found) >= CONTRACT
    assert (found["pipeline"], found["batches"], found["outcome"]) == ("orders", 2, "done")
    assert (found["rows_in"], found["delivered"], found["quarantined"]) == (87, 81, 6)
    assert (found["malformed"], found["reasons"]) == (2, {NEGATIVE: 4, "malformed": 2})
    assert found["failed"] == {NEGATIVE: 2, NO_CITY: 2}
    assert found["deliveries"] == [
        n for (n,) in home.ask("SELECT delivery_id FROM sluice.delivery ORDER BY 1")
    ]
    assert home.ask("SELECT batch_id FROM sluice.delivery ORDER BY commit_seq") == [(0,), (1,)]

    before = home.history()
    with listed(home.landing) as folders:
        again = home.run()
    assert (again.batches, again.deliveries, again.rows_in) == (0, [], 0)
    assert again.stream == done.stream
    assert home.history() == before
    assert folders == []


def test_a_run_of_five_batches_opens_and_reads_as_often_as_one_of_one_but_for_its_tasks(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.declare(max_files=1)
    read: list[str] = []  # metadata of the two tables
    read_metadata = Lake.read_metadata

    def counted(lake: Lake, location: str) -> TableMetadata:
        read.append(location)
        return read_metadata(lake, location)

    monkeypatch.setattr(Lake, "read_metadata", counted)

    def opened(first: int, batches: int) -> int:
        """Count the connections of a run of so many batches, without those of its tasks: one of each batch has rows."""
        for number in range(first, first + batches):
            home.land(f"orders/{number}.jsonl", orders(10 * number, 10))
        before = sessions(home.dsn)
        assert home.run().batches == batches
        return sessions(home.dsn) - before - batches

    threads = 3  # the batch's own, the heartbeat's and the one that keeps what Spark told
    assert opened(0, 1) <= threads
    assert opened(1, 5) <= threads
    assert len(read) == 2 * 2


def test_a_run_that_finds_nothing_new_misses_a_suite_that_is_gone(home: Home) -> None:
    home.land("orders/a.jsonl", orders(0, 3))
    home.run()
    suite = home.root / "our-suites" / "orders.json"
    aside = suite.rename(home.root / "aside.json")
    with pytest.raises(SetupError, match=r"Suite orders\.json of pipeline orders is in none of the folders"):
        home.run()
    aside.rename(suite)
    assert home.run().batches == 0


def test_many_files_or_large_ones_or_a_batch_that_did_not_end_are_not_little(home: Home) -> None:
    home.land("orders/-1.jsonl", orders(0, 1))
    stream, done = stream_of(home.place, home.pipeline()), home.run().stream
    names = {f"orders/{number}.jsonl" for number in range(LITTLE_FILES)}
    for number, name in enumerate(sorted(names)):
        home.land(name, orders(number, 1))
    assert stream.is_little(done, names)
    assert not stream.is_little(done, {*names, "orders/more.jsonl"})
    with (home.landing / "orders/0.jsonl").open("ab") as file:
        file.truncate(LITTLE_BYTES)
    assert not stream.is_little(done, names)
    assert stream.is_little(done, {"orders/0.jsonl", "orders/that-is-gone.jsonl"})
    (home.checkpoint(done) / "commits/0").unlink()
    assert not stream.is_little(done, set())


def test_files_that_spark_passes_over_are_named_and_the_others_delivered(home: Home) -> None:
    """Java can't name a file whose name is no UTF-8, and nobody can read a link to nothing."""
    landed = home.land("orders/a.jsonl", orders(0, 10))
    home.write("orders/caf\udce9.jsonl", orders(10, 1)[0].json)
    home.write("orders/_hidden.jsonl", "")
    (home.landing / "orders/of\u00a0b.jsonl").symlink_to("b.jsonl.part")
    skipped = r"2 files below .* them: orders/caf\\xe9\.jsonl; orders/of\u00a0b\.jsonl, a link to nothing"
    for batches in (1, 0, 1):
        with pytest.raises(FilesUnread, match=skipped) as told:
            home.run()
        done = told.value.done
        assert isinstance(done, Summary) and (done.batches, done.outcome) == (batches, "FilesUnread")
        home.assert_holds(landed)
        if not batches:
            landed += home.land("orders/b.jsonl", orders(20, 10))
    (home.landing / "orders/caf\udce9.jsonl").rename(home.landing / "orders/caf\u00e9.jsonl")
    home.write("elsewhere/b", orders(11, 1)[0].json).rename(home.landing / "orders/b.jsonl.part")
    assert home.run().delivered == 2
    assert home.run().outcome == "done"


def test_a_folder_that_is_gone_is_not_one_where_nothing_has_landed(home: Home) -> None:
    """A mount that is away is told, and tried again; a folder that waits for its first file is asked for as ever."""

    def run_it() -> Summary:
        return run(home.place, home.pipeline(NAME), spark=home.spark)

    folder, away = home.landing / "orders", home.landing / "away"
    with pytest.raises(SetupError, match=r"folder .*/orders is not there"):
        run_it()
    landed = home.land("orders/a.jsonl", orders(0, 10))
    assert run_it().batches == 1
    folder.rename(away)
    seen = r"The folder .*/orders is not there, and 1 file of orders/\*\*/\*\.jsonl came from it"
    with pytest.raises(ServiceAway, match=seen) as told:
        run_it()
    assert told.value.exit_code == 75 and "mount it or put it back" in told.value.remedy
    folder.mkdir()
    assert run_it().outcome == "done"
    folder.rmdir()
    away.rename(folder)
    landed += home.land("orders/b.jsonl", orders(10, 10))
    assert run_it().batches == 1
    home.assert_holds(landed)


def test_a_pipe_called_like_a_file_is_named_and_not_waited_for(home: Home) -> None:
    landed = home.land("orders/a.jsonl", orders(0, 10))
    os.mkfifo(home.landing / "orders/b.jsonl")
    with pytest.raises(SetupError, match=r"orders/b\.jsonl is a named pipe and not a file"):
        home.run()
    (home.landing / "orders/b.jsonl").rename(home.landing / "orders/_b.jsonl")
    assert home.run().batches == 1
    home.assert_holds(landed)


def test_a_file_that_links_give_two_names_is_refused_and_an_endless_folder_before_spark_lists_it(
    home: Home,
) -> None:
    landed = home.land("orders/a.jsonl", orders(0, 10))
    again = home.landing / "orders/again"
    again.symlink_to("../orders")
    with pytest.raises(SetupError, match=r"orders/again leads back, by a link, to a folder that it is in"):
        home.run()
    again.unlink()
    assert home.run().batches == 1
    again.mkdir()
    (again / "latest.jsonl").symlink_to("../a.jsonl")
    landed += home.land("orders/b.jsonl", orders(10, 10))
    with pytest.raises(InputsDoubled, match=r"latest\.jsonl and orders/a\.jsonl are one file, by a link"):
        home.run()
    (again / "latest.jsonl").rename(again / "_latest.jsonl")
    home.recover()
    assert home.run().batches == 1
    home.assert_holds(landed)


def test_what_the_log_of_a_file_sink_does_not_name_is_told(
    home: Home, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    made = orders(0, 10)
    (home.root / "from").mkdir()
    (home.root / "from/a").write_text("\n".join(order.json for order in made))
    sink = spark.readStream.text(str(home.root / "from")).writeStream.format("text")
    sink = sink.option("checkpointLocation", str(home.root / "sink")).option("path", str(home.landing / NAME))
    sink.trigger(availableNow=True).start().awaitTermination()
    home.declare(
        text=DECLARATION.format(name=NAME, max_files=2, share=1).replace('*.jsonl"', '*.txt", format="json"')
    )
    home.write("orders/beside.txt", orders(20, 1)[0].json)
    assert (home.run().delivered, home.run().outcome) == (10, "done")
    assert "\n".join(caplog.messages).count("_spark_metadata names there, and not orders/beside.txt") == 2
    home.assert_holds(Landed(orders=made))


def test_odd_names_and_times_of_other_centuries_are_the_same_for_every_command_whatever_the_locale(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    landed = Landed()
    nanoseconds = cycle((-2_177_452_800_500_000_000, -1_000_500_000, -500_000, 8_590_000_000_000_000_001))
    for number, (name, time) in enumerate(zip(ODD, nanoseconds, strict=False)):
        landed += home.land(f"orders/{name}.jsonl", orders(number, 1))
        os.utime(home.landing / f"orders/{name}.jsonl", ns=(time, time))
    home.declare(max_files=None)
    home.make_folder("orders")
    done = home.sluice("run", NAME)
    assert done.returncode == 0, done.stderr
    home.assert_holds(landed)
    shutil.rmtree(home.place.settings.checkpoints)
    assert home.recover().seen == len(ODD)
    assert home.run().batches == 0
    said = plan(home.place, home.pipeline(), Selection(deliveries=((1, 1),)))
    assert (said.changed, said.gone) == ([], [])
    replay(home.place, home.pipeline(), said, who="tests", spark=home.spark)
    home.assert_holds(landed)
    told = home.assert_clean()
    assert (told.changed_inputs, told.undelivered) == ([], [])


def test_no_more_tasks_write_than_may_connect(home: Home) -> None:
    text = DECLARATION.format(name=NAME, max_files=2, share=1.0)
    home.declare(text=text.replace("    return", "    df = df.repartition(3, 'id')\n    return", 1))
    landed = home.land("orders/a.jsonl", orders(0, 20)) + home.land("orders/a.csv", orders(20, 20))
    home.run()
    home.place = replace(home.place, settings=home.place.settings.model_copy(update={"pg_connections": 1}))
    landed += home.land("orders/b.jsonl", orders(40, 20)) + home.land("orders/b.csv", orders(60, 20))
    home.run()
    home.assert_holds(landed)
    # a task writes a file of its own
    files = "SELECT count(*) FROM sluice.delivery_file WHERE kind = 'data' GROUP BY delivery_id ORDER BY delivery_id"
    [[of_many], [of_one]] = home.ask(files)
    assert of_many > 1
    assert of_one == 1


TEXT = """
from etl.pipeline import Append, Files, Pipeline

def requests(df):
    from pyspark.sql import functions as F

    words = F.split("line", " ")
    return df.select(F.get(words, F.lit(1)).alias("path"), F.get(words, F.lit(2)).try_cast("int").alias("status"))

PIPELINE = Pipeline(
    name="requests",
    sources=(Files("requests/*.log"),),
    schema="line string",
    transform=requests,
    suite="requests",
    sink=Append(),
    max_quarantine_share=1.0,
)
"""


def test_lines_of_text_are_taken_apart_by_the_transform_and_what_it_can_not_take_is_held(home: Home) -> None:
    home.columns = pa.schema([("path", pa.string()), ("status", pa.int32())])
    home.declare("requests", text=TEXT)
    unreadable = rule("column_values_to_not_be_null", "it is a request", "warning", column="path")
    home.judge(unreadable, name="requests")
    home.write("requests/a.log", "GET /a 200\n\nGET /b 404\nnonsense\n")
    home.write("requests/b.log", b"GET /\x00 200\nGET /c 301")
    done = home.run("requests")
    assert (done.delivered, done.quarantined, done.malformed) == (3, 3, 0)
    wanted = oracle.Rows([("/a", 200), ("/b", 404), ("/c", 301)])
    eyes = home.reader("requests")
    assert eyes.in_postgres(system=()) == eyes.on_lake(system=()) == wanted
    reasons = home.ask("SELECT reasons[1], count(*) FROM sluice.quarantine GROUP BY 1 ORDER BY 1")
    assert dict(reasons) == {"it is a request": 2, "postgres_nul(path)": 1}


def test_an_error_of_the_transform_is_told_in_sparks_own_words(home: Home) -> None:
    home.declare("requests", text=TEXT.replace("F.get(words, F.lit(1))", "words[1]"))
    home.judge(name="requests")
    home.write("requests/a.log", "GET /a 200\nnonsense\n")
    failed = home.sluice_here("run", "requests")
    assert failed.returncode == 4
    assert "INVALID_ARRAY_INDEX" in failed.stderr
    lines = home.pipeline("requests").file.read_text().splitlines()
    [line] = [number for number, text in enumerate(lines, start=1) if "words[1]" in text]
    assert f"requests.py:{line}" in failed.stderr
    assert "TypeError" not in failed.stderr


def test_a_rule_about_the_whole_table_is_judged_by_gx_on_the_staged_rows(home: Home) -> None:
    home.judge(*RULES, UNIQUE)
    landed = home.land("orders/a.jsonl", orders(0, 30, negative=[4]))
    home.run()
    home.assert_holds(landed)
    judged = home.ask(
        "SELECT evaluated, success, element_count, unexpected_count FROM sluice.quality_rule"
        " WHERE reason = 'id is unique'"
    )
    assert judged == [("gx", True, 30, 0)]


def test_a_doubled_key_of_a_lookup_stops_the_run(home: Home) -> None:
    landed = home.land("orders/a.jsonl", orders(0, 12))
    shops = home.landing / "reference/shops.csv"
    right = shops.read_text()
    shops.write_text(right + "A,Aalborg\n")
    with pytest.raises(NeedsPerson, match=r"has 1 key \(shop\) more than once: A"):
        home.run()
    assert home.ask("SELECT count(*) FROM sluice.delivery") == [(0,)]
    shops.write_text(right)
    home.run()
    home.assert_holds(landed)


def test_a_pipeline_that_is_being_run_is_busy(home: Home) -> None:
    landed = home.land("orders/a.jsonl", orders(0, 12))
    second: list[Any] = []

    def meanwhile(receipt: Receipt) -> None:
        second.append(home.sluice("run", "orders"))

    done = home.run(progress=meanwhile)
    assert second[0].returncode == 75, second[0].stderr
    assert "Pipeline orders is run by" in second[0].stderr
    assert "next: wait until that run ends" in second[0].stderr
    assert done.delivered == 12
    home.assert_holds(landed)


def test_of_two_runs_at_once_one_delivers(home: Home) -> None:
    landed = home.land("orders/a.jsonl", orders(0, 12))
    pipeline, start = home.pipeline(), threading.Barrier(2)
    outcomes: list[Summary | Busy] = []

    def one() -> None:
        start.wait()
        try:
            outcomes.append(run(home.place, pipeline, spark=home.spark))
        except Busy as busy:
            outcomes.append(busy)

    both = [threading.Thread(target=one) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    delivered = [outcome.delivered for outcome in outcomes if isinstance(outcome, Summary)]
    assert (len(outcomes), delivered) == (2, [12])
    home.assert_holds(landed)


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ('return df.select("idd")', r"fails, line \d+: AnalysisException: \[UNRESOLVED_COLUMN"),
        ('df.select("id")', "returns NoneType, not a DataFrame"),
        ("return df.no_such_method()", r"fails, line \d+: .*no_such_method"),
        ("return df.count()", r"fails, line \d+: AnalysisException: Queries with streaming sources"),
        ('return df.join(shops, df["shop"] == shops["shop"])', "puts out .* tell apart: 'shop' and 'shop'"),
        ('return df.select("id", "id")', "puts out .* tell apart: 'id' and 'id'"),
        ('return df.selectExpr("id", "at", "id AS Id")', "puts out .* tell apart: 'id' and 'Id'"),
    ],
)
def test_a_mistake_in_a_transform_is_told_with_its_line(
    home: Home, mistake: str, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text = (home.root / "my pipelines" / "orders.py").read_text()
    body = text[text.index("    return df.join") : text.index("\n\nPIPELINE")]
    kept = text.replace("PIPELINE = Pipeline(", 'PIPELINE = Pipeline(\n    metrics=("id",),')
    home.declare(text=kept.replace(body, f"    {mistake}"))
    home.land("orders/0.jsonl", orders(0, 2))
    with pytest.raises(SetupError, match=f"The transform of orders {told}") as found:
        home.run()
    assert "sluice try orders" in found.value.remedy
    assert "QueryContextLogger" not in capfd.readouterr().err
