"""docs/declaration.md has every field of a declaration, with its type, its default and an example that is right."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from dataclasses import MISSING
from typing import Any

import pytest

from etl import pipeline
from etl.pipeline import (
    Airflow,
    Append,
    Files,
    Freshness,
    Kafka,
    Lookup,
    Model,
    Partition,
    Pipeline,
    Rate,
    Replace,
    Socket,
    Stream,
    Upsert,
    Volume,
)
from etl.pipeline.checks import problems
from etl.pipeline.patterns import FORMATS
from tests.support.environment import REPOSITORY

PAGE = (REPOSITORY / "docs/declaration.md").read_text()
CLASSES = (
    Pipeline,
    Files,
    Kafka,
    Rate,
    Socket,
    Stream,
    Lookup,
    Model,
    Append,
    Upsert,
    Replace,
    Partition,
    Freshness,
    Volume,
    Airflow,
)
SECTION = re.compile(r"^##+ ({})$".format("|".join(one.__name__ for one in CLASSES)), re.MULTILINE)
FIELD = re.compile(
    r"^- \*\*`(?P<name>\w+)`\*\* `(?P<type>[^`]+)`, (?:required|default `(?P<default>[^`]+)`)\. "
    r"(?P<meaning>.+?)\sExample: `(?P<example>[^`]+)`$",
    re.MULTILINE | re.DOTALL,
)
# What the types are called in the code, and on the page.
SAID = {
    "dt.": "",
    "PartitionKind": '"identity" | "hour" | "day" | "month"',
    "OutputMode": '"append" | "update" | "complete"',
    "Unreadable": '"stop" | "hold"',
    "Unknown": '"report" | "keep" | "hold"',
    "Sink": "Append | Upsert | Replace",
}
FORMAT_OF = {
    Files: " | ".join(f'"{one}"' for one in FORMATS) + " | None",
    Lookup: " | ".join(f'"{one}"' for one in FORMATS) + " | None",
    Kafka: '"json" | "text"',
    Socket: '"json" | "csv" | "text"',
}


def transform(df: Any, **others: Any) -> Any:
    return df


def pod() -> dict[str, Any]:
    return {}


WITHIN = {
    **vars(pipeline),
    "transform": transform,
    "pod": pod,
    "date": dt.date,
    "timedelta": dt.timedelta,
}
ORDERS: dict[str, Any] = {
    "name": "orders",
    "sources": (Files("orders/*.json"),),
    "schema": "id bigint, at timestamp",
    "transform": transform,
    "sink": Append(),
}
# What each class needs beside the field of an example.
NEEDED: dict[type, str] = {
    Pipeline: "Pipeline(**ORDERS | dict({}))",
    Files: 'Files(**{{"pattern": "x/*.csv"}} | dict({}))',
    Kafka: 'Kafka(**{{"topics": ("x",)}} | dict({}))',
    Rate: "Rate({})",
    Socket: 'Socket(**{{"host": "x", "port": 1}} | dict({}))',
    Stream: 'Stream(**{{"schema": "x string"}} | dict({}))',
    Lookup: 'Lookup(**{{"pattern": "x.csv", "schema": "shop string", "key": ("shop",)}} | dict({}))',
    Model: 'Model(**{{"trained_on": "x", "features": ("y",)}} | dict({}))',
    Append: "Append({})",
    Upsert: 'Upsert(**{{"keys": ("x",), "newest": "y"}} | dict({}))',
    Replace: "Replace({})",
    Partition: "{}",
    Freshness: "Pipeline(**ORDERS | dict({}))",
    Volume: "Pipeline(**ORDERS | dict({}))",
    Airflow: "Airflow({})",
}


def documented(noun: type) -> dict[str, re.Match[str]]:
    """Return the fields in the section of a class, by name."""
    parts = SECTION.split(PAGE)
    texts = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {found["name"]: found for found in FIELD.finditer(texts[noun.__name__])}


def fields(noun: type) -> dict[str, Any]:
    return {one.name: one for one in dataclasses.fields(noun) if (noun, one.name) != (Pipeline, "file")}


def as_said(noun: type, field: Any) -> str:
    if field.name == "format":
        return FORMAT_OF[noun]
    said = field.type
    for code, page in SAID.items():
        said = re.sub(rf"\b{re.escape(code)}" + r"\b" * code.isalpha(), page, said)
    return said


@pytest.mark.parametrize("noun", CLASSES)
def test_each_field_is_there_with_its_type_and_default(noun: type) -> None:
    found = documented(noun)
    assert sorted(found) == sorted(fields(noun))
    for name, field in fields(noun).items():
        assert found[name]["type"] == as_said(noun, field), name
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        said = found[name]["default"]
        assert (MISSING if said is None else eval(said, dict(WITHIN))) == default, name  # noqa: S307


def test_each_class_that_users_import_has_a_section() -> None:
    declared = {name for name in pipeline.__all__ if dataclasses.is_dataclass(getattr(pipeline, name))}
    assert declared == {one.__name__ for one in CLASSES}


@pytest.mark.parametrize("noun", CLASSES)
def test_each_example_is_of_its_field_and_right(noun: type) -> None:
    for name, found in documented(noun).items():
        example = found["example"]
        is_call = re.match(r"\w+\(", example)
        assert is_call or re.search(rf"\b{name}=", example), example
        code = example if is_call else NEEDED[noun].format(example)
        declared = eval(code, WITHIN | {"ORDERS": ORDERS})  # noqa: S307
        assert problems(within_a_pipeline(declared)) == [], example


def within_a_pipeline(declared: Any) -> Pipeline:
    """Declare a pipeline with what is declared in it."""
    given: dict[str, Any] = {}
    if isinstance(declared, Pipeline):
        of_streams = tuple(Files(f"{name}/*.json", stream=name) for name in declared.streams)
        return dataclasses.replace(declared, sources=(*declared.sources, *of_streams))
    if isinstance(declared, Files | Kafka | Rate | Socket):
        mine = (
            ()
            if declared.stream is None
            else (dataclasses.replace(declared, stream=None, **other(declared)),)
        )
        given["sources"] = (*mine, declared)
        given["streams"] = {} if declared.stream is None else {declared.stream: Stream(schema="x string")}
        if isinstance(declared, Files) and declared.open_for is not None:
            given["interval"] = "dt={interval:%Y-%m-%d}"
        if isinstance(declared, Rate):
            given["schema"] = "timestamp timestamp, value bigint"
    if isinstance(declared, Stream):
        given["sources"] = (Files("orders/*.json"), Files("other/*.json", stream="other"))
        given["streams"] = {"other": declared}
    if isinstance(declared, Lookup):
        given["lookups"] = {"shops": declared}
    if isinstance(declared, Model):
        given["models"] = {"anomaly": declared}
    if isinstance(declared, Append | Upsert | Replace):
        given["sink"] = declared
    if isinstance(declared, Partition):
        given["sink"] = Append(partition_by=declared)
    if isinstance(declared, Airflow):
        given["airflow"] = declared
        given["schedule"] = "@daily"
    return Pipeline(**ORDERS | given)


def other(source: Any) -> dict[str, Any]:
    return {"pattern": "other/*.csv"} if isinstance(source, Files) else {"topics": ("other",)}
