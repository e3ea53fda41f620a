"""`sluice suggest`: drafts a suite from stored batches, in Great Expectations' own JSON.

No expectation of the draft fails on a batch that it was drawn from: each is judged over all of them, as a run judges,
before it is written. It is a draft: it says what was so, not what must be.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from etl.common.record_columns import REASONS
from etl.common.wording import pluralize
from etl.operations.suites.profiling import ColumnProfile, profile, runs_regex, shape_regex
from etl.operations.suites.stored_batches import LAST, StoredBatch, stored_batches, stored_rows
from etl.operations.suites.what_if import Weighed, put_out, weigh
from etl.pipeline import Pipeline
from etl.quality.verdict import RuleResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from etl.runs.workspace import Workspace

NOT_NULL = "expect_column_values_to_not_be_null"
COUNTS = ("element", "unexpected")
FEW_ROWS = 300  # with fewer, nothing is said loudly: 3 / 300 is a whole percent
SELDOM = 0.9  # a rule that fewer rows of some batch keep is no rule
ROWS_A_VALUE = 20  # so often must the values of a set come on average
MOST_WHOLE_NUMBERS = 12  # in a set; more of them are a range
NULLS_WORTH_A_RULE = 0.5  # beyond this share, that a value is given says little


@dataclass(frozen=True, kw_only=True)
class Drafted:
    """One expectation, and what speaks for it."""

    kind: str  # GX's type
    name: str
    kwargs: dict[str, Any]
    evidence: str
    about_rows: bool = True
    may_hold: bool = True  # False: at most info, for more of the same is no mistake
    severity: str = "warning"  # until it was judged

    def json(self) -> dict[str, Any]:
        return {
            "type": self.kind,
            "kwargs": self.kwargs,
            "meta": {"name": self.name},
            "notes": self.evidence,
            "severity": self.severity,
        }


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A draft suite and what it was drawn from."""

    suite: dict[str, Any]
    batches: int
    rows: int  # delivered ones; the held are judged, but nothing is drawn from them

    @property
    def text(self) -> str:
        return json.dumps(self.suite, indent=2, ensure_ascii=False) + "\n"


def suggest(
    workspace: Workspace, pipeline: Pipeline, *, last: int = LAST, spark: SparkSession | None = None
) -> Suggestion:
    """Draw a suite from the last batches; the rows are read twice, to draw it and to judge by it."""
    from etl.quality.rules import compile_rules
    from etl.runs.spark_session import a_session

    batches = stored_batches(workspace.services.postgres, pipeline, last)
    with a_session(workspace, spark) as session:
        frame = put_out(workspace, pipeline, session)
        columns = profile(_delivered(session, batches, frame))
        drawn = _drawn_from(batches)
        drafts = [draft for column in columns for draft in _drafts(column, drawn)]
        names = [column.name for column in columns]
        drafts.insert(0, _all_columns(names, drawn))
        rules = compile_rules(pipeline, frame, workspace.settings, instead=_suite(pipeline, drafts))
        weighed = list(weigh(session, batches, rules))
    accepted = [
        accepted for number, draft in enumerate(drafts) if (accepted := _as_judged(number, draft, weighed))
    ]
    rows = columns[0].rows if columns else 0
    return Suggestion(suite=_suite(pipeline, accepted), batches=len(batches), rows=rows)


def _delivered(spark: SparkSession, batches: Sequence[StoredBatch], frame: DataFrame) -> DataFrame:
    """Read the delivered rows of all batches: held ones are known to be bad, and nothing is learnt from them."""
    from pyspark.sql import functions as F

    last = batches[-1]
    every = replace(
        last,
        data=[uri for batch in batches for uri in batch.data],
        quarantine=[],
    )
    return stored_rows(spark, every, frame.schema).where(F.col(REASONS).isNull()).drop(REASONS)


def _drawn_from(batches: Sequence[StoredBatch]) -> str:
    first, last = batches[0], batches[-1]
    drawn = pluralize(len(batches), "batch", "batches")
    if first is last:
        return f"{drawn}, delivery {first.delivery_id}"
    return f"{drawn}, deliveries {first.delivery_id} to {last.delivery_id}"


def _suite(pipeline: Pipeline, drafts: Sequence[Drafted]) -> dict[str, Any]:
    name = pipeline.suite or pipeline.name
    notes = "A draft by `sluice suggest`. Try it with `sluice whatif` before you use it."
    return {
        "name": name,
        "id": None,
        "expectations": [draft.json() for draft in drafts],
        "meta": {},
        "notes": notes,
    }


def _all_columns(names: Sequence[str], drawn: str) -> Drafted:
    return Drafted(
        kind="expect_table_columns_to_match_set",
        name="the columns are these",
        kwargs={"column_set": list(names), "exact_match": True},
        evidence=f"The columns of {drawn}.",
        about_rows=False,
    )


def _drafts(column: ColumnProfile, drawn: str) -> Iterator[Drafted]:
    """Yield the expectations that the column's profile speaks for."""
    seen = f"{pluralize(column.rows, 'delivered row')} of {drawn}"
    yield Drafted(
        kind="expect_column_values_to_be_of_type",
        name=f"{column.name} is {column.kind}",
        kwargs={"column": column.name, "type_": column.kind},
        evidence=f"The type of {seen}.",
        about_rows=False,
    )
    yield from value_rules(column, seen)


def value_rules(column: ColumnProfile, seen: str) -> Iterator[Drafted]:
    """Yield the expectations of a column's values; `seen` says which rows its profile is of."""
    if column.rows == 0 or column.given == 0:
        return
    share = column.nulls / column.rows
    if share <= NULLS_WORTH_A_RULE:
        yield Drafted(
            kind=NOT_NULL,
            name=f"{column.name} is given",
            kwargs={"column": column.name},
            evidence=f"{pluralize(column.nulls, 'null')} ({share:.2%}) in {seen}.",
        )
    if _is_set(column):
        yield _set(column, seen)
    else:
        yield from _range(column, seen)
        yield from _pattern(column, seen)


