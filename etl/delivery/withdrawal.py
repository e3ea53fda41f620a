"""Withdrawals: deliveries that bring nothing and take others out of both sinks, so that a stream reads their inputs again.

One transaction takes the rows out, makes their inputs undelivered and gives the pipeline the stream that is to read
them. So there is no moment in which rows are gone and nothing would bring them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etl.common.database import Cursor
from etl.common.errors import InputsChanged
from etl.common.wording import first_few
from etl.delivery.batch import Staged
from etl.delivery.correction import Correction, Kind
from etl.quality.verdict import Counts, Verdict

if TYPE_CHECKING:
    from etl.delivery.ledger_entry import Entry
    from etl.delivery.stage import StageTask
    from etl.ledger.inputs import Input
    from etl.ledger.offsets import Range


@dataclass(frozen=True, kw_only=True)
class Withdrawal(Correction):
    """A correction with nothing in the place of what it takes out."""

    name: Kind = "withdrawal"
    as_found: bool = True  # what somebody has removed by hand need not be there to be taken out
    go_on: Callable[[Cursor], None]  # makes the stream that reads the inputs again the pipeline's current one

    is_judged = False

    def supersede(self, cursor: Cursor, entry: Entry, *, only_newest: bool) -> None:
        super().supersede(cursor, entry, only_newest=only_newest)
        self.go_on(cursor)

    def retry(self, pipeline: str) -> str:  # noqa: ARG002 - whichever it is of
        return "the same command again"

    def smaller(self, pipeline: str) -> str:  # noqa: ARG002 - whichever it is of
        return "go back before a later delivery first"

    def inputs_changed(self, pipeline: str, batch_id: int, changes: Sequence[str]) -> InputsChanged:  # noqa: ARG002
        return InputsChanged(
            f"{pipeline} did not go back, and nothing was changed: inputs that were to be read again have gone since:"
            f" {first_few(changes)}",
            remedy="land them again, then the same command again",
        )


@dataclass(frozen=True, kw_only=True)
class NothingRead:
    """The batch of a withdrawal: it reads nothing and has no rows."""

    suite_digest: str  # of today's suite, which has nothing to judge
    # what of the inputs to be read again is not there, looked for before the commit
    gone: Callable[[], Sequence[str]]

    @property
    def batch_id(self) -> int:
        return 0

    @property
    def inputs(self) -> Sequence[Input]:
        return ()

    @property
    def ranges(self) -> Sequence[Range]:
        return ()

    def stage(self, task: StageTask) -> Staged:  # noqa: ARG002 - its tables stay empty
        return Staged(reports=())

    def judge(self, counts: Counts, staged: Staged) -> Verdict:  # noqa: ARG002 - there is nothing to be judged
        return Verdict(success=True, stops=(), results=(), quarantined=0, suite_digest=self.suite_digest)

    def changed(self) -> Sequence[str]:
        return self.gone()
