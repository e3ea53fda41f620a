"""`sluice new --contract`: drafts a pipeline and its suite from a contract of ODCS."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etl.common.settings import Settings
from etl.common.wording import first_few, visible
from etl.operations.contracts.column_types import ContractColumn
from etl.operations.contracts.read import Promised, read_contract
from etl.operations.suites.drafts import Declaration, DraftPaths, drafted_suite

NOT_KEPT = "What of it is not kept, or not as it says:"


@dataclass(frozen=True, kw_only=True)
class ContractDrafts:
    """A pipeline and a suite that were drafted from a contract."""

    promised: Promised
    pipeline: Path
    suite: Path
    rules: int
    left_out: Sequence[
        str
    ]  # a sentence for each thing of the contract that is not kept, or not as it was said

    def notes(self) -> Iterator[str]:
        """Yield what a person is to look at, a sentence each."""
        yield "the contract does not say where files land: name the source"
        for column in self.promised.columns:
            if column.doubt:
                yield f"{column.name} {column.type}: {column.doubt}"
        yield from self.left_out


def draft(name: str, file: Path, settings: Settings, *, table: str | None = None) -> ContractDrafts:
    """Write `name.py` and `name.json` into the first folders of the project, drafted from a contract.

    Raises SetupError, and writes nothing, where one is there, the name will not do, or the contract can't be read.
    """
    paths = DraftPaths.of(name, settings)
    promised = read_contract(file, table)
    rules, metrics, refused = _usable(promised)
    left_out = [*promised.left_out, *refused]
    origin = (
        f"contract {visible(promised.table)}, version {visible(promised.version)}, in {visible(file.name)}"
    )
    declaration = _declaration(name, promised, origin, metrics, left_out)
    suite = drafted_suite(name, rules, _with_list(f"A draft by `sluice new` from {origin}.", left_out))
    paths.write(declaration, suite, remedy="correct them in a copy of the contract, and draft from that")
    return ContractDrafts(
        promised=promised, pipeline=paths.pipeline, suite=paths.suite, rules=len(rules), left_out=left_out
    )


def _usable(promised: Promised) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Return the rules that a suite may have, the columns whose metrics they need, and what is wrong with the others."""
    from etl.quality.mistakes.arguments import mistakes
    from etl.quality.mistakes.contradictions import contradictions
    from etl.quality.suite import read_suite

    names = {column.name for column in promised.columns}
    usable, metrics, wrong = [], dict[str, None](), []
    for rule in promised.rules:
        suite = read_suite({"name": "one", "expectations": [rule]})
        found = list(mistakes(suite))
        strange = [column for one in suite.rules for column in one.columns if column not in names]
        found += [f"the contract has no column {column!r}" for column in strange]
        if found:
            wrong.append(f"a rule is left out: {first_few(found)}")
            continue
        usable.append(rule)
        metrics |= dict.fromkeys(one.columns[0] for one in suite.rules if one.across and one.columns)
    together = read_suite({"name": "all", "expectations": usable})
    wrong += [f"the suite is refused until one is corrected: {one}" for one in contradictions(together.rules)]
    return usable, list(metrics), wrong


def _declaration(
    name: str, promised: Promised, origin: str, metrics: Sequence[str], left_out: Sequence[str]
) -> Declaration:
    fields = {
        "schedule": _python(promised.schedule),
        "metrics": _python(metrics),
        "deadline": _span(promised.deadline),
        "owner": _python(promised.owner),
        "tags": _python(promised.tags),
    }
    return Declaration(
        name=name,
        title=visible(promised.purpose or f"{name.capitalize()}: say here what a row is."),
        origin=_with_list(f"Drafted by `sluice new` from {origin}.", left_out),
        columns={column.name: f"{column.type}{_comment(column)}" for column in promised.columns},
        source=json.dumps(f"{name}/**/*.{promised.suffix}"),
        sink=_sink(promised),
        fields={field: value for field, value in fields.items() if value},
    )


def _with_list(text: str, left_out: Sequence[str]) -> str:
    """Write a text, and behind it what is not kept."""
    return "\n".join(
        [text, *(["", NOT_KEPT] if left_out else []), *(f"- {visible(one)}" for one in left_out)]
    )


def _python(value: str | Sequence[str] | None) -> str:
    """Write a text or several as Python does; nothing for none."""
    if not value:
        return ""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    inner = ", ".join(_python(one) for one in value)
    return f"({inner},)" if len(value) == 1 else f"({inner})"


def _span(span: dt.timedelta | None) -> str:
    return "" if span is None else f"dt.timedelta(seconds={span.total_seconds():g})"


def _comment(column: ContractColumn) -> str:
    """Write a column's description for DDL."""
    if not column.description:
        return ""
    text = " ".join(column.description.split()).replace("\\", "\\\\").replace("'", "\\'")
    return f" COMMENT '{text}'"


def _sink(promised: Promised) -> str:
    arguments: Mapping[str, str] = {}
    if promised.mode == "upsert":
        arguments = {"keys": _python(promised.keys), "newest": _python(promised.newest)}
    if promised.partition is not None:
        kind, column = promised.partition
        arguments = {**arguments, "partition_by": f"{kind}({_python(column)})"}
    given = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return f"{promised.mode.capitalize()}({given})"
