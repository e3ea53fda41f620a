"""Records of a real broker, delivered exactly once into both sinks; each row carries the place of its record."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from etl.pipeline import declaration
from tests.support.home import Home
from tests.support.kafka.topics import Record, Topics, assert_holds, declare, orders, ranges


def test_every_record_is_in_both_sinks_once_and_the_ledger_knows_its_offsets(
    home: Home, topics: Topics
) -> None:
    topic = topics.create()
    declare(home, topic, max_offsets=20)
    topics.send(topic, orders(0, 50, negative=[7, 8]))
    first = home.run()
    assert (first.batches, first.records) == (3, 50)
    assert_holds(home, topics.sent)
    assert home.run().batches == 0
    topics.send(topic, orders(50, 5))
    assert home.run().batches == 1
    assert_holds(home, topics.sent)
    found = ranges(home, topic)
    for partition, end in ((0, 28), (1, 27)):
        mine = [(start, stop) for number, start, stop in found if number == partition]
        assert mine[0][0] == 0 and mine[-1][1] == end
        assert all(before[1] == after[0] for before, after in itertools.pairwise(mine))


def test_a_backlog_of_a_topic_without_a_limit_comes_in_batches_which_say_what_is_left(
    home: Home, topics: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of three partitions has a third of the limit, which Spark rounds down."""
    caplog.set_level("INFO", "sluice")
    monkeypatch.setattr(declaration, "BATCH_OFFSETS", 10)
    topic = topics.create(partitions=3)
    declare(home, topic, max_offsets=None)
    topics.send(topic, orders(0, 24, partitions=3))
    assert home.run().batches == 3
    assert_holds(home, topics.sent)
    [told] = [message for message in caplog.messages if "come later" in message]
    assert told.startswith("batch 0 of orders takes 9 offsets, and 15 offsets come later: ")


def test_no_record_is_dropped_whatever_its_value(home: Home, topics: Topics) -> None:
    """A tombstone is a row; what is not one JSON object, an empty value included, is held with its place."""
    topic = topics.create()
    declare(home, topic)
    settings = home.place.settings.model_copy(update={"record_depth": 2})
    home.place = replace(home.place, settings=settings)
    bad = ["{broken", "", " ", '{"id": 1} {"id": 2}', "[]", '{"id": "x"}', '{"id": 1, "u": [[]]}']
    records = [
        Record(value='{"id": 1, "amount": 2}', key="a", origin="web"),
        Record(value=None, key="a"),
        Record(value="{}", partition=1),
        *(Record(value=text, partition=1, malformed=True) for text in bad),
        Record(value=None, key=None, partition=1, origin="web"),
    ]
    topics.send(topic, records)
    done = home.run()
    assert (done.records, done.malformed, done.delivered) == (len(records), len(bad), 4)
    assert_holds(home, topics.sent)


def test_a_topic_that_is_still_empty_begins_with_its_first_record(home: Home, topics: Topics) -> None:
    topic = topics.create()
    declare(home, topic)
    assert home.run().records == 0
    assert ranges(home, topic) == [(0, 0, 0), (1, 0, 0)]
    topics.send(topic, orders(0, 4))
    assert home.run().records == 4
    assert_holds(home, topics.sent)


def test_a_record_is_held_once_whatever_the_plan_makes_of_the_rows(home: Home, topics: Topics) -> None:
    """A product reads its input for each partition of the other side, and for none where that has none."""
    topic = topics.create(partitions=1)
    lookup = 'lookups={"shops": Lookup("shops/*.csv", schema="k bigint, v string", key=("k",))}'
    product = 'df.join(shops.repartition(3).hint("shuffle_replicate_nl"))'
    text = f"""
from etl.pipeline import Append, Kafka, Lookup, Pipeline

PIPELINE = Pipeline(
    name="orders", sources=(Kafka(({topic!r},)),), schema="id bigint, amount double", {lookup},
    transform=lambda df, shops: {product}.select("id", "amount"), sink=Append(), max_quarantine_share=1.0,
)
"""
    home.declare(text=text)
    held: list[tuple[str, str]] = []
    for turn, shops in enumerate(("", "0,x\n1,y\n")):
        home.write("shops/a.csv", f"k,v\n{shops}")
        topics.send(topic, [*orders(turn * 3, 2, partitions=1), Record(value=f"{{{turn}", malformed=True)])
        assert home.run().malformed == 1
        held.append((f"kafka://{topic}/0/{turn * 3 + 2}", f"{{{turn}"))
        assert home.ask("SELECT source_path, raw FROM sluice.quarantine ORDER BY 1") == held
