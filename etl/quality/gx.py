"""Asks Great Expectations for its metrics one by one: no data context, no validator, no persisted batch.

Importing GX takes seconds, so it is imported when a suite is compiled and not with this module.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import LazyLoader, find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

from etl.quality.verdict import SAMPLES_PER_RULE
from etl.spark.session import unlogged_analysis

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

BATCH = "batch"
ROW_COUNT = "table.row_count"
SCHEMA_METRICS = frozenset({"table.columns", "table.column_types", "table.column_count"})
# A metric whose name ends so is an expression, resolved without looking at rows.
EXPRESSIONS = (".condition", ".map", ".aggregate_fn")


def runtime() -> dict[str, Any]:
    """Return GX's run-time settings for every evaluation: a fresh dict, since GX writes into it."""
    result_format = {"result_format": "SUMMARY", "partial_unexpected_count": SAMPLES_PER_RULE}
    return {"result_format": result_format, "catch_exceptions": True}


@cache
def registered() -> None:
    """Import GX and fill its registry of expectations and metrics, once a process; for use before any other import of GX."""
    _import_when_used("scipy.stats")
    import great_expectations.expectations.core
    import great_expectations.expectations.metrics  # noqa: F401


def _import_when_used(name: str) -> None:
    """Leave the import of a module to its first use: of scipy.stats, a quarter of GX's own, which few metrics take."""
    if name in sys.modules or (spec := find_spec(name)) is None or spec.loader is None:
        return
    spec.loader = LazyLoader(spec.loader)
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    package, _, own_name = name.rpartition(".")
    setattr(sys.modules[package], own_name, module)


@contextmanager
def quiet_analysis() -> Iterator[None]:
    """Raise Spark's analysis errors within this context without logging them as well: they are answers here.

    GX's warnings that its own suite files write row conditions as text are left out too.
    """
    with unlogged_analysis(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def engine_over(spark: SparkSession, frame: DataFrame) -> Any:
    """Return a GX engine whose one batch is `frame`; GX persists nothing."""
    registered()
    from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine

    engine = SparkDFExecutionEngine(persist=False, spark=spark)
    engine.load_batch_data(BATCH, frame)
    return engine


@dataclass(frozen=True, kw_only=True)
class Resolved:
    values: dict[Any, Any]  # metric id -> value
    failures: dict[Any, str]  # metric id -> GX's last message


def resolve(engine: Any, metrics: Iterable[Any]) -> Resolved:
    """Compute GX's `metrics` on the engine's batch, dependencies included; failures are kept apart."""
    graph = dependency_graph(engine, metrics)
    values, aborted = graph.resolve(runtime_configuration=runtime(), show_progress_bars=False)
    failures = {key: str(info["exception_info"].exception_message) for key, info in aborted.items()}
    return Resolved(values=values, failures=failures)


def dependency_graph(engine: Any, metrics: Iterable[Any]) -> Any:
    """Build GX's graph of the metrics and all below them.

    GX raises when one has no implementation for Spark.
    """
    from great_expectations.validator.validation_graph import ValidationGraph

    graph = ValidationGraph(execution_engine=engine)
    for metric in metrics:
        graph.build_metric_dependency_graph(metric_configuration=metric, runtime_configuration=runtime())
    return graph


class NeedsData(Exception):
    """The metric can't be had from a schema; its name is the argument."""


@dataclass(frozen=True, kw_only=True)
class SchemaMetrics:
    """GX's metrics that follow from a schema: column names and types, conditions, aggregate expressions."""

    engine: Any  # GX's, over an empty frame of the schema
    known: dict[Any, Any] = field(default_factory=dict)  # metric id -> value

    def value(self, metric: Any) -> Any:
        """Return the metric's value without running a job.

        Raises NeedsData when the metric or one below it would look at rows.
        """
        from great_expectations.validator.validation_graph import ValidationGraph

        if metric.id in self.known:
            return self.known[metric.id]
        name: str = metric.metric_name
        if name not in SCHEMA_METRICS and not name.endswith(EXPRESSIONS):
            raise NeedsData(name)
        graph = ValidationGraph(execution_engine=self.engine)
        implementation, _ = graph.set_metric_configuration_default_kwargs_if_absent(metric)
        metric.metric_dependencies = implementation.get_evaluation_dependencies(
            metric=metric, execution_engine=self.engine, runtime_configuration=runtime()
        )
        for needed in metric.metric_dependencies.values():
            # GX lists the row count below every map and column metric, and its own ones never read it.
            if needed.metric_name == ROW_COUNT and _is_gx_own(implementation):
                self.known[needed.id] = None
            else:
                self.value(needed)
        answer = self.engine.resolve_metrics([metric], metrics=self.known, runtime_configuration=runtime())
        self.known.update(answer)
        return self.known[metric.id]


def _is_gx_own(implementation: Any) -> bool:
    return str(implementation.__module__).startswith("great_expectations.")


@dataclass(frozen=True, kw_only=True)
class FilterRecorder:
    """Stands for a batch while GX narrows it to a domain, and keeps the filters that GX applied."""

    schema: StructType
    filters: tuple[str | Column, ...] = ()

    def filter(self, condition: str | Column) -> FilterRecorder:
        return FilterRecorder(schema=self.schema, filters=(*self.filters, condition))


def recording_engine(spark: SparkSession, schema: StructType) -> Any:
    """Return an engine whose `get_domain_records` tells the filters of GX instead of applying them."""
    from great_expectations.execution_engine.sparkdf_batch_data import SparkDFBatchData
    from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine

    engine = SparkDFExecutionEngine(persist=False, spark=spark)
    engine.load_batch_data(BATCH, SparkDFBatchData(engine, FilterRecorder(schema=schema)))
    return engine
