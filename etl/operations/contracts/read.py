"""Reads a contract of ODCS 3 as what a pipeline is declared with, and names all of it that none is declared with."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etl.common.errors import SetupError
from etl.operations.contracts.column_types import SPARK_TYPE, ContractColumn, column_of
from etl.operations.contracts.constraints import rules_of_column, untaken
from etl.operations.contracts.document import read_document
from etl.operations.contracts.quality_rules import read_quality
from etl.operations.contracts.write import PRESETS, SINK, UNITS
from etl.pipeline.airflow_checks import schedule_problems

# What of each part is read, or says nothing that a pipeline lacks.
_OF_CONTRACT = frozenset(
    {
        *(
            "apiVersion",
            "kind",
            "id",
            "name",
            "version",
            "status",
            "contractCreatedTs",
            "description",
            "tags",
        ),
        *("team", "schema", "slaProperties", "servers"),
    }
)
_OF_TABLE = frozenset(
    {
        *("id", "name", "physicalName", "physicalType", "logicalType", "properties", "quality"),
        "customProperties",
    }
)
_OF_COLUMN = frozenset(
    {
        *(
            "id",
            "name",
            "physicalName",
            "physicalType",
            "logicalType",
            "logicalTypeOptions",
            "properties",
            "items",
        ),
        *("description", "required", "unique", "primaryKey", "primaryKeyPosition", "partitioned"),
        *("partitionKeyPosition", "quality", "customProperties"),
    }
)
_SECONDS = {
    **UNITS,
    **dict.fromkeys(("day", "days"), 86_400),
    **dict.fromkeys(("hr", "hour", "hours"), 3600),
    **dict.fromkeys(("m", "minute", "minutes"), 60),
    **dict.fromkeys(("sec", "second", "seconds"), 1),
}
FORMATS = {"json": "jsonl", "csv": "csv", "parquet": "parquet"}  # of a server's files, with their suffix


@dataclass(frozen=True, kw_only=True)
class Promised:
    """What a contract says of one table, as a pipeline is declared."""

    file: Path
    table: str
    version: str
    purpose: str
    columns: Sequence[ContractColumn]
    rules: Sequence[dict[str, Any]]  # expectations
    suffix: str  # of the files that land
    owner: str | None
    tags: Sequence[str]
    schedule: str | None
    deadline: dt.timedelta | None
    keys: Sequence[str]
    mode: str  # "append", "upsert" or "replace"
    newest: str | None
    partition: tuple[str, str] | None  # its kind and its column
    left_out: Sequence[str]  # a sentence for each thing that is not kept, or not as it was said


def read_contract(file: Path, table: str | None = None) -> Promised:
    """Read a contract; `table` says which of several. Raises SetupError where it is none, or has no such table."""
    content = read_document(file)
    described = _table(content, table, file)
    left: list[str] = [*_unread(content, _OF_CONTRACT, "the contract")]
    left += _unread(described, _OF_TABLE, f"the table {described['name']}")
    columns = [column_of(one) for one in described["properties"]]
    sink = next((value for name, value in _custom(described) if name == SINK), None)
    keys = _keys(described)
    mode, newest = _mode(sink, keys, left)
    held = keys if mode == "upsert" else ()  # no row without a key comes into such a table, by any suite
    rules = _rules(described, columns, left, whole=mode == "replace", held=held)
    description = content.get("description")
    return Promised(
        file=file,
        table=str(described["name"]),
        version=str(content.get("version") or "none"),
        purpose=_purpose(description, left),
        columns=columns,
        rules=_named_apart(rules),
        suffix=_suffix(content),
        owner=_owner(content.get("team"), left),
        tags=[str(tag) for tag in content.get("tags") or ()],
        schedule=_schedule(content, left),
        deadline=_deadline(content, left),
        keys=keys,
        mode=mode,
        newest=newest,
        partition=_partition(described, sink, left),
        left_out=left,
    )


def _table(content: Mapping[str, Any], wanted: str | None, file: Path) -> Mapping[str, Any]:
    tables = [one for one in content.get("schema") or () if isinstance(one, Mapping) and one.get("name")]
    names = ", ".join(str(one["name"]) for one in tables)
    if wanted is None and len(tables) > 1:
        raise SetupError(f"{file} has several tables: {names}", remedy="name one by --table")
    found = next((one for one in tables if wanted in (None, one["name"])), None)
    if found is None:
        raise SetupError(
            f"{file} has no table {wanted}: it has {names}"
            if tables
            else f"{file} has no schema with a table",
            remedy="name one by --table" if tables else "take a contract that describes one",
        )
    named = [one for one in found.get("properties") or () if isinstance(one, Mapping) and one.get("name")]
    if not named or len(named) < len(found["properties"]):
        raise SetupError(
            f"{file}: the table {found['name']} has no columns, or one without a name",
            remedy="take a contract that names them",
        )
    called = Counter(column_of(one).name.casefold() for one in named)
    if doubled := [name for name, times in called.items() if times > 1]:
        raise SetupError(
            f"{file}: the table {found['name']} has {', '.join(map(repr, doubled))} more than once",
            remedy="take a contract that has each column once",
        )
    return found


def _unread(part: Mapping[str, Any], known: frozenset[str], what: str) -> Iterator[str]:
    """Yield a sentence of the keys that no part of a pipeline is."""
    unknown = sorted(
        name for name, value in part.items() if name not in known and value not in (None, [], {})
    )
    if unknown:
        yield f"{what} has {', '.join(unknown)}, which a pipeline does not declare"
    if others := [name for name, _ in _custom(part) if name not in (SINK, SPARK_TYPE)]:
        yield f"{what} has custom properties {', '.join(others)}, which a pipeline does not declare"


def _custom(part: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(str(one.get("property")), one.get("value")) for one in part.get("customProperties") or ()]


def _rules(
    described: Mapping[str, Any],
    columns: Sequence[ContractColumn],
    left: list[str],
    *,
    whole: bool,
    held: Sequence[str],
) -> list[dict[str, Any]]:
    """Return the table's expectations: those of each column's quality rules, then of its constraints; then the table's."""
    rules: list[dict[str, Any]] = []
    for one, column in zip(described["properties"], columns, strict=True):
        read = [read_quality(rule, column.name, whole=whole) for rule in one.get("quality") or ()]
        ruled = [entry for found in read for entry in found.expectations]
        rules += [*ruled, *rules_of_column(one, column.name, ruled, held=column.name in held)]
        left += [note for found in read for note in found.notes]
        left += _unread(one, _OF_COLUMN, f"the column {column.name}")
        left += [f"the column {column.name}: its option {name} is no rule here" for name in untaken(one)]
        if inner := sorted(_ruled_members(one)):
            left.append(
                f"the column {column.name}: no rule is of its members {', '.join(inner)}, which the contract has"
            )
        if one.get("unique"):
            left.append(
                f"the column {column.name}: that it is unique is seen within a batch, not over the table"
            )
    for rule in described.get("quality") or ():
        found = read_quality(rule, None, whole=whole)
        rules += found.expectations
        left += found.notes
    return rules


