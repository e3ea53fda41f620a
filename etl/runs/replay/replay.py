"""`sluice replay`: delivers batches again, from the same inputs, with today's code and today's suite.

It says first what it would replace. Then everything is staged, beside the running stream, and one transaction
takes the old deliveries out of both sinks and out of quarantine and puts the new one in their place: a reader of
either sink sees all of the old or all of the new. Nothing of it is seen when it fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from etl.common.database import kept_connections, transaction
from etl.common.errors import FewerRows, InputsChanged, InputsUnreadable, NeedsPerson, SetupError, Stopped
from etl.common.steps import Listener
from etl.common.wording import WHY, first_few, pluralize
from etl.delivery import correction
from etl.delivery.batch import Receipt, Staged
from etl.delivery.correction import Correction
from etl.delivery.deliver import deliver_correction
from etl.delivery.stage import StageTask
from etl.ledger.deliveries import deliveries_in_force
from etl.ledger.inputs import Input
from etl.ledger.offsets import Range
from etl.ledger.stops import FEWER_STOP
from etl.pipeline import Pipeline
from etl.quality.verdict import Counts, Verdict
from etl.runs.heartbeat import leased, make_known
from etl.runs.replay.plan import SHOWN, Releases, ReplayPlan
from etl.runs.run import refuse_lost
from etl.runs.spark_session import a_session
from etl.runs.stateful import refuse_replay
from etl.runs.telemetry.spans import traced
from etl.runs.telemetry.telling import telling_lineage
from etl.sinks.modes import mode_of
from etl.sources.kinds.declared import kind_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from etl.delivery.spark_batch import SparkBatch
    from etl.runs.opened import OpenedPipeline
    from etl.runs.workspace import Workspace


GIVEN_UP = Stopped.NOTHING_CHANGED  # by a signal, before the commit


@dataclass(frozen=True, kw_only=True)
class Remedies:
    """How a person says, where the replay was asked for, what it must not guess."""

    changed: str = "take them as they are now with --accept-changed"
    unreadable: str = "deliver what can be read of them, and hold the rest, with --accept-unreadable and the reason in --why"
    fewer: str = "let the missing rows go, with --fewer and the reason in --why"
    releases: str = (
        "--releases drop judges them again with the rest, as where the suite has changed; --releases keep leaves them as"
        " they are, where the replay would hold each of them once more"
    )


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What a replay did."""

    plan: ReplayPlan
    receipt: Receipt | None  # None: there was nothing to do
    run: str | None = None  # None: the pipeline has delivered nothing that could be replayed
    replaced: tuple[int, ...] = ()  # deliveries whose place was taken

    def json(self) -> dict[str, Any]:
        return {"run": self.run, "plan": self.plan.json(), "delivery": self.receipt and self.receipt.json()}


@kept_connections()
@telling_lineage
@traced
def replay(
    workspace: Workspace,
    pipeline: Pipeline,
    planned: ReplayPlan,
    *,
    who: str,
    why: str | None = None,
    accept_changed: bool = False,
    accept_unreadable: bool = False,
    fewer: bool = False,
    releases: Releases | None = None,
    remedies: Remedies = Remedies(),
    spark: SparkSession | None = None,
    began: Callable[[str], None] = lambda _: None,
    on_step: Listener | None = None,
) -> Replayed:
    """Replace what `planned` names by one new delivery of the same inputs, in both sinks at once, or raise.

    History that the stream leaves out is part of it, whether or not there is anything to replace.

    The run is on record, with its plan and how it ended, also where it is refused or there is nothing to do,
    unless the pipeline has delivered nothing. `began` is told its id.
    """
    _require_reason(why, {"--accept-unreadable": accept_unreadable, "--fewer": fewer})
    if planned.newest is None and not planned.history:
        return Replayed(plan=planned, receipt=None)
    dsn = workspace.services.postgres
    refuse_lost(workspace, pipeline)
    with transaction(dsn) as cursor:
        make_known(cursor, pipeline)  # history may come before the first run
        lease = correction.begin(cursor, pipeline.name, "replay", who=who, why=why, plan=planned.json())
    with leased(dsn, lease, began=began):
        if not planned.deliveries and not planned.history:
            return Replayed(plan=planned, receipt=None, run=lease.run_id)
        refuse(pipeline, planned, accept_changed=accept_changed, releases=releases, remedies=remedies)
        with a_session(workspace, spark) as session:
            from etl.runs.opened import open_pipeline

            change = planned.change(releases, accept_changed=accept_changed, who=who, why=why or "")
            fills = accept_changed and _brings_all(dsn, pipeline, change)
            opened = open_pipeline(workspace, pipeline, session, outside_stream=True, fills=fills)
            refuse_replay(pipeline, opened.state)
            batch = ReplayBatch(
                micro=_static(opened, planned, workspace, accept_unreadable=accept_unreadable),
                plan=planned,
                fewer=fewer,
                remedies=remedies,
            )
            context = replace(
                opened.correction_context(lease, change, on_step),
                change_log=opened.change_log(change, workspace.settings.pg_connections),
            )
            with _read_errors_with(remedies, pipeline):
                receipt = deliver_correction(context, batch)
    return Replayed(plan=planned, receipt=receipt, run=lease.run_id, replaced=change.supersedes)


def _require_reason(why: str | None, options: Mapping[str, bool]) -> None:
    """Raise SetupError for the first of these options that is given without a reason."""
    for option, given in options.items():
        if given and not (why or "").strip():
            raise SetupError(f"{option} needs a reason", remedy=f"add {WHY}")


