"""Checks a declaration without pyspark, and names every mistake by its field."""

from __future__ import annotations

import datetime as dt
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from inspect import Parameter
from typing import Any, get_args

from etl.common.record_columns import RESERVED, is_own
from etl.pipeline.airflow_checks import airflow_problems
from etl.pipeline.dag_names import REPLAYS, pipeline_of
from etl.pipeline.ddl import ddl_columns
from etl.pipeline.declaration import (
    RECORD,
    Append,
    Lookup,
    Model,
    OutputMode,
    Partition,
    Replace,
    Stream,
    Unknown,
    Unreadable,
    Upsert,
)
from etl.pipeline.intervals import PathTemplate, is_template
from etl.pipeline.source_checks import (
    are_sources,
    doubled,
    files_problems,
    matches,
    read_topics,
    source_problems,
)
from etl.pipeline.threshold_checks import threshold_problems

_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")
_SUITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_RESERVED_SCHEMAS = frozenset({"sluice", "sluice_stage", "information_schema"})
# Made of no declaration.
SHIPPED_DAGS = frozenset({"flights_by_day", "flights_delays", "sluice_alerts", "sluice_maintenance"})


def problems(pipeline: Any) -> list[str]:
    """Name all that is wrong with a declaration, each as `field: what, and what is wanted`.

    It is a user's: what its fields are said to be is checked, not believed.
    """
    found = name_problems(pipeline.name)
    found += source_problems(pipeline)
    found += [f"schema: {wrong}" for wrong in ddl_problems(pipeline.schema, _taken(pipeline))]
    found += _stream_problems(pipeline)
    found += _lookup_problems(pipeline)
    found += _model_problems(pipeline)
    found += _transform_problems(pipeline)
    found += _sink_problems(pipeline.sink)
    if pipeline.suite is not None and not matches(_SUITE, pipeline.suite):
        found.append(f"suite: {pipeline.suite!r} must be the name of a suite's file, without .json")
    found += airflow_problems(pipeline)
    if pipeline.interval is not None:
        found += _interval_problems(pipeline.interval)
    if pipeline.output_mode not in (None, *get_args(OutputMode)):
        found.append(
            f"output_mode: {pipeline.output_mode!r} must be one of {', '.join(get_args(OutputMode))}"
        )
    if pipeline.unknown not in get_args(Unknown):
        found.append(f"unknown: {pipeline.unknown!r} must be one of {', '.join(get_args(Unknown))}")
    if pipeline.unreadable not in get_args(Unreadable):
        found.append(f"unreadable: {pipeline.unreadable!r} must be one of {', '.join(get_args(Unreadable))}")
    if pipeline.late is not None:
        found += _input_column_problems("late", pipeline.late)
    found += _bound_problems("not_after", pipeline.not_after)
    if isinstance(pipeline.metrics, tuple):
        found += [wrong for column in pipeline.metrics for wrong in _column_problems("metrics", column)]
        found += [f"metrics: {one!r} is there twice" for one in sorted(doubled(pipeline.metrics))]
    else:
        found.append(f"metrics: {pipeline.metrics!r} must be a tuple of names of columns")
    if pipeline.start is not None and not isinstance(pipeline.start, dt.date):
        found.append(f"start: {pipeline.start!r} must be a datetime.date or datetime.datetime")
    return found + _share_problems(pipeline) + threshold_problems(pipeline)


def name_problems(name: Any) -> list[str]:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return [f"name: {name!r} must match {_NAME.pattern} (it names tables and folders)"]
    if name in SHIPPED_DAGS:
        return [f"name: {name!r} is a DAG that Sluice ships, and a pipeline's has its name; take another"]
    if name.endswith(REPLAYS):
        return [
            f"name: {name!r} ends as the DAG for the replays of a pipeline {pipeline_of(name)!r} would; take another"
        ]
    return []


def _share_problems(pipeline: Any) -> list[str]:
    found: list[str] = []
    for name in ("max_quarantine_share", "max_fewer_share", "alert_quarantine_share"):
        share = getattr(pipeline, name)
        optional = name == "alert_quarantine_share" and share is None
        if not optional and (
            isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1
        ):
            found.append(f"{name}: {share!r} must be a number from 0 to 1")
    return found


def _taken(pipeline: Any) -> frozenset[str]:
    """Return the names of columns that each record has beside those of its schema."""
    return RESERVED.union(ddl_columns(RECORD)) if read_topics(pipeline.sources) else RESERVED


