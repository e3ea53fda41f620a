"""Topics of several schemas, joined within bounds: the state goes on from run to run, and the database may go back."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from etl.common.database import transaction
from etl.common.errors import (
    CheckpointDamaged,
    CheckpointLost,
    ContractBroken,
    Fenced,
    InputsChanged,
    LedgerBehind,
    NeedsPerson,
    OffsetsGone,
    StateChanged,
)
from etl.common.steps import Step
from etl.runs.recovery.base import AcceptedGaps
from etl.runs.recovery.recover import recover
from etl.services import Services
from etl.sinks.lake import numbers
from etl.sinks.lake.lake import TableLocation
from etl.sinks.lake.marker import marker_of
from etl.spark.checkpoint.topics import TopicCheckpoint
from tests.support import oracle
from tests.support.backups import Backup
from tests.support.data.orders import rule
from tests.support.databases import database_name, drop
from tests.support.home import Home, failing_at
from tests.support.kafka.topics import (
    DECLARATION,
    NAME,
    Record,
    Topics,
    assert_holds,
    declare,
    orders,
    ranges,
)

JOINED = """
from etl.pipeline import Append, Kafka, Pipeline, Stream

def clicked(df, *, clicks):
    from pyspark.sql import functions as F

    seen = df.select("ad", F.col("at").alias("seen_at")).withWatermark("seen_at", "1 hour")
    clicks = clicks.select(F.col("ad").alias("of"), F.col("at").alias("clicked_at")).withWatermark("clicked_at", "1 hour")
    within = "ad = of AND clicked_at >= seen_at AND clicked_at < seen_at + INTERVAL 1 HOUR"
    return seen.join(clicks, F.expr(within)).select("ad", "seen_at", "clicked_at")

