"""What the ledger remembers of a pipeline's columns: the last batches, and any span of them as one."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from etl.database import rows, run, session
from etl.metrics import ColumnMetrics, PastBatch

if TYPE_CHECKING:
    from etl.pipeline import Pipeline
    from etl.run import Place


def past_batches(place: Place, pipeline: Pipeline, last: int) -> list[PastBatch]:
    """The stream's last live batches, newest first: what a rule across batches compares with."""
    if not last:
        return []
    with session(place.services.postgres) as cursor:
        found = rows(run(cursor, "ledger", "past_batches", {"pipeline": pipeline.name, "last": last}))
    return [_past(list(lines)) for _, lines in groupby(found, lambda line: line["delivery_id"])]


def _past(lines: list[dict[str, Any]]) -> PastBatch:
    of_columns = [line for line in lines if line["column_name"] is not None]
    return PastBatch(
        rows=lines[0]["rows"],
        committed_at=lines[0]["committed_at"],
        columns={line["column_name"]: _figures(line) for line in of_columns},
        distinct={
            line["column_name"]: line["distinct_estimate"]
            for line in of_columns
            if line["distinct_estimate"] is not None
        },
    )


def _figures(line: dict[str, Any]) -> ColumnMetrics:
    return ColumnMetrics(
        column=line["column_name"],
        rows=line["rows"],
        nulls=line["null_count"],
        nans=line["nan_count"],
        mean=line["mean"],
        latest=line["latest"],
    )