def ddl_problems(schema: object, taken: Collection[str] = RESERVED) -> list[str]:
    """Name what is wrong with a DDL schema's column names; its types are checked when a run starts."""
    if not isinstance(schema, str) or not schema.strip():
        return [f"{schema!r} must be Spark DDL, such as 'id bigint, at timestamp'"]
    names = ddl_columns(schema)
    found = [
        f"column {name!r} is called like one that is added to each record, so it needs another name in the input"
        for name in names
        if name.lower() in taken
    ]
    lower = [name.lower() for name in names]
    found += [f"column {name!r} is there twice" for name in sorted({n for n in lower if lower.count(n) > 1})]
    return found


def _stream_problems(pipeline: Any) -> list[str]:
    streams, sources = pipeline.streams, pipeline.sources
    if not isinstance(streams, Mapping):
        return ["streams: must be a mapping of name to Stream(…)"]
    found: list[str] = []
    for name, stream in streams.items():
        where = f"streams[{name!r}]"
        found += _argument_problems(where, name)
        if isinstance(pipeline.lookups, Mapping) and name in pipeline.lookups:
            found.append(f"{where}: a lookup is called so too")
        if not isinstance(stream, Stream):
            found.append(f"{where}: must be a Stream(…)")
            continue
        found += [f"{where}.schema: {one}" for one in ddl_problems(stream.schema, _taken(pipeline))]
        if stream.late is not None:
            found += _input_column_problems(f"{where}.late", stream.late)
        found += _bound_problems(f"{where}.not_after", stream.not_after)
    if are_sources(sources):
        named = [one.stream for one in sources]
        found += [
            f"sources[{number}].stream: {name!r} is none of streams"
            for number, name in enumerate(named)
            if name is not None and name not in streams
        ]
        found += [f"streams[{name!r}]: no source is of it" for name in streams if name not in named]
        if None not in named:
            found.append(
                "sources: none is of the pipeline's own schema; leave `stream` out for those that are"
            )
    return found


def _argument_problems(where: str, name: object) -> list[str]:
    if isinstance(name, str) and name.isidentifier():
        return []
    return [f"{where}: the name must be a Python name: the transform takes it as an argument"]


def _lookup_problems(pipeline: Any) -> list[str]:
    if not isinstance(pipeline.lookups, Mapping):
        return ["lookups: must be a mapping of name to Lookup(…)"]
    found: list[str] = []
    for name, lookup in pipeline.lookups.items():
        where = f"lookups[{name!r}]"
        found += _argument_problems(where, name)
        if not isinstance(lookup, Lookup):
            found.append(f"{where}: must be a Lookup(…)")
            continue
        found += files_problems(where, lookup)
        wrong = ddl_problems(lookup.schema)
        found += [f"{where}.schema: {one}" for one in wrong]
        found += _columns_problems(f"{where}.key", lookup.key)
        if not wrong and isinstance(lookup.key, tuple):
            absent = [key for key in lookup.key if key not in ddl_columns(lookup.schema)]
            found += [f"{where}.key: {key!r} is not a column of its schema" for key in absent]
    return found


def _model_problems(pipeline: Any) -> list[str]:
    if not isinstance(pipeline.models, Mapping):
        return ["models: must be a mapping of name to Model(…)"]
    found: list[str] = []
    for name, model in pipeline.models.items():
        where = f"models[{name!r}]"
        found += _argument_problems(where, name)
        for others, noun in ((pipeline.lookups, "lookup"), (pipeline.streams, "stream")):
            if isinstance(others, Mapping) and name in others:
                found.append(f"{where}: a {noun} is called so too")
        if not isinstance(model, Model):
            found.append(f"{where}: must be a Model(…)")
            continue
        if not matches(_NAME, model.trained_on):
            found.append(f"{where}.trained_on: {model.trained_on!r} must be the name of a pipeline")
        found += _columns_problems(f"{where}.features", model.features)
        if model.label is not None:
            found += _column_problems(f"{where}.label", model.label)
        if not isinstance(model.flagged, float) or not 0 < model.flagged <= 0.5:
            found.append(f"{where}.flagged: {model.flagged!r} must be a share above 0, of at most 0.5")
        for count, least, most in (("rows", 100, 10_000_000), ("trees", 1, 1000), ("seed", 0, 2**32 - 1)):
            number = getattr(model, count)
            if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
                found.append(f"{where}.{count}: {number!r} must be a whole number from {least} to {most}")
    return found


