"""`sluice contract`: writes what a pipeline promises of its table as a contract of ODCS 3.1."""

from __future__ import annotations

import ast
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etl.operations.contracts.column_types import ContractField, property_of
from etl.operations.contracts.constraints import REQUIRED, constraints_of, fitting
from etl.operations.contracts.document import VERSION, dumped
from etl.operations.contracts.quality_rules import quality_of
from etl.pipeline import Pipeline
from etl.sinks.modes import mode_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from etl.runs.workspace import Workspace
    from etl.services import Services

SINK = "sluiceSink"  # the custom property of how batches come into the table
PRESETS = {  # of Airflow's schedules, how often they are: a number and its unit
    "@hourly": (1, "h"),
    "@daily": (1, "d"),
    "@weekly": (7, "d"),
    "@monthly": (1, "mo"),
    "@yearly": (1, "y"),
}
UNITS = {"d": 86_400, "h": 3600, "min": 60, "s": 1}  # seconds


@dataclass(frozen=True, kw_only=True)
class Contract:
    """A pipeline's contract, and what of the pipeline it does not say."""

    content: Mapping[str, Any]
    notes: Sequence[str] = ()  # a sentence each

    @property
    def text(self) -> str:
        return dumped(self.content)


def write_contract(
    workspace: Workspace, pipeline: Pipeline, *, version: str, spark: SparkSession | None = None
) -> Contract:
    """Write the contract of what the transform puts out today, judged by the suite in force; no input is read."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from etl.operations.suites.what_if import put_out
    from etl.quality.rules import compile_rules
    from etl.quality.suite_file import suite_of
    from etl.runs.spark_session import a_session
    from etl.sinks.columns import common_schema
    from etl.sinks.warehouse.table import postgres_type
    from etl.spark.frames import nested_fields

    with a_session(workspace, spark, little=True) as session:
        schema = put_out(workspace, pipeline, session).schema
        compile_rules(pipeline, session.createDataFrame([], schema), workspace.settings)  # or it is refused
        comments = _comments(pipeline)
    stored = common_schema(to_arrow_schema(schema, timezone="UTC"), pipeline=pipeline.name)
    types = {field.name: field.dataType for field in (*schema.fields, *nested_fields(schema))}
    fields = [
        ContractField(
            name=field.name,
            type=types[field.name],
            stored=postgres_type(stored.field(field.name).type),
            description=comments.get(field.name, ""),
        )
        for field in schema.fields
    ]
    suite = suite_of(pipeline, workspace.settings)
    return contract_of(
        pipeline,
        fields,
        suite["expectations"],
        version=version,
        servers=servers(pipeline, workspace.services),
    )


def _comments(pipeline: Pipeline) -> dict[str, str]:
    """Return what the declared schemas say of their columns: a column of the output is what the one of its name is."""
    from pyspark.sql.types import StructType

    parsed = [StructType.fromDDL(stream.schema) for stream in pipeline.all_streams.values()]
    fields = [field for schema in parsed if isinstance(schema, StructType) for field in schema.fields]
    return {field.name: field.metadata.get("comment", "") for field in fields}


def servers(pipeline: Pipeline, services: Services) -> list[dict[str, Any]]:
    """Say where the pipeline's two tables are; no user and no secret."""
    from psycopg2.extensions import parse_dsn

    from etl.sinks.lake.lake import Lake
    from etl.sinks.lake.parquet_writer import ObjectStore
    from etl.sinks.lake.table import LakeTable

    dsn = parse_dsn(services.postgres)
    lake = Lake(services.lake, ObjectStore(endpoint=services.s3_endpoint, region=services.s3_region))
    return [
        {
            "server": "warehouse",
            "type": "postgresql",
            "host": dsn.get("host", "localhost").split(",")[0],
            "port": int(dsn.get("port", "5432").split(",")[0]),
            "database": dsn.get("dbname", ""),
            "schema": pipeline.table_schema,
        },
        {
            "server": "lake",
            "type": "s3",
            "location": LakeTable.of(lake, pipeline.table).location,
            **({"endpointUrl": services.s3_endpoint} if services.s3_endpoint else {}),
            "format": "iceberg",
        },
    ]


