"""Orders that land in a folder of their day, under a declaration that begins with the third."""

from __future__ import annotations

import datetime as dt

from etl.runs.replay.plan import ReplayPlan, Selection, plan
from etl.runs.replay.replay import Replayed, replay
from tests.support.data.orders import DECLARATION, Landed, orders
from tests.support.home import Home

DAYS = [dt.datetime(2024, 2, day, tzinfo=dt.UTC) for day in range(26, 30)]  # the stream begins with the third


def declare(home: Home, start: str = "date(2024, 2, 28)", sink: str = "Append()") -> None:
    by_day = f'suite="orders", interval="dt={{interval:%Y-%m-%d}}", start={start},'
    text = DECLARATION.format(name="orders", max_files=2, share=1.0).replace("Append()", sink)
    text = text.replace("Append,", "Append, Upsert,").replace('suite="orders",', by_day)
    home.declare(text="from datetime import date\n" + text)


def land(home: Home, day: int, name: str = "a", start: int = 0) -> Landed:
    """Land a file of the day, with a row to be held and a malformed record."""
    first = start or (day + 1) * 100
    path = f"orders/dt={DAYS[day]:%Y-%m-%d}/{name}.jsonl"
    return home.land(path, orders(first, 8, negative=[first + 1]), ["{broken"])


def planned(home: Home, *days: int) -> ReplayPlan:
    interval = (DAYS[min(days)], DAYS[max(days)] + dt.timedelta(days=1))
    return plan(home.place, home.pipeline(), Selection(interval=interval))


def load(home: Home, *days: int) -> Replayed:
    return replay(home.place, home.pipeline(), planned(home, *days), who="tests", spark=home.spark)
