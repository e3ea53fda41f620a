"""What asset events tell of a pipeline's deliveries, and how far those that Airflow has taken have told.

Airflow makes an event in the transaction in which a task succeeds. So the newest event, and no record of ours, says what
downstream DAGs were told: a try whose command has ended well may still fail (docs/airflow.md, "Assets").
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset

from etl.common.number_ranges import shortened
from etl.common.wording import first_few, pluralize
from etl.pipeline.dag_names import replays_of
from etl.runs.summary import Summary

if TYPE_CHECKING:
    from airflow.sdk import Context

TOLD_TO = "told_to"
QUALITY = "airflow.dataquality.result"  # where Airflow's data quality provider looks for a score
TOLD = (TOLD_TO, "told_delivery", "told_run")  # by which a commit is known again, also after a restore
FEW = 10  # folders in an event of a partition
PAGE = 100  # events asked for at once
PAGES = 10  # asked for at most: each is a question to Airflow, and a run waits for them before it begins

log = logging.getLogger(__name__)


def event_extra(summary: Summary) -> dict[str, Any]:
    """Return what an asset event says: deliveries that no event has named, their rows, the lake's snapshot.

    Long lists have ranges in them, which `etl.read` takes as well. Where rules judged these deliveries, it has the score.
    """
    quality = {} if summary.quality is None else {QUALITY: summary.quality}
    return {
        "action": _action(summary),
        "pipeline": summary.pipeline,
        "replaced": summary.replaced,
        "released": shortened(summary.released),
        "deliveries": summary.unreported,
        **{name: getattr(summary, name) for name in TOLD},
        "batches": summary.unreported_batches,
        "rows": summary.unreported_rows,
        "quarantined": summary.unreported_quarantined,
        "snapshot_id": str(summary.snapshot_id) if summary.snapshot_id is not None else None,
        "stream": summary.stream,
        "run": summary.run,
        **quality,
    }


def tell_partitions(summary: Summary, asset: Asset, context: Context) -> bool:
    """Give each partition that was touched an event of its own; tell whether there are any.

    Without a key an event starts no DAG and is an error in Airflow's log: where there is none, the asset is to be no outlet.
    """
    if said := unnamed_partitions(summary):
        log.warning("%s", said)
    if not summary.partitions:
        return False
    event = context["outlet_events"][asset]
    event.add_partitions(summary.partitions)
    event.extra.update(partition_extra(summary))
    return True


def partition_extra(summary: Summary) -> dict[str, Any]:
    """Return what the event of each partition says: short, for there may be hundreds of them."""
    return {
        "action": _action(summary),
        "pipeline": summary.pipeline,
        "partitions": len(summary.partitions),
        "beyond": summary.partitions_beyond,
        "without_key": summary.partitions_without_key[:FEW],
        TOLD_TO: summary.told_to,
        "run": summary.run,
    }


def unnamed_partitions(summary: Summary) -> str | None:
    """Say which of the touched partitions have no event, and how their rows are found; None where each has one."""
    said = []
    if summary.partitions_beyond:
        beyond = pluralize(summary.partitions_beyond, "partition")
        said.append(
            f"{beyond} older than {summary.partitions[-1]} without an event, for a run names"
            f" {len(summary.partitions):,} at most: have the DAGs that read them make all anew"
        )
    if summary.partitions_without_key:
        said.append(f"no key for what is in the partitions {first_few(summary.partitions_without_key)}")
    return "; ".join(said) or None


def _action(summary: Summary) -> str:
    return "replaced" if summary.replaced else "released" if summary.released else "delivered"


def told_to(events: Any, asset: Asset, pipeline: str, dag_id: str) -> dict[str, Any]:
    """Return what the newest event says of the commit up to which it tells; nothing where none of the newest events does.

    `events` are a task's inlet events. Runs of the DAG for replays and releases tell of their own, and other runs of
    all else: only events of such as `dag_id` count. Behind PAGE × PAGES events of others, as where nothing was replayed
    for weeks, a run goes by the ledger's record of the tries that ended well.
    """
    beside, before = replays_of(pipeline), None
    for _ in range(PAGES):
        asked = events[asset].ascending(False).limit(PAGE)
        page = list(asked if before is None else asked.before(before))
        mine = [
            event
            for event in page
            if (event.source_dag_id == beside) == (dag_id == beside)
            and (event.extra or {}).get("pipeline") == pipeline
            and event.extra.get(TOLD_TO) is not None
        ]
        if mine:
            newest = max(mine, key=lambda event: event.id).extra
            return {name: newest.get(name) for name in TOLD}
        if len(page) < PAGE or page[-1].timestamp == before:
            break
        before = page[-1].timestamp
    return {}