PIPELINE = Pipeline(
    name="orders",
    sources=(Kafka(({seen!r},)), Kafka(({clicks!r},), stream="clicks")),
    schema="ad string, at timestamp",
    streams={{"clicks": Stream(schema="ad string, at timestamp")}},
    transform=clicked,
    sink=Append(),
)
"""
START = 1_577_836_800  # 2020-01-01, seconds


def at(ad: str, minutes: int) -> Record:
    hour, minute = divmod(minutes, 60)
    return Record(value=json.dumps({"ad": ad, "at": f"2020-01-01T{hour:02}:{minute:02}:00Z"}))


def test_two_topics_are_joined_over_several_runs(home: Home, topics: Topics) -> None:
    seen, clicks = joined_home(home, topics)
    topics.send(seen, [at("a", 0), at("b", 5), at("c", 10)])
    home.run()
    topics.send(clicks, [at("a", 59), at("b", 65), at("c", 11), at("c", 12), at("d", 3)])
    home.run()
    topics.send(seen, [at("d", 2)])  # its click came first
    home.run()
    wanted = Counter(
        (ad, (START + 60 * first) * 1_000_000, (START + 60 * then) * 1_000_000)
        for ad, first, then in (("a", 0, 59), ("c", 10, 11), ("c", 10, 12), ("d", 2, 3))
    )
    eyes = home.reader()
    assert oracle.difference(eyes.in_postgres(system=()), wanted) == ""
    assert oracle.difference(eyes.on_lake(system=()), wanted) == ""
    assert home.ask("SELECT sum(end_offset - start_offset) FROM sluice.delivery_range") == [(9,)]


def joined_home(home: Home, topics: Topics, *, partitions: int = 1) -> tuple[str, str]:
    """Declare the pipeline of two topics; return their names."""
    seen, clicks = topics.create("seen", partitions=partitions), topics.create("clicks", partitions=1)
    kind = pa.timestamp("us", tz="UTC")
    home.columns = pa.schema([("ad", pa.string()), ("seen_at", kind), ("clicked_at", kind)])
    home.declare(text=JOINED.format(seen=seen, clicks=clicks))
    return seen, clicks


def lose_checkpoint(home: Home) -> None:
    stream = home.run().stream
    shutil.rmtree(home.checkpoint(stream))
    with pytest.raises(CheckpointLost, match="sluice recover orders"):
        home.run()


@pytest.mark.slow
def test_lost_state_over_topics_is_made_anew_from_the_offsets_on_record(home: Home, topics: Topics) -> None:
    """One partition had no record yet, one of them was added in between, one batch had records of one side alone."""
    seen, clicks = joined_home(home, topics, partitions=2)
    topics.send(seen, [at("a", 0), at("b", 5)])
    home.run()
    topics.widen(seen, 3)
    topics.send(clicks, [at("a", 30)])
    topics.send(seen, [replace(at("c", 20), partition=2)])
    home.run()
    lose_checkpoint(home)
    before = home.ask("SELECT delivery_id, live FROM sluice.delivery ORDER BY 1")
    done = home.recover(NAME)
    assert (done.seen, done.gone) == (4, ())
    assert home.ask("SELECT delivery_id, live FROM sluice.delivery ORDER BY 1") == before, (
        "nothing was delivered"
    )
    topics.send(clicks, [at("b", 31), at("c", 21), at("d", 41)])
    topics.send(seen, [replace(at("d", 40), partition=1)])
    home.run()
    assert home.ask("SELECT ad FROM warehouse.orders ORDER BY ad") == [("a",), ("b",), ("c",), ("d",)]
    home.assert_clean()
    home.assert_one_history()


def test_state_of_records_that_kafka_has_no_longer_is_not_made_of_the_rest(
    home: Home, topics: Topics
) -> None:
    seen, clicks = joined_home(home, topics)
    topics.send(seen, [at("a", 0), at("b", 5)])
    topics.send(clicks, [at("a", 30)])
    lose_checkpoint(home)
    topics.age(seen, 0, before=1)
    streams = home.ask("SELECT count(*) FROM sluice.stream")
    with pytest.raises(InputsChanged, match=rf"of kafka://{seen}/0/0-2 only kafka://{seen}/0/1-2 is there"):
        home.recover(NAME)
    assert home.ask("SELECT count(*) FROM sluice.stream") == streams


@pytest.mark.slow
def test_state_goes_on_behind_what_aged_out_unread_once_a_person_accepts_it(
    home: Home, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what it is of aged out, so it could not be made anew; a batch was planned of records that are gone."""
    seen, clicks = joined_home(home, topics)
    topics.send(seen, [at("a", 0), at("b", 5)])
    stream = home.run().stream
    topics.send(seen, [at("c", 10)])
    with failing_at(Step.STAGED):
        home.run()
    text = JOINED.format(seen=seen, clicks=clicks)
    home.declare(text=text.replace("seen_at + INTERVAL 1 HOUR", "seen_at + INTERVAL 2 HOUR"))
    with pytest.raises(StateChanged):
        home.run()
    home.declare(text=text)  # put back as it was
    topics.send(seen, [at("d", 20)])
    topics.send(clicks, [at("a", 30), at("c", 15), at("d", 25)])
    topics.age(seen, 0, before=3)
    for refused in (home.run, lambda: home.recover(NAME)):
        with pytest.raises(OffsetsGone, match=f"{seen}/0 from 2 up to 2"):
            refused()

    yes = AcceptedGaps(who="tests", why="the weekend")
    starts = TopicCheckpoint.starts

    def robbed(checkpoint: TopicCheckpoint, batch: int) -> object:
        home.ask("UPDATE sluice.pipeline SET lease_token = NULL RETURNING 1")
        return starts(checkpoint, batch)

    with monkeypatch.context() as robbing:
        robbing.setattr(TopicCheckpoint, "starts", robbed)
        with pytest.raises(Fenced):
            recover(home.place, home.pipeline(), accepted=yes, spark=home.spark)
    assert home.ask("SELECT FROM sluice.accepted_gap") == []
    with monkeypatch.context() as broken:
        broken.setattr(TopicCheckpoint, "move_on", full)
        with pytest.raises(OSError, match="disk"):
            recover(home.place, home.pipeline(), accepted=yes, spark=home.spark)
    gaps = "SELECT start_offset, end_offset, why FROM sluice.accepted_gap ORDER BY 1"
    assert home.ask(gaps) == [(2, 3, "the weekend")]
    with pytest.raises(CheckpointDamaged, match=f"{seen}/0 at 2, the ledger at 3"):
        home.run()
    topics.send(seen, [at("e", 30)])
    topics.age(seen, 0, before=4)  # once more, before it was moved behind what was accepted
    topics.send(clicks, [at("e", 35)])
    with pytest.raises(OffsetsGone, match=f"{seen}/0 from 3 up to 3"):
        home.recover(NAME)
    also = AcceptedGaps(who="tests", why="and monday")
    assert recover(home.place, home.pipeline(), accepted=also, spark=home.spark).stream == stream
    assert home.ask(gaps) == [(2, 3, "the weekend"), (3, 4, "and monday")]
    home.run()
    assert home.ask("SELECT ad FROM warehouse.orders ORDER BY ad") == [("a",), ("e",)]
    home.assert_clean()
    home.assert_one_history()


