"""Orders that land, and what must become of each: delivered, held with its reasons, or malformed.

The fate of every order and of every malformed record is decided here, before it is written to a file.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tests.support import oracle
from tests.support.oracle import Row, Rows

NAME = "orders"
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("shop", pa.string()),
        ("amount", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("city", pa.string()),
    ]
)
CITIES = {"A": "Aarhus", "B": "Köln", "C": "São Paulo"}
SHOPS = "shop,city\n" + "".join(f"{shop},{city}\n" for shop, city in CITIES.items())
NEGATIVE, NO_ID, NO_CITY = "amount is not negative", "id is given", "shop is known"
MALFORMED = "malformed"
START = 1_577_836_800_000_000  # 2020-01-01, in microseconds since 1970
DECLARATION = """
from etl.pipeline import Append, Files, Lookup, Pipeline

def with_city(df, *, shops):
    return df.join(shops, "shop", "left").select("id", "shop", "amount", "at", "city")

PIPELINE = Pipeline(
    name="{name}",
    sources=(Files("{name}/**/*.jsonl", max_files={max_files}), Files("{name}/**/*.csv", max_files={max_files})),
    schema="id bigint, shop string, amount double, at timestamp",
    lookups={{"shops": Lookup("reference/shops.csv", schema="shop string, city string", key=("shop",))}},
    transform=with_city,
    suite="orders",
    sink=Append(),
    max_quarantine_share={share},
    max_fewer_share=1.0,
)
"""
MOMENTS = itertools.count(time.time_ns() - 10**14, 10**9)  # from a day ago on


def rule(kind: str, name: str, severity: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_{kind}", "kwargs": kwargs, "meta": {"name": name}, "severity": severity}


RULES = (
    rule("column_values_to_be_between", NEGATIVE, "warning", column="amount", min_value=0),
    rule("column_values_to_not_be_null", NO_ID, "critical", column="id"),
    rule("column_values_to_not_be_null", NO_CITY, "info", column="city"),
)
UNIQUE = rule("column_values_to_be_unique", "id is unique", "critical", column="id")


@dataclass(frozen=True, kw_only=True)
class Order:
    """One record, which knows its fate."""

    id: int | None
    shop: str = "A"
    amount: float = 1.0
    at: int = START  # microseconds since 1970
    file: str | None = field(default=None, compare=False)  # the URI of the one that it has landed in

    @property
    def time(self) -> str:
        return str(np.datetime64(self.at, "us")) + "Z"

    @property
    def json(self) -> str:
        return json.dumps({"id": self.id, "shop": self.shop, "amount": self.amount, "at": self.time})

    @property
    def csv(self) -> str:
        return f"{'' if self.id is None else self.id},{self.shop},{self.amount},{self.time}"

    @property
    def row(self) -> Row:
        return (self.id, self.shop, oracle.plain(self.amount), self.at, CITIES.get(self.shop))

    @property
    def row_as_text(self) -> Row:
        """Return the row as quarantine's JSON has it."""
        number, shop, amount, _, city = self.row
        return (number, shop, amount, self.time.replace("T", " "), city)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return why the row is held; none if it is delivered."""
        broken = {NEGATIVE: self.amount < 0, NO_ID: self.id is None}
        return tuple(reason for reason, is_so in broken.items() if is_so)


def orders(start: int, count: int, *, negative: Iterable[int] = ()) -> list[Order]:
    """Distinct orders of known and unknown shops; those numbered in `negative` are to be held."""
    bad = set(negative)
    return [
        Order(
            id=number,
            shop="ABCZ"[number % 4],
            amount=(-0.5 if number in bad else 0.25) * (number + 1),
            at=START + number * 3_600_000_001,
        )
        for number in range(start, start + count)
    ]


@dataclass(kw_only=True)
class Landed:
    """What has landed and must be in the sinks."""

    orders: list[Order] = field(default_factory=list)
    malformed: list[tuple[str, str]] = field(default_factory=list)  # (raw record, URI of its file)
    released: list[Order] = field(default_factory=list)  # of the orders that were held

    def __add__(self, other: Landed) -> Landed:
        return Landed(
            orders=self.orders + other.orders,
            malformed=self.malformed + other.malformed,
            released=self.released + other.released,
        )

    @property
    def delivered(self) -> Rows:
        passed = Counter(order.row for order in self.orders if not order.reasons)
        return passed + Counter(order.row for order in self.released)

    @property
    def held_in_postgres(self) -> Rows:
        typed = Counter((o.reasons, o.file, None, o.row_as_text) for o in self.orders if o.reasons)
        return typed + Counter(((MALFORMED,), uri, raw, None) for raw, uri in self.malformed)

    @property
    def held_on_lake(self) -> Rows:
        typed = Counter((*o.row, o.reasons, None, o.file) for o in self.orders if o.reasons)
        nothing = (None,) * len(COLUMNS)
        return typed + Counter((*nothing, (MALFORMED,), raw, uri) for raw, uri in self.malformed)
