"""`sluice recover --before`: takes a delivery and all after it out of both sinks, and the next run computes them anew.

A batch of a transform that keeps state depends on all batches before it, so none can be replayed by itself. But what the
last ones brought can be taken out, the state rebuilt as it was before them, and their inputs read again: by today's
declaration, code and suite. Rows go, inputs are undelivered and the stream with the older state becomes the current one in
one transaction: whatever ends the command before that has changed nothing, and afterwards nothing is left to be done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from etl.common.database import Cursor, kept_connections, transaction
from etl.common.errors import Fenced, SetupError, Stopped
from etl.common.steps import Listener
from etl.common.wording import WHY
from etl.delivery import correction
from etl.delivery.batch import Receipt
from etl.delivery.deliver import deliver_correction
from etl.delivery.withdrawal import NothingRead
from etl.ledger.leases import Lease
from etl.pipeline import Pipeline
from etl.runs.follow import RunControl
from etl.runs.heartbeat import claim, leased
from etl.runs.kinds.base import ContinuedStream
from etl.runs.kinds.open import continued_stream_of
from etl.runs.preflight import unknown_streams
from etl.runs.recovery.base import OnProgress, RecoveryRequest, Seeded, heeding
from etl.runs.recovery.withdrawal_plan import WithdrawalPlan, plan_withdrawal, stateless
from etl.runs.run import refuse_lost
from etl.runs.spark_session import a_session
from etl.runs.telemetry.spans import traced
from etl.runs.telemetry.telling import telling_lineage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from etl.runs.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class Withdrawn:
    """What a withdrawal did."""

    plan: WithdrawalPlan
    receipt: Receipt
    stream: Seeded  # that goes on


@kept_connections()
@telling_lineage
@traced
def withdraw(
    workspace: Workspace,
    pipeline: Pipeline,
    planned: WithdrawalPlan,
    *,
    who: str,
    why: str,
    on_progress: OnProgress = lambda done, of: None,  # noqa: ARG005
    spark: SparkSession | None = None,
    began: Callable[[str], None] = lambda _: None,
    on_step: Listener | None = None,
    control: RunControl | None = None,
) -> Withdrawn:
    """Take out of both sinks at once what `planned` names, and let the next run read its inputs again; or raise.

    Nothing is changed where it raises before the commit. After CommitUnknown the same command tells whether it was done.
    The withdrawal is on record as a run beside the stream, with its plan, `who`
    and `why`. `on_progress` hears of each batch that is run again for the state; `began` is told the run's id. It raises
    Stopped after such a batch where `control` is told to stop.
    """
    control = control or RunControl(correction_left=Stopped.NOTHING_CHANGED)
    if not why.strip():
        raise SetupError("Going back needs a reason", remedy=f"add {WHY}")
    planned.refuse()
    refuse_lost(workspace, pipeline)
    stream = continued_stream_of(workspace, pipeline, "going back")
    if problem := unknown_streams(stream.dsn, stream.checkpoints):
        raise problem
    lease = claim(stream.dsn, pipeline)
    with leased(stream.dsn, lease, control, failed_as="withdrawal"), a_session(workspace, spark) as session:
        _refuse_other(planned, plan_withdrawal(workspace, pipeline, planned.before, spark=session))
        with transaction(stream.dsn) as cursor:
            beside = correction.begin(
                cursor, pipeline.name, "withdrawal", who=who, why=why, plan=planned.json()
            )
        request = RecoveryRequest(
            lease=lease,
            command="the same command",
            on_progress=heeding(control, on_progress),
            accepted=None,
        )
        with leased(stream.dsn, beside, began=began):
            control.require_going_on()
            return _withdrawn(stream, planned, request, beside, session, on_step)


def _refuse_other(planned: WithdrawalPlan, now: WithdrawalPlan) -> None:
    """Raise Fenced where another delivery came after the plan was made; InputsChanged where an input is gone since."""
    if now.numbers != planned.numbers:
        raise Fenced(
            f"{planned.pipeline} did not go back, and nothing was changed: other deliveries came after this was planned",
            remedy="the same command again, which tells what leaves now",
        )
    now.refuse()


def _withdrawn(
    stream: ContinuedStream[Any],
    planned: WithdrawalPlan,
    request: RecoveryRequest,
    beside: Lease,
    session: SparkSession,
    on_step: Listener | None,
) -> Withdrawn:
    from etl.runs.opened import open_pipeline

    # What nothing stays in may have been emptied, or be gone.
    fills = not planned.kept
    opened = open_pipeline(stream.workspace, stream.pipeline, session, outside_stream=True, fills=fills)
    if not opened.state:
        raise stateless(stream.pipeline.name, planned.before)
    seeded: list[Seeded] = []
    with stream.recovery(request, session) as recovery:
        rebuilt = recovery.rebuild(planned.kept)
        assert rebuilt is not None

        def go_on(cursor: Cursor) -> None:
            seeded[:] = [recovery.go_on(cursor, rebuilt)]

        change = planned.change(go_on)
        context = replace(
            opened.correction_context(beside, change, on_step),
            change_log=opened.change_log(change, stream.workspace.settings.pg_connections),
            lookups={},
        )
        batch = NothingRead(
            suite_digest=opened.rules.suite.digest,
            gone=lambda: stream.read_again([*planned.leaving.values()], (), session).gone,
        )
        receipt = deliver_correction(context, batch)
    return Withdrawn(plan=planned, receipt=receipt, stream=seeded[0])
