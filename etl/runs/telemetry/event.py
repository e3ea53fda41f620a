"""Makes the OpenLineage event of a delivery from the ledger: a run of the pipeline's job that has completed.

A delivery is one run, whose id follows from the ledger's own; its parent is the task of Airflow that asked for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import NAMESPACE_URL, UUID, uuid5

import attr
from openlineage.client.event_v2 import (
    InputDataset,
    Job,
    OutputDataset,
    Run,
    RunEvent,
    RunState,
    set_producer,
)
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    RunFacet,
    base_subset_dataset,
    data_quality_assertions_dataset,
    dataset_version_dataset,
    input_statistics_input_dataset,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    processing_engine_run,
    schema_dataset,
    symlinks_dataset,
)
from openlineage.client.naming.dataset import S3, Kafka, LocalFileSystem, Postgres

from etl.common.database import Cursor
from etl.common.errors import SetupError
from etl.ledger.telemetry import lineage
from etl.ledger.telemetry.lineage import ReadFiles, ReadTopic, ToldDelivery, ToldRule
from etl.runs.telemetry.column_facet import Origin, column_facet
from etl.runs.workspace import Workspace
from etl.sinks.lake.lake import TableLocation

NAMESPACE = "sluice"  # of jobs, where OPENLINEAGE_NAMESPACE names no other
VERSION = version("sluice")
MOST = 1_000  # files or ranges that an event names of one source
# How a rule's severity is said by OpenLineage: whether the batch would have stopped.
SEVERITIES = {"critical": "error", "warning": "warn", "info": "info"}
set_producer(f"urn:sluice:{VERSION}")  # of the event and of each facet


@attr.define
class DeliveryFacet(RunFacet):
    """What a delivery is in Sluice: its place in the ledger, what it held, and what it took the place of."""

    delivery: int
    batch: int
    kind: str  # stream, replay, release or withdrawal
    commit: int  # its number among the pipeline's
    stream: str
    run: str
    manifest: str
    suite: str  # SHA-256 of the suite that judged it
    rowsIn: int  # noqa: N815 - as OpenLineage writes names
    delivered: int
    held: Mapping[str, int]  # rows in quarantine when it was committed, and of them malformed and late ones
    dropped: int
    replaces: Sequence[int]  # deliveries whose place it took
    releasedFrom: int | None  # noqa: N815 - the delivery that had held its rows
    airflow: Mapping[str, Any] | None  # the task that asked for it

    @staticmethod
    def _get_schema() -> str:
        return "urn:sluice:openlineage:delivery:1"


def event_of(cursor: Cursor, workspace: Workspace, delivery_id: int) -> RunEvent:
    """Make the event of a delivery. Raises SetupError where the ledger has none of this number."""
    told = lineage.told(cursor, delivery_id)
    if told is None:
        raise SetupError(
            f"There is no delivery {delivery_id}", remedy="`sluice deliveries PIPELINE` lists the deliveries"
        )
    read = list(_read(cursor, workspace, told))
    return RunEvent(
        eventTime=told.committed_at.isoformat(),
        eventType=RunState.COMPLETE,
        run=Run(runId=str(uuid5(UUID(told.run_id), str(delivery_id))), facets=_run_facets(told)),
        job=Job(
            namespace=_namespace(),
            name=told.pipeline,
            facets={
                "jobType": job_type_job.JobTypeJobFacet(
                    processingType="BATCH", integration="SLUICE", jobType="PIPELINE"
                )
            },
        ),
        inputs=[one for _, one in read],
        outputs=list(_outputs(cursor, workspace, told, column_facet(told.made_of, read))),
    )


def _namespace() -> str:
    return os.environ.get("OPENLINEAGE_NAMESPACE") or NAMESPACE


def _run_facets(told: ToldDelivery) -> dict[str, RunFacet]:
    airflow = None
    if told.dag_id is not None:
        airflow = {
            "dagId": told.dag_id,
            "runId": told.dag_run_id,
            "taskId": told.task_id,
            "try": told.try_number,
        }
    facets: dict[str, RunFacet] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(name="Sluice", version=VERSION),
        "sluice_delivery": DeliveryFacet(
            delivery=told.delivery_id,
            batch=told.batch_id,
            kind=told.kind,
            commit=told.commit_seq,
            stream=told.stream_id,
            run=told.run_id,
            manifest=told.manifest,
            suite=told.suite_digest,
            rowsIn=told.rows_in,
            delivered=told.delivered,
            held={"rows": told.quarantined, "malformed": told.malformed, "late": told.late or 0},
            dropped=told.dropped or 0,
            replaces=list(told.replaces),
            releasedFrom=told.released_from,
            airflow=airflow,
        ),
    }
    return facets | ({"parent": parent} if (parent := _parent(told)) else {})


def _parent(told: ToldDelivery) -> parent_run.ParentRunFacet | None:
    """Return the run that asked for the delivery's: as it was named, else the task of Airflow."""
    if told.parent and told.parent.count("/") >= 2:
        above, _, named = told.parent.rpartition("/")
        namespace, _, job = above.rpartition("/")
        run = _run_id(named, told.parent)
    elif told.dag_id is not None:
        namespace, job = _namespace(), f"{told.dag_id}.{told.task_id}"
        run = str(uuid5(NAMESPACE_URL, f"{told.dag_id}/{told.dag_run_id}/{told.task_id}/{told.try_number}"))
    else:
        return None
    return parent_run.ParentRunFacet(
        run=parent_run.Run(runId=run), job=parent_run.Job(namespace=namespace, name=job)
    )


