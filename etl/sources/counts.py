"""Counts what was read: records, those that are held, and how they drift from the schema."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.common.record_columns import DETAIL, MALFORMED_COLUMN, RAW, SOURCE_PATH
from etl.common.wording import visible
from etl.spark.watermark import LATE

MOST = 100  # fields that are named; the most frequent ones
MOST_COUNTED = 10_000  # fields that a task counts before it forgets all but the most frequent ones
LONGEST = 100  # characters of a name
# Malformed records that tasks bring to the driver beside their count, all together: some 100 MB at most.
MOST_CARRIED = 200_000
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

    def forget_rare(self) -> None:
        """Keep the most frequent unknown fields alone where there are many: each record may have names of its own."""
        if len(self.unknown) > MOST_COUNTED:
            most = _most(self.unknown)
            self.unknown.clear()
            self.unknown.update(most)


@dataclass(kw_only=True)
class Report:
    """What a task tells of the records that it read and that are no rows."""

    carried: int  # malformed records that may be told whole, those that are not long
    malformed: int = 0
    drift: Drift = field(default_factory=Drift)  # of the rows
    held: list[Mapping[str, str]] = field(default_factory=list)  # RAW, SOURCE_PATH and DETAIL

    def take(
        self, records: pa.RecordBatch, uris: Callable[[pa.RecordBatch], Iterable[str]]
    ) -> pa.RecordBatch:
        """Return those that are rows among records with MALFORMED_COLUMN and DETAIL, and tell of the others.

        `uris` says where malformed ones are.
        """
        self.drift.forget_rare()
        malformed = records[MALFORMED_COLUMN].is_valid()
        if not malformed.true_count:
            return records
        self.malformed += malformed.true_count
        held = records.filter(malformed)
        texts = (held[MALFORMED_COLUMN].to_pylist(), uris(held), held[DETAIL].to_pylist())
        for raw, uri, detail in zip(*texts, strict=True) if len(self.held) < self.carried else ():
            if len(raw.encode()) + len(detail.encode()) <= LONGEST_CARRIED and len(self.held) < self.carried:
                self.held.append({RAW: raw, SOURCE_PATH: uri, DETAIL: detail})
        return records.filter(pc.invert(malformed))

    def text(self) -> str:
        """Write the report as JSON, which `Counted.of` reads."""
        drift = Drift.total([self.drift])
        told = {"malformed": self.malformed, "unknown": drift.unknown, "missing": drift.missing}
        return json.dumps({**told, "held": self.held}, ensure_ascii=False)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What was read: of all streams together."""

    rows: int = 0  # all records
    malformed: int = 0  # that are held, late ones among them
    late: int | None = None  # held or not; None: nothing tells by which column records are late
    drift: Drift = field(default_factory=Drift)
    held: Sequence[Mapping[str, str]] = ()  # malformed records, as many as tasks told whole

    @property
    def carries_all(self) -> bool:
        """Tell whether all held records are here, so that none has to be read again."""
        return len(self.held) == self.malformed

    @classmethod
    def of(cls, observed: Sequence[Mapping[str, Any]]) -> Counted:
        """Sum up what was observed of each stream."""
        late = [one[LATE] for one in observed if LATE in one]
        reports = [json.loads(text) for one in observed for text in json.loads(one["reports"])]
        return cls(
            rows=sum(one["rows"] for one in observed),
            malformed=sum(one["malformed"] for one in observed),
            late=sum(late) if late else None,
            drift=Drift.total(
                Drift(unknown=Counter(one["unknown"]), missing=Counter(one["missing"])) for one in reports
            ),
            held=sorted(
                (record for one in reports for record in one["held"]),
                key=lambda record: (record[SOURCE_PATH], record[RAW]),
            ),
        )


def _most(counts: Counter[str]) -> Counter[str]:
    """Return the most frequent, by names that both JSON of PostgreSQL and a terminal take."""
    shortened = Counter[str]()
    for name, records in ((visible(name), records) for name, records in (+counts).items()):
        shortened[name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"] += records
    return Counter(dict(shortened.most_common(MOST)))
