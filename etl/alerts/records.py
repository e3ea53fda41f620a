"""Says which troubles the records of a run show, whoever has started it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from etl.common.wording import drifted, left_out
from etl.ledger.telemetry.alerts import Trouble

LONGEST_ABOUT = 200  # characters of an alert's matter


@dataclass(frozen=True, kw_only=True)
class RunRecords:
    """What became of the records of one run."""

    read: int  # records, or the rows that came of them where these are more
    quarantined: int  # records and rows that are held
    dropped: int  # rows that Spark's operators left out
    unknown: Mapping[str, int]  # field that the schema does not name: records that have it
    missing: Mapping[str, int]  # column of the schema: records whose file does not have it
    drifted: Collection[str]  # the unknown fields and missing columns that the delivery before did not have


def troubles(pipeline: str, records: RunRecords, *, share_limit: float | None) -> Iterator[Trouble]:
    """Yield the troubles that the records of a run show; too many are held above `share_limit`, unless it is None."""
    share = records.quarantined / max(records.read, 1)
    if share_limit is not None and share > share_limit:
        text = f"{pipeline} holds {share:.2%} of a run's records in quarantine, more than {share_limit:.2%}"
        yield Trouble(pipeline=pipeline, kind="quarantine", text=text, share_limit=share_limit)
    if records.dropped:
        text = f"{pipeline}: of what a run read {left_out(records.dropped)}"
        yield Trouble(pipeline=pipeline, kind="dropped", text=text)
    if records.drifted:
        unknown, missing = (
            {name: count for name, count in counts.items() if name in records.drifted}
            for counts in (records.unknown, records.missing)
        )
        text = f"{pipeline}: for the first time since the delivery before, {'; '.join(drifted(unknown, missing))}"
        about = ", ".join(sorted(records.drifted))[:LONGEST_ABOUT]
        yield Trouble(pipeline=pipeline, kind="drift", text=text, about=about)
