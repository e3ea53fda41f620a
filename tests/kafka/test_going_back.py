"""A pipeline of topics goes back before a delivery: the same offsets are read again, by the state as it was before them."""

from __future__ import annotations

import pytest

from etl.common.errors import InputsChanged
from etl.runs.recovery.withdrawal import withdraw
from etl.runs.recovery.withdrawal_plan import plan_withdrawal
from tests.support.home import Home
from tests.support.kafka.topics import Topics, declare, orders

IDS = "SELECT id FROM warehouse.orders ORDER BY id"


def test_offsets_are_read_again_from_where_the_batches_before_ended(home: Home, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    declare(home, topic)
    text = (home.root / "my pipelines" / "orders.py").read_text()
    home.declare(text=text.replace("return df.select", "return df.dropDuplicates(['id']).select"))
    for start in (0, 3, 6):  # two of each five were there before
        topics.send(topic, orders(start, 5))
        home.run()
    first, second, _ = (n for (n,) in home.ask("SELECT delivery_id FROM sluice.delivery ORDER BY commit_seq"))

    go_back(home, second)
    assert home.ask(IDS) == [(number,) for number in range(5)]
    assert home.run().records == 10
    assert home.ask(IDS) == [(number,) for number in range(11)]
    home.assert_clean()

    assert go_back(home, first) == "15 offsets"
    assert home.ask(IDS) == []
    assert home.run().records == 15
    assert home.ask(IDS) == [(number,) for number in range(11)]
    assert home.recover().problem is None
    home.assert_clean()

    topics.age(topic, 0, 1)
    [(newest,)] = home.ask("SELECT max(delivery_id) FROM sluice.delivery WHERE live AND kind = 'stream'")
    with pytest.raises(InputsChanged, match=topic):
        go_back(home, newest)


def go_back(home: Home, before: int) -> str:
    """Go back before a delivery; return what is to be read again."""
    planned = plan_withdrawal(home.place, home.pipeline(), before, spark=home.spark)
    withdraw(home.place, home.pipeline(), planned, who="tests", why="wrong", spark=home.spark)
    return planned.inputs
