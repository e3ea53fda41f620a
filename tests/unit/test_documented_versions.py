"""The versions that the documentation names are those that are installed."""

from __future__ import annotations

import re
from importlib.metadata import version

from tests.support.environment import REPOSITORY


def test_the_page_on_topics_names_the_connector_its_client_and_spark() -> None:
    page = (REPOSITORY / "docs/cookbook/kafka.md").read_text()
    services = REPOSITORY / "etl/services"
    [connector] = re.findall(
        r"spark-sql-kafka-0-10_[\d.]+:(\S+)", (services / "spark-packages.txt").read_text()
    )
    [client] = re.findall(r"kafka-clients:(\S+) ", (services / "spark.lock").read_text())
    assert f"`spark-sql-kafka-0-10` {connector}, named in" in page
    assert f"on Spark {version('pyspark')}." in page
    assert f"with the Kafka client that it brings, {client};" in page


def test_what_a_later_python_waits_for_is_looked_at_again_with_each_of_its_versions() -> None:
    readme = " ".join((REPOSITORY / "README.md").read_text().split())
    assert f"datasketches {version('datasketches')}, its newest version, has no wheel for it" in readme
