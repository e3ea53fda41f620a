"""A contract is one of ODCS 3.1; what is drafted from it is what it was written of; and what is not kept is named."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pyspark.sql import types as T
from typer.testing import CliRunner

import etl
from etl.cli.app import app
from etl.common.errors import SetupError
from etl.common.settings import load_settings
from etl.operations.contracts.column_types import ContractField, column_of, ddl, property_of
from etl.operations.contracts.document import dumped, parsed
from etl.operations.contracts.draft import ContractDrafts, draft
from etl.operations.contracts.quality_rules import quality_of, read_quality
from etl.operations.contracts.write import contract_of, servers
from etl.pipeline import Append, Files, Pipeline, Replace, Sink, Upsert, day, load_pipeline
from etl.services import Services

HERE = Path(__file__).parent
ODCS = jsonschema.Draft201909Validator(
    json.loads((HERE / "odcs" / "odcs-json-schema-v3.1.0.json").read_text()),
    format_checker=jsonschema.FormatChecker(),
)
SUITES = sorted((HERE.parents[1] / "expectations").glob("*.json"))
FIELDS = (
    ContractField(name="id", type=T.LongType(), stored="bigint", description="What it's called"),
    ContractField(name="small", type=T.ShortType(), stored="integer"),
    ContractField(name="city", type=T.StringType(), stored="text"),
    ContractField(name="price", type=T.DecimalType(10, 2), stored="numeric(10,2)"),
    ContractField(name="share", type=T.FloatType(), stored="real"),
    ContractField(name="paid", type=T.BooleanType(), stored="boolean"),
    ContractField(name="on", type=T.DateType(), stored="date"),
    ContractField(name="at", type=T.TimestampType(), stored="timestamp with time zone"),
    ContractField(name="local", type=T.TimestampNTZType(), stored="timestamp without time zone"),
    ContractField(name="raw", type=T.BinaryType(), stored="bytea"),
    ContractField(
        name="who",
        type=T.StructType(
            [T.StructField("a b", T.LongType()), T.StructField("tags", T.ArrayType(T.StringType()))]
        ),
        stored="text",
    ),
    ContractField(name="counts", type=T.MapType(T.StringType(), T.LongType()), stored="text"),
)


def rule(kind: str, severity: str = "warning", meta: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
    return {"type": f"expect_{kind}", "kwargs": kwargs, "meta": dict(meta or {}), "severity": severity}


RULES = [
    rule(
        "column_values_to_not_be_null", "critical", {"name": "the id is given", "id": "id-given"}, column="id"
    ),
    rule("column_values_to_not_be_null", "info", {"dimension": "completeness"}, column="price", mostly=0.99),
    rule("column_values_to_be_in_set", meta={"owner": "ann"}, column="city", value_set=["NO", "on", "1"]),
    rule("column_values_to_match_regex", column="city", regex="^[A-Z]{2}$"),
    rule("column_values_to_be_between", column="price", min_value=0, strict_min=True, max_value=9.5),
    rule("column_values_to_be_between", column="on", min_value="2020-01-01"),
    rule("column_value_lengths_to_be_between", column="city", max_value=20),
    rule("column_values_to_be_unique", "info", column="id"),
    rule("compound_columns_to_be_unique", "info", column_list=["id", "on"]),
    rule("table_row_count_to_be_between", "info", min_value=1, max_value=100),
    rule("table_row_count_to_equal", "info", value=7),
    rule(
        "table_row_count_to_be_between",
        meta={"name": "volume", "across": {"last": 20, "at_least": 5, "times": [0.5, 2]}},
    ),
    rule(
        "column_mean_to_be_between",
        "info",
        {"across": {"last": 9, "at_least": 5, "within": 2}},
        column="price",
    ),
    rule(
        "column_values_to_be_in_set", "critical", column="id", value_set=[1, 2], row_condition='col("paid")'
    ),
]


def pipeline(sink: Sink, **more: Any) -> Pipeline:
    return Pipeline(
        name="orders",
        sources=(Files("o/*.jsonl"),),
        schema="id long",
        transform=lambda df: df,
        sink=sink,
        **more,
    )


def told(content: Mapping[str, Any]) -> list[str]:
    return [f"{one.json_path}: {one.message}" for one in ODCS.iter_errors(content)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    (tmp_path / "sluice.toml").write_text('pipelines = ["pipelines"]\nsuites = ["suites"]\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def drafted(content: Mapping[str, Any], name: str = "again", **more: Any) -> ContractDrafts:
    Path("contract.yaml").write_text(dumped(content))
    return draft(name, Path("contract.yaml"), load_settings(), **more)


def in_order(rules: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the rules, in an order of their own, as a suite means them: without notes it has none, critical by default."""
    meant = [{"meta": {}, "severity": "critical"} | {k: v for k, v in one.items() if v} for one in rules]
    return sorted(json.dumps(one, sort_keys=True) for one in meant)


