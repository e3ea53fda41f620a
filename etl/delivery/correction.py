"""Corrections, which are deliveries outside the stream: a replay replaces earlier deliveries, a release lets rows out of
quarantine, a withdrawal takes deliveries out.

Each is one batch of a stream of its own, staged and judged like any other and committed by the same transaction, under
the same lock of the pipeline's row. It does not take the stream's lease. Two things decide whether it may commit: its
attempt, which is closed when its run was given up, and what it replaces, which must still be in force in that same
transaction.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from psycopg2.extras import Json

from etl.common.database import Cursor
from etl.common.errors import (
    ContractBroken,
    Fenced,
    InputsChanged,
    InputsUnreadable,
    NeedsPerson,
    TooManyReleases,
)
from etl.common.statements import Statements
from etl.common.wording import first_few, pluralize
from etl.delivery.kind import DeliveryKind, malformed_line
from etl.delivery.ledger_entry import Entry
from etl.ledger import leases, pipelines
from etl.ledger.leases import Lease
from etl.ledger.offsets import Range
from etl.ledger.stops import UNREADABLE_STOP
from etl.quality.verdict import Verdict
from etl.sinks.warehouse.table import Warehouse

STATEMENTS = Statements(__name__)

Kind = Literal["replay", "release", "withdrawal"]
HeldText = tuple[int, str | None, str | None, str | None]  # number, row, raw, source path


@dataclass(frozen=True, kw_only=True)
class Correction(DeliveryKind):
    """What a delivery beside the stream changes besides adding its rows."""

    name: Kind
    supersedes: tuple[int, ...] = ()  # live deliveries whose place it takes
    removed: int = 0  # rows that they have in the warehouse
    as_found: bool = False  # whatever is left of them there, and of their objects in the tables, is taken out
    files: Mapping[str, frozenset[str]]  # data and quarantine: their objects, which leave the tables
    kept_releases: tuple[int, ...] = ()  # releases from those, which stay
    released_from: int | None = None  # the delivery that holds the rows
    rows: tuple[int, ...] = ()  # quarantine ids that are let out
    who: str = ""  # for what is kept row by row
    why: str = ""

    stops_stream = False

    def require_in_force(self, cursor: Cursor, pipeline: str) -> None:
        """Require that what is to be replaced or released is still in force; raise NeedsPerson where it is not.

        Call it before anything is staged.
        """
        if self.supersedes:
            live = STATEMENTS.execute(cursor, "live", deliveries=list(self.supersedes)).rowcount
            _require(live, self.supersedes, "live", pipeline)
        if self.rows:
            held = STATEMENTS.execute(cursor, "held", rows=list(self.rows)).rowcount
            _require(held, self.rows, "held", pipeline)

    def leaving(self, table: str) -> frozenset[str]:
        return self.files.get(table, frozenset())

    def lock(self, cursor: Cursor, lease: Lease, entry: Entry) -> None:
        pipelines.lock_staged(cursor, lease.pipeline)
        STATEMENTS.execute(cursor, "is_open", delivery=entry.delivery_id, run=lease.run_id)
        if cursor.fetchone() is None:
            raise self.fenced(lease.pipeline, entry.delivery_id)

    def supersede(self, cursor: Cursor, entry: Entry, *, only_newest: bool) -> None:
        pipeline, delivery_id = entry.pipeline, entry.delivery_id
        if self.supersedes:
            old = list(self.supersedes)
            STATEMENTS.execute(cursor, "supersede", pipeline=pipeline, delivery=delivery_id, deliveries=old)
            _require(cursor.rowcount, self.supersedes, "live", pipeline)
            if only_newest:
                _require_newest(cursor, self, pipeline, delivery_id)
            _refuse_released_since(cursor, self, pipeline)
            STATEMENTS.execute(cursor, "supersede_inputs", deliveries=old)
            STATEMENTS.execute(cursor, "supersede_ranges", deliveries=old)
            STATEMENTS.execute(cursor, "supersede_held", deliveries=old)
        if self.released_from is not None:
            STATEMENTS.execute(
                cursor,
                "release",
                pipeline=pipeline,
                delivery=delivery_id,
                origin=self.released_from,
                rows=list(self.rows),
                who=self.who,
                why=self.why,
            )
            _require(cursor.rowcount, self.rows, "held", pipeline)

    def ranges(self, cursor: Cursor, entry: Entry, read: Sequence[Range]) -> Sequence[Range]:  # noqa: ARG002
        """Return all: they are those of the deliveries that are replaced."""
        return read

    def delete_superseded_rows(self, cursor: Cursor, entry: Entry, warehouse: Warehouse) -> None:
        """Remove the replaced deliveries' rows from the warehouse; raise NeedsPerson unless as many as planned.

        In an upsert sink there may be fewer, for newer rows of their keys cover them; with `as_found` any number.
        """
        if not self.supersedes:
            return
        STATEMENTS.execute(cursor, "remove_rows", target=warehouse.target, deliveries=list(self.supersedes))
        covered = bool(warehouse.keys)  # by newer rows of their keys
        other = cursor.rowcount > self.removed or (cursor.rowcount < self.removed and not covered)
        if other and not self.as_found:
            raise NeedsPerson(
                f"{entry.pipeline}: the deliveries to be replaced have {pluralize(cursor.rowcount, 'row')} in"
                f" {warehouse.table_schema}.{warehouse.table_name}; the ledger says {self.removed}. Nothing was changed",
                remedy="to replace whatever is there with what they should have, run the same command again with"
                f" --accept-changed; `sluice audit {entry.pipeline}` shows what differs elsewhere",
            )

    def keep_releases(self, cursor: Cursor, entry: Entry) -> None:
        """Keep released what was released from the replaced deliveries, held no second time.

        Raises NeedsPerson where it can't: a released row that today's suite does not hold would be there twice.
        """
        if not self.kept_releases:
            return
        releases = list(self.kept_releases)
        STATEMENTS.execute(cursor, "released_rows", kept=releases, deliveries=list(self.supersedes))
        released = cursor.fetchall()
        with cursor.connection.cursor("held_by") as held:  # a named one, which brings them bit by bit
            pairs = _pair_with_released(
                released, STATEMENTS.execute(held, "held_by", delivery=entry.delivery_id)
            )
        if len(pairs) < len(released):
            raise NeedsPerson(
                f"{entry.pipeline}, not replayed: of {pluralize(len(released), 'row')} that had been released"
                " from these batches, the"
                f" replay does not hold {len(released) - len(pairs)} again as they were: today's suite delivers them, and"
                " they would be there twice, or today's transform and lookups give them other values. Nothing was changed",
                remedy="run the same command again with --releases drop; in Airflow, choose drop in the form",
            )
        STATEMENTS.execute(
            cursor,
            "keep_releases",
            held=[number for number, _ in pairs],
            released=[released_number for _, released_number in pairs],
        )
        STATEMENTS.execute(cursor, "follow", delivery=entry.delivery_id, kept=releases)
        _require(cursor.rowcount, self.kept_releases, "live", entry.pipeline)

    def retry(self, pipeline: str) -> str:  # noqa: ARG002 - whichever it is of
        return f"the same {self.name} again"

    def smaller(self, pipeline: str) -> str:  # noqa: ARG002 - whichever it is of
        return "choose fewer deliveries"

    def delivered_before(self, pipeline: str) -> str:  # noqa: ARG002 - whichever it is of
        return "run the same command again, if it is to replace what was delivered"

    def fenced(self, pipeline: str, delivery_id: int) -> Fenced:
        return Fenced.of_correction(pipeline, delivery_id)

    def contract_broken(
        self,
        pipeline: str,
        batch_id: int,  # noqa: ARG002 - 0, as of each
        verdict: Verdict,
        lapsed: str,  # noqa: ARG002 - nothing was decided
        *,
        replayable: bool,  # noqa: ARG002 - it was read again
    ) -> ContractBroken:
        return ContractBroken(
            f"The {self.name} of {pipeline} broke its contract, and nothing was changed: "
            + "; ".join(verdict.stops)
            + malformed_line(verdict),
            remedy="fix the suite or the transform, then run the same command again"
            f" (`sluice whatif {pipeline} --suite FILE` shows what a suite would do)",
        )

    def unreadable(
        self,
        pipeline: str,
        batch_id: int,  # noqa: ARG002 - 0, as of each
        stops: Sequence[str],
        lapsed: str,  # noqa: ARG002 - nothing was decided
    ) -> InputsUnreadable:
        files = [one for one in stops if UNREADABLE_STOP in one]
        told = "; ".join([first_few(files), *(one for one in stops if one not in files)])
        return InputsUnreadable(
            f"The {self.name} of {pipeline} changed nothing, because some of its inputs can't be read: {told}",
            remedy="put whole files in their place, or restore the old schema, then run the same command again",
            stops=stops,
        )

    def inputs_changed(self, pipeline: str, batch_id: int, changes: Sequence[str]) -> InputsChanged:  # noqa: ARG002
        return InputsChanged(
            f"The {self.name} of {pipeline} changed nothing: its inputs are not as they were when it was"
            f" planned: {first_few(changes)}",
            remedy=f"{self.retry(pipeline)}, which asks whether to take the inputs as they are",
        )


def begin(cursor: Cursor, pipeline: str, kind: Kind, *, who: str, why: str | None, plan: Any = None) -> Lease:
    """Record a run beside the stream; end those whose processes died, and fence their attempts.

    The lease that is returned is of the run's own stream alone, which has the same id.
    """
    run_id = str(uuid.uuid4())
    pipelines.lock(cursor, pipeline)
    pipelines.take_up(cursor, pipeline)
    leases.fence_dead_beside(cursor, pipeline)
    STATEMENTS.execute(
        cursor,
        "begin",
        run=run_id,
        pipeline=pipeline,
        holder=leases.holder(),
        process=leases.process(),
        kind=kind,
        who=who,
        why=why,
        plan=plan and Json(plan),
    )
    return Lease(pipeline=pipeline, run_id=run_id)


def require_release_rate(cursor: Cursor, pipeline: str, most: int) -> None:
    """Require that at most so many releases, with the one that just began, began within an hour; raise TooManyReleases."""
    STATEMENTS.execute(cursor, "release_of_the_hour", pipeline=pipeline, others=most)
    if (row := cursor.fetchone()) is not None:
        raise TooManyReleases.since(pipeline, most, row[0])


def _require_newest(cursor: Cursor, change: Correction, pipeline: str, delivery_id: int) -> None:
    """Raise NeedsPerson where a replay of a replace sink does not replace the newest delivery.

    That one alone is in force: what is older must not take its place.
    """
    STATEMENTS.execute(cursor, "newest_before", pipeline=pipeline, delivery=delivery_id)
    [newest] = cursor.fetchone() or (None,)
    if newest not in change.supersedes:
        raise NeedsPerson(
            f"{pipeline}, not replayed: delivery {newest} replaced all before it while the replay was under"
            " way. Nothing was changed",
            remedy=f"nothing, if the table should have that delivery; else `sluice replay {pipeline} --deliveries {newest}`",
        )


def _refuse_released_since(cursor: Cursor, change: Correction, pipeline: str) -> None:
    """Raise NeedsPerson where rows to be replaced were released after the plan was made.

    Such a row would be held, and could be released, a second time.
    """
    STATEMENTS.execute(
        cursor, "released_since", deliveries=list(change.supersedes), kept=list(change.kept_releases)
    )
    if numbers := [str(number) for (number,) in cursor.fetchall()]:
        raise NeedsPerson(
            f"{pipeline}: rows that these batches had held were released, by deliveries {', '.join(numbers)}, while the"
            f" {change.name} was under way. Nothing was changed",
            remedy="run the same command again, which says what becomes of them",
        )


def _pair_with_released(released: Sequence[HeldText], held: Iterable[HeldText]) -> list[tuple[int, int]]:
    """Pair, for each row that is held once more, its number now and the number of the one released.

    Equal rows are taken one for one. A row is the same whatever columns the transform has gained since, and whether or
    not its file was told.
    """
    waiting: dict[tuple[str, ...], dict[Any, list[int]]] = {}
    for number, row, raw, path in released:
        columns = tuple(json.loads(row)) if row is not None else ()
        waiting.setdefault(columns, {}).setdefault(_content(row, raw, path, columns), []).append(number)
    pairs = []
    for number, row, raw, path in held:
        for columns, rows_ in waiting.items():
            if equal_rows := rows_.get(_content(row, raw, path, columns)):
                pairs.append((number, equal_rows.pop()))
                break
    return pairs


def _content(row: str | None, raw: str | None, path: str | None, columns: tuple[str, ...]) -> Any:
    if row is None:
        return raw, path
    values = json.loads(row)
    return json.dumps([values.get(column) for column in columns])


def _require(count: int, wanted: Sequence[int], state: str, pipeline: str) -> None:
    if count != len(wanted):
        what = ("delivery", "deliveries") if state == "live" else ("row", "rows")
        named = "of the plan" if state == "live" else "to be released"
        raise NeedsPerson(
            f"{pipeline}: {len(wanted) - count} of the {pluralize(len(wanted), *what)} {named}"
            f" are no longer {state}: another command changed them first. Nothing was changed",
            remedy=f"what is there now: `sluice {'status' if state == 'live' else 'quarantine list'} {pipeline}`",
        )
