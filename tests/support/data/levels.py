"""How many of an article there are in stock, over time, and declarations of every sink mode."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tests.support.data.orders import START
from tests.support.home import Home
from tests.support.oracle import Row

MOMENT = pa.timestamp("us", tz="UTC")
DECLARATION = """
from etl.pipeline import Append, Files, Pipeline, Replace, Upsert

PIPELINE = Pipeline(
    name="{name}",
    sources=(Files("{name}/*.jsonl", max_files=1),),
    schema="{schema}",
    transform=lambda df: df,
    {suite}
    sink={sink},
    max_quarantine_share=1.0,
    max_fewer_share=1.0,
)
"""


def declare(home: Home, name: str, columns: pa.Schema, *, schema: str, sink: str, suite: str = "") -> None:
    home.columns = columns
    home.declare(name, text=DECLARATION.format(name=name, schema=schema, sink=sink, suite=suite))


def land(home: Home, path: str, records: Iterable[object]) -> None:
    home.write(path, "".join(json.dumps(record) + "\n" for record in records))


def time(at: int | None) -> str | None:
    return None if at is None else str(np.datetime64(at, "us")) + "Z"


def assert_clean(home: Home, name: str) -> None:
    assert home.assert_clean(name).rows["lake"] > 0


@dataclass(frozen=True, kw_only=True)
class Level:
    """How many of an article there were at a moment."""

    article: str | None
    at: int | None  # microseconds since 1970
    left: int
    batch: int

    @property
    def record(self) -> dict[str, Any]:
        return {"article": self.article, "at": time(self.at), "left": self.left}

    @property
    def row(self) -> Row:
        return (self.article, self.at, self.left, self.batch)


LEVEL = pa.schema([("article", pa.string()), ("at", MOMENT), ("left", pa.int64())])


def made_levels(batches: int) -> list[list[Level]]:
    """Many levels of few articles, in no order of time; within a batch none is as new as another of its article."""
    chance = random.Random(11)
    every = [(f"ä{n}", None if at == 0 else START + at) for n in range(12) for at in range(9)]
    return [
        [
            Level(article=article, at=at, left=chance.randrange(10**9), batch=batch)
            for article, at in chance.sample(every, 40)
        ]
        for batch in range(batches)
    ]
