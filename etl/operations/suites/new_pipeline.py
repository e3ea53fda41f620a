"""`sluice new`: drafts a pipeline and its suite from a sample. It is a draft: it says what was so, not what must be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etl.common.settings import Settings
from etl.common.wording import first_few, pluralize, visible
from etl.operations.suites.drafts import Declaration, DraftPaths, drafted_suite
from etl.operations.suites.profiling import MOST_VALUES, ColumnProfile, NumberProfile, TextProfile
from etl.operations.suites.sample import Sample, SampledColumn, read_sample
from etl.operations.suites.suggest import FEW_ROWS, NOT_NULL, Drafted, value_rules
from etl.pipeline.patterns import inferred_format

NUMBERS = {"tinyint", "smallint", "int", "bigint", "float", "double"}
WHOLE = {"tinyint", "smallint", "int", "bigint"}
KINDS = {"float": "FloatType", "double": "DoubleType"}  # what a profile calls the types with fractions


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """A pipeline and a suite that were drafted, and what they were drafted from."""

    sample: Sample
    pipeline: Path
    suite: Path
    rules: int

    def notes(self) -> Iterator[str]:
        """Yield what a person is to look at, a sentence each."""
        sample = self.sample
        if sample.more:
            yield f"the file goes on: what comes after its first {pluralize(sample.records, 'record')} was not looked at"
        if sample.malformed:
            yield (
                f"{pluralize(len(sample.malformed), 'record')} would be held as malformed:"
                f" {first_few(sample.malformed, 2)}"
            )
        yield from sample.left_out
        for column in sample.columns:
            if column.doubt:
                yield f"{column.name} {column.type}: it {column.doubt}"
        if sample.records < FEW_ROWS:
            yield (
                f"so few records prove little: each rule is only reported (info), until it is a warning or critical;"
                f" with {FEW_ROWS} records there are more rules"
            )


def draft(name: str, file: Path, settings: Settings) -> Drafts:
    """Write `name.py` and `name.json` into the first folders of the project, drafted from a sample.

    Raises SetupError, and writes nothing, where one is there, the name will not do, or the sample can't be read.
    """
    paths = DraftPaths.of(name, settings)
    sample = read_sample(file)
    rules = _suite(name, sample)
    remedy = "rename such columns, in a copy of the sample, and in the files that land"
    paths.write(_declaration(name, sample), rules, remedy=remedy)
    return Drafts(sample=sample, pipeline=paths.pipeline, suite=paths.suite, rules=len(rules["expectations"]))


def _declaration(name: str, sample: Sample) -> Declaration:
    suffix = "".join(sample.file.suffixes[-2:]) if sample.file.suffix == ".gz" else sample.file.suffix
    pattern = f"{name}/**/*{suffix}"
    source = [json.dumps(pattern)]
    if inferred_format(pattern) != sample.format:
        source.append(f"format={json.dumps(sample.format)}")
    if sample.options:
        source.append(f"options={json.dumps(sample.options)}")
    seen = f"{pluralize(sample.records, 'record')} of {visible(sample.file.name)}"
    return Declaration(
        name=name,
        title=f"{name.capitalize()}: say here what a row is, and who lands the files.",
        origin=f"Drafted by `sluice new` from {seen}.",
        columns={column.name: column.type for column in sample.columns},
        source=", ".join(source),
    )


def _suite(name: str, sample: Sample) -> dict[str, Any]:
    seen = f"{pluralize(sample.records, 'record')} of {visible(sample.file.name)}"
    rules = [rule.json() for column in sample.columns for rule in _rules(column, sample.records, seen)]
    notes = f"A draft by `sluice new` from {seen}. `sluice try {name} --input FILE` shows what it holds."
    return drafted_suite(name, rules, notes)


def _rules(column: SampledColumn, records: int, seen: str) -> Iterator[Drafted]:
    """Yield the rules that the sample proves: that a value is given, and where it is large enough, which ones are."""
    if column.type.startswith(("struct", "array", "map")):
        return
    profile = _profile(column, records)
    for rule in value_rules(profile, seen):
        if rule.kind == NOT_NULL and profile.nulls:
            continue
        if (rule.kind != NOT_NULL and records < FEW_ROWS) or _is_broken(rule, profile):
            continue
        loud = rule.may_hold and records >= FEW_ROWS
        yield replace(rule, severity="warning" if loud else "info")


def _is_broken(rule: Drafted, profile: ColumnProfile) -> bool:
    """Tell whether a value of the sample is outside the rule's range."""
    if profile.numbers is None or "min_value" not in rule.kwargs:
        return False
    numbers, least, most = profile.numbers, rule.kwargs["min_value"], rule.kwargs["max_value"]
    return bool(numbers.smallest < least or numbers.largest > most)


def _profile(column: SampledColumn, records: int) -> ColumnProfile:
    given, is_number = column.values, column.type in NUMBERS or column.type.startswith("decimal")
    counts = Counter(given) if is_number or column.type == "string" else Counter()
    kind = "DecimalType" if column.type.startswith("decimal") else KINDS.get(column.type, column.type)
    few = 0 < len(counts) <= MOST_VALUES and (column.type in WHOLE or column.type == "string")
    return ColumnProfile(
        name=column.name,
        kind=kind,
        rows=records,
        nulls=records - len(given),
        distinct=len(counts),
        values=dict(counts.most_common()) if few else None,
        numbers=_numbers([float(value) for value in given]) if is_number and given else None,
        texts=_texts(given) if column.type == "string" and given else None,
    )


def _numbers(values: list[float]) -> NumberProfile | None:
    ordered = sorted(value for value in values if value - value == 0)  # neither NaN nor infinite
    if not ordered:
        return None
    low, median, high = (ordered[int(share * (len(ordered) - 1))] for share in (0.001, 0.5, 0.999))
    return NumberProfile(low=low, median=median, high=high, smallest=ordered[0], largest=ordered[-1])


def _texts(values: Any) -> TextProfile:
    lengths = [len(value) for value in values]
    return TextProfile(shortest=min(lengths), longest=max(lengths), shapes=None, runs=None)
