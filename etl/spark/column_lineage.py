"""Reads from a transform's plan which fields each column of its output is made of, and which decide on its rows.

Spark writes the analyzed plan as JSON in one call: each tree is a list of its nodes, a node before its children. A column
is known by its id, so it is followed by the ids that nodes give names to. What passes through rows that Python makes, or
through a subquery, is not known, and nothing is said of it: a function of columns takes its arguments alone, and is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
Column = tuple[str, int]  # its name and its id
Columns = list[Column] | None  # of a node, in their order; None: not known
Form = tuple[str, list[str]]  # what a leaf is, and the names of its columns


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
    known = {name: reading.known.get(number) for name, number in output or ()}
    return ColumnLineage(
        columns={name: lineage for name, lineage in known.items() if lineage},
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
    return _class(leaf), [name for name, _ in _output(leaf) or ()]


def _output(node: Node) -> Columns:
    """Return the columns that a node says itself to put out, as its kind names the field."""
    if "outputObjAttr" in node:
        return [_column(node["outputObjAttr"])]
    said = node.get("output", node.get("outputAttrs"))
    return None if said is None else [_column(one) for one in said]


def _all_known(parts: Sequence[Columns]) -> Sequence[list[Column]] | None:
    known = [part for part in parts if part is not None]
    return known if len(known) == len(parts) else None


def _beside(*parts: Columns) -> Columns:
    known = _all_known(parts)
    return None if known is None else [column for part in known for column in part]


def _column(expression: Sequence[Node]) -> Column:
    root = expression[0]
    return root["name"], root["exprId"]["id"]


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
    known: dict[int, Unsure] = field(default_factory=dict)  # by id; what is not there is not known
    rows: dict[Origin, set[str]] = field(default_factory=dict)

    def columns(self, node: Node, children: Sequence[Columns]) -> Columns:
        """Return what a node of the plan puts out, having noted what each new column is made of.

        Where its columns and their order are not known, nothing of what is below is followed further.
        """
        put_out = self._put_out(node, children)
        if put_out is None:
            self.known |= {number: None for child in children for _, number in child or ()}
        return put_out

    def _put_out(self, node: Node, children: Sequence[Columns]) -> Columns:
        kind = _class(node)
        if kind == "CollectMetrics" and node["name"] in self.streams:
            return self._records(node["name"], children[0])
        if not children:
            return self._looked_up(node)
        if kind == "Union":
            return self._united(children)
        if kind == "Expand":
            self._expand(node)
        self._decide(node, kind)
        if kind == "Project":
            return [self._named(one) for one in node["projectList"]]
        if kind == "Aggregate":
            return [self._named(one) for one in node["aggregateExpressions"]]
        if kind == "Window":
            return _beside(*children, [self._named(one) for one in node["windowExpressions"]])
        if kind == "Generate":
            made = _through(self._of(node["generator"]), TRANSFORMATION)
            generated = [_column(one) for one in node["generatorOutput"]]
            self.known |= {number: made for _, number in generated}
            return _beside(*children, generated)
        if kind == "WithCTE":
            return children[-1]
        if kind == "Join" and not node["joinType"].get("object", "").endswith(("Semi$", "Anti$")):
            return _beside(*children)
        return children[0] if kind in _PASSES else _output(node)

    def _records(self, observed: str, columns: Columns) -> Columns:
        """Begin with the records of a stream: its fields are origins, what Sluice adds is made of none."""
        stream, fields = self.streams[observed]
        for name, number in columns or ():
            origin = Origin(lookup=False, name=stream or "", field=name)
            self.known[number] = {origin: frozenset({IDENTITY})} if name in fields else {}
        return columns

    def _looked_up(self, leaf: Node) -> Columns:
        """Begin with a lookup. Spark gives one that is joined twice new ids, so it is known by its columns' names."""
        columns, form = _output(leaf), _form(leaf)
        found = [lookup for known_as, lookup in self.lookups if known_as == form]
        if len(found) == 1:
            for name, number in columns or ():
                origin = Origin(lookup=True, name=found[0], field=name)
                self.known[number] = {origin: frozenset({IDENTITY})}
        return columns

    def _united(self, children: Sequence[Columns]) -> Columns:
        """Merge the columns of a union's parts; they have the ids of the first part's."""
        parts = _all_known(children)
        if parts is None:
            return None
        merged = [
            _merged(self.known.get(number) for _, number in alike) for alike in zip(*parts, strict=True)
        ]
        self.known |= {number: made for (_, number), made in zip(parts[0], merged, strict=True)}
        return parts[0]

    def _expand(self, node: Node) -> None:
        """Merge what each of the rows that one becomes has, of sliding windows, a rollup and the like."""
        made = [_merged(map(self._of, alike)) for alike in zip(*node["projections"], strict=True)]
        self.known |= {_column(one)[1]: of for one, of in zip(node["output"], made, strict=True)}

    def _decide(self, node: Node, kind: str) -> None:
        """Note what decides on the rows of a node; what is not known of it is passed over."""
        for field_name, step in _DECIDES.get(kind, {}).items():
            value = node[field_name] or []
            for expression in value if value and isinstance(value[0], list) else [value] * bool(value):
                for origin in self._of(expression) or {}:
                    self.rows.setdefault(origin, set()).add(step)

    def _named(self, expression: Sequence[Node]) -> Column:
        column = _column(expression)
        self.known[column[1]] = self._of(expression)
        return column

    def _of(self, expression: Sequence[Node]) -> Unsure:
        return _fold(expression, self._made_of)

    def _made_of(self, node: Node, parts: Sequence[Unsure]) -> Unsure:
        """Return the lineage of an expression by that of its parts."""
        kind = _class(node)
        if kind == "AttributeReference":
            return self.known.get(node["exprId"]["id"])
        if kind == "Alias":
            return parts[0]
        if "Subquery" in kind or kind in ("Exists", "ListQuery"):
            return None
        steps = _steps(kind, len(parts))
        return _merged(_through(part, step) for part, step in zip(parts, steps, strict=True))


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