def _run_id(named: str, parent: str) -> str:
    """Return the id of a parent's run; one made of all of `parent` where it was named by something else than a UUID."""
    try:
        return str(UUID(named))
    except ValueError:
        return str(uuid5(NAMESPACE_URL, parent))


def _read(cursor: Cursor, workspace: Workspace, told: ToldDelivery) -> Iterator[tuple[Origin, InputDataset]]:
    """Yield what the delivery read, each with what the plan of its transform knows it as."""
    streams, of_topics = (told.made_of or {}).get("streams", ()), (told.made_of or {}).get("topics", {})
    for files in lineage.files(cursor, told.delivery_id, most=MOST):
        stream = streams[files.source] if files.source < len(streams) else ""
        yield (False, stream), _files(files, told.sources)
    for name, found in told.lookups.items():
        for one in found:
            yield (True, name), _lookup(one["uri"], one["size"])
    for topic in lineage.topics(cursor, told.delivery_id):
        yield (False, of_topics.get(topic.topic, "")), _topic(topic, workspace.settings.kafka)


def _files(read: ReadFiles, sources: Sequence[str | None] | None) -> InputDataset:
    """Return the folder of a source as a data set, of which a delivery read some files."""
    noted = sources[read.source] if sources and read.source < len(sources) else None
    name = _place(noted or read.uris[0].rpartition("/")[0])
    return _input(name, size=read.bytes, files=read.files, subset=read.uris)


def _lookup(uri: str, size: int) -> InputDataset:
    return _input(_place(uri), size=size, files=1)


def _topic(read: ReadTopic, brokers: str | None) -> InputDataset:
    host, _, port = (brokers or "unknown:0").split(",")[0].rpartition(":")
    return _input(Kafka(host, port, read.topic), records=read.records, subset=read.uris[:MOST])


def _input(
    name: S3 | LocalFileSystem | Kafka,
    *,
    records: int | None = None,
    size: int | None = None,
    files: int | None = None,
    subset: Sequence[str] = (),
) -> InputDataset:
    facets: dict[str, InputDatasetFacet] = {
        "inputStatistics": input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
            rowCount=records, size=size, fileCount=files
        )
    }
    if subset:
        locations = base_subset_dataset.LocationSubsetCondition(locations=list(subset))
        facets["subset"] = base_subset_dataset.InputSubsetInputDatasetFacet(inputCondition=locations)
    return InputDataset(namespace=name.get_namespace(), name=name.get_name(), inputFacets=facets)


def _place(place: str) -> S3 | LocalFileSystem:
    """Return the name of a folder or a file, given by its path or its URI."""
    parts = urlsplit(place)
    if parts.scheme in ("s3", "s3a"):
        return S3(parts.netloc, unquote(parts.path.lstrip("/")) or "/")
    return LocalFileSystem(unquote(parts.path) if parts.scheme else place)


def _outputs(
    cursor: Cursor, workspace: Workspace, told: ToldDelivery, made_of: DatasetFacet | None
) -> Iterator[OutputDataset]:
    """Yield both sinks' tables, each with its columns, what they are made of, what came, and how the suite judged that."""
    facets: dict[str, Any] = {}  # the library takes verdicts for facets of inputs; the rows judged are these
    if made_of is not None:
        facets["columnLineage"] = made_of
    if told.columns is not None:
        fields = [
            schema_dataset.SchemaDatasetFacetFields(name=one["name"], type=one["type"])
            for one in told.columns
        ]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=fields)
    if rules := lineage.rules(cursor, told.delivery_id):
        columns = _columns_of_rules(told.report)
        assertions = [_assertion(one, columns.get(place)) for place, one in enumerate(rules)]
        facets["dataQualityAssertions"] = data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(
            assertions=assertions
        )
    server = cursor.connection.info
    host = server.host if server.host and not server.host.startswith("/") else "localhost"
    table = Postgres(host, str(server.port), server.dbname, told.table_schema, told.table_name)
    yield OutputDataset(
        namespace=table.get_namespace(),
        name=table.get_name(),
        facets=facets,
        outputFacets={
            "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=told.delivered
            )
        },
    )
    written = lineage.written(cursor, told.delivery_id)
    own: dict[str, DatasetFacet] = {
        "symlinks": symlinks_dataset.SymlinksDatasetFacet(
            identifiers=[
                symlinks_dataset.Identifier(
                    namespace=workspace.lake.root, name=f"{told.table_schema}.{told.table_name}", type="TABLE"
                )
            ]
        )
    }
    if told.snapshot_id is not None:
        own["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(
            datasetVersion=str(told.snapshot_id)
        )
    folder = _place(TableLocation.of(workspace.lake, f"{told.table_schema}.{told.table_name}").location)
    yield OutputDataset(
        namespace=folder.get_namespace(),
        name=folder.get_name(),
        facets=facets | own,
        outputFacets={
            "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=told.delivered, size=written.bytes, fileCount=written.files
            )
        },
    )


def _assertion(rule: ToldRule, column: str | None) -> data_quality_assertions_dataset.Assertion:
    return data_quality_assertions_dataset.Assertion(
        assertion=rule.expectation,
        name=rule.reason,
        success=rule.success,
        column=column,
        severity=SEVERITIES.get(rule.severity, rule.severity),
        params={
            name: count
            for name, count in (("rows", rule.element_count), ("unexpected", rule.unexpected_count))
            if count is not None
        },
    )


def _columns_of_rules(report: str | None) -> dict[int, str]:
    """Return the column of each rule that is about one, by the rule's place in the report."""
    results = json.loads(report)["results"] if report else []
    kwargs = (one.get("expectation_config", {}).get("kwargs", {}) for one in results)
    return {place: one["column"] for place, one in enumerate(kwargs) if "column" in one}