def _transform_problems(pipeline: Any) -> list[str]:
    if not callable(pipeline.transform):
        return [f"transform: {pipeline.transform!r} must be a function of a DataFrame"]
    try:
        parameters = list(inspect.signature(pipeline.transform).parameters.values())
    except (TypeError, ValueError):  # as of some of Python's own
        return [
            f"transform: {pipeline.transform!r} does not tell its arguments; declare a function of your own"
        ]
    takes_one = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in takes_one:
        return ["transform: its first argument must take the DataFrame"]
    others = parameters[1:]
    given = (pipeline.streams, pipeline.lookups, pipeline.models)
    if not all(isinstance(one, Mapping) for one in given) or any(
        p.kind is Parameter.VAR_KEYWORD for p in others
    ):
        return []
    wanted = {p.name for p in others if p.default is p.empty and p.kind is not Parameter.VAR_POSITIONAL}
    names = {name for one in given for name in one}
    found = [
        f"transform: its argument {name!r} is no lookup, no stream and no model"
        for name in sorted(wanted - names)
    ]
    unused = sorted(map(str, names - {p.name for p in others}))
    return found + [
        f"transform: takes no argument {name!r}, which is a lookup, a stream or a model" for name in unused
    ]


def _key_problems(sink: Upsert) -> list[str]:
    return [*_columns_problems("sink.keys", sink.keys), *_column_problems("sink.newest", sink.newest)]


# Every sink, and what tells the problems of the fields that it alone has.
_SINKS: Mapping[type, Callable[[Any], list[str]]] = {
    Append: lambda _: [],
    Upsert: _key_problems,
    Replace: lambda _: [],
}


def _sink_problems(sink: Any) -> list[str]:
    own_problems = _SINKS.get(type(sink))
    if own_problems is None:
        return [f"sink: {sink!r} must be Append(…), Upsert(…) or Replace(…)"]
    found = own_problems(sink)
    by: Any = sink.partition_by
    if isinstance(by, Partition):
        found += _column_problems("sink.partition_by", by.column)
    elif by is not None:
        found.append(f"sink.partition_by: {by!r} must be identity, hour, day or month(…)")
    if sink.table is not None:
        found += table_problems(sink.table)
    return found


def table_problems(table: object) -> list[str]:
    """Tell why this is no name for users' tables; empty when it is one."""
    parts = table.split(".") if isinstance(table, str) else []
    if len(parts) != 2 or not all(_NAME.fullmatch(part) for part in parts):
        return [f"sink.table: {table!r} must be schema.table, both like {_NAME.pattern}"]
    if parts[0] in _RESERVED_SCHEMAS or parts[0].startswith("pg_"):
        return [f"sink.table: schema {parts[0]!r} is not for users' tables"]
    return []


def _columns_problems(where: str, columns: object) -> list[str]:
    if not isinstance(columns, tuple) or not columns:
        return [f"{where}: {columns!r} must be a tuple of at least one column, such as ('id',)"]
    found = [wrong for column in columns for wrong in _column_problems(where, column)]
    if not found and len(set(columns)) != len(columns):
        found.append(f"{where}: {columns!r} names a column twice")
    return found


def _interval_problems(interval: object) -> list[str]:
    if not isinstance(interval, str) or not is_template(interval):
        return _column_problems("interval", interval)
    try:
        PathTemplate(text=interval)
    except ValueError as wrong:
        return [f"interval: {wrong}"]
    return []


def _column_problems(where: str, column: object) -> list[str]:
    """Name what is wrong with the name of a column that the transform puts out."""
    if isinstance(column, str) and is_own(column):
        return [f"{where}: {column!r} starts with an underscore, which is kept for Sluice's own columns"]
    return _input_column_problems(where, column)


def _input_column_problems(where: str, column: object) -> list[str]:
    if not isinstance(column, str) or not column:
        return [f"{where}: {column!r} must be the name of a column"]
    return []


def _bound_problems(where: str, bounds: object) -> list[str]:
    if not isinstance(bounds, Mapping):
        return [f"{where}: must be a mapping of a column to datetime.timedelta(…), or to another column"]
    found: list[str] = []
    for column, bound in bounds.items():
        found += _input_column_problems(where, column)
        if isinstance(bound, dt.timedelta) and bound >= dt.timedelta():
            continue
        if not isinstance(bound, str) or not bound or bound == column:
            found.append(
                f"{where}[{column!r}]: {bound!r} must be a datetime.timedelta of 0 or more, or the name of another column"
            )
    return found
