"""A service that goes away within a run: told as that, and the next run goes on as if nothing had been."""

from __future__ import annotations

import pytest
from psycopg2.extensions import make_dsn

from etl.common.errors import ServiceAway
from etl.services.process import free_ports
from tests.support.data.orders import DECLARATION, Landed, orders
from tests.support.home import Home

# In a worker, where Sluice's own COPY is: what its library raises reaches the driver as text.
ASKING = """
import pathlib
import psycopg2

def ask(batches):
    if pathlib.Path({flag!r}).exists():
        psycopg2.connect({dsn!r})
    yield from batches
"""


def test_a_postgresql_that_a_worker_does_not_reach(home: Home) -> None:
    flag = home.root / "away"
    flag.touch()
    text = DECLARATION.format(name="orders", max_files=2, share=1.0)
    text = text.replace(
        'return df.join(shops, "shop", "left").select("id", "shop", "amount", "at", "city")',
        'out = df.join(shops, "shop", "left").select("id", "shop", "amount", "at", "city")\n'
        "    return out.mapInArrow(ask, out.schema)",
    )
    away = make_dsn(home.dsn, host="127.0.0.1", port=free_ports(1)[0])
    home.declare(text=ASKING.format(flag=str(flag), dsn=away) + text)
    made = orders(0, 20, negative=[3])
    home.land("orders/1.jsonl", made)
    with pytest.raises(ServiceAway, match=r"PostgreSQL could not do its part: .*refused") as told:
        home.run()
    assert "sluice doctor" in told.value.remedy
    assert home.ask("SELECT outcome FROM sluice.run ORDER BY started_at") == [("ServiceAway",)]
    flag.unlink()
    assert home.run().rows_in == 20
    home.assert_holds(Landed(orders=made))  # rows of a mapInArrow do not know their file
    home.assert_clean()