def suite_of(drafts: ContractDrafts) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = json.loads(drafts.suite.read_text())["expectations"]
    return rules


@pytest.mark.parametrize(
    "sink",
    [Append(partition_by=day("at")), Upsert(keys=("on", "id"), newest="at"), Replace()],
    ids=["append", "upsert", "replace"],
)
def test_what_is_drafted_from_a_contract_is_what_the_contract_was_written_of(
    project: Path, sink: Sink
) -> None:
    of = pipeline(
        sink, schedule="0 6 * * *", deadline=dt.timedelta(hours=2), owner="ann", tags=("sales", "eu")
    )
    written = contract_of(of, FIELDS, RULES, version="2.1.0")
    assert told(written.content) == []
    assert parsed(written.text) == json.loads(json.dumps(written.content))
    drafts = drafted(written.content)
    assert in_order(suite_of(drafts)) == in_order(RULES)
    assert {one.name: one.type for one in drafts.promised.columns} == {
        one.name: ddl(one.type) for one in FIELDS
    }
    again = load_pipeline("again", load_settings().pipelines)
    for name in ("sink", "schedule", "deadline", "owner", "tags"):
        assert getattr(again, name) == getattr(of, name)
    assert again.metrics == ("price",)
    assert "`who` struct" not in again.schema
    assert "who struct<`a b`: bigint, tags: array<string>>" in again.schema
    assert not etl.check()[0].mistakes
    assert [note for note in drafts.notes() if "batch" not in note] == [
        "the contract does not say where files land: name the source"
    ]


@pytest.mark.parametrize("file", SUITES, ids=lambda file: file.stem)
def test_the_rules_of_each_shipped_suite_come_back_as_they_were(project: Path, file: Path) -> None:
    rules = json.loads(file.read_text())["expectations"]
    parts = [one["kwargs"] for one in rules]
    names = {part[key] for part in parts for key in ("column", "column_A", "column_B") if key in part}
    names |= {name for part in parts for name in part.get("column_list", [])}
    fields = [ContractField(name=name, type=T.StringType(), stored="text") for name in sorted(names) or ["x"]]
    written = contract_of(pipeline(Append()), fields, rules, version="1")
    assert told(written.content) == []
    assert in_order(suite_of(drafted(written.content))) == in_order(rules)


def test_no_delivered_row_breaks_what_a_contract_says_of_a_column() -> None:
    [table] = contract_of(pipeline(Append()), FIELDS, RULES, version="1").content["schema"]
    columns = {one["name"]: one for one in table["properties"]}
    assert columns["id"]["required"]
    assert "required" not in columns["price"]  # its rule is of severity info: a row without is delivered
    assert columns["price"]["logicalTypeOptions"] == {"exclusiveMinimum": 0, "maximum": 9.5}
    assert columns["city"]["logicalTypeOptions"] == {"pattern": "^[A-Z]{2}$", "maxLength": 20}


