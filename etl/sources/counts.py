"""Counts what was read: records, those that are held, and how they drift from the schema."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.common.record_columns import DETAIL, MALFORMED_COLUMN, RAW, SOURCE_PATH
from etl.common.wording import visible
from etl.spark.watermark import LATE

MOST = 100  # fields that are named; the most frequent ones
LONGEST = 100  # characters of a name
# Malformed records that a pass brings to the driver beside their count; each task brings as many, before they are put
# together. All of them take some 250 MB of the driver's memory at most.
MOST_CARRIED = 25_000
CARRIED_BY_TASKS = 400_000
LONGEST_CARRIED = 500  # bytes of one, with its detail


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Counts records by field: those with a value in an `unknown` one, and those of files without a `missing` one."""

    unknown: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)

    @classmethod
    def total(cls, drifts: Iterable[Drift]) -> Drift:
        """Sum up drifts, and keep the most frequent fields."""
        total = cls()
        for one in drifts:
            total.unknown.update(one.unknown)
            total.missing.update(one.missing)
        return cls(unknown=_most(total.unknown), missing=_most(total.missing))

    @classmethod
    def of_notes(cls, notes: Iterable[str]) -> Drift:
        """Sum up what notes tell that `noted` wrote."""
        told = map(json.loads, notes)
        return cls.total(
            cls(unknown=Counter(one["unknown"]), missing=Counter(one["missing"])) for one in told
        )

    def noted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Write the counts into the DETAIL of the first of these rows that is not malformed, if there is one."""
        good = (
            pc.index(pc.is_null(rows[MALFORMED_COLUMN]), True).as_py() if self.unknown or self.missing else -1
        )
        if good < 0:
            return rows
        note = json.dumps({"unknown": _most(self.unknown), "missing": _most(self.missing)})
        details = rows[DETAIL]
        noted = pa.concat_arrays([details.slice(0, good), pa.array([note]), details.slice(good + 1)])
        return rows.set_column(rows.schema.get_field_index(DETAIL), DETAIL, noted)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What was read: of all streams together."""

    rows: int = 0  # all records
    malformed: int = 0  # that are held, late ones among them
    late: int | None = None  # held or not; None: nothing tells by which column records are late
    drift: Drift = field(default_factory=Drift)
    # malformed records: RAW, and SOURCE_PATH and DETAIL where they are told; as many as are carried
    held: Sequence[Mapping[str, str]] = ()

    @property
    def carries_all(self) -> bool:
        """Tell whether all held records are here, so that none has to be read again."""
        return len(self.held) == self.malformed

    @classmethod
    def of(cls, observed: Sequence[Mapping[str, Any]]) -> Counted:
        """Sum up what was observed of each stream."""
        late = [one[LATE] for one in observed if LATE in one]
        return cls(
            rows=sum(one["rows"] for one in observed),
            malformed=sum(one["malformed"] for one in observed),
            late=sum(late) if late else None,
            drift=Drift.of_notes(note for one in observed for note in one["notes"]),
            held=sorted(
                (record for one in observed for record in json.loads(one.get("held") or "[]")),
                key=lambda record: (record.get(SOURCE_PATH, ""), record[RAW]),
            ),
        )


def _most(counts: Counter[str]) -> Counter[str]:
    """Return the most frequent, by names that both JSON of PostgreSQL and a terminal take."""
    shortened = Counter[str]()
    for name, records in ((visible(name), records) for name, records in counts.items()):
        shortened[name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"] += records
    return Counter(dict(shortened.most_common(MOST)))
