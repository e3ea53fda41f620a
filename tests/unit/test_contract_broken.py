"""What a batch that broke its contract tells a person to correct is what stopped it."""

from __future__ import annotations

import pytest

from etl.delivery.kind import StreamDelivery
from etl.ledger.stops import SHARE_STOP
from etl.quality.verdict import Verdict

MALFORMED = "file:///landing/a.jsonl: no JSON (1 record)"
BY_RULE, BY_SHARE = "id is given: 3 of 8", f"5 of 8 records would be quarantined, {SHARE_STOP} (5.00%)"


@pytest.mark.parametrize(
    ("stops", "malformed", "correction"),
    [
        ((BY_RULE,), (), "fix the suite and run again"),
        ((BY_RULE,), (MALFORMED,), "fix the suite and run again"),
        ((BY_SHARE,), (), "fix the suite and run again"),
        (
            (BY_SHARE,),
            (MALFORMED,),
            "correct the declaration and run again, or put mended files in their place",
        ),
        ((BY_SHARE,), ("kafka://taps/0: no JSON (1 record)",), "correct the declaration and run again"),
    ],
)
def test_it_is_the_suite_unless_too_many_records_are_malformed(
    stops: tuple[str, ...], malformed: tuple[str, ...], correction: str
) -> None:
    verdict = Verdict(
        success=False, stops=stops, results=(), quarantined=5, suite_digest="", malformed=malformed
    )
    error = StreamDelivery().contract_broken("orders", 0, verdict, "", replayable=True)
    assert error.remedy.startswith(correction)
    assert all(one in error.seen for one in (*stops, *malformed))