def test_a_metric_of_the_whole_table_is_one_only_where_each_batch_is_the_table() -> None:
    once = rule("table_row_count_to_be_between", min_value=5)
    assert quality_of(once, whole=True) == {
        "severity": "warning",
        "metric": "rowCount",
        "mustBeGreaterOrEqualTo": 5,
    }
    assert quality_of(once, whole=False)["engine"] == "greatExpectations"
    nulls = rule("column_values_to_not_be_null", column="x", mostly=0.99)
    assert quality_of(nulls, whole=False) == {
        "severity": "warning",
        "metric": "nullValues",
        "mustBeLessOrEqualTo": 1,
        "unit": "percent",
    }


def test_a_contract_has_where_the_tables_are_and_no_secret() -> None:
    services = Services(
        postgres="postgresql://me:s3cret@db.example:5433/shop",
        lake="s3://bucket/prefix",
        s3_endpoint=None,
        s3_region="x",
        environment={},
    )
    found = servers(pipeline(Append(table="sales.orders")), services)
    written = contract_of(pipeline(Append()), FIELDS, [], version="1", servers=found)
    assert told(written.content) == []
    assert "s3cret" not in written.text
    assert "me" not in written.text.split()
    postgres, lake = found
    assert (postgres["host"], postgres["port"], postgres["database"], postgres["schema"]) == (
        "db.example",
        5433,
        "shop",
        "sales",
    )
    assert lake["location"].startswith("s3://bucket/prefix/")


FOREIGN = """
apiVersion: v3.1.0
kind: DataContract
id: 53581432-6c55-4ba2-a65f-72344a91553a
name: shop
version: 3.0.0
status: active
domain: sales
description: {purpose: "Orders of the \\"shop\\"", limitations: none before 2020}
team:
  name: shop team
  members: [{username: bo}, {username: ann, role: Data Owner}]
support: [{channel: "#shop", url: https://example.com}]
servers: [{server: files, type: s3, location: "s3://b/*.csv", format: csv}]
schema:
  - name: customers
    properties: [{name: id, logicalType: integer}]
  - name: orders
    businessName: Orders
    properties:
      - name: id
        physicalName: order_id
        physicalType: BIGINT
        primaryKey: true
        classification: restricted
      - {name: mail, physicalType: varchar(80), logicalType: string, logicalTypeOptions: {format: email}}
      - {name: placed, logicalType: timestamp, physicalType: TIMESTAMP, required: true}
      - {name: total, logicalType: number, physicalType: NUMERIC, logicalTypeOptions: {minimum: 0}}
      - {name: at, logicalType: time}
      - name: parcel
        logicalType: object
        properties: [{name: size, logicalType: integer, required: true}]
      - {name: shape, physicalType: geometry}
      - name: country
        logicalType: string
        unique: true
        quality:
          - {id: known, name: known, metric: invalidValues, arguments: {validValues: [NO, DE]}, mustBeLessThan: 2,
             unit: percent, severity: error, businessImpact: none, tags: [a]}
          - {metric: missingValues, arguments: {missingValues: [null, "", n/a]}, mustBe: 0}
          - {metric: nullValues, mustBeLessThan: 5}
          - {type: text, description: It is where the parcel goes.}
          - {type: sql, query: "SELECT 1", mustBe: 1}
          - {type: custom, engine: soda, implementation: "x: 1"}
          - type: custom
            engine: great-expectations
            implementation: |
              type: expect_column_value_lengths_to_equal
              kwargs: {value: 2}
          - {type: custom, engine: greatExpectations, implementation: {type: expect_nothing, kwargs: {}}}
          - type: custom
            engine: greatExpectations
            implementation: {type: expect_column_values_to_be_null, kwargs: {column: gone}}
    quality:
      - {metric: rowCount, mustBeGreaterThan: 10}
      - {metric: duplicateValues, arguments: {properties: [order_id, country]}, mustBe: 0}
slaProperties:
  - {property: latency, value: 4, unit: h}
  - {property: frequency, value: 1, unit: d}
  - {property: retention, value: 3, unit: y}
price: {priceAmount: 1, priceCurrency: EUR, priceUnit: row}
"""


