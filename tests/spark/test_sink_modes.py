"""Every sink mode by whole runs, and nested columns: both sinks hold what landed, as the mode says."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from etl.common.errors import TableRefused
from etl.operations.serving.read import committed_files
from tests.support import oracle
from tests.support.data.levels import (
    LEVEL,
    MOMENT,
    Level,
    assert_clean,
    declare,
    land,
    made_levels,
    time,
)
from tests.support.data.orders import NEGATIVE, START, Order, orders, rule
from tests.support.home import Home
from tests.support.oracle import Rows


def assert_both(home: Home, name: str, wanted: Rows, *, system: tuple[str, ...] = ()) -> None:
    eyes = home.reader(name)
    assert oracle.difference(eyes.in_postgres(system=system), wanted) == ""
    assert oracle.difference(eyes.on_lake(system=system), wanted) == ""


# Upsert


def newest(levels: Iterable[Level]) -> tuple[dict[str | None, Level], int]:
    """Return each article's level that must be in the table, and how many changes came later and were older."""
    found: dict[str | None, Level] = {}
    late = 0
    for level in sorted(levels, key=lambda one: (one.batch, one.at or 0)):
        before = found.get(level.article)
        if before is None or (level.at or 0) >= (before.at or 0):
            found[level.article] = level
        elif level.batch > before.batch:
            late += 1
    return found, late


def test_an_upsert_keeps_the_newest_row_of_a_key_and_the_lake_keeps_every_change(home: Home) -> None:
    schema, sink = "article string, at timestamp, left bigint", 'Upsert(keys=("article",), newest="at")'
    declare(home, "levels", LEVEL, schema=schema, sink=sink)
    batches = made_levels(6)
    for start in (0, 1, 3):  # runs of one, two and three batches
        landed = {0: 1, 1: 3, 3: 6}[start]
        for number in range(start, landed):
            land(home, f"levels/{number}.jsonl", [level.record for level in batches[number]])
        assert home.run("levels").batches == landed - start
        levels = [level for batch in batches[:landed] for level in batch]
        current, late = newest(levels)
        eyes, system = home.reader("levels"), ("_batch_id",)
        wanted = Rows(level.row for level in current.values())
        assert oracle.difference(eyes.in_postgres(system=system), wanted) == ""
        assert oracle.difference(eyes.on_lake(system=system), Rows(level.row for level in levels)) == ""
        assert_clean(home, "levels")
    assert late > 10, "the case is too kind"


def test_a_row_without_its_key_is_held_and_the_others_are_upserted(home: Home) -> None:
    schema, sink = "article string, at timestamp, left bigint", 'Upsert(keys=("article",), newest="at")'
    declare(home, "levels", LEVEL, schema=schema, sink=sink)
    kept = Level(article="a", at=START, left=1, batch=0)
    lost = Level(article=None, at=START, left=2, batch=0)
    land(home, "levels/a.jsonl", [kept.record, lost.record])
    home.run("levels")
    assert_both(home, "levels", Rows([kept.row]), system=("_batch_id",))
    values = (None, time(lost.at), 2)
    [held] = home.reader("levels").held_in_postgres()
    text = (None, str(values[1]).replace("T", " "), 2)
    assert held == (("null_key(article)",), home.uri("levels/a.jsonl"), None, text, 0)
    assert_clean(home, "levels")


# Replace

ORDER = pa.schema([("id", pa.int64()), ("shop", pa.string()), ("amount", pa.float64()), ("at", MOMENT)])


