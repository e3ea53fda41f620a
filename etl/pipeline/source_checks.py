"""Checks what a declaration says of its sources, and names every mistake by its field."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping
from typing import Any

from etl.common.record_columns import RESERVED
from etl.pipeline.csv_options import CSV_OPTIONS, PATTERNS, REMEDIES, option_problems
from etl.pipeline.ddl import ddl_columns
from etl.pipeline.declaration import RATE, DeclaredSource, Kafka, Rate, Socket
from etl.pipeline.intervals import is_template
from etl.pipeline.patterns import FORMATS, pattern_problems

_LINES = frozenset({"lineSep"})
_NONE = frozenset[str]()
OPTIONS = {"csv": CSV_OPTIONS, "json": _LINES, "json-array": _NONE, "text": _LINES, "parquet": _NONE}
# The same, of what comes in records of its own, by format.
RECORD_OPTIONS = {"json": _NONE, "csv": CSV_OPTIONS - {"encoding", "lineSep", "multiLine"}, "text": _NONE}
_ONLY_CSV = {
    "encoding": "all but csv is read as UTF-8: convert the files before they land",
    **dict.fromkeys(
        ("decimal", "thousands", "locale", *PATTERNS),
        "only csv has it; values are read as docs/reading.md says: declare string, and convert it in the transform",
    ),
}
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}")
_TOPIC = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]{1,249}")
_LONGEST_OPEN = dt.timedelta(days=36_500)


def source_problems(pipeline: Any) -> list[str]:
    sources = pipeline.sources
    if not are_sources(sources):
        return [
            "sources: must be a tuple of at least one Files(…) or Kafka(…), or of one Rate(…) or Socket(…)"
        ]
    if len({type(one) for one in sources}) > 1:
        return ["sources: must be all Files(…) or all Kafka(…); declare a pipeline for each kind"]
    if read_topics(sources):
        return _topics_problems(pipeline)
    if isinstance(sources[0], Rate | Socket):
        return _live_problems(pipeline)
    found: list[str] = []
    for number, source in enumerate(sources):
        where = f"sources[{number}]"
        found += files_problems(where, source)
        for name in ("max_files", "max_bytes"):
            found += _limit_problems(f"{where}.{name}", getattr(source, name))
        if source.max_files is not None and source.max_bytes is not None:
            found.append(f"{where}: max_files and max_bytes are both set; Spark takes one of the two")
        found += _open_problems(f"{where}.open_for", source.open_for, pipeline.interval)
        if any(source.pattern == other.pattern for other in sources[:number]):
            found.append(f"{where}: {source.pattern!r} is there twice: each file would be read twice")
    return found + _path_problems(pipeline)


def _path_problems(pipeline: Any) -> list[str]:
    """Name what is wrong with the columns that take the paths of files."""
    schemas = {None: pipeline.schema}
    if isinstance(pipeline.streams, Mapping):
        schemas |= {name: getattr(stream, "schema", None) for name, stream in pipeline.streams.items()}
    found: list[str] = []
    first: dict[object, object] = {}  # path of each stream
    for number, source in enumerate(pipeline.sources):
        where, path, schema = f"sources[{number}].path", source.path, schemas.get(source.stream)
        columns = ddl_columns(schema) if isinstance(schema, str) else ()
        found += _path_column_problems(where, path, columns)
        if path != (before := first.setdefault(source.stream, path)):
            found.append(
                f"{where}: {path!r}, and {before!r} of another source of its stream; give all the same"
            )
    return found


def _path_column_problems(where: str, path: object, columns: Iterable[str]) -> list[str]:
    if path is None:
        return []
    if not isinstance(path, str) or not path:
        return [f"{where}: {path!r} must be the name of a column"]
    if path.lower() in RESERVED:
        return [f"{where}: {path!r} is called like a column of Sluice's own; take another name"]
    if path.lower() in {column.lower() for column in columns}:
        return [f"{where}: {path!r} is a column of the schema; take another name"]
    return []


def are_sources(sources: object) -> bool:
    return (
        isinstance(sources, tuple) and bool(sources) and all(isinstance(s, DeclaredSource) for s in sources)
    )


def _limit_problems(where: str, limit: object) -> list[str]:
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1):
        return []
    return [f"{where}: {limit!r} must be a whole number from 1 upwards"]


def _open_problems(where: str, open_for: object, interval: object) -> list[str]:
    if open_for is None:
        return []
    if not isinstance(open_for, dt.timedelta) or not dt.timedelta() <= open_for <= _LONGEST_OPEN:
        return [f"{where}: {open_for!r} must be a datetime.timedelta from 0 to 36,500 days, or None"]
    if not isinstance(interval, str) or not is_template(interval):
        seen = f"{where}: folders are closed by the interval in their names, and interval={interval!r} names none"
        return [f"{seen}; declare one such as 'dt={{interval:%Y-%m-%d}}'"]
    return []


def read_topics(sources: Any) -> bool:
    """Tell whether a pipeline's sources are topics of Kafka, whatever else is wrong with them."""
    return are_sources(sources) and isinstance(sources[0], Kafka)


