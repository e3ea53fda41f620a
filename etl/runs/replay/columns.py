"""Tells what a delivery would do to the columns of a pipeline's two tables, by what its transform puts out today."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.common.database import transaction
from etl.pipeline import Pipeline
from etl.sinks.columns import common_schema
from etl.sinks.evolution import changes_of_both
from etl.sinks.open import closed_sinks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from etl.runs.workspace import Workspace


def column_changes(
    workspace: Workspace, pipeline: Pipeline, *, spark: SparkSession | None = None
) -> tuple[str, ...]:
    """Return a phrase for each column that a delivery adds, widens or is refused for; nothing is changed.

    No input is read, and Spark is started where none is given.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    from etl.runs.spark_session import a_session
    from etl.sources.open import open_source

    with a_session(workspace, spark) as session:
        source = open_source(
            session, pipeline, workspace.settings, models=workspace.models, stream=False
        ).shape()
        output = to_arrow_schema(source.schema, timezone="UTC")
    columns = common_schema(output, pipeline=pipeline.name)
    sinks = closed_sinks(pipeline, columns, dsn=workspace.services.postgres, lake=workspace.lake)
    with transaction(sinks.dsn) as cursor:
        there, pointer = sinks.warehouse.difference(cursor), sinks.table.pointer(cursor)
    if there is None or pointer is None:
        return ()
    here = sinks.table.difference(pointer, columns)
    refused = dict.fromkeys((*there.others, *here.others))
    return (*changes_of_both(there, here), *(f"refused: {what}" for what in refused))