@pytest.mark.slow
def test_a_decision_on_a_batch_is_not_applied_to_the_records_that_are_read_in_its_place(
    home: Home, topics: Topics
) -> None:
    """A partition was added as well, whose first record aged out before any run saw it."""
    seen, clicks = joined_home(home, topics)
    home.declare(
        text=JOINED.format(seen=seen, clicks=clicks).replace(
            "sink=", 'suite="orders", max_quarantine_share=1.0, sink='
        )
    )
    home.judge(rule("column_values_to_be_in_set", "is known", "critical", column="ad", value_set=["a"]))
    topics.send(seen, [at("a", 0)])
    topics.send(clicks, [at("a", 5)])
    stream = home.run().stream
    topics.send(seen, [at("b", 10)])
    topics.send(clicks, [at("b", 15)])
    with pytest.raises(ContractBroken):
        home.run()
    [(batch,)] = home.ask("SELECT batch_id FROM sluice.stopped_batch")
    decided = home.sluice("decide", NAME, "--batch", str(batch), "--accept", "--why", "one row is fine")
    assert decided.returncode == 0, decided.stderr
    topics.widen(seen, 2)
    topics.send(seen, [at("c", 20), *(replace(at(ad, 20), partition=1) for ad in ("d", "e"))])
    topics.send(clicks, [at(ad, 25) for ad in ("d", "e")])  # again one row, which breaks the rule
    topics.age(seen, 0, before=2)
    topics.age(seen, 1, before=1)
    with pytest.raises(OffsetsGone, match=f"{seen}/0 from 1 up to 1; {seen}/1 from 0 up to 0"):
        home.run()
    yes = AcceptedGaps(who="tests", why="the weekend")
    assert recover(home.place, home.pipeline(), accepted=yes, spark=home.spark).stream == stream
    with pytest.raises(ContractBroken):
        home.run()
    home.judge(rule("column_values_to_be_in_set", "is known", "critical", column="ad", value_set=["a", "e"]))
    home.run()
    assert home.ask("SELECT ad FROM warehouse.orders ORDER BY ad") == [("a",), ("e",)]
    assert home.ask("SELECT count(*) FROM sluice.stream") == [(1,)]
    home.assert_clean()


@pytest.mark.slow
def test_a_topic_that_is_declared_later_joins_a_stream_with_state_at_its_oldest_record(
    home: Home, topics: Topics
) -> None:
    seen, clicks = joined_home(home, topics)
    other = topics.create("other", partitions=1)
    topics.send(seen, [at("a", 0), at("b", 5)])
    stream = home.run().stream
    topics.send(other, [at("a", 10), at("b", 15)])
    topics.age(other, 0, before=1)
    text = JOINED.format(seen=seen, clicks=clicks)
    home.declare(text=text.replace(f"{clicks!r},", f"{clicks!r}, {other!r}"))
    with pytest.raises(CheckpointDamaged, match=f"{other}/0 begins at 1"):
        home.run()
    assert home.recover(NAME).stream == stream
    home.run()
    assert home.ask("SELECT ad FROM warehouse.orders") == [("b",)]
    gap = "SELECT topic, start_offset, end_offset, who FROM sluice.accepted_gap"
    assert home.ask(gap) == [(other, 0, 1, "recover")]

    third = topics.create("third", partitions=1)
    topics.send(third, [at("a", 20), at("b", 25)])
    home.declare(text=text.replace(f"{clicks!r},", f"{clicks!r}, {other!r}, {third!r}"))
    with failing_at(Step.STAGED):
        home.run()
    topics.age(third, 0, before=1)  # the run had found it, so it is lost
    with pytest.raises(OffsetsGone, match=f"{third}/0 from 0 up to 0"):
        home.recover(NAME)
    yes = AcceptedGaps(who="ann", why="retention was too short")
    assert recover(home.place, home.pipeline(), accepted=yes, spark=home.spark).stream == stream
    home.run()
    assert home.ask("SELECT ad FROM warehouse.orders") == [("b",), ("b",)]
    home.assert_clean()


@pytest.mark.slow
def test_a_stream_that_was_killed_while_spark_first_looked_is_begun_anew(home: Home, topics: Topics) -> None:
    seen, clicks = joined_home(home, topics)
    topics.send(seen, [at("a", 0)])
    topics.send(clicks, [at("a", 5)])
    with failing_at(Step.STAGED):
        home.run()
    [(stream,)] = home.ask("SELECT stream_id::text FROM sluice.stream")
    for never_written in ("offsets/0", "offsets/.0.crc", "sources/1/0", "sources/1/.0.crc"):
        (home.checkpoint(stream) / never_written).unlink()
    with pytest.raises(CheckpointDamaged, match="sources/1/0"):
        home.run()
    assert home.recover(NAME).stream != stream
    home.run()
    assert home.ask("SELECT ad FROM warehouse.orders") == [("a",)]
    home.assert_clean()


def full(*_: object) -> None:
    raise OSError("the disk is full")