def _topics_problems(pipeline: Any) -> list[str]:
    found: list[str] = []
    seen: set[object] = set()
    for number, source in enumerate(pipeline.sources):
        where = f"sources[{number}]"
        if not isinstance(source.topics, tuple) or not source.topics:
            found.append(f"{where}: {source.topics!r} must be a tuple of topics, such as ('orders',)")
            continue
        found += [
            f"{where}: {one!r} is no name of a topic" for one in source.topics if not matches(_TOPIC, one)
        ]
        again = {one for one in source.topics if one in seen} | doubled(source.topics)
        found += [
            f"{where}: topic {one!r} is there twice: each record would be read twice" for one in sorted(again)
        ]
        seen.update(source.topics)
        if source.format not in ("json", "text"):
            found.append(f"{where}.format: {source.format!r} must be one of json, text")
        found += _limit_problems(f"{where}.max_offsets", source.max_offsets)
        found += _option_problems(where, source.options, RECORD_OPTIONS.get(source.format, _NONE))
    if isinstance(pipeline.interval, str) and is_template(pipeline.interval):
        found.append(f"interval: {pipeline.interval!r} is part of a path; records of Kafka have none")
    return found


def _live_problems(pipeline: Any) -> list[str]:
    """Name what is wrong with a pipeline of a source that can't be read again, by field.

    Such a source has neither an end nor a past.
    """
    found: list[str] = []
    source = pipeline.sources[0]
    kind = type(source).__name__
    if len(pipeline.sources) > 1:
        found.append(f"sources: a pipeline takes one {kind}(…); declare a pipeline for each")
    found += _rate_problems(pipeline) if isinstance(source, Rate) else _socket_problems(source)
    for name, why in {
        "streams": "its records are of the pipeline's own schema",
        "late": "no batch of it begins with a watermark",
        "interval": "what was read can't be read again",
        "start": "what was read can't be read again",
        "schedule": "a run of it has no end; take `follow`",
    }.items():
        if getattr(pipeline, name):
            found.append(f"{name}: a pipeline of {kind}(…) has none, for {why}")
    return found


def _rate_problems(pipeline: Any) -> list[str]:
    found = _limit_problems("sources[0].rows_per_second", pipeline.sources[0].rows_per_second)
    if not isinstance(pipeline.schema, str) or ", ".join(_columns(pipeline.schema)) != RATE:
        found.append(f"schema: {pipeline.schema!r} must be {RATE!r}, which is what Rate(…) makes")
    return found


def _columns(schema: str) -> list[str]:
    return [" ".join(column.lower().split()) for column in schema.split(",")]


def _socket_problems(source: Any) -> list[str]:
    found: list[str] = []
    if not matches(_HOST, source.host):
        found.append(f"sources[0].host: {source.host!r} must be a name or an address, such as 'localhost'")
    if isinstance(source.port, bool) or not isinstance(source.port, int) or not 1 <= source.port <= 65535:
        found.append(f"sources[0].port: {source.port!r} must be a whole number from 1 to 65535")
    if source.format not in RECORD_OPTIONS:
        return [*found, f"sources[0].format: {source.format!r} must be one of {', '.join(RECORD_OPTIONS)}"]
    return found + _option_problems("sources[0]", source.options, RECORD_OPTIONS[source.format])


def files_problems(where: str, files: Any) -> list[str]:
    found = [f"{where}: {wrong}" for wrong in pattern_problems(files.pattern)]
    if files.format is not None and files.format not in FORMATS:
        found.append(f"{where}.format: {files.format!r} must be one of {', '.join(FORMATS)}")
    elif not found and not files.kind:
        found.append(f"{where}.format: {files.pattern!r} does not tell it; give one of {', '.join(FORMATS)}")
    if not isinstance(files.header, bool):
        found.append(f"{where}.header: {files.header!r} must be True or False")
    return found + _option_problems(where, files.options, OPTIONS.get(files.kind, CSV_OPTIONS))


def _option_problems(where: str, options: Any, allowed: frozenset[str]) -> list[str]:
    if not isinstance(options, Mapping):
        return [f"{where}.options: must be a mapping of reader option to text"]
    told = (
        REMEDIES
        if allowed == CSV_OPTIONS
        else {"encoding": _ONLY_CSV["encoding"]}
        if "sep" in allowed
        else _ONLY_CSV
    )
    refused = sorted(str(name) for name in options if name not in allowed)
    found = [f"{name}: {told[name]}" for name in refused if name in told]
    if unknown := [name for name in refused if name not in told]:
        among = f"not among {', '.join(sorted(allowed))}" if allowed else "where the format takes none"
        found.append(f"{', '.join(unknown)} {among}")
    no_text = [
        f"{name} is {value!r}, which must be text"
        for name, value in options.items()
        if not isinstance(value, str)
    ]
    if allowed <= _LINES or refused or no_text:
        return [f"{where}.options: {wrong}" for wrong in found + no_text]
    return [f"{where}.options: {wrong}" for wrong in option_problems(options)]


def matches(pattern: re.Pattern[str], text: object) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text) is not None


def doubled(names: tuple[object, ...]) -> set[str]:
    return {str(name) for name in names if names.count(name) > 1}