@pytest.fixture
def foreign(project: Path) -> dict[str, Any]:
    Path("shop.yaml").write_text(FOREIGN)
    content: dict[str, Any] = parsed(FOREIGN)
    assert told(content) == []
    return content


def test_a_contract_of_others_becomes_a_pipeline(foreign: Mapping[str, Any]) -> None:
    drafts = draft("orders", Path("shop.yaml"), load_settings(), table="orders")
    made = load_pipeline("orders", load_settings().pipelines)
    assert {one.name: one.type for one in drafts.promised.columns} == {
        "order_id": "bigint",
        "mail": "string",
        "placed": "timestamp",
        "total": "decimal(38,9)",
        "at": "string",
        "parcel": "struct<size: bigint>",
        "shape": "string",
        "country": "string",
    }
    assert (made.owner, made.schedule, made.deadline) == ("ann", "@daily", dt.timedelta(hours=4))
    assert (made.sources[0].named, made.sink) == ("orders/**/*.csv", Append())
    found = {
        (one["type"].removeprefix("expect_"), one["kwargs"].get("column")): (
            one["severity"],
            {name: value for name, value in one["kwargs"].items() if name != "column"},
        )
        for one in suite_of(drafts)
    }
    assert found == {
        ("column_values_to_not_be_null", "order_id"): ("warning", {}),
        ("column_value_lengths_to_be_between", "mail"): ("warning", {"max_value": 80}),
        ("column_values_to_not_be_null", "placed"): ("warning", {}),
        ("column_values_to_be_between", "total"): ("warning", {"min_value": 0}),
        ("column_values_to_be_in_set", "country"): ("critical", {"value_set": ["NO", "DE"], "mostly": 0.98}),
        ("column_values_to_not_be_in_set", "country"): ("warning", {"value_set": ["", "n/a"]}),
        ("column_values_to_not_be_null", "country"): ("info", {}),
        ("column_value_lengths_to_equal", "country"): ("warning", {"value": 2}),
        ("column_values_to_be_unique", "country"): ("info", {}),
        ("table_row_count_to_be_between", None): ("info", {"min_value": 11}),
        ("compound_columns_to_be_unique", None): ("info", {"column_list": ["order_id", "country"]}),
    }


