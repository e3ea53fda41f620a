"""Reads from a transform's plan which fields each column of its output is made of, and which decide on its rows.

Spark writes the analyzed plan as JSON in one call: each tree is a list of its nodes, a node before its children. A column
is known by its id, so it is followed by the ids that nodes give names to: among those right below a node alone, for a
union gives its columns the ids of its first part's, which may be elsewhere in the plan as well. What passes through rows
that Python makes, or through a subquery, is not known, and nothing is said of it: a function of columns takes its
arguments alone, and is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

IDENTITY, TRANSFORMATION, AGGREGATION = "IDENTITY", "TRANSFORMATION", "AGGREGATION"  # from weak to strong
DIRECT = (IDENTITY, TRANSFORMATION, AGGREGATION)
CONDITIONAL, FILTER, GROUP_BY, JOIN, SORT, WINDOW = (
    "CONDITIONAL",
    "FILTER",
    "GROUP_BY",
    "JOIN",
    "SORT",
    "WINDOW",
)

Node = Mapping[str, Any]
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, order=True)
class Origin:
    """A field that is read: of one of the pipeline's streams, or of a lookup."""

    lookup: bool
    name: str  # of the stream, empty for the one without a name; or of the lookup
    field: str


Lineage = Mapping[Origin, frozenset[str]]  # each with how it takes part: DIRECT, or by what it decides
Unsure = Lineage | None  # None: not known
Form = tuple[str, list[str]]  # what a leaf is, and the names of its columns


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column that a node of the plan puts out."""

    name: str
    number: int  # its id
    made_of: Unsure = None


Columns = list[Column] | None  # of a node, in their order; None: not known
Below = Mapping[int, Unsure]  # of what a node's children put out, by the columns' ids


@dataclass(frozen=True, kw_only=True)
class ColumnLineage:
    """What is known of a transform's output."""

    columns: Mapping[str, Lineage]  # those that are made of fields, as far as that is known
    rows: Lineage  # what decides which rows there are


def column_lineage(
    frame: DataFrame,
    streams: Mapping[str, tuple[str | None, Sequence[str]]],
    lookups: Mapping[str, DataFrame],
) -> ColumnLineage:
    """Read the lineage of a frame's columns; `streams`: each one's name and fields, by what it is observed as."""
    leaves = [
        (_form(leaf), lookup)
        for lookup, one in lookups.items()
        for leaf in _plan(one)
        if not leaf["num-children"]
    ]
    reading = _Reading(streams=streams, lookups=leaves)
    output = _fold(_plan(frame), reading.columns)
    return ColumnLineage(
        columns={one.name: one.made_of for one in output or () if one.made_of},
        rows={origin: frozenset(how) for origin, how in reading.rows.items()},
    )


def _plan(frame: DataFrame) -> Sequence[Node]:
    plan: Sequence[Node] = json.loads(frame._jdf.queryExecution().analyzed().toJSON())
    return plan


def _fold(nodes: Sequence[Node], step: Callable[[Node, Sequence[Result]], Result]) -> Result:
    """Return what `step` makes of a tree's root, from what it makes of the root's children; without recursion."""
    made: list[Result] = []
    for node in reversed(nodes):
        made.append(step(node, [made.pop() for _ in range(node["num-children"])]))
    return made[0]


def _form(leaf: Node) -> Form:
    return _class(leaf), [one.name for one in _output(leaf, {}) or ()]


def _output(node: Node, below: Below) -> Columns:
    """Return the columns that a node says itself to put out, as its kind names the field."""
    if "outputObjAttr" in node:
        return [_column(node["outputObjAttr"], None)]
    said = node.get("output", node.get("outputAttrs"))
    return None if said is None else [_column(one, below.get(_number(one[0]))) for one in said]


def _all_known(parts: Sequence[Columns]) -> Sequence[list[Column]] | None:
    known = [part for part in parts if part is not None]
    return known if len(known) == len(parts) else None


def _beside(*parts: Columns) -> Columns:
    known = _all_known(parts)
    return None if known is None else [column for part in known for column in part]


def _column(expression: Sequence[Node], made_of: Unsure) -> Column:
    root = expression[0]
    return Column(name=root["name"], number=_number(root), made_of=made_of)


def _number(attribute: Node) -> int:
    number: int = attribute["exprId"]["id"]
    return number


def _named(expression: Sequence[Node], below: Below) -> Column:
    return _column(expression, _of(expression, below))


def _of(expression: Sequence[Node], below: Below) -> Unsure:
    """Return the lineage of an expression by that of its parts."""

    def made_of(node: Node, parts: Sequence[Unsure]) -> Unsure:
        kind = _class(node)
        if kind == "AttributeReference":
            return below.get(_number(node))
        if kind == "Alias":
            return parts[0]
        if "Subquery" in kind or kind in ("Exists", "ListQuery"):
            return None
        steps = _steps(kind, len(parts))
        return _merged(_through(part, step) for part, step in zip(parts, steps, strict=True))

    return _fold(expression, made_of)


def _class(node: Node) -> str:
    name: str = node["class"]
    return name.rpartition(".")[2]


def _merged(parts: Iterable[Unsure]) -> Unsure:
    found: dict[Origin, frozenset[str]] = {}
    for part in parts:
        if part is None:
            return None
        for origin, how in part.items():
            found[origin] = found.get(origin, frozenset()) | how
    return found


def _through(lineage: Unsure, step: str) -> Unsure:
    """Return the lineage of what is computed of a value, by a step that is DIRECT or decides."""
    if lineage is None:
        return None
    if step not in DIRECT:
        return dict.fromkeys(lineage, frozenset({step}))
    return {origin: frozenset(_stronger(one, step) for one in how) for origin, how in lineage.items()}


