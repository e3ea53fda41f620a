"""A whole run holds exactly the rows that Great Expectations by itself calls unexpected, each with every such rule.

GX judges a frame made of the same Python values: it sees nothing that Sluice has read, counted or staged.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tests.support import oracle
from tests.support.data.orders import MALFORMED, NAME, rule
from tests.support.home import Home
from tests.support.oracle import Row, Rows
from tests.support.quality import drawn_suites
from tests.support.quality.gx_by_itself import Results, by_gx, in_words, same

Record = dict[str, Any]

COMPLETE = {
    "result_format": "COMPLETE",
    "unexpected_index_column_names": ["id"],
    "return_unexpected_index_query": False,
}
DECLARATION = """
from etl.pipeline import Append, Files, Pipeline

def as_it_is(df):
    return df

PIPELINE = Pipeline(
    name="orders",
    sources=(Files("orders/*.jsonl", max_files=1),),
    schema="{schema}",
    transform=as_it_is,
    suite="orders",
    sink=Append(),
    max_quarantine_share=1.0,
)
"""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One landed file, which is one micro-batch, and what GX says of its rows."""

    number: int  # Spark's id of it
    records: Sequence[Record]  # with distinct ids
    malformed: Sequence[str]  # lines between them that are no records
    columns: pa.Schema
    suite: Mapping[str, Any]
    gx: Results  # each rule's COMPLETE result

    @classmethod
    def judged(
        cls,
        spark: SparkSession,
        schema: str,
        suite: Mapping[str, Any],
        records: Sequence[Record],
        *,
        number: int = 0,
        malformed: Sequence[str] = (),
    ) -> Batch:
        fields = StructType.fromDDL(schema)
        columns = to_arrow_schema(fields, timezone="UTC")
        table = pa.Table.from_pylist(list(records), schema=columns)
        frame = spark.createDataFrame(table, fields).coalesce(1)
        return cls(
            number=number,
            records=records,
            malformed=malformed,
            columns=columns,
            suite=suite,
            gx=by_gx(suite, frame, COMPLETE),
        )

    @cached_property
    def rows(self) -> dict[int, Row]:
        """Return each record as the sinks must have it, by its id."""
        table = pa.Table.from_pylist(list(self.records), schema=self.columns)
        return {row[0]: row for row in oracle.rows_of(table)}

    @cached_property
    def reasons(self) -> dict[int, list[str]]:
        """Return the reasons of each row to hold, in the suite's order; PostgreSQL's own limit comes last."""
        found: dict[int, list[str]] = {}
        for declared in self.suite["expectations"]:
            if declared["severity"] != "info":
                for number in unexpected(self.gx[declared["meta"]["name"]]):
                    found.setdefault(number, []).append(declared["meta"]["name"])
        for record in self.records:
            nul = [f"postgres_nul({name})" for name, value in record.items() if "\x00" in str(value)]
            if nul:
                found.setdefault(record["id"], []).extend(nul)
        return found

    @property
    def lines(self) -> str:
        lines = [line(record) for record in self.records]
        middle = len(lines) // 2
        lines[middle:middle] = self.malformed
        return "".join(f"{one}\n" for one in lines)

    @property
    def delivered(self) -> Rows:
        return Counter((*row, self.number) for number, row in self.rows.items() if number not in self.reasons)

    def held_on_lake(self, uri: str) -> Rows:
        typed = Counter(
            (*self.rows[number], tuple(reasons), None, uri, self.number)
            for number, reasons in self.reasons.items()
        )
        nothing = (None,) * len(self.columns)
        return typed + Counter((*nothing, (MALFORMED,), raw, uri, self.number) for raw in self.malformed)

    def held_in_postgres(self, uri: str) -> Rows:
        names = self.columns.names
        texts = {one["id"]: tuple(as_text(one[name]) for name in names) for one in self.records}
        typed = Counter(
            (tuple(reasons), uri, None, texts[number], self.number)
            for number, reasons in self.reasons.items()
        )
        return typed + Counter(((MALFORMED,), uri, raw, None, self.number) for raw in self.malformed)