def test_what_of_a_contract_is_not_kept_is_named_in_the_output_and_in_both_files(
    foreign: Mapping[str, Any],
) -> None:
    asked = ["new", "orders", "--contract", "shop.yaml", "--table", "orders"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert done.exit_code == 0
    output = " ".join(done.stdout.split())
    declared = " ".join(Path("pipelines/orders.py").read_text().split())
    notes = " ".join(json.loads(Path("suites/orders.json").read_text())["notes"].split())
    for left in (
        "the contract has domain, price, support, which a pipeline does not declare",
        "its description says of limitations: none before 2020",
        "its team has bo beside the owner",
        "the table orders has businessName",
        "the primary key order_id is not kept over batches: for one row a key, write",
        "the column order_id has classification",
        "the column mail: its option format is no rule here",
        "quality rule 'nullValues' of country: its limit (mustBeLessThan 5) is no share",
        "It is where the parcel goes.",
        "it is a query of a database",
        "it is for soda",
        "there is no such type",
        "the contract has no column 'gone'",
        "it counts the rows of a batch here, not of the table",
        "it sees duplicates within a batch, not over the table",
        "that it is unique is seen within a batch",
        "the column parcel: no rule is of its members size",
        "its retention of 3 y is nothing that a pipeline declares",
    ):
        assert left in output
        assert left in notes
        assert left in declared.replace("\\", "")
    for doubt in ("placed timestamp: ", "total decimal(38,9): ", "at string: ", "shape string: "):
        assert f"look at: {doubt}" in output


def test_what_a_contract_says_of_a_rule_beside_its_condition_stays_with_it(
    foreign: Mapping[str, Any],
) -> None:
    orders = foreign["schema"][1]
    [known] = [one for column in orders["properties"] for one in column.get("quality", []) if one.get("id")]
    [read] = read_quality(known, "country", whole=False).expectations
    assert read["meta"] == {"name": "known", "id": "known", "odcs": {"businessImpact": "none", "tags": ["a"]}}
    assert quality_of(read, whole=False) == {
        **{name: value for name, value in known.items() if name != "mustBeLessThan"},
        "mustBeLessOrEqualTo": 2,
        "severity": "critical",
    }


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ({"physicalType": "character varying(20)"}, "string"),
        ({"physicalType": "timestamp(6) without time zone"}, "timestamp_ntz"),
        ({"physicalType": "NUMBER(38, 0)"}, "decimal(38,0)"),
        ({"physicalType": "double precision"}, "double"),
        ({"physicalType": "map<string, int>"}, "map<string, int>"),
        ({"logicalType": "integer", "logicalTypeOptions": {"format": "i16"}}, "smallint"),
        ({"logicalType": "timestamp", "logicalTypeOptions": {"timezone": False}}, "timestamp_ntz"),
        ({"logicalType": "array", "items": {"logicalType": "boolean"}}, "array<boolean>"),
        (
            {"logicalType": "object", "properties": [{"name": "a b", "logicalType": "date"}]},
            "struct<`a b`: date>",
        ),
        (
            {"customProperties": [{"property": "sparkType", "value": "nonsense"}], "logicalType": "date"},
            "date",
        ),
    ],
)
def test_a_property_is_the_column_that_its_types_say(described: Mapping[str, Any], expected: str) -> None:
    assert column_of({"name": "x", **described}).type == expected


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_each_column_comes_back_from_its_property(field: ContractField) -> None:
    found = column_of(property_of(field))
    assert (found.name, found.type, found.doubt, found.description) == (
        field.name,
        ddl(field.type),
        None,
        field.description,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is no YAML with a contract"),
        ("a: &x [*x]", "is no YAML with a contract"),
        ("kind: DataProduct", "is no contract: its kind is 'DataProduct'"),
        ("kind: DataContract\napiVersion: v2.2.2", "is of ODCS v2.2.2, and 3 is read"),
        ("kind: DataContract\napiVersion: v3.1.0", "has no schema with a table"),
        (FOREIGN, "has several tables: customers, orders"),
        (
            "{kind: DataContract, apiVersion: v3.1.0, schema: [{name: t, properties: [{name: x}, {name: X}]}]}",
            "has 'x' more than once",
        ),
        ("{kind: DataContract, apiVersion: v3.1.0, schema: [{name: t, properties: [{}]}]}", "without a name"),
    ],
)
def test_what_is_no_contract_writes_nothing(project: Path, text: str, said: str) -> None:
    Path("c.yaml").write_text(text)
    with pytest.raises(SetupError, match=said.replace("[", r"\[")) as refused:
        draft("orders", Path("c.yaml"), load_settings())
    assert refused.value.exit_code == 2
    assert not list(project.rglob("*.py"))


@pytest.mark.parametrize(
    "asked", [[], ["--like", "a.csv", "--contract", "c.yaml"], ["--like", "a", "--table", "t"]]
)
def test_a_draft_is_of_one_file(project: Path, asked: list[str]) -> None:
    refused = CliRunner().invoke(app, ["new", "orders", *asked])
    assert isinstance(refused.exception, SetupError)
    assert "A draft is of one file" in str(refused.exception)


def test_a_text_is_the_same_text_to_every_reader_of_yaml() -> None:
    import yaml  # of YAML 1.1, as most tools read

    content = {
        "texts": ["NO", "y", "09:00", "1_000", "a\nb", "", " x", "#c", "2026-01-01", "'", "x: y", "null"]
    }
    assert parsed(dumped(content)) == content
    assert yaml.safe_load(dumped(content)) == content