def _stronger(one: str, step: str) -> str:
    return max(one, step, key=DIRECT.index) if one in DIRECT else one


@dataclass(kw_only=True)
class _Reading:
    """Follows the columns of a plan from its leaves up."""

    streams: Mapping[str, tuple[str | None, Sequence[str]]]
    lookups: Sequence[tuple[Form, str]]  # each with its name
    rows: dict[Origin, set[str]] = field(default_factory=dict)

    def columns(self, node: Node, children: Sequence[Columns]) -> Columns:
        """Return what a node of the plan puts out, and note what decides on its rows."""
        kind = _class(node)
        below = {column.number: column.made_of for child in children for column in child or ()}
        if kind == "CollectMetrics" and node["name"] in self.streams:
            return self._records(node["name"], children[0])
        if not children:
            return self._looked_up(node)
        self._decide(node, kind, below)
        if kind in _PUTS_OUT:
            return [_named(one, below) for one in node[_PUTS_OUT[kind]]]
        if kind == "Union":
            return _united(children)
        if kind == "Expand":
            return _expanded(node, below)
        if kind == "Window":
            return _beside(*children, [_named(one, below) for one in node["windowExpressions"]])
        if kind == "Generate":
            made = _through(_of(node["generator"], below), TRANSFORMATION)
            return _beside(*children, [_column(one, made) for one in node["generatorOutput"]])
        if kind == "WithCTE":
            return children[-1]
        if kind == "Join" and not node["joinType"].get("object", "").endswith(("Semi$", "Anti$")):
            return _beside(*children)
        return children[0] if kind in _PASSES else _output(node, below)

    def _records(self, observed: str, columns: Columns) -> Columns:
        """Begin with the records of a stream: its fields are origins, what Sluice adds is made of none."""
        stream, fields = self.streams[observed]
        return columns and [
            replace(one, made_of=_field(one, lookup=False, name=stream or "") if one.name in fields else {})
            for one in columns
        ]

    def _looked_up(self, leaf: Node) -> Columns:
        """Begin with a lookup. Spark gives one that is joined twice new ids, so it is known by its columns' names."""
        columns, form = _output(leaf, {}), _form(leaf)
        found = [lookup for known_as, lookup in self.lookups if known_as == form]
        if columns is None or len(found) != 1:
            return columns
        return [replace(one, made_of=_field(one, lookup=True, name=found[0])) for one in columns]

    def _decide(self, node: Node, kind: str, below: Below) -> None:
        """Note what decides on the rows of a node; what is not known of it is passed over."""
        for field_name, step in _DECIDES.get(kind, {}).items():
            value = node[field_name] or []
            for expression in value if value and isinstance(value[0], list) else [value] * bool(value):
                for origin in _of(expression, below) or {}:
                    self.rows.setdefault(origin, set()).add(step)


def _field(column: Column, *, lookup: bool, name: str) -> Lineage:
    return {Origin(lookup=lookup, name=name, field=column.name): frozenset({IDENTITY})}


def _united(children: Sequence[Columns]) -> Columns:
    """Merge the columns of a union's parts; they have the ids of the first part's."""
    parts = _all_known(children)
    if parts is None:
        return None
    return [
        replace(alike[0], made_of=_merged(one.made_of for one in alike)) for alike in zip(*parts, strict=True)
    ]


def _expanded(node: Node, below: Below) -> Columns:
    """Merge what each of the rows that one becomes has, of sliding windows, a rollup and the like."""
    made = [_merged(_of(one, below) for one in alike) for alike in zip(*node["projections"], strict=True)]
    return [_column(one, of) for one, of in zip(node["output"], made, strict=True)]


# By which of its fields a node says what each of its columns is computed of.
_PUTS_OUT: Mapping[str, str] = {"Project": "projectList", "Aggregate": "aggregateExpressions"}

# Kinds whose columns are those of their first child; of two, the other decides on rows alone.
_PASSES = frozenset(
    {
        "CTERelationDef",
        "CollectMetrics",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "EventTimeWatermark",
        "Except",
        "Filter",
        "GlobalLimit",
        "Intersect",
        "Join",
        "LocalLimit",
        "Offset",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sample",
        "Sort",
        "SubqueryAlias",
        "Tail",
        "View",
    }
)

# By which of a node's fields its rows are decided, and how.
_DECIDES: Mapping[str, Mapping[str, str]] = {
    "Filter": {"condition": FILTER},
    "Join": {"condition": JOIN},
    "Aggregate": {"groupingExpressions": GROUP_BY},
    "Deduplicate": {"keys": FILTER},
    "DeduplicateWithinWatermark": {"keys": FILTER},
    "Sort": {"order": SORT},
}


def _steps(kind: str, parts: int) -> list[str]:
    """Return how each part of an expression takes part in its value."""
    if kind == "AggregateExpression":  # the function, and its FILTER
        return [AGGREGATION, CONDITIONAL][:parts]
    if kind == "WindowExpression":  # the function, and what it goes over
        return [TRANSFORMATION, WINDOW]
    if kind == "If":
        return [CONDITIONAL, TRANSFORMATION, TRANSFORMATION]
    if kind == "CaseWhen":  # a condition and its value, again and again; and the value where none holds
        return [
            CONDITIONAL if place % 2 == 0 and place + 1 < parts else TRANSFORMATION for place in range(parts)
        ]
    return [TRANSFORMATION] * parts
