"""Hides a column of a frame: who selects all does not see it, and what is made of single rows still knows it.

Spark has such columns of its own, `_metadata` of files and the second key of a join USING: attributes that a Project tells
of beside its output, and that Spark puts into a plan where somebody asks for one by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from etl.spark.jvm import java_class
from etl.spark.session import unlogged_analysis
from etl.spark.state_plan import listed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CATALYST = "org.apache.spark.sql.catalyst"
_QUALIFIER = "sluice"
# What anybody may ask for goes along an alias, what has to be asked for by a qualifier along a join USING.
_QUALIFIED = "_qualified"
# Each row that these put out is made of one row, or of one row of each input.
_OF_SINGLE_ROWS = frozenset(
    {"Project", "Filter", "Generate", "SubqueryAlias", "Join", "EventTimeWatermark", "CollectMetrics"}
)


def hide(frame: DataFrame, name: str) -> DataFrame:
    """Take a column out of a frame's columns, for `unhide` to find."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    spark = frame.sparkSession
    doubled = frame.withColumn(name + _QUALIFIED, F.col(name))
    attributes = {one.name(): one for one in listed(_plan(doubled).output())}
    project = _plan(doubled.drop(name, name + _QUALIFIED))
    helper = _module(spark, f"{_CATALYST}.util.package$").MetadataColumnHelper
    qualified = helper(attributes[name + _QUALIFIED]).markAsQualifiedAccessOnly()
    hidden = [
        helper(attributes[name]).markAsAllowAnyAccess(),
        qualified.withQualifier(_sequence(spark, [_QUALIFIER])),
        *listed(project.metadataOutput()),
    ]
    project.setTagValue(_tag(spark), _sequence(spark, hidden))
    datasets = _module(spark, "org.apache.spark.sql.classic.Dataset$")
    return DataFrame(datasets.ofRows(spark._jsparkSession, project), spark)


def unhide(frame: DataFrame, name: str) -> DataFrame:
    """Put a hidden column beside a frame's own; return the frame as it is where not each row is made of one that has it."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    plan = _plan(frame)
    if not _of_single_rows(plan, name, _tag(frame.sparkSession)):
        return frame
    offered = {one.name() for one in listed(plan.metadataOutput())}  # to ask in vain takes 75 ms
    ways = {name: name, name + _QUALIFIED: f"{_QUALIFIER}.{name}{_QUALIFIED}"}
    for known_as in (asked for attribute, asked in ways.items() if attribute in offered):
        try:
            with unlogged_analysis():
                return frame.select("*", F.col(known_as).alias(name))
        except AnalysisException:
            continue
    return frame


def _of_single_rows(plan: Any, name: str, tag: Any) -> bool:
    """Tell whether each row of a plan is made of one that has the hidden column, which is read once.

    By any other row the column would change what comes out: of a `distinct`, equal ones would be two.
    """
    found, waiting = [], [(plan, True)]  # a plan may be deeper than Python's stack
    while waiting:
        node, single = waiting.pop()
        if _hides(node, name, tag):
            found.append(single)
            continue
        single = single and node.nodeName() in _OF_SINGLE_ROWS
        waiting += [(child, single) for child in listed(node.children())]
    return found == [True]


def _hides(node: Any, name: str, tag: Any) -> bool:
    """Tell whether a node of a plan is where `hide` took the column out: those above pass its attribute on."""
    if node.nodeName() != "Project" or node.getTagValue(tag).isEmpty():
        return False
    read = node.child().outputSet()
    return any(one.name() == name and read.contains(one) for one in listed(node.getTagValue(tag).get()))


def _tag(spark: SparkSession) -> Any:
    return _module(spark, f"{_CATALYST}.plans.logical.Project$").hiddenOutputTag()


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _module(spark: SparkSession, name: str) -> Any:
    return getattr(java_class(spark, name), "MODULE$")


def _sequence(spark: SparkSession, elements: Sequence[Any]) -> Any:
    """Return a Scala Seq of the elements."""
    array = java_class(spark, "java.util.ArrayList")()
    for one in elements:
        array.add(one)
    return java_class(spark, "scala.jdk.javaapi.CollectionConverters").asScala(array).toSeq()
