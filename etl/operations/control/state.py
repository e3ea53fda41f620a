"""Reads the state that a pipeline's transform keeps between batches, through Spark's own state data source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from etl.common.database import transaction
from etl.common.errors import NeedsPerson, SetupError
from etl.common.migrations import migrate
from etl.ledger import streams
from etl.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from etl.runs.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class StateStore:
    """One store of one operator's state, as of a batch."""

    operator: int
    name: str  # Spark's
    store: str  # its name, or that of a variable of the user's own
    batch: int
    keys: int  # of a list or a map: its elements
    rows: Sequence[Mapping[str, Any]]  # some of them: key, value and the partition they are in

    def json(self) -> dict[str, Any]:
        return asdict(self)


def read_state(
    workspace: Workspace, pipeline: Pipeline, *, most: int = 20, spark: SparkSession | None = None
) -> list[StateStore]:
    """Read every store of the current stream's state after its newest batch, with at most `most` rows of each.

    Nothing is changed, and the pipeline may be running. Raises SetupError when its transform keeps none.
    """
    from etl.runs.spark_session import a_session

    migrate(workspace.services.postgres)
    with transaction(workspace.services.postgres) as cursor:
        known = streams.current_stream(cursor, pipeline.name)
    if known is None or not known.state:
        raise SetupError(
            f"The transform of {pipeline.name} keeps no state, or never ran",
            remedy=f"`sluice status {pipeline.name}` shows what was delivered",
        )
    checkpoint = workspace.checkpoints(pipeline).of(known.stream_id)
    if not checkpoint.commits or not checkpoint.has_state:
        raise NeedsPerson(
            f"Checkpoint {checkpoint.uri} of {pipeline.name} holds no state",
            remedy=f"`sluice run {pipeline.name}`, which goes on or says what is missing",
        )
    with a_session(workspace, spark, little=True) as session:
        stores = session.read.format("state-metadata").load(checkpoint.uri).collect()
        return [
            _store(session, checkpoint.uri, checkpoint.commits[-1], store, variable, most)
            for store in stores
            for variable in _variables(store.operatorProperties)
        ]


def _variables(properties: str) -> list[str | None]:
    """Name the variables of a state of the user's own, without Spark's; return [None] for an operator without any."""
    named = json.loads(properties) if properties else {}
    described = named.get("stateVariables")
    if described is None:
        return [None]
    variables = json.loads(described) if isinstance(described, str) else described
    return [one["stateName"] for one in variables if not one["stateName"].startswith("$")]


def _store(
    spark: SparkSession, uri: str, batch: int, store: Any, variable: str | None, most: int
) -> StateStore:
    reader = spark.read.format("statestore").option("operatorId", store.operatorId).option("batchId", batch)
    reader = reader.option("storeName", store.stateStoreName)
    if variable is not None:
        reader = reader.option("stateVarName", variable)
    frame: DataFrame = reader.load(uri)
    rows = frame.limit(most).collect()
    return StateStore(
        operator=store.operatorId,
        name=store.operatorName,
        store=variable or store.stateStoreName,
        batch=batch,
        keys=frame.count(),
        rows=[row.asDict(recursive=True) for row in rows],
    )
