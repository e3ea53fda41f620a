"""Gives each metric that an expectation needs its source: a flag's count, an aggregate, the schema."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from string import Formatter
from typing import TYPE_CHECKING, Any

from etl.common.outcome import in_short
from etl.quality.gx import (
    ROW_COUNT,
    SCHEMA_METRICS,
    NeedsData,
    SchemaMetrics,
    dependency_graph,
    recording_engine,
    runtime,
)
from etl.quality.metric_sources import (
    Derived,
    Estimated,
    Flagged,
    Known,
    Latest,
    MetricSource,
    Observed,
    Rows,
    Sampled,
    Shape,
)
from etl.quality.mistakes.arguments import Refused
from etl.quality.suite import DeclaredRule
from etl.quality.trend_rules import LATEST, MEAN, Across
from etl.spark.frames import quoted
from etl.spark.jvm import java_class
from etl.spark.state_plan import listed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# GX computes these from other metrics and never from the data.
DERIVED_METRICS = frozenset({"column.non_null_proportion"})
# Of rules that compare with batches before: from the column's metrics, as theirs are.
ACROSS_METRICS: Mapping[str, type[Estimated | Latest]] = {
    "column.distinct_values.count": Estimated,
    "column.max": Latest,
}
VIEW = "tmp_view"  # what GX calls a batch in the query of a rule
COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
COLUMN_TYPES, COLUMNS = "table.column_types", "table.columns"
EXISTS = "expect_column_to_exist"
# Rules about all columns, and the argument of theirs that has the names.
OF_ALL_COLUMNS = {
    "expect_table_columns_to_match_set": "column_set",
    "expect_table_columns_to_match_ordered_list": "column_list",
}
# Asked for by SUMMARY, but null unless the suite names index columns.
UNUSED = (".unexpected_index_list", ".unexpected_index_query")


class NotInThePass(Exception):
    """The rule can't be evaluated row by row in the pass; the text says why."""


@dataclass(frozen=True, kw_only=True)
class RulePlan:
    """Where each metric of one expectation comes from."""

    asked: Any  # GX's ValidationDependencies of the expectation, which take it long to make
    sources: Mapping[Any, MetricSource]  # GX's metric id -> source
    broken: int | None  # the flag of the rows that break the rule; None: a rule about the table

    @property
    def looks_at_rows(self) -> bool:
        """Tell whether more than the schema and the number of rows is needed."""
        plain = (Known, Rows)
        return any(
            not isinstance(source, plain) or (isinstance(source, Rows) and source.domain is not None)
            for source in self.sources.values()
        )


