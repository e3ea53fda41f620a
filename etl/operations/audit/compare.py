"""Compares two recounts and a ledger, and words each difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from etl.common.wording import pluralize
from etl.ledger.deliveries import LiveDelivery
from etl.operations.audit.latest_per_key import Latest
from etl.operations.audit.recount import Identity, Recount, Tally, Unreadable

NOTHING = Tally()
LAKE, TABLE, LEDGER = "lake", "table", "ledger"


@dataclass(frozen=True, kw_only=True)
class AuditDifference:
    """Something that is not as it was delivered."""

    kind: str  # rows, quarantine, latest, file, table or ledger
    delivery_id: int | None  # None: it belongs to no delivery
    what: str  # the whole of it in words
    seen: Mapping[str, Any] = field(default_factory=dict)  # place -> what was seen there


@dataclass(frozen=True, kw_only=True)
class LedgerFile:
    """A committed file as the ledger has it."""

    delivery_id: int
    rows: int
    bytes: int


def expected_rows(deliveries: Iterable[LiveDelivery]) -> dict[Identity, Tally]:
    """Return what the ledger says of the rows that each delivery brought into the table."""
    return {_identity(one): Tally(rows=one.delivered, checksum=int(one.checksum)) for one in deliveries}


def expected_held(deliveries: Iterable[LiveDelivery]) -> dict[Identity, Tally]:
    """Return what the ledger says of the rows that each delivery brought into quarantine."""
    return {
        _identity(one): Tally(rows=one.quarantined, checksum=int(one.quarantine_checksum))
        for one in deliveries
    }


def _identity(one: LiveDelivery) -> Identity:
    return Identity(delivery_id=one.delivery_id, stream_id=one.stream_id, batch_id=one.batch_id)


def compare(
    kind: str, said: Mapping[Identity, Tally], sinks: Mapping[str, Recount], *, said_by: str = LEDGER
) -> list[AuditDifference]:
    """Return one difference for each delivery on which `said_by` and the sinks do not agree."""
    differences = []
    known = {*said}
    for recount in sinks.values():
        known |= {*recount.tallies}
    for identity in sorted(known, key=lambda one: (one.delivery_id or 0, str(one))):
        seen = {said_by: said.get(identity)}
        seen |= {name: one.tallies.get(identity) for name, one in sinks.items()}
        tallies = [tally or NOTHING for tally in seen.values()]
        if any(tally != tallies[0] for tally in tallies):
            differences.append(
                _difference(kind, identity, seen, unknown_to=None if identity in said else said_by)
            )
    return differences


def _difference(
    kind: str, identity: Identity, seen: Mapping[str, Tally | None], *, unknown_to: str | None
) -> AuditDifference:
    tallies = {sink: tally or NOTHING for sink, tally in seen.items()}
    nouns = "quarantined rows" if kind == "quarantine" else "rows"
    where = f"delivery {identity.delivery_id} (stream {identity.stream_id}, batch {identity.batch_id})"
    counts = ", ".join(f"{sink} {tally.rows:,}" for sink, tally in tallies.items())
    if unknown_to:
        what = f"{where} is no live delivery of the {unknown_to}, but has {nouns}: {counts}"
    elif len({tally.rows for tally in tallies.values()}) > 1:
        what = f"{where}: {nouns} differ: {counts}"
    else:
        what = f"{where}: {next(iter(tallies.values())).rows:,} {nouns} everywhere, but {_odd(tallies)}"
    figures = {sink: {"rows": t.rows, "checksum": str(t.checksum)} for sink, t in tallies.items()}
    return AuditDifference(kind=kind, delivery_id=identity.delivery_id, what=what, seen=figures)


def _odd(tallies: Mapping[str, Tally]) -> str:
    """Say whose values are other than most say."""
    sums = Counter(tally.checksum for tally in tallies.values())
    most, agreed = sums.most_common(1)[0]
    if agreed == 1:
        return f"values differ: {' against '.join(tallies)}"
    odd = [sink for sink, tally in tallies.items() if tally.checksum != most]
    others = [sink for sink, tally in tallies.items() if tally.checksum == most]
    return f"values differ: {' and '.join(odd)} against {' and '.join(others)}"


def latest_differences(latest: Latest) -> list[AuditDifference]:
    """Return where the table of an upsert sink is not the latest row of each key in the lake's change log."""
    differences = []
    key = "key whose latest row in the lake is of this delivery"
    keys = "keys whose latest rows in the lake are of this delivery"
    for counted, has, one, more in (
        (latest.missing, "no row of", key, keys),
        (latest.unknown, "", "row whose key is not in the lake", "rows whose keys are not in the lake"),
        (
            latest.other,
            "",
            "row that is not the latest of its key in the lake",
            "rows that are not the latest of their keys in the lake",
        ),
        (
            latest.doubled,
            "",
            "row too many: its key is there already",
            "rows too many: their keys are there already",
        ),
    ):
        for delivery, count in sorted(counted.items()):
            what = f"delivery {delivery}: the table has {has and f'{has} '}{pluralize(count, one, more)}"
            seen = {TABLE: {"rows": count}}
            differences.append(AuditDifference(kind="latest", delivery_id=delivery, what=what, seen=seen))
    return differences


def file_differences(
    said: Mapping[str, LedgerFile], snapshot: Mapping[str, tuple[int, int]], listed: Mapping[str, int]
) -> list[AuditDifference]:
    """Compare the ledger's files, the current snapshots' (rows, bytes) and the objects that are there."""
    differences = []
    for path in sorted({*said, *snapshot}):
        ledger, figures, size = said.get(path), snapshot.get(path), listed.get(path)
        problems = []
        if ledger is None:
            problems.append("it is in the Iceberg snapshot and not in the ledger")
        elif figures is None:
            problems.append("it is in the ledger and not in the Iceberg snapshot")
        elif figures != (ledger.rows, ledger.bytes):
            problems.append(
                f"Iceberg has {pluralize(figures[0], 'row')} and {pluralize(figures[1], 'byte')}, the ledger"
                f" {ledger.rows:,} and"
                f" {ledger.bytes:,}"
            )
        recorded = ledger.bytes if ledger else figures[1] if figures else None
        if size is None:
            problems.append("there is no such object on S3")
        elif size != recorded:
            problems.append(f"the object has {pluralize(size, 'byte')}, {recorded or 0:,} were written")
        if problems:
            delivery = ledger.delivery_id if ledger else None
            what = f"file {path} of delivery {delivery}: {'; '.join(problems)}"
            seen = {LAKE: {"bytes": size}}
            differences.append(AuditDifference(kind="file", delivery_id=delivery, what=what, seen=seen))
    return differences


def unreadable_differences(
    broken: Sequence[Unreadable], said: Mapping[str, LedgerFile]
) -> list[AuditDifference]:
    """Return a difference for each object that is there and is no whole Parquet file."""
    return [
        AuditDifference(
            kind="file",
            delivery_id=said[one.uri].delivery_id if one.uri in said else None,
            what=f"file {one.uri} can't be read: {one.why}",
        )
        for one in broken
    ]