def unexpected(outcome: Mapping[str, Any]) -> list[int]:
    """Return the ids of the rows that break a rule, by GX; a rule about the table has none."""
    assert outcome["exception_info"]["raised_exception"] is False, outcome
    result = outcome["result"]
    if "unexpected_count" not in result:
        return []
    found = [one["id"] for one in result["unexpected_index_list"]]
    assert len(found) == (result["unexpected_count"] or 0), outcome
    return found


def line(record: Record) -> str:
    """Return the record as JSON. Odd rows leave nulls out, and have text where JSON has no number: both are common."""
    odd = record["id"] % 2 == 1
    given = {name: in_json(value, odd=odd) for name, value in record.items()}
    return json.dumps({name: value for name, value in given.items() if value is not None or not odd})


def in_json(value: Any, *, odd: bool) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value) if odd else value
    if isinstance(value, dt.date):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value


def as_text(value: Any) -> Any:
    """Return the value as quarantine's JSON has it."""
    if isinstance(value, dt.datetime):
        moment = value.astimezone(dt.UTC).isoformat(" ", "microseconds")
        return moment.replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, dt.date) else oracle.plain(value)


def run_whole(home: Home, schema: str, batches: Sequence[Batch]) -> None:
    """Land each batch as a file of its own, and run once; then both sinks hold what GX says, and why."""
    home = replace(home, columns=batches[0].columns)
    home.declare(text=DECLARATION.format(schema=schema))
    home.judge(*batches[0].suite["expectations"])
    for batch in batches:
        home.write(f"{NAME}/{batch.number}.jsonl", batch.lines)
    home.run()
    home.assert_one_history()
    assert wrong_rows(home, batches) == {}
    assert [wrong for batch in batches for wrong in wrong_figures(home, batch)] == []


def wrong_rows(home: Home, batches: Sequence[Batch]) -> dict[str, str]:
    """Return, by place, how its rows differ from those that GX names; empty where they agree."""
    eyes = home.reader()
    uris = {batch.number: home.uri(f"{NAME}/{batch.number}.jsonl") for batch in batches}
    delivered = sum((batch.delivered for batch in batches), Counter())
    on_lake = sum((batch.held_on_lake(uris[batch.number]) for batch in batches), Counter())
    in_postgres = sum((batch.held_in_postgres(uris[batch.number]) for batch in batches), Counter())
    found = {
        "PostgreSQL": oracle.difference(eyes.in_postgres(), delivered),
        "Parquet": oracle.difference(eyes.on_lake(), delivered),
        "held in PostgreSQL": oracle.difference(eyes.held_in_postgres(), in_postgres),
        "held on the lake": oracle.difference(eyes.held_on_lake(), on_lake),
    }
    return {place: words for place, words in found.items() if words}


def wrong_figures(home: Home, batch: Batch) -> list[str]:
    """Return where the report that was kept with the batch is not GX's own."""
    query = (
        "SELECT q.report, (SELECT array_agg(r.evaluated ORDER BY r.number) FROM sluice.quality_rule r"
        " WHERE r.delivery_id = d.delivery_id) FROM sluice.delivery d JOIN sluice.quality q USING (delivery_id)"
        " WHERE d.batch_id = %s"
    )
    [(report, evaluated)] = home.ask(query, batch.number)
    wrong = []
    for ours, where in zip(json.loads(report)["results"], evaluated, strict=True):
        name = ours["expectation_config"]["meta"]["name"]
        got, wanted = (figures(one, sampled=where == "pass") for one in (ours, batch.gx[name]))
        if not same(got, in_words(wanted, got)):
            wrong.append(f"batch {batch.number}, {name}:\n   the run {got}\n   GX      {wanted}")
    return wrong


def figures(outcome: Mapping[str, Any], *, sampled: bool) -> Any:
    """Return what SUMMARY and COMPLETE have in common; without samples where GX has read the rows in another order."""
    listing = {
        "partial_unexpected_counts",
        "partial_unexpected_index_list",
        "unexpected_list",
        "unexpected_index_list",
        "unexpected_index_column_names",
    }
    if not sampled:
        listing.add("partial_unexpected_list")
    kept = {name: value for name, value in outcome["result"].items() if name not in listing}
    return json.loads(json.dumps({"success": outcome["success"], **kept}))