@dataclass(kw_only=True)
class Planner:
    """Collects the flags and aggregates that a suite's rules need, each only once."""

    frame: DataFrame  # empty, of the output's schema
    engine: Any  # GX's, over that frame
    metrics: SchemaMetrics
    recorder: Any  # GX's, telling filters instead of applying them
    measured: Sequence[str]  # columns whose metrics are kept
    flags: list[Column] = field(default_factory=list)
    aggregates: list[Column] = field(default_factory=list)
    flag_numbers: dict[Hashable, int] = field(default_factory=dict)
    aggregate_names: dict[Any, str] = field(default_factory=dict)

    @classmethod
    def over(cls, spark: SparkSession, frame: DataFrame, engine: Any, measured: Sequence[str]) -> Planner:
        return cls(
            frame=frame,
            engine=engine,
            metrics=SchemaMetrics(engine=engine),
            recorder=recording_engine(spark, frame.schema),
            measured=measured,
        )

    def require_columns(self, rule: DeclaredRule) -> None:
        """Raise Refused when the output lacks a column of the rule, unless its existence is the question.

        The name must be the column's own, upper and lower case included: the stage looks samples up by it.
        Raises Refused, too, for a rule across batches whose column has no metrics to compare batches by.
        """
        self._require_names(rule)
        if rule.kind == EXISTS:
            return
        if missing := [name for name in rule.columns if name not in self.frame.columns]:
            have = ", ".join(self.frame.columns)
            raise Refused(f"the output has no column {', '.join(missing)}; it has {have}")
        if rule.across and rule.across.column and rule.across.column not in self.measured:
            raise Refused(
                f"no metrics of {rule.across.column} are kept, with which batches could be compared:"
                " name it in the pipeline's `metrics`"
            )
        if rule.across and rule.across.column and not self.is_comparable(rule.across):
            kind = self.frame.schema[rule.across.column].dataType.simpleString()
            raise Refused(
                f"{rule.across.column} is {kind}, of which batches have no such value to be compared by"
            )

    def _require_names(self, rule: DeclaredRule) -> None:
        """Raise Refused for arguments of a rule about which columns there are that GX takes for others than are meant."""
        if rule.kind == EXISTS:
            names: Any = rule.columns
            if rule.expectation.column_index == 0:
                raise Refused(
                    "its column_index is 0, which GX takes for none: name all columns in their order by"
                    " expect_table_columns_to_match_ordered_list"
                )
        elif (argument := OF_ALL_COLUMNS.get(rule.kind)) is not None:
            names = getattr(rule.expectation, argument)
            if not names or not all(isinstance(name, str) for name in names):
                raise Refused(f"its {argument} is {names!r}, and no list of columns' names: write them")
        else:
            return
        for name in names:
            if name in self.bare:
                raise Refused(
                    f"it names {name}, and the column is {self.bare[name]}: leave the backticks out"
                )

    @cached_property
    def bare(self) -> Mapping[str, str]:
        """Return the columns whose names have a dot, by the quoted names that GX has for them."""
        return {quoted(name): name for name in self.frame.columns if "." in name}

    def is_comparable(self, across: Across) -> bool:
        """Tell whether the column's metrics have what the rule compares."""
        from pyspark.sql.types import DateType, NumericType, TimestampNTZType, TimestampType

        kind = self.frame.schema[across.column].dataType
        if across.kind == LATEST:
            return isinstance(kind, DateType | TimestampType | TimestampNTZType)
        return across.kind != MEAN or isinstance(kind, NumericType)

    def require_resolved(self, rule: DeclaredRule, metrics: Iterable[Any]) -> None:
        """Raise Refused when Spark can't resolve the rule's row condition, or its query, over the output's columns.

        It is asked for an analysis alone: no job runs, and no command is carried out.
        """
        from pyspark.errors import PySparkException

        try:
            for metric in metrics if getattr(rule.expectation, "row_condition", None) else ():
                if (condition := self.domain(metric.metric_domain_kwargs)[1]) is not None:
                    self.frame.filter(condition)
            if (query := getattr(rule.expectation, "unexpected_rows_query", None)) is not None:
                self.analyze(query)
        except PySparkException as wrong:
            raise Refused(f"Spark can't resolve it: {in_short(wrong)}") from wrong

    def analyze(self, query: str) -> None:
        """Have Spark analyze a rule's query over the output's columns.

        Raises Refused for braces that nothing fills, and for a command, such as a SET that would hold for all of the run.
        """
        from py4j.java_gateway import is_instance_of

        # GX has refused braces that do not fit one another.
        named = [name for _, name, *_ in Formatter().parse(query) if name is not None]
        if others := [name for name in named if name != "batch"]:
            raise Refused(
                f"its query has braces around {others[0]!r}, and takes {{batch}} alone: double other braces"
            )
        text = query.format(batch=VIEW)
        spark = self.frame.sparkSession
        self.frame.createOrReplaceTempView(VIEW)
        try:
            session = spark._jsparkSession.sessionState()
            skip = java_class(spark, "org.apache.spark.sql.execution.CommandExecutionMode").SKIP()
            executed = session.executePlan(session.sqlParser().parsePlan(text), skip)
            executed.assertAnalyzed()
            gateway = spark.sparkContext._gateway
            plan = executed.analyzed()
            if any(is_instance_of(gateway, node, COMMAND) for node in (plan, *listed(plan.children()))):
                raise Refused(
                    f"its query {query!r} is a command, which would be carried out with each batch: write a SELECT"
                )
        finally:
            spark.catalog.dropTempView(VIEW)

    def asked(self, rule: DeclaredRule) -> Any:
        """Return what the rule's expectation asks for, as GX's ValidationDependencies.

        Raises Refused when GX has no implementation for Spark of something in it.
        """
        from great_expectations.exceptions.exceptions import GreatExpectationsError

        try:
            asked = rule.expectation.get_validation_dependencies(
                execution_engine=self.engine, runtime_configuration=runtime()
            )
            dependency_graph(self.engine, asked.get_metric_configurations())
        except GreatExpectationsError as wrong:
            raise Refused(in_short(wrong)) from wrong
        return asked

    def plan(self, rule: DeclaredRule) -> RulePlan:
        """Find the sources of every metric that the rule's expectation asks for; raise Refused or NotInThePass."""
        asked = self.asked(rule)
        self.require_resolved(rule, asked.get_metric_configurations())
        sources: dict[Any, MetricSource] = {}
        broken: int | None = None
        for metric in asked.get_metric_configurations():
            source = self.source(metric, rule)
            sources[metric.id] = source
            if isinstance(source, Flagged) and self.is_of_rule(metric.metric_name, rule):
                broken = source.flag
        return RulePlan(asked=asked, sources=sources, broken=broken)

    @staticmethod
    def is_of_rule(metric_name: str, rule: DeclaredRule) -> bool:
        return metric_name == f"{getattr(rule.expectation, 'map_metric', None)}.unexpected_count"

    def source(self, metric: Any, rule: DeclaredRule) -> MetricSource:
        name: str = metric.metric_name
        base, _, suffix = name.rpartition(".")
        if name == COLUMN_TYPES:
            return Known(fixed=self.column_types(metric))
        if name == COLUMNS:
            return Known(fixed=[self.bare.get(one, one) for one in self.resolved(metric)])
        if name in SCHEMA_METRICS:
            return Known(fixed=self.resolved(metric))
        if name == ROW_COUNT or suffix == "filtered_row_count":
            return self.rows(metric.metric_domain_kwargs)
        if suffix == "unexpected_count":
            return self.flagged(metric, base)
        if suffix == "unexpected_values":
            return Sampled(rule=rule.number, columns=rule.columns, shape=_shape(metric.metric_domain_kwargs))
        if name.endswith(UNUSED):
            return Known(fixed=None)
        if name in DERIVED_METRICS:
            return self.derived(metric, rule)
        if rule.across and name in ACROSS_METRICS:
            return ACROSS_METRICS[name](column=rule.across.column)
        return self.observed(metric)

    def resolved(self, metric: Any) -> Any:
        """Return GX's value of a metric that needs no rows.

        Raises Refused with GX's own words when GX has none, NotInThePass when the metric does need rows.
        """
        from great_expectations.exceptions.exceptions import GreatExpectationsError

        try:
            return self.metrics.value(metric)
        except NeedsData as other:
            raise NotInThePass(f"it depends on {other} of the whole batch") from other
        except GreatExpectationsError as wrong:
            raise Refused(in_short(wrong)) from wrong

    def column_types(self, metric: Any) -> list[Mapping[str, Any]]:
        """Return GX's types of the columns by their names: it quotes one that has a dot, and looks for it bare."""
        return [{**one, "name": self.bare.get(one["name"], one["name"])} for one in self.resolved(metric)]

    def domain(self, kwargs: Mapping[str, Any]) -> tuple[Hashable, Column | None]:
        """Return a key for the rows that GX keeps for these arguments, and their condition (None: all)."""
        from pyspark.sql import functions as F

        try:
            filters = self.recorder.get_domain_records(domain_kwargs=dict(kwargs)).filters
        except ValueError as wrong:  # GX's word for what its engine for Spark can't do
            raise Refused(in_short(wrong)) from wrong
        condition: Column | None = None
        for one in filters:
            step = F.expr(one) if isinstance(one, str) else one
            condition = step if condition is None else condition & step
        ignoring = kwargs.get("ignore_row_if")
        columns = (kwargs.get("column_A"), kwargs.get("column_B"), tuple(kwargs.get("column_list") or ()))
        key = (
            repr(kwargs.get("row_condition")),
            repr(kwargs.get("condition_parser")),
            repr(kwargs.get("filter_conditions")),
            (ignoring, columns) if ignoring else None,
        )
        return ("domain", key if filters else None), condition

    def rows(self, kwargs: Mapping[str, Any]) -> Rows:
        key, condition = self.domain(kwargs)
        return Rows(domain=None if condition is None else self.flag(key, condition))

    def flagged(self, metric: Any, base: str) -> Flagged:
        from great_expectations.expectations.registry import get_metric_provider
        from great_expectations.validator.metric_configuration import MetricConfiguration

        condition = MetricConfiguration(
            f"{base}.condition", metric.metric_domain_kwargs, metric.metric_value_kwargs
        )
        _, counted_by = get_metric_provider(metric.metric_name, self.engine)
        column, compute, accessor = self.resolved(condition)
        key, within = self.domain({**compute, **accessor})
        flag = self.flag((condition.id, key), column, within)
        return Flagged(flag=flag, domain=self.rows({**compute, **accessor}), summed=counted_by is None)

    def flag(self, key: Hashable, condition: Column, within: Column | None = None) -> int:
        """Return the number of the flag that is true where `condition` holds, among rows in `within`."""
        from pyspark.sql import functions as F

        if key in self.flag_numbers:
            return self.flag_numbers[key]
        self.require_row_by_row(condition)
        # CASE WHEN evaluates the condition only inside its domain, as GX's filter does: under ANSI rules a
        # cast or a division outside of it would fail the whole batch.
        self.flags.append(condition if within is None else F.when(within, condition))
        self.flag_numbers[key] = len(self.flags) - 1
        return self.flag_numbers[key]

    def require_row_by_row(self, condition: Column) -> None:
        from pyspark.errors import AnalysisException

        try:
            self.frame.filter(condition)
        except AnalysisException as wrong:
            try:
                self.frame.select(condition)
            except AnalysisException as meant:  # the filter's error may be of its window alone
                raise Refused(f"Spark can't resolve it: {in_short(meant)}") from meant
            raise NotInThePass("it compares rows with one another") from wrong

    def derived(self, metric: Any, rule: DeclaredRule) -> Derived:
        from great_expectations.expectations.registry import get_metric_provider

        implementation, provider = get_metric_provider(metric.metric_name, self.engine)
        inputs = implementation.get_evaluation_dependencies(metric=metric, execution_engine=self.engine)
        return Derived(
            provider=provider, inputs={name: self.source(needed, rule) for name, needed in inputs.items()}
        )

    def observed(self, metric: Any) -> Observed:
        """Add the metric as an aggregate beside the pass, where GX's is one that Spark can observe.

        Raises NotInThePass where it is none.
        """
        from great_expectations.exceptions.exceptions import GreatExpectationsError
        from great_expectations.expectations.registry import get_metric_provider
        from great_expectations.validator.metric_configuration import MetricConfiguration
        from pyspark.errors import AnalysisException

        if metric.id in self.aggregate_names:
            return Observed(name=self.aggregate_names[metric.id])
        partial = MetricConfiguration(
            f"{metric.metric_name}.aggregate_fn", metric.metric_domain_kwargs, metric.metric_value_kwargs
        )
        try:
            get_metric_provider(partial.metric_name, self.engine)
        except GreatExpectationsError as unknown:
            raise NotInThePass(f"{metric.metric_name} is no aggregate of one pass") from unknown
        column, compute, _ = self.resolved(partial)
        if self.domain(compute)[1] is not None:
            raise NotInThePass(f"{metric.metric_name} is over some of the rows only")
        name = f"_aggregate{len(self.aggregates)}"
        try:
            self.frame.observe(name, column.alias(name))
        except AnalysisException as wrong:
            raise NotInThePass(f"Spark can't observe {metric.metric_name}: {in_short(wrong)}") from wrong
        self.aggregates.append(column.alias(name))
        self.aggregate_names[metric.id] = name
        return Observed(name=name)


def _shape(kwargs: Mapping[str, Any]) -> Shape:
    if "column_list" in kwargs:
        return "dict"
    return "tuple" if "column_A" in kwargs else "value"