def _is_set(column: ColumnProfile) -> bool:
    values = column.values
    if not values or column.given < ROWS_A_VALUE * len(values):
        return False
    return column.texts is not None or len(values) <= MOST_WHOLE_NUMBERS


def _set(column: ColumnProfile, seen: str) -> Drafted:
    values = column.values or {}
    counts = ", ".join(f"{value!r} {count:,}" for value, count in list(values.items())[:10])
    more = f" and {len(values) - 10} more" if len(values) > 10 else ""
    return Drafted(
        kind="expect_column_values_to_be_in_set",
        name=f"{column.name} is one of the known",
        kwargs={"column": column.name, "value_set": sorted(values)},
        may_hold=column.texts is not None,
        evidence=f"{pluralize(len(values), 'value')} in {seen}: {counts}{more}.",
    )


def _range(column: ColumnProfile, seen: str) -> Iterator[Drafted]:
    """Yield a rule of a column's usual range; none for what looks like a key.

    It is from the 0.1 % to the 99.9 % quantile and half as wide again on each side.
    """
    numbers = column.numbers
    fractions = ("DoubleType", "FloatType", "DecimalType")
    key = column.distinct > SELDOM * column.given and column.kind not in fractions
    if numbers is None or key:
        return
    room = (numbers.high - numbers.low) / 2 or max(abs(numbers.high), 1.0)
    low, high = _rounded(numbers.low - room, up=False), _rounded(numbers.high + room, up=True)
    if numbers.smallest >= 0:
        low = max(low, 0.0)
    yield Drafted(
        kind="expect_column_values_to_be_between",
        name=f"{column.name} is in its usual range",
        kwargs={"column": column.name, "min_value": low, "max_value": high},
        evidence=(
            f"0.1 % quantile {numbers.low:g}, median {numbers.median:g}, 99.9 % quantile {numbers.high:g},"
            f" smallest {numbers.smallest:g}, largest {numbers.largest:g} in {seen}."
        ),
    )


def _rounded(value: float, *, up: bool) -> float:
    """Round to two digits, up or down, so that the range gets no narrower."""
    if value == 0 or not math.isfinite(value):
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{(math.ceil if up else math.floor)(value / unit) * unit:.12g}")


def _pattern(column: ColumnProfile, seen: str) -> Iterator[Drafted]:
    """Yield a rule of the few shapes that the texts have, or else of how long they are."""
    texts = column.texts
    if texts is None:
        return
    if shapes := texts.shapes or texts.runs:
        regex_of = shape_regex if texts.shapes else runs_regex
        regex = "^(?:" + "|".join(regex_of(shape) for shape in sorted(shapes)) + ")$"
        yield Drafted(
            kind="expect_column_values_to_match_regex",
            name=f"{column.name} has a known pattern",
            kwargs={"column": column.name, "regex": regex},
            evidence=f"Patterns of letters and digits, {len(shapes)} in all, in {seen}.",
        )
    elif texts.shortest == texts.longest:
        yield Drafted(
            kind="expect_column_value_lengths_to_equal",
            name=f"{column.name} has its length",
            kwargs={"column": column.name, "value": texts.longest},
            evidence=f"Each text has {pluralize(texts.longest, 'character')} in {seen}.",
        )
    else:
        yield Drafted(
            kind="expect_column_value_lengths_to_be_between",
            name=f"{column.name} is of usual length",
            kwargs={"column": column.name, "min_value": texts.shortest, "max_value": texts.longest},
            may_hold=False,
            evidence=f"{texts.shortest} to {pluralize(texts.longest, 'character')} in {seen}.",
        )


def _as_judged(number: int, draft: Drafted, weighed: Sequence[Weighed]) -> Drafted | None:
    """Return the draft with the mostly and the severity that the batches bear; None if they do not bear it."""
    results = [one.verdict.results[number] for one in weighed]
    if not draft.about_rows:
        return draft if all(result.success for result in results) else None
    worst = min((_passed_share(result) for result in results), default=1.0)
    if worst < (1 - NULLS_WORTH_A_RULE if draft.kind == NOT_NULL else SELDOM):
        return None
    judged, broken = (sum(getattr(r, f"{name}_count") or 0 for r in results) for name in COUNTS)
    good = sum(one.held_by[draft.name] for one in weighed)
    loud = draft.may_hold and good == 0 and judged >= FEW_ROWS
    evidence = f"{draft.evidence} {broken:,} of all {pluralize(judged, 'row')} break it, {good:,} of these were delivered."
    if loud:
        evidence += f" Such a row is rarer than 1 in {judged // 3:,} (95 %)."
    kwargs = draft.kwargs if worst == 1 else {**draft.kwargs, "mostly": _mostly(worst)}
    return replace(draft, kwargs=kwargs, evidence=evidence, severity="warning" if loud else "info")


def _passed_share(result: RuleResult) -> float:
    """Return the share, 0 to 1, that GX compares with mostly.

    It is of the rows that have a value, but for the rule about nulls.
    """
    figures = result.result["result"]
    missing = figures.get("missing_count") or 0
    judged = figures["element_count"] - missing
    return 1 - figures["unexpected_count"] / judged if judged else 1.0


def _mostly(worst: float) -> float:
    """Return a mostly that leaves room for half as many broken rows again as the worst batch had."""
    return max(0.0, math.floor((worst - (1 - worst) / 2) * 1000) / 1000)