def test_state_over_a_compacted_topic_is_not_made_of_what_compaction_left(home: Home, topics: Topics) -> None:
    seen, _ = joined_home(home, topics)
    topics.send(seen, [at("a", 0), at("b", 5)])
    lose_checkpoint(home)
    topics.compact(seen)
    with pytest.raises(InputsChanged, match=f"{seen} is compacted"):
        home.recover(NAME)


@pytest.fixture
def backup(home: Home, services: Services) -> Iterator[Backup]:
    database = database_name(home.dsn)
    found = Backup(server=services.postgres, database=database, name=f"{database}_backup")
    yield found
    drop(services.postgres, found.name)


def test_deliveries_that_a_restored_database_lost_are_put_back_from_the_lake(
    home: Home, topics: Topics, backup: Backup
) -> None:
    topic = topics.create()
    declare(home, topic)
    topics.send(topic, orders(0, 10))
    home.run()
    backup.take()
    topics.send(topic, orders(10, 30))
    home.run()
    backup.restore()
    for number in (0, 1):
        topics.age(topic, number, before=topics.ends[topic, number])  # Kafka has them no longer
    topics.send(topic, orders(40, 6))
    with pytest.raises(LedgerBehind):
        home.run()
    done = home.recover(NAME)
    assert sum(one.delivered for one in done.restored) == 30
    assert home.run().records == 6
    assert_holds(home, topics.sent)


@pytest.mark.slow
def test_state_over_topics_goes_on_once_what_a_restored_database_lost_is_put_back(
    home: Home, topics: Topics, backup: Backup
) -> None:
    seen, clicks = topics.create("seen", partitions=1), topics.create("clicks", partitions=1)
    home.declare(text=JOINED.format(seen=seen, clicks=clicks))
    topics.send(seen, [at("a", 0), at("b", 5)])
    home.run()
    backup.take()
    topics.send(clicks, [at("a", 30)])
    home.run()
    backup.restore()
    with pytest.raises(LedgerBehind):
        home.run()
    assert [one.delivered for one in home.recover(NAME).restored] == [1]
    topics.send(clicks, [at("b", 31)])
    home.run()
    assert home.ask("SELECT ad FROM warehouse.orders ORDER BY ad") == [("a",), ("b",)]
    assert home.ask("SELECT count(*) FROM sluice.stream") == [(1,)], "the state is of the same checkpoint"


def test_a_gap_whose_acceptance_a_restored_database_lost_is_on_record_again(
    home: Home, topics: Topics, backup: Backup
) -> None:
    topic = topics.create(partitions=1)
    declare(home, topic)
    topics.send(topic, orders(0, 5, partitions=1))
    home.run()
    backup.take()
    topics.send(topic, orders(5, 5, partitions=1))
    topics.age(topic, 0, before=8)
    with pytest.raises(OffsetsGone):
        home.run()
    recover(home.place, home.pipeline(), accepted=AcceptedGaps(who="ann", why="late"), spark=home.spark)
    assert home.run().records == 2
    backup.restore()
    with pytest.raises(LedgerBehind):
        home.run()
    home.recover(NAME)
    assert home.run().records == 0
    gap = "SELECT start_offset, end_offset, who, why FROM sluice.accepted_gap"
    assert home.ask(gap) == [(5, 8, "recover", "accepted before PostgreSQL was restored")]
    assert home.ask("SELECT count(*) FROM warehouse.orders") == [(7,)]


def test_a_lost_delivery_of_topics_whose_number_is_taken_is_not_told_as_unread(
    home: Home, topics: Topics, backup: Backup
) -> None:
    topic, other = topics.create(partitions=1), topics.create("other", partitions=1)
    declare(home, topic)
    second = DECLARATION.format(topics=(other,), max_offsets=20).replace('name="orders"', 'name="other"')
    home.declare("other", text=second)
    topics.send(topic, orders(0, 5, partitions=1))
    topics.send(other, orders(0, 2, partitions=1))
    home.run()
    backup.take()
    topics.send(topic, orders(5, 5, partitions=1))
    home.run()
    table = TableLocation.of(home.place.lake, "warehouse.orders")
    home.reader().store.delete_file(marker_of(table).removeprefix("s3://"))  # as of an older version
    backup.restore()
    with transaction(home.place.services.postgres) as cursor:
        [(server,)] = numbers.STATEMENTS.execute(cursor, "this_server").fetchall()
        numbers.STATEMENTS.execute(cursor, "keep_server", server=server)  # likewise: it looked at no object
    home.run("other")
    with pytest.raises(
        NeedsPerson, match=r"Delivery 2 of orders was lost, .*deliveries/2-.*\.json and the objects"
    ):
        home.recover(NAME)
    assert [end for *_, end in ranges(home, topic)][-1] == 5