def with_several(batches: Sequence[Batch]) -> int:
    """Count the rows that two or more rules hold."""
    return sum(len(reasons) > 1 for batch in batches for reasons in batch.reasons.values())


# A suite of every kind


def _where(condition: str) -> dict[str, str]:
    return {"row_condition": condition, "condition_parser": "spark"}


SCHEMA = (
    "id bigint, name string, x double, n int, m int, k int, price decimal(10,2), day date, at timestamp,"
    " ok boolean"
)
NAN, INF = float("nan"), float("inf")
KNOWN, NOTED = "name is known", "n is not 4"  # the second one of severity info
HOLD_NONE = {"id is given", "of nobody"}
RULES = (
    rule("column_values_to_not_be_null", "id is given", "critical", column="id"),
    rule("column_values_to_not_be_null", "name is given", "warning", column="name", **_where("n <> 2")),
    rule("column_values_to_be_between", "x", "critical", column="x", max_value=100, mostly=0.0),
    rule("column_values_to_be_between", "price", "warning", column="price", min_value=1.1, max_value=99.5),
    rule("column_values_to_be_between", "day", "warning", column="day", min_value="2013-02-01", mostly=0.1),
    rule(
        "column_values_to_be_between",
        "at",
        "critical",
        column="at",
        max_value="2013-02-01 00:00:00",
        mostly=0.2,
        **_where("x < 50"),
    ),
    rule(
        "column_values_to_be_between", "of nobody", "critical", column="n", min_value=3, **_where("n > 1000")
    ),
    rule(
        "column_values_to_be_in_set",
        KNOWN,
        "critical",
        column="name",
        value_set=["on", "off", "idle"],
        mostly=0.2,
    ),
    rule("column_values_to_not_be_in_set", NOTED, "info", column="n", value_set=[4]),
    rule("column_values_to_match_regex", "a word", "warning", column="name", regex="^[a-z]+$"),
    rule(
        "column_values_to_not_match_regex_list",
        "neither",
        "warning",
        column="name",
        regex_list=["^O", "f{2}"],
        **_where("isnan(x)"),
    ),
    rule(
        "column_pair_values_a_to_be_greater_than_b",
        "n above k",
        "warning",
        column_A="n",
        column_B="k",
        or_equal=True,
        ignore_row_if="either_value_is_missing",
        mostly=0.9,
    ),
    rule(
        "column_pair_values_to_be_equal",
        "n is m",
        "critical",
        column_A="n",
        column_B="m",
        ignore_row_if="both_values_are_missing",
        mostly=0.0,
        **_where("day > '2013-06-01'"),
    ),
    rule(
        "multicolumn_sum_to_equal",
        "sum",
        "warning",
        column_list=["n", "m", "k"],
        sum_total=7,
        ignore_row_if="any_value_is_missing",
        **_where("ok"),
    ),
    rule(
        "select_column_values_to_be_unique_within_record",
        "distinct",
        "critical",
        column_list=["n", "m", "k"],
        ignore_row_if="all_values_are_missing",
        mostly=0.1,
    ),
)
NOTHING = dict.fromkeys(("name", "x", "n", "m", "k", "price", "day", "at", "ok"))
BROKEN = ('{"id": 500, "n": "many"}', "no record", '{"id": 501, "x": 1.5')
FIRST_DAY, LAST_DAY = dt.date(2013, 1, 31), dt.date(2013, 7, 1)


def record(number: int) -> Record:
    pick = lambda *values: values[number % len(values)]  # noqa: E731
    at = dt.datetime(2013, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=7 * number, microseconds=number)
    return {
        "id": number,
        "name": pick("on", "off", "on", None, "on", "idle", "off", "On", "on", "", "nul\x00"),
        "x": pick(0.5, None, 7.0, NAN, -3.25, 1e300, 99.9, INF, -0.0, 12.5, -INF, 4.0, 31.0),
        "n": pick(3, 5, None, 4, 2),
        "m": pick(6, 2, 7, None, 8, 9),
        "k": pick(1, 1, 0, None, 1, 3, 2),
        "price": pick(*(Decimal(text) for text in ("1.10", "20.00", "99.50", "99.51", "1.11", "7.00")), None),
        "day": pick(*(dt.date(2013, 5, day) for day in range(1, 5)), None, FIRST_DAY, LAST_DAY),
        "at": None if number % 8 == 0 else at,
        "ok": pick(True, False, None),
    }


