"""Brokers that are guarded, that take transactions back, that are far away; and groups that are not ours."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from etl.common.errors import SetupError
from etl.services.process import HOST
from etl.spark.launch import jvm_log
from tests.support.home import Home
from tests.support.kafka import proxy
from tests.support.kafka.broker import PASSWORD, USER, Broker
from tests.support.kafka.topics import Record, Sent, Topics, assert_holds, changed, declare, orders

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required username={user} password={password};"


def guarded(home: Home, broker: Broker, *, password: str, folder: Path, trusting: bool = True) -> Home:
    """Set up access by TLS and by the listener that asks for a name and a password, which are in a file."""
    file = folder / "client.properties"
    jaas = JAAS.format(user=f'"{USER}"', password=f'"{password}"')
    lines = ["security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", f"sasl.jaas.config={jaas}"]
    if trusting:
        lines += ["ssl.truststore.type=PEM", f"ssl.truststore.location={broker.certificate}"]
    file.write_text("\n".join(lines))
    return changed(home, kafka=broker.guarded, kafka_properties=file)


def test_a_password_opens_the_topics_and_is_shown_nowhere(
    home: Home, topics: Topics, broker: Broker, tmp_path: Path, spark: SparkSession
) -> None:
    topic = topics.create()
    declare(home, topic)
    topics.send(topic, [*orders(0, 10), Record(value="{", malformed=True)])
    mine = guarded(home, broker, password=PASSWORD, folder=tmp_path)
    log = jvm_log.current()
    assert log is not None
    before = log.stat().st_size
    spark.sparkContext.setLogLevel("INFO")
    try:
        mine.run()
    finally:
        spark.sparkContext.setLogLevel("ERROR")
    assert_holds(mine, topics.sent)
    shown = [one.info["cmdline"] for one in psutil.process_iter(["cmdline"])]
    assert PASSWORD not in str(shown)
    assert PASSWORD not in str(spark.sparkContext.getConf().getAll())
    assert PASSWORD not in repr(mine.place.settings)
    told = log.read_bytes()
    assert b"sasl.jaas.config = [hidden]" in told[before:], "Kafka's clients tell how they are set"
    assert PASSWORD.encode() not in told
    written = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "client.properties"]
    assert written and not any(PASSWORD.encode() in file.read_bytes() for file in written)


def test_what_spark_says_of_a_plan_hides_the_password(
    home: Home, broker: Broker, tmp_path: Path, spark: SparkSession
) -> None:
    from etl.sources.open import open_source

    declare(home, "orders")
    mine = guarded(home, broker, password=PASSWORD, folder=tmp_path)
    frame = open_source(spark, mine.pipeline(), mine.place.settings).streamed
    plan = str(frame._jdf.queryExecution().toString())
    assert "jaas" in plan
    assert PASSWORD not in plan


def test_a_wrong_password_is_told_without_it(
    home: Home, topics: Topics, broker: Broker, tmp_path: Path
) -> None:
    topic = topics.create()
    declare(home, topic)
    mine = guarded(home, broker, password="wrong-one", folder=tmp_path)
    with pytest.raises(SetupError, match="SaslAuthenticationException") as told:
        mine.run()
    assert "wrong-one" not in str(told.value)


def test_a_broker_that_nobody_vouches_for_is_given_no_password(
    home: Home, broker: Broker, tmp_path: Path
) -> None:
    declare(home, "orders")
    mine = guarded(home, broker, password=PASSWORD, folder=tmp_path, trusting=False)
    with pytest.raises(SetupError, match="SslAuthenticationException") as told:
        mine.run()
    assert PASSWORD not in str(told.value)


def test_settings_that_are_not_about_reaching_the_brokers_are_refused(home: Home, tmp_path: Path) -> None:
    declare(home, "orders")
    file = tmp_path / "client.properties"
    file.write_text("group.id=mine\nauto.offset.reset=latest\nssl.truststore.type=PEM\n")
    with pytest.raises(SetupError, match=r"sets auto\.offset\.reset, group\.id, which is not about"):
        changed(home, kafka_properties=file).run()


def test_a_file_that_java_cannot_read_is_told_with_its_name(home: Home, tmp_path: Path) -> None:
    declare(home, "orders")
    file = tmp_path / "client.properties"
    file.write_text("ssl.truststore.location=C:\\users\\me\n")
    with pytest.raises(
        SetupError, match=r"client\.properties can't be read as Java's properties: Malformed"
    ) as told:
        changed(home, kafka_properties=file).run()
    assert r"a backslash is written \\ in it" in str(told.value)


def test_a_transaction_that_was_taken_back_is_not_delivered(home: Home, topics: Topics) -> None:
    topic = topics.create(partitions=1)
    declare(home, topic, max_offsets=3)
    before = topics.send(topic, orders(0, 4, partitions=1))
    clients = topics.clients.clients
    producer = clients.producer.KafkaProducer(
        {
            "bootstrap.servers": topics.servers,
            "transactional.id": topic,
            "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
            "value.serializer": "org.apache.kafka.common.serialization.StringSerializer",
        }
    )
    producer.initTransactions()
    for number, commits in ((100, False), (200, True)):
        producer.beginTransaction()
        for more in range(2):
            value = f'{{"id": {number + more}, "amount": 1.0}}'
            producer.send(clients.producer.ProducerRecord(topic, value)).get()
        (producer.commitTransaction if commits else producer.abortTransaction)()
    producer.close()
    home.run()
    # 0 to 3, two that were taken back and the mark of that, then the two of the other transaction
    kept = [Record(value=f'{{"id": {number}, "amount": 1.0}}') for number in (200, 201)]
    assert_holds(
        home, [*before, *(Sent(record=one, topic=topic, offset=7 + n) for n, one in enumerate(kept))]
    )


def test_groups_of_others_stay_as_they_are_and_none_is_left_behind(home: Home, topics: Topics) -> None:
    topic = topics.create()
    declare(home, topic)
    topics.send(topic, orders(0, 10))
    kafka = topics.clients
    consumer = kafka.clients.consumer.KafkaConsumer(
        {
            "bootstrap.servers": topics.servers,
            "group.id": f"others.{topics.suffix}",
            "key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
            "value.deserializer": "org.apache.kafka.common.serialization.StringDeserializer",
        }
    )
    place = kafka.common.TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.commitSync({place: kafka.clients.consumer.OffsetAndMetadata(3)})
    before = topics.groups()
    assert f"others.{topics.suffix}" in before
    home.run()
    assert topics.groups() == before
    assert consumer.committed({place})[place].offset() == 3
    consumer.close()


@pytest.mark.slow
def test_what_comes_over_a_network_that_cuts_and_delays_is_whole(
    home: Home, topics: Topics, broker: Broker, tmp_path: Path
) -> None:
    topic = topics.create()
    declare(home, topic, max_offsets=1500)
    topics.send(topic, orders(0, 6000, negative=range(0, 6000, 100)))
    file = tmp_path / "small.properties"
    file.write_text("max.partition.fetch.bytes=4096\nfetch.max.bytes=4096\nreconnect.backoff.ms=10\n")
    with proxy.before(broker, seed=1) as bad:
        far = changed(home, kafka=f"{HOST}:{broker.proxy}", kafka_properties=file)
        done = far.run()
    assert (done.batches, done.records) == (4, 6000)
    assert bad.cuts >= 4, "connections broke within answers"
    assert_holds(home, topics.sent)
