"""The names of a pipeline's DAGs and of their task, and the pipeline of a DAG."""

from __future__ import annotations

REPLAYS = "_replays"  # ends the name of the DAG of a pipeline's replays and releases, and of no pipeline
RUN_TASK = "run"  # the only task of either DAG
POOLS = "sluice_"  # begins the name of a pool of one slot for each pipeline's DAG; the plugin creates it


def replays_of(pipeline: str) -> str:
    """Name the DAG of a pipeline's replays and releases."""
    return pipeline + REPLAYS


def pipeline_of(dag_id: str) -> str:
    """Name the pipeline whose replays the DAG is for; return any other DAG's own name."""
    return dag_id.removesuffix(REPLAYS)
