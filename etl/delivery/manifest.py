"""The delivery manifest: written to the lake before each commit, it puts the delivery back if PostgreSQL loses it.

HAZARD: it is read by versions of Sluice from before and after the one that wrote it. The names of its fields, and those
of Entry, Input, Range, RuleResult and ColumnMetrics, are keys of stored objects: none is renamed, and a new one has a
default. What can't be read so is another version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

from etl.common.errors import NeedsPerson
from etl.delivery.ledger_entry import Entry
from etl.ledger.inputs import Input
from etl.ledger.offsets import Range
from etl.quality.metrics import ColumnMetrics
from etl.quality.verdict import RuleResult, Severity, Verdict
from etl.sinks.lake.parquet_writer import StagedFile

VERSION = 1  # also of a manifest that says none

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class WrittenObject:
    """A Parquet object of a delivery."""

    path: str  # s3:// URI
    rows: int
    bytes: int

    @classmethod
    def each_of(cls, files: Iterable[StagedFile]) -> tuple[Self, ...]:
        """Return the objects of these staged files."""
        return tuple(cls(path=file.path, rows=file.rows, bytes=file.size) for file in files)


@dataclass(frozen=True, kw_only=True)
class DeliveryManifest:
    """All that is needed to put a delivery back into a ledger and a warehouse that lost it."""

    entry: Entry
    first_batch: int  # of its stream
    checkpoint: str | None  # of its stream; None: beside it
    state: tuple[str, ...] = ()  # what its stream keeps between batches
    inputs: tuple[Input, ...]
    ranges: tuple[Range, ...] = ()
    supersedes: tuple[int, ...] = ()  # deliveries whose place it takes
    data: tuple[WrittenObject, ...]
    quarantine: tuple[WrittenObject, ...]
    success: bool  # of the suite
    rules: tuple[RuleResult, ...]
    columns: tuple[ColumnMetrics, ...] = ()
    report: str  # as the ledger keeps it; it has the results of the rules

    @property
    def objects(self) -> tuple[WrittenObject, ...]:
        """Return the objects of delivered and of held rows."""
        return (*self.data, *self.quarantine)

    @property
    def verdict(self) -> Verdict:
        """Return the suite's verdict, by which the delivery was committed."""
        return Verdict(
            success=self.success,
            stops=tuple(json.loads(self.report)["stops"]),
            results=self.rules,
            quarantined=self.entry.quarantined,
            suite_digest=self.entry.suite_digest,
            columns=self.columns,
        )

    def to_json(self) -> str:
        """Return the manifest as JSON text."""
        content = {
            "version": VERSION,
            **vars(self.entry),
            "first_batch": self.first_batch,
            "checkpoint": self.checkpoint,
            "state": self.state,
            "inputs": [vars(one) for one in self.inputs],
            "ranges": [vars(one) for one in self.ranges],
            "supersedes": self.supersedes,
            "data": [vars(one) for one in self.data],
            "quarantine": [vars(one) for one in self.quarantine],
            "success": self.success,
            "rules": [{key: vars(rule)[key] for key in vars(rule) if key != "result"} for rule in self.rules],
            "columns": [one.json() for one in self.columns],
            "report": self.report,
        }
        return json.dumps(content, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, *, uri: str) -> Self:
        """Read what `to_json` of this or another version of Sluice wrote; keys that are not known are left out.

        Raises NeedsPerson for a version of the manifest that this code does not know.
        """
        stored = json.loads(text)
        _require_known_version(stored, uri)
        results = json.loads(stored["report"])["results"]
        rules = (
            {**rule, "severity": Severity(rule["severity"]), "result": result}
            for rule, result in zip(stored["rules"], results, strict=True)
        )
        return cls(
            entry=Entry(**_known(Entry, stored)),
            first_batch=stored["first_batch"],
            checkpoint=stored["checkpoint"],
            state=tuple(stored.get("state", ())),
            inputs=_each(Input, stored["inputs"]),
            ranges=_each(Range, stored.get("ranges", ())),
            supersedes=tuple(stored.get("supersedes", ())),
            data=_each(WrittenObject, stored["data"]),
            quarantine=_each(WrittenObject, stored["quarantine"]),
            success=stored["success"],
            rules=_each(RuleResult, rules),
            columns=tuple(
                ColumnMetrics.of_json(_known(ColumnMetrics, one)) for one in stored.get("columns", ())
            ),
            report=stored["report"],
        )


def _require_known_version(stored: Mapping[str, Any], uri: str) -> None:
    version = stored.get("version", VERSION)
    if version != VERSION:
        raise NeedsPerson(
            f"Delivery manifest {uri} is of version {version}, and this Sluice reads version {VERSION}; the delivery was"
            " not put back",
            remedy="the same command with the version of Sluice that wrote it, or a later one",
        )


def _each(kind: type[T], stored: Iterable[Mapping[str, Any]]) -> tuple[T, ...]:
    return tuple(kind(**_known(kind, one)) for one in stored)


def _known(kind: type, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the stored values that are fields of `kind`."""
    return {field.name: stored[field.name] for field in fields(kind) if field.name in stored}