@contextmanager
def _read_errors_with(remedies: Remedies, pipeline: Pipeline) -> Iterator[None]:
    """Raise an error of reading with what a person may accept instead, in the words of where the replay was asked for."""
    try:
        yield
    except InputsUnreadable as error:
        instead = f"{error.remedy}; or {remedies.unreadable}"
        if any(FEWER_STOP in one for one in error.stops):
            instead += f", and {remedies.fewer}"
        raise InputsUnreadable(error.seen, remedy=instead, stops=error.stops) from error
    except Exception as error:
        kind_of(pipeline).raise_read_error([error], "the same command again")
        raise


def _brings_all(dsn: str, pipeline: Pipeline, change: Correction) -> bool:
    """Tell whether the change takes the place of all that the table has rows of, so that it may be gone or empty."""
    with transaction(dsn) as cursor:
        in_force = mode_of(pipeline.sink).in_force(deliveries_in_force(cursor, pipeline.name))
    return {one.delivery_id for one in in_force if one.delivered} <= {*change.supersedes}


def refuse(
    pipeline: Pipeline,
    planned: ReplayPlan,
    *,
    accept_changed: bool,
    releases: Releases | None,
    remedies: Remedies,
) -> None:
    """Raise where a replay would have to guess; nothing was changed."""
    name = pipeline.name
    refuse_replay(pipeline, planned.state)
    mode_of(pipeline.sink).refuse_replay(name, planned.numbers, newest=planned.newest)
    if planned.changed and not accept_changed:
        some = first_few(planned.changed, SHOWN)
        back = "leave these deliveries as they are" if planned.ranges else "restore the old ones"
        raise InputsChanged(
            f"{name}, not replayed: {len(planned.changed)} of the inputs are not as they were delivered: {some}",
            remedy=f"{back}, or {remedies.changed}",
        )
    if planned.releases and releases is None:
        count = sum(one.delivered for one in planned.releases)
        numbers = first_few([one.delivery_id for one in planned.releases], SHOWN)
        were = pluralize(
            count, "row that these batches had held was", "rows that these batches had held were"
        )
        raise NeedsPerson(
            f"{name}, not replayed: {were} released since, by deliveries {numbers}",
            remedy=remedies.releases,
        )


def _static(
    opened: OpenedPipeline, planned: ReplayPlan, workspace: Workspace, *, accept_unreadable: bool
) -> SparkBatch:
    from etl.delivery.spark_batch import SparkBatch

    def holds(uri: str, why: str) -> bool:
        """Tell whether a file that can't be read may be held: a person accepts it, or it was held so before.

        Without a person's word the pipeline has to declare it, and the file was held for the same reason or
        never delivered, so that no delivered row is taken out.
        """
        declared = opened.pipeline.unreadable == "hold"
        return accept_unreadable or (declared and planned.had_held(uri, why))

    uris = [one.uri for one in planned.inputs] + [one.uri for one in planned.there]
    source = opened.source.at(time.time_ns() // 1_000_000)
    return SparkBatch(
        batch_id=0,
        frame=source.reread(uris, broken=()),
        inputs=planned.inputs,
        ranges=planned.there,
        stale=(),
        holds=holds,
        source=source,
        rules=opened.rules,
        settings=workspace.settings,
    )


@dataclass(frozen=True, kw_only=True)
class ReplayBatch:
    """The inputs of several deliveries as one batch."""

    micro: SparkBatch
    plan: ReplayPlan
    fewer: bool  # a person's word that rows may go
    remedies: Remedies

    @property
    def batch_id(self) -> int:
        return self.micro.batch_id

    @property
    def inputs(self) -> Sequence[Input]:
        """Return what is read, and what is gone: that stays on record, as empty, so that its coming back is told."""
        return [*self.micro.inputs, *(replace(one, size=0, etag=None) for one in self.plan.gone)]

    @property
    def ranges(self) -> Sequence[Range]:
        """Return all ranges that were read, what is gone of them too."""
        return self.plan.ranges

    def stage(self, task: StageTask) -> Staged:
        return self.micro.stage(task)

    def judge(self, counts: Counts, staged: Staged) -> Verdict:
        """Return the suite's verdict; raise FewerRows where nothing but the count of rows stops the replay.

        Where files that can't be read stop it, the stop has the rows before and after as well.
        """
        verdict = self.micro.judge(counts, staged)
        before, after = self.plan.rows, sum(report.delivered for report in staged.all)
        told = f"it would deliver {pluralize(after, 'row')} in place of {before:,}"
        too_few = after < self.plan.least and not self.fewer
        if too_few:
            told += (
                f" ({(before - after) / before:.2%} fewer), {FEWER_STOP} ({self.plan.max_fewer_share:.2%})"
            )
            if not (staged.stops or verdict.stops):
                raise self._fewer_rows(told, counts, staged)
        if too_few or staged.stops:
            return replace(verdict, stops=(*verdict.stops, told))
        return verdict

    def _fewer_rows(self, told: str, counts: Counts, staged: Staged) -> FewerRows:
        held = ", ".join(f"{reason} ({rows:,})" for reason, rows in staged.reasons.most_common(SHOWN))
        changes = [*self.plan.made_otherwise, *self.plan.changed]
        evidence = {
            "held": f"{counts.held + counts.malformed:,} (before: {self.plan.held:,}){held and f': {held}'}",
            "malformed, most often": "; ".join(staged.most_malformed),
            "not as it was": first_few(changes),
        }
        return FewerRows(
            f"The replay of {self.plan.pipeline} changed nothing, because {told}"
            + "".join(f"\n  {what}: {text}" for what, text in evidence.items() if text),
            remedy="correct the transform, the suite, a lookup or the files, then run the same command again; or"
            f" {self.remedies.fewer}",
        )

    def changed(self) -> Sequence[str]:
        return self.micro.changed()
