"""Gives a pipeline another name: its history goes along, and its tables, objects and checkpoints stay where they are.

One transaction of PostgreSQL does all of it, so a rename that breaks off has changed nothing, or has done everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from etl.common.database import Cursor, lift_limits, transaction
from etl.common.errors import SetupError
from etl.common.migrations import migrate
from etl.common.statements import Statements
from etl.common.wording import first_few, pluralize
from etl.ledger import names, pipelines
from etl.ledger.deliveries import last_delivery
from etl.operations.control.retire import never_ran, refuse_running
from etl.pipeline import Pipeline, load_pipeline
from etl.pipeline.dag_names import replays_of
from etl.pipeline.loader import file_of
from etl.runs.heartbeat import make_known
from etl.runs.workspace import Workspace

STATEMENTS = Statements(__name__)


@dataclass(frozen=True, kw_only=True)
class Rename:
    """A pipeline's old name and its new one, and what goes along or stays."""

    old: str
    new: str
    table: str
    checkpoints: str  # their folder
    deliveries: int
    held: int
    consumers: Sequence[str]
    done: names.Renamed | None  # when that was done before; None: it is still to do

    def lines(self) -> Iterator[str]:
        """Say what goes along, and what keeps its place."""
        if self.done:
            yield f"{self.done}: nothing is to be done"
            return
        yield (
            f"{self.old} becomes {self.new}, with {pluralize(self.deliveries, 'delivery', 'deliveries')},"
            f" {pluralize(self.held, 'held row')} and {pluralize(len(self.consumers), 'consumer')}"
        )
        yield (
            f"what stays where it is: table {self.table} in both sinks, its objects, and the checkpoints in"
            f" {self.checkpoints}"
        )

    def by_hand(self) -> Iterator[str]:
        """Say what names the pipeline outside of Sluice's own records, and follows by hand alone."""
        yield (
            f"Airflow: the history of the DAGs {self.old} and {replays_of(self.old)} stays under these names; unpause"
            f" {self.new}, and let DAGs that wait for x-sluice://{self.old}/… wait for x-sluice://{self.new}/…"
        )
        if self.consumers:
            yield (
                f"consumers: {first_few(self.consumers)} read the changes of {self.new} from now on, at their places;"
                f" their code names {self.old}"
            )
        yield f'metrics, logs and lineage say {self.new}: change dashboards and alerts that ask for "{self.old}"'


def plan(workspace: Workspace, old: str, new: str) -> Rename:
    """Return what a rename would do, or has done before.

    Raises SetupError where `new` is not declared, is another pipeline's or names another table, or where `old` is still
    declared or on no record; and Busy while something of it runs.
    """
    pipeline = _declared(workspace, old, new)
    migrate(workspace.services.postgres)
    with transaction(workspace.services.postgres) as cursor:
        return _plan(cursor, workspace, old, pipeline)


def rename(workspace: Workspace, old: str, new: str, *, who: str) -> Rename:
    """Give a pipeline another name, unless it has it by now, and return what was done; raise as `plan` does."""
    pipeline = _declared(workspace, old, new)
    migrate(workspace.services.postgres)
    with transaction(workspace.services.postgres) as cursor:
        pipelines.lock_registration(cursor)
        pipelines.lock(cursor, old)
        planned = _plan(cursor, workspace, old, pipeline)
        if planned.done is None:
            lift_limits(cursor)  # it writes every row that names the pipeline
            names.rename(cursor, old, new, who=who)
            make_known(cursor, pipeline)
        return planned


def _declared(workspace: Workspace, old: str, new: str) -> Pipeline:
    """Return the declaration of the new name; raise SetupError where there is none, or the old name still has one."""
    folders = workspace.settings.pipelines
    if file := file_of(old, folders):
        raise SetupError(
            f"Pipeline {old} is still declared, by {file}, and its next run would be of the old name",
            remedy=f"write {new} as its name, here and wherever else the pipeline runs, then rename it",
        )
    return load_pipeline(new, folders)


def _plan(cursor: Cursor, workspace: Workspace, old: str, pipeline: Pipeline) -> Rename:
    new = pipeline.name
    done = names.given_up(cursor, old)
    if done is None:
        _refuse_unfit(cursor, old, pipeline)
    elif done.pipeline != new:
        raise SetupError(f"{done}", remedy=f"`sluice rename {done.pipeline} {new}`")
    known = pipelines.pipeline_row(cursor, new if done else old)
    assert known is not None
    [(deliveries, held, consumers)] = STATEMENTS.execute(cursor, "on_record", pipeline=known.name).fetchall()
    return Rename(
        old=old,
        new=new,
        table=f"{known.table_schema}.{known.table_name}",
        checkpoints=workspace.checkpoints_folder(names.first_name(cursor, known.name)),
        deliveries=deliveries,
        held=held,
        consumers=consumers,
        done=done,
    )


def _refuse_unfit(cursor: Cursor, old: str, pipeline: Pipeline) -> None:
    """Raise SetupError where the pipeline can't be given the declared name, and Busy while something of it runs."""
    new, known = pipeline.name, pipelines.pipeline_row(cursor, old)
    if known is None:
        raise never_ran(cursor, old)
    if pipelines.pipeline_row(cursor, new) is not None:
        raise SetupError(
            f"Pipeline {new} is on record by itself, so {old} can't take its name",
            remedy="declare it by a name that no pipeline has had; `sluice status` lists them",
        )
    names.refuse_given_up(cursor, new, back_to=old)
    table = f"{known.table_schema}.{known.table_name}"
    if pipeline.table != table and last_delivery(cursor, old) is not None:
        raise SetupError(
            f"Pipeline {old} has delivered to {table}; the sink of {new} names {pipeline.table}",
            remedy=f'write table="{table}" in the sink of {new}: a table keeps its name',
        )
    refuse_running(cursor, old, "renamed")
