"""Counts what was read: records, those that are held, and how they drift from the schema."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.common.record_columns import DETAIL, MALFORMED_COLUMN, RAW, SOURCE_PATH
from etl.common.wording import pluralize, visible
from etl.spark.watermark import LATE

MOST = 100  # fields that are named; the most frequent ones
LONGEST = 100  # characters of a name
# Malformed records that tasks bring to the driver beside their count, all together: some 200 MB at most.
MOST_CARRIED = 200_000
LONGEST_CARRIED = 1_000  # bytes of one, with its file and what is wrong with it, as JSON
Uris = Callable[[pa.RecordBatch], Iterable[str]]  # of records: where each is


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

    def clear(self) -> None:
        """Forget all that was counted."""
        self.unknown.clear()
        self.missing.clear()

    @property
    def is_none(self) -> bool:
        """Tell whether no record drifts."""
        return not (+self.unknown or +self.missing)


@dataclass(kw_only=True)
class Reporter:
    """Tells of the records that a task reads and that are no rows."""

    carried: int  # malformed records that may still be told whole

    def report(self, held: pa.RecordBatch, uris: Uris, drift: Drift) -> str:
        """Write what is malformed of some records and how the others drift, for `Counted.of`; forget the drift.

        `held` are the malformed ones, with MALFORMED_COLUMN and DETAIL, and `uris` says where each is.
        """
        told = {"unknown": _most(drift.unknown), "missing": _most(drift.missing)}
        drift.clear()
        return _report(len(held), **told, held=self._whole(held, uris))

    def _whole(self, held: pa.RecordBatch, uris: Uris) -> Sequence[str]:
        """Return the records themselves, as JSON; none once they are more than may be carried, or one is longer."""
        longest = pc.max(pc.binary_length(held[MALFORMED_COLUMN])).as_py() or 0
        if len(held) <= self.carried and longest <= LONGEST_CARRIED:
            texts = held[MALFORMED_COLUMN].to_pylist(), uris(held), held[DETAIL].to_pylist()
            records = [
                _as_json(dict(zip((RAW, SOURCE_PATH, DETAIL), one, strict=True)))
                for one in zip(*texts, strict=True)
            ]
            if all(len(one.encode()) <= LONGEST_CARRIED for one in records):
                self.carried -= len(records)
                return records
        self.carried = 0  # the files have to be read again for one as for many
        return ()

    def end(self, read: int) -> str:
        """Write that a task has read all its parts of files, of so many bytes, to their ends."""
        return _report(0, read=read)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What was read: of all streams together."""

    rows: int = 0  # all records
    malformed: int = 0  # that are held, late ones among them
    late: int | None = None  # held or not; None: nothing tells by which column records are late
    drift: Drift = field(default_factory=Drift)
    held: Sequence[Mapping[str, str]] = ()  # malformed records, as many as tasks told whole
    read: int = 0  # bytes of files of JSON and CSV, by the tasks that came to their ends

    @property
    def carries_all(self) -> bool:
        """Tell whether all held records are here, so that none has to be read again."""
        return len(self.held) == self.malformed

    @classmethod
    def of(cls, observed: Sequence[Mapping[str, Any]]) -> Counted:
        """Sum up what was observed of each stream. Raises RuntimeError where Spark and the reports count otherwise."""
        late = [one[LATE] for one in observed if LATE in one]
        reports = [_read(text) for one in observed for text in one["reports"]]
        told, malformed = (sum(one["malformed"] for one in some) for some in (reports, observed))
        if told != malformed:
            raise RuntimeError(
                f"tasks reported {pluralize(told, 'malformed record')}, and Spark summed up {malformed:,}"
            )
        return cls(
            rows=sum(one["rows"] for one in observed),
            malformed=malformed + sum(one.get("held", 0) for one in observed),
            late=sum(late) if late else None,
            drift=Drift.total(
                Drift(unknown=Counter(one.get("unknown")), missing=Counter(one.get("missing")))
                for one in reports
            ),
            held=sorted(
                (record for one in reports for record in one["held"]),
                key=lambda record: (record[SOURCE_PATH], record[RAW]),
            ),
            read=sum(one.get("read", 0) for one in reports),
        )


def _report(malformed: int, *, held: Sequence[str] = (), **more: Any) -> str:
    """Write a report: a number of records, which Spark sums up, a blank, and lines that are packed.

    The first line is what else is told, each other one a malformed record. These are much alike: packed they are a tenth,
    which Spark copies and hands to the driver by a single core.
    """
    packed = zlib.compress("\n".join([_as_json(more), *held]).encode(), level=1)
    return f"{malformed} {b64encode(packed).decode()}"


def _read(report: str) -> dict[str, Any]:
    malformed, _, packed = report.partition(" ")
    more, *held = zlib.decompress(b64decode(packed)).split(b"\n")
    records = json.loads(b"[%b]" % b",".join(held))
    return {**json.loads(more), "malformed": int(malformed), "held": records}


def _most(counts: Counter[str]) -> Counter[str]:
    """Return the most frequent, by names that both JSON of PostgreSQL and a terminal take."""
    shortened = Counter[str]()
    for name, records in ((visible(name), records) for name, records in (+counts).items()):
        shortened[name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"] += records
    return Counter(dict(shortened.most_common(MOST)))


def _as_json(told: Mapping[str, Any]) -> str:
    """Write what is told on one line."""
    return json.dumps(told, ensure_ascii=False)