def contract_of(
    pipeline: Pipeline,
    fields: Sequence[ContractField],
    expectations: Sequence[Mapping[str, Any]],
    *,
    version: str,
    servers: Sequence[Mapping[str, Any]] = (),
) -> Contract:
    """Write the contract of a pipeline whose output has these fields and is judged by these expectations."""
    notes: list[str] = []
    content = {
        "apiVersion": VERSION,
        "kind": "DataContract",
        "id": pipeline.name,
        "name": pipeline.name,
        "version": version,
        "status": "active",
        "description": _description(pipeline),
        "tags": list(pipeline.tags),
        "team": {"members": [{"username": pipeline.owner, "role": "owner"}]},
        "servers": list(servers),
        "schema": [_table(pipeline, fields, expectations)],
        "slaProperties": list(_promises(pipeline, notes)),
    }
    return Contract(content={name: value for name, value in content.items() if value}, notes=notes)


def _description(pipeline: Pipeline) -> dict[str, str] | None:
    """Return what the file of a declaration says first."""
    if pipeline.file is None:
        return None
    text = ast.get_docstring(ast.parse(pipeline.file.read_bytes()))
    return {"purpose": text} if text else None


def _table(
    pipeline: Pipeline, fields: Sequence[ContractField], expectations: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Describe the table: each column with the rules of it alone, then the rules of several columns or none."""
    whole = mode_of(pipeline.sink).only_newest
    names = {field.name for field in fields}
    rules: dict[str | None, list[dict[str, Any]]] = {}
    for one in expectations:
        column = (one.get("kwargs") or {}).get("column")
        rules.setdefault(column if column in names else None, []).append(quality_of(one, whole=whole))
    table: dict[str, Any] = {
        "name": pipeline.name,
        "physicalName": pipeline.table_name,
        "physicalType": "table",
        "logicalType": "object",
        "properties": [_column(field, pipeline, expectations, rules.get(field.name)) for field in fields],
        "customProperties": [{"property": SINK, "value": _sink(pipeline)}],
    }
    return table | ({"quality": rules[None]} if None in rules else {})


def _sink(pipeline: Pipeline) -> dict[str, Any]:
    sink, key = pipeline.sink, mode_of(pipeline.sink).key
    said = {"mode": type(sink).__name__.lower()}
    if key:
        said["newest"] = key.newest
    if sink.partition_by:
        said["partition"] = sink.partition_by.kind
    return said


def _column(
    field: ContractField,
    pipeline: Pipeline,
    expectations: Sequence[Mapping[str, Any]],
    rules: Sequence[Mapping[str, Any]] | None,
) -> dict[str, Any]:
    described = property_of(field)
    key = mode_of(pipeline.sink).key
    keys = key.columns if key else ()
    constraints = constraints_of(expectations, field.name)
    if constraints.get(REQUIRED) or field.name in keys:
        described["required"] = True
    if options := fitting(constraints, described["logicalType"]):
        described["logicalTypeOptions"] = described.get("logicalTypeOptions", {}) | options
    if field.name in keys:
        described |= {"primaryKey": True, "primaryKeyPosition": keys.index(field.name) + 1}
    partition = pipeline.sink.partition_by
    if partition and partition.column == field.name:
        described |= {"partitioned": True, "partitionKeyPosition": 1}
    return described | ({"quality": list(rules)} if rules else {})


def _promises(pipeline: Pipeline, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Yield what is promised of time: how often the table is filled, and how long a run may take."""
    schedule = pipeline.schedule
    if pipeline.follow:
        yield {"property": "frequency", "value": pipeline.every.total_seconds(), "unit": "s"}
    elif isinstance(schedule, str):
        value, unit = PRESETS.get(schedule, (schedule, None))
        said = {
            "property": "frequency",
            "value": value,
            "unit": unit,
            "scheduler": "cron",
            "schedule": schedule,
        }
        yield {name: one for name, one in said.items() if one is not None}
    elif schedule is not None:
        notes.append("its schedule is a function of Airflow's, which a contract can't say: it is left out")
    if pipeline.deadline is not None:
        most, unit = in_units(pipeline.deadline)
        yield {
            "property": "latency",
            "value": most,
            "unit": unit,
            "description": "From when a run is queued until it is done.",
        }


def in_units(span: dt.timedelta) -> tuple[int | float, str]:
    """Write a time in the largest unit of which it is a whole number, else in seconds."""
    seconds = span.total_seconds()
    unit = next((one for one, of in UNITS.items() if seconds % of == 0), "s")
    value = seconds / UNITS[unit]
    return (int(value) if value.is_integer() else value), unit