def _ruled_members(described: Mapping[str, Any]) -> Iterator[str]:
    """Yield the members of a column, at any depth, of which the contract says more than a type."""
    items = described.get("items")
    for one in (*(described.get("properties") or ()), *([{"name": "[]", **items}] if items else [])):
        if any(one.get(name) for name in ("quality", "required", "unique")) or untaken(one):
            yield str(one.get("name"))
        yield from (f"{one.get('name')}.{name}" for name in _ruled_members(one))


def _named_apart(rules: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give rules of one name a number each: a suite takes each name once."""
    counted = Counter(one["meta"].get("name") for one in rules)
    seen: Counter[str] = Counter()
    named = []
    for one in rules:
        name = one["meta"].get("name")
        if name is not None and counted[name] > 1:
            seen[name] += 1
            one = {**one, "meta": {**one["meta"], "name": f"{name} [{seen[name]}]"}}
        named.append(one)
    return named


def _keys(described: Mapping[str, Any]) -> list[str]:
    keyed = [one for one in described["properties"] if one.get("primaryKey")]
    keyed.sort(key=lambda one: one.get("primaryKeyPosition") or 0)
    return [column_of(one).name for one in keyed]


def _mode(sink: Any, keys: Sequence[str], left: list[str]) -> tuple[str, str | None]:
    """Return how batches come into the table: as the contract says, where a pipeline wrote it."""
    mode = sink.get("mode") if isinstance(sink, Mapping) else None
    newest = sink.get("newest") if isinstance(sink, Mapping) else None
    if mode == "upsert" and keys and isinstance(newest, str):
        return mode, newest
    if keys:
        left.append(
            f"the primary key {', '.join(keys)} is not kept over batches: for one row a key, write"
            f" Upsert(keys=({''.join(f'{key!r}, ' for key in keys).rstrip()}), newest=COLUMN) as the sink"
        )
    return ("replace" if mode == "replace" else "append"), None


def _partition(described: Mapping[str, Any], sink: Any, left: list[str]) -> tuple[str, str] | None:
    columns = [column_of(one).name for one in described["properties"] if one.get("partitioned")]
    kind = sink.get("partition", "identity") if isinstance(sink, Mapping) else "identity"
    if len(columns) > 1 or (columns and kind not in ("identity", "hour", "day", "month")):
        left.append(
            f"the table is partitioned by {', '.join(columns)}, and a sink is by one column: name one there"
        )
        return None
    return (kind, columns[0]) if columns else None


def _purpose(description: Any, left: list[str]) -> str:
    if isinstance(description, str):
        return description.strip()
    parts = dict(description or {})
    purpose = str(parts.pop("purpose", None) or "").strip()
    left += [f"its description says of {name}: {text}" for name, text in parts.items() if text]
    return purpose


def _owner(team: Any, left: list[str]) -> str | None:
    """Return who is asked about the table: who has the role of an owner, else the team, else who is named first."""
    members = team.get("members") if isinstance(team, Mapping) else team
    members = [one for one in members or () if isinstance(one, Mapping) and one.get("username")]
    owners = [
        one for one in members if "owner" in str(one.get("role") or "").lower() and not one.get("dateOut")
    ]
    name = team.get("name") if isinstance(team, Mapping) else None
    chosen = owners[0]["username"] if owners else name or (members[0]["username"] if members else None)
    if others := [str(one["username"]) for one in members if one["username"] != chosen]:
        left.append(f"its team has {', '.join(others)} beside the owner, and a pipeline has one owner")
    return None if chosen is None else str(chosen)


def _suffix(content: Mapping[str, Any]) -> str:
    formats = (str(one.get("format") or "").lower() for one in content.get("servers") or ())
    return next((FORMATS[one] for one in formats if one in FORMATS), "jsonl")


def _promises(content: Mapping[str, Any], *names: str) -> list[Mapping[str, Any]]:
    found = content.get("slaProperties") or ()
    return [one for one in found if str(one.get("property") or "").lower() in names]


def _schedule(content: Mapping[str, Any], left: list[str]) -> str | None:
    for one in _promises(content, "frequency", "fy"):
        written = str(one.get("schedule") or "")
        if written and not schedule_problems(written):
            return written
        given = (one.get("value"), one.get("unit"))
        if found := next((name for name, said in PRESETS.items() if said == given), None):
            return found
        left.append(
            f"its frequency {one.get('value')} {one.get('unit') or ''}".rstrip() + " is no schedule here"
        )
    return None


def _deadline(content: Mapping[str, Any], left: list[str]) -> dt.timedelta | None:
    deadline = None
    for one in _promises(content, "latency", "ly"):
        value, unit = one.get("value"), _SECONDS.get(str(one.get("unit") or "").lower())
        if deadline is None and isinstance(value, int | float) and value > 0 and unit is not None:
            deadline = dt.timedelta(seconds=value * unit)
        else:
            left.append(f"{_said(one)} is no deadline here")
    read = {id(one) for one in _promises(content, "frequency", "fy", "latency", "ly")}
    others = [one for one in content.get("slaProperties") or () if id(one) not in read]
    left += [f"{_said(one)} is nothing that a pipeline declares" for one in others]
    return deadline


def _said(promise: Mapping[str, Any]) -> str:
    unit = f" {promise['unit']}" if promise.get("unit") else ""
    return f"its {promise.get('property')} of {promise.get('value')}{unit}"
