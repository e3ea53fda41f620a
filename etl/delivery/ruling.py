"""Decides whether a person's decision still covers a stopped batch: only the batch as it was seen when it stopped.

Where suite, lookups or models have changed since, or more of the batch breaks its rules, nobody has decided on the
batch as it now is: the decision is dropped, and the batch is judged as if there had been none.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from etl.common.wording import pluralize
from etl.delivery.batch import DeliveryContext
from etl.delivery.row_filter import HoldPolicy
from etl.ledger.stops import SHARE_STOP, Decision, Seen
from etl.quality.verdict import Counts, StageRule, Verdict

_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NAMES_BEFORE = {"NaN": "None", "Infinity": "inf", "-Infinity": "-inf"}
_OBSERVED = re.compile(rf"observed ({'|'.join(_NAMES_BEFORE)})$")

# the suite's digest; the evidence of lookups and models by their names
MadeWith = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """By whose word an attempt holds rows back, the suite's or a person's."""

    hold: HoldPolicy
    decision: Decision | None = None  # that holds
    lapsed: str = ""  # whose decision no longer holds, and why

    @classmethod
    def of(cls, rules: Sequence[StageRule], decision: Decision | None) -> Ruling:
        """Return the ruling to hold the rows that break a rule of the suite.

        Of an accepted batch, only those are held that break a rule which it kept when it stopped.
        """
        hold = HoldPolicy.by(rules)
        if decision and decision.seen and decision.action == "accept":
            accepted = tuple(rule for rule in hold.rules if rule.reason not in decision.seen.broken)
            hold = replace(hold, rules=accepted)
        return cls(hold=hold, decision=decision)


def seen_of(context: DeliveryContext, counts: Counts, verdict: Verdict) -> Seen:
    """Return what a decision on this batch would be about."""
    broken = {rule.reason: counts.count(rule.broken) for rule in context.rules if rule.quarantines}
    return Seen(
        suite_digest=context.suite_digest,
        lookups=context.lookups,
        share=verdict.share,
        broken={reason: rows for reason, rows in broken.items() if rows},
    )


def changed_since(decision: Decision, context: DeliveryContext) -> list[str]:
    """Name what the batch would be judged by, or made with, that is not as it was when it stopped."""
    then = decision.seen
    if then is None:
        return [
            "it was on a stop that an earlier version of Sluice recorded, without the suite and the lookups"
        ]
    before, now = (then.suite_digest, then.lookups), (context.suite_digest, context.lookups)
    return differences(before, now, context.sinks.pipeline.models)


def differences(before: MadeWith, now: MadeWith, models: Container[str]) -> list[str]:
    """Name the suite, and each lookup or model, that has changed since rows were made with it."""
    (old_suite, old), (new_suite, new) = before, now
    others = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    return [
        *(["the suite has changed since"] if old_suite != new_suite else []),
        *(f"the {'model' if name in models else 'lookup'} {name} has changed since" for name in others),
    ]


def beyond(decision: Decision, verdict: Verdict, seen: Seen) -> list[str]:
    """Name what the batch, staged and judged, breaks that was not decided on."""
    then = decision.seen
    if then is None:
        return []  # it has lapsed before
    accepted = then.broken if decision.action == "accept" else {}
    worse = [
        f"{pluralize(seen.broken[reason], 'row breaks', 'rows break')} {reason}, and {rows:,} did then"
        for reason, rows in accepted.items()
        if seen.broken.get(reason, 0) > rows
    ]
    return worse + [stop for stop in verdict.stops if not _is_covered(stop, decision, then, seen)]


def _is_covered(stop: str, decision: Decision, then: Seen, seen: Seen) -> bool:
    """Tell whether the decision was on this stop, or on a share of held rows at least as large.

    Where it accepts rules, fewer rows are held.
    """
    of_share = SHARE_STOP in stop and any(SHARE_STOP in one for one in decision.stops)
    if of_share and (seen.share or 0) <= (then.share or 0):
        return True
    return _content(stop) in map(_content, decision.stops)


def _content(stop: str) -> str:
    """Return what a stop says of the batch, without how counts are written.

    A decision is kept with the words of the version that stopped the batch. The first wrote 1234 for 1,234, `1 rows`,
    None for NaN and inf for Infinity.
    """
    plain = _THOUSANDS.sub("", stop)
    plain = plain.replace(" of 1 rows break it", " of 1 row break it")
    return _OBSERVED.sub(lambda found: f"observed {_NAMES_BEFORE[found[1]]}", plain)