def test_a_batch_of_a_replace_sink_is_the_whole_table(home: Home) -> None:
    home.judge(rule("column_values_to_be_between", NEGATIVE, "warning", column="amount", min_value=0))
    schema = "id bigint, shop string, amount double, at timestamp"
    declare(home, "prices", ORDER, schema=schema, sink="Replace()", suite='suite="orders",')
    held: list[Order] = []

    def assert_replaced_by(made: list[Order], number: int) -> None:
        """Require that the table is `made`, of the file of this number, and that what was held stays held."""
        file = home.uri(f"prices/{number}.jsonl")
        held.extend(replace(order, file=file) for order in made if order.reasons)
        eyes, wanted = home.reader("prices"), Rows(order.row[:4] for order in made if not order.reasons)
        assert oracle.difference(eyes.in_postgres(system=()), wanted) == ""
        paths = eyes.files("prices")
        assert oracle.difference(eyes.rows_in(paths, ORDER.names), wanted) == ""
        listed = committed_files(home.place, home.pipeline("prices")).files
        assert sorted(file.path for file in listed) == sorted(paths)
        rows = Rows((o.reasons, o.file, None, o.row_as_text[:4]) for o in held)
        found = eyes.held_in_postgres()
        assert oracle.difference(Rows(row[:-1] for row in found.elements()), rows) == ""

    first, second = orders(0, 12, negative=[3]), orders(100, 5, negative=[101, 102])
    none, between, last = orders(200, 2, negative=[200, 201]), orders(300, 4), orders(400, 7)
    for number, made in enumerate((first, second, none)):  # the third one has nothing to deliver
        land(home, f"prices/{number}.jsonl", [json.loads(order.json) for order in made])
        assert home.run("prices").batches == 1
        assert_replaced_by(made, number)
    for number, made in enumerate((between, last), 3):
        land(home, f"prices/{number}.jsonl", [json.loads(order.json) for order in made])
    assert home.run("prices").batches == 2
    assert_replaced_by(last, 4)
    assert_clean(home, "prices")
    assert home.run("prices").batches == 0
    assert_replaced_by(last, 4)
    declare(home, "prices", ORDER, schema=schema, sink="Append()", suite='suite="orders",')
    land(home, "prices/9.jsonl", [json.loads(order.json) for order in orders(900, 1)])
    with pytest.raises(TableRefused, match="rows that its batches had replaced would come back"):
        home.run("prices")


def test_a_sink_that_was_only_tried_is_given_up_again(home: Home) -> None:
    """Nothing was delivered by replace, so nothing would come back."""
    land(home, "prices/0.jsonl", [json.loads(order.json) for order in orders(0, 5)])
    schema = "id bigint, shop string, amount double, at timestamp"
    upsert = 'Upsert(keys=("id",), newest="at")'
    declare(home, "prices", ORDER, schema=schema, sink=upsert)
    home.run("prices")
    land(home, "prices/1.jsonl", [json.loads(order.json) for order in orders(5, 5)])
    declare(home, "prices", ORDER, schema=schema, sink="Replace()")
    with pytest.raises(TableRefused, match="UNIQUE"):
        home.run("prices")
    declare(home, "prices", ORDER, schema=schema, sink=upsert)
    assert home.run("prices").batches == 1
    assert_clean(home, "prices")


# Nested columns

NESTED_DDL = (
    "id bigint, who struct<name string, born date, seen timestamp, shown timestamp_ntz>, sizes array<double>,"
    " lines array<struct<article string, price decimal(12,2)>>, tags map<string, array<bigint>>"
)
NESTED = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in ("who", "sizes", "lines", "tags"))])
PEOPLE: tuple[dict[str, Any], ...] = (
    {
        "id": 1,
        "who": {
            "name": 'Åsa "the\n1st" 😀',
            "born": "1969-07-20",
            "seen": "2020-01-01T00:00:00.123456Z",
            "shown": "1969-12-31T23:59:59.999999",
        },
        "sizes": [0.1, -1e300, 5e-324, None],
        "lines": [
            {"article": "a", "price": 9999999999.99},
            None,
            {"article": None, "price": 0.1},
        ],
        "tags": {"": [], "ü'\\": [1, None, 2**63 - 1], "none": None},
    },
    {"id": 2, "who": None, "sizes": None, "lines": None, "tags": None},
    {"id": 3, "who": {}, "sizes": [], "lines": [], "tags": {}},
)
AS_TEXT: tuple[dict[str, Any], ...] = (
    {**PEOPLE[0], "lines": [{"article": "a", "price": 9999999999.99}, None, {"price": 0.1}]},
    PEOPLE[1],
    PEOPLE[2],
)


def test_nested_columns_are_the_same_json_text_in_both_sinks(home: Home) -> None:
    declare(home, "people", NESTED, schema=NESTED_DDL, sink="Replace()")
    land(home, "people/a.jsonl", PEOPLE)
    assert home.run("people").delivered == len(PEOPLE)
    eyes = home.reader("people")
    rows = eyes.in_postgres(system=())
    assert oracle.difference(eyes.on_lake(system=()), rows) == ""
    assert rows.total() == len(PEOPLE)
    found = [dict(zip(NESTED.names, row, strict=True)) for row in sorted(rows)]
    assert [{name: read(value) for name, value in row.items()} for row in found] == list(AS_TEXT)
    assert_clean(home, "people")


def read(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