def test_a_run_holds_what_gx_calls_unexpected(home: Home, spark: SparkSession) -> None:
    suite = {"name": "orders", "expectations": list(RULES)}
    mixed = [record(number) for number in range(160)]
    missing = [NOTHING | {"id": number, "x": (NAN, None)[number % 2]} for number in range(200, 206)]
    batches = [
        Batch.judged(spark, SCHEMA, suite, mixed, number=0, malformed=BROKEN),
        Batch.judged(spark, SCHEMA, suite, missing, number=1),
        Batch.judged(spark, SCHEMA, suite, [], number=2),
    ]
    assert_each_rule_holds_some(batches)
    run_whole(home, SCHEMA, batches)
    assert_comparison_sees_one_row(replace(home, columns=batches[0].columns), batches)


def assert_each_rule_holds_some(batches: Sequence[Batch]) -> None:
    """Else it would prove nothing that the run holds what it should."""
    held = {reason for batch in batches for reasons in batch.reasons.values() for reason in reasons}
    assert held == {one["meta"]["name"] for one in RULES} - HOLD_NONE - {NOTED} | {"postgres_nul(name)"}
    assert with_several(batches) >= 60
    assert sum(len(batch.delivered) for batch in batches) >= 20
    noted = set(unexpected(batches[0].gx[NOTED])) - set(batches[0].reasons)
    assert len(noted) >= 3, "rows that break a rule of severity info alone are delivered"


def assert_comparison_sees_one_row(home: Home, batches: Sequence[Batch]) -> None:
    """Were one row more held by GX for one reason, every place would be wrong."""
    first, *others = batches
    [number, *_] = (one for one in first.rows if one not in first.reasons)
    known = first.gx[KNOWN]["result"]
    result = known | {
        "unexpected_count": known["unexpected_count"] + 1,
        "unexpected_index_list": [*known["unexpected_index_list"], {"id": number}],
    }
    other = replace(first, gx=first.gx | {KNOWN: first.gx[KNOWN] | {"result": result}})
    assert len(wrong_rows(home, [other, *others])) == 4
    assert len(wrong_figures(home, other)) == 1


# Drawn suites


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_holds_what_gx_calls_unexpected_by_a_drawn_suite(
    home: Home, spark: SparkSession, number: int
) -> None:
    seed = random.randrange(2**32)
    print(f"drawn with seed {seed}")
    batch = draw_batch(spark, random.Random(seed))
    run_whole(home, DRAWN_SCHEMA, [batch])


DRAWN_SCHEMA = f"id bigint, {drawn_suites.SCHEMA}"


def draw_batch(spark: SparkSession, draw: random.Random) -> Batch:
    """Drawn until at least five rows have several reasons, and five none."""
    while True:
        suite = drawn_suites.draw_suite(draw)
        batch = Batch.judged(spark, DRAWN_SCHEMA, suite, draw_records(spark, draw))
        batch = replace(batch, suite=with_severities(draw, batch))
        if with_several([batch]) >= 5 and len(batch.delivered) >= 5:
            return batch


def draw_records(spark: SparkSession, draw: random.Random) -> list[Record]:
    """Draw at least forty rows, of one frame or several, each with its own share of nulls."""
    found: list[Record] = []
    while len(found) < 40:
        found += drawn_suites.draw_frame(draw, spark).toArrow().to_pylist()
    return [{"id": number, **values} for number, values in enumerate(found)]


def with_severities(draw: random.Random, batch: Batch) -> dict[str, Any]:
    """Give the suite severities that let the batch pass; a rule that compares rows may hold none."""
    rules = []
    for one in batch.suite["expectations"]:
        passes = batch.gx[one["meta"]["name"]]["success"]
        severities = ["info", "warning", "critical" if passes else "warning"]
        if one["type"] == "expect_column_values_to_be_unique":
            severities = ["info"]
        rules.append({**one, "severity": draw.choice(severities)})
    return {**batch.suite, "expectations": rules}
