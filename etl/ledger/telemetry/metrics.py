"""Tells what the ledger says of pipelines, runs and consumers as metrics, in Prometheus' text format.

Every figure is read when it is asked for, in one snapshot: nothing is counted beside the ledger, so a restart loses none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etl.common.database import Cursor, rows, transaction
from etl.common.statements import Statements

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

STATEMENTS = Statements(__name__)

Found = dict[str, Any]  # a row of one statement
Keep = Callable[[list[str]], Sequence[str]]  # of pipelines' names, those that may be told


@dataclass(frozen=True, kw_only=True)
class Family:
    """A metric: its name, which of the statements has it and in which column, and by what its samples are told apart."""

    name: str
    says: str
    of: str  # the statement
    column: str
    labels: tuple[str, ...] = ("pipeline",)
    counts: bool = False  # it only grows, and its samples' name ends with _total


KIND = ("pipeline", "kind")
CONSUMER = ("pipeline", "consumer")
FAMILIES = (
    Family(
        name="sluice_deliveries",
        says="Commits",
        of="deliveries",
        column="deliveries",
        labels=KIND,
        counts=True,
    ),
    Family(
        name="sluice_delivered_rows",
        says="Rows that came into both sinks",
        of="deliveries",
        column="delivered",
        labels=KIND,
        counts=True,
    ),
    Family(
        name="sluice_quarantined_rows",
        says="Rows that commits held, malformed records included",
        of="deliveries",
        column="quarantined",
        labels=KIND,
        counts=True,
    ),
    Family(
        name="sluice_malformed_records",
        says="Records that could not be read, part of the held rows",
        of="deliveries",
        column="malformed",
        labels=KIND,
        counts=True,
    ),
    Family(
        name="sluice_dropped_rows",
        says="Rows that a transform's state left out behind the watermark",
        of="deliveries",
        column="dropped",
        labels=KIND,
        counts=True,
    ),
    Family(name="sluice_held_rows", says="Rows in quarantine now", of="pipelines", column="held"),
    Family(
        name="sluice_last_batch_held_ratio",
        says="Share of the last batch's records that it held",
        of="pipelines",
        column="share",
    ),
    Family(
        name="sluice_last_delivery_timestamp_seconds",
        says="When the last batch was committed",
        of="pipelines",
        column="committed",
    ),
    Family(
        name="sluice_last_batch_seconds",
        says="How long the stream's last batch took",
        of="pipelines",
        column="seconds",
    ),
    Family(
        name="sluice_last_batch_phase_seconds",
        says="How long a part of it took; the commit's transaction is one",
        of="phases",
        column="seconds",
        labels=("pipeline", "phase"),
    ),
    Family(
        name="sluice_source_lag_records",
        says="Records that were on the topics when the last batch was planned, and were left to later ones",
        of="pipelines",
        column="behind",
    ),
    Family(
        name="sluice_watermark_timestamp_seconds",
        says="The watermark that the last batch ran with",
        of="pipelines",
        column="watermark",
    ),
    Family(
        name="sluice_pipeline_standing",
        says="1 for how the pipeline stands, as the pages have it",
        of="standings",
        column="one",
        labels=("pipeline", "standing"),
    ),
    Family(name="sluice_running_runs", says="Runs that have not ended", of="pipelines", column="running"),
    Family(
        name="sluice_runs",
        says="Runs that have ended, by their outcome",
        of="runs",
        column="runs",
        labels=("pipeline", "kind", "outcome"),
        counts=True,
    ),
    Family(
        name="sluice_attempts",
        says="Attempts by their outcome",
        of="attempts",
        column="attempts",
        labels=("pipeline", "outcome"),
    ),
    Family(
        name="sluice_orphaned_objects",
        says="Objects on S3 that nothing refers to, as the last sweep or audit left or saw them",
        of="orphans",
        column="objects",
    ),
    Family(name="sluice_orphaned_bytes", says="Their size", of="orphans", column="bytes"),
    Family(
        name="sluice_orphans_seen_timestamp_seconds",
        says="When that sweep or audit was",
        of="orphans",
        column="seen",
    ),
    Family(
        name="sluice_lineage_unsent_events",
        says="OpenLineage events that no receiver has taken yet",
        of="pipelines",
        column="unsent",
    ),
    Family(
        name="sluice_consumer_lag_deliveries",
        says="Deliveries that a consumer has not read",
        of="consumers",
        column="deliveries",
        labels=CONSUMER,
    ),
    Family(
        name="sluice_consumer_lag_rows",
        says="Rows that came or left with them",
        of="consumers",
        column="rows",
        labels=CONSUMER,
    ),
    Family(
        name="sluice_consumer_lag_seconds",
        says="How long ago the first of them was committed; 0: none is left",
        of="consumers",
        column="seconds",
        labels=CONSUMER,
    ),
    Family(
        name="sluice_consumer_lag_limit_seconds",
        says="How long what is delivered may wait for a consumer, where that is declared",
        of="pipelines",
        column="lag_limit",
    ),
)


@dataclass(frozen=True, kw_only=True)
class LedgerCollector:
    """Reads all metrics of the ledger anew whenever Prometheus' library asks for them."""

    dsn: str

    def collect(self) -> Iterator[Metric]:
        with transaction(self.dsn, one_snapshot=True) as cursor:
            yield from families(cursor)


def text(cursor: Cursor, keep: Keep = lambda names: names) -> str:
    """Return all metrics of the pipelines that `keep` keeps as Prometheus' text; retired ones are left out."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Read(found=list(families(cursor, keep))))
    return generate_latest(registry).decode()


@dataclass(frozen=True, kw_only=True, eq=False)  # a registry's collectors are told apart by themselves
class _Read:
    found: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        return self.found


def families(cursor: Cursor, keep: Keep = lambda names: names) -> Iterator[Metric]:
    """Yield each metric with its samples, of the pipelines that `keep` keeps."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    found = _read(cursor, keep)
    for family in FAMILIES:
        kind = CounterMetricFamily if family.counts else GaugeMetricFamily
        metric = kind(family.name, family.says, labels=family.labels)
        for one in found[family.of]:
            if one[family.column] is not None:
                metric.add_metric([str(one[label]) for label in family.labels], one[family.column])
        yield metric


def _read(cursor: Cursor, keep: Keep) -> dict[str, list[Found]]:
    """Read each statement once; what of `pipelines` is told apart further is made of its rows."""
    names = list(keep([name for (name,) in STATEMENTS.execute(cursor, "names").fetchall()]))
    pipelines: list[Found] = rows(STATEMENTS.execute(cursor, "pipelines", names=names))
    return {
        "pipelines": pipelines,
        "phases": [
            {"pipeline": one["pipeline"], "phase": phase, "seconds": ms / 1000}
            for one in pipelines
            for phase, ms in (one["phases_ms"] or {}).items()
        ],
        "standings": [{**one, "one": 1} for one in pipelines],
        "deliveries": rows(STATEMENTS.execute(cursor, "deliveries", names=names)),
        "runs": rows(STATEMENTS.execute(cursor, "runs", names=names)),
        "attempts": rows(STATEMENTS.execute(cursor, "attempts", names=names)),
        "orphans": rows(STATEMENTS.execute(cursor, "orphans", names=names)),
        "consumers": rows(STATEMENTS.execute(cursor, "consumers", names=names)),
    }
