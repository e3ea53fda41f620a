"""`sluice check`: finds every mistake of all declarations and suites at once, without services, Spark or a home.

What needs the transform's own columns is not seen here: `sluice try`, and a run before its first batch, look at that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etl.common.errors import SetupError
from etl.common.settings import Settings, load_settings
from etl.common.wording import meant, pluralize
from etl.pipeline.ddl import TYPES, unknown_types
from etl.pipeline.loader import Loaded, load_files, require_name
from etl.quality.mistakes.arguments import mistakes
from etl.quality.suite import read_suite
from etl.quality.suite_file import suite_path

NO_SUITE = "no suite: every row passes"


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One thing that keeps a pipeline from being run."""

    file: Path  # to look at
    seen: str
    remedy: str

    def json(self) -> dict[str, str]:
        return {"file": str(self.file), "seen": self.seen, "remedy": self.remedy}


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One declaration with its suite: how many rules it has, and all that is wrong with either."""

    pipeline: str
    file: Path
    suite: Path | None = None  # None: there is none, or none is found
    rules: int = 0
    mistakes: tuple[Mistake, ...] = ()

    def line(self) -> str:
        """Return one line for a person: what was looked at, and whether it is right."""
        if self.mistakes:
            return f"WRONG   {self.pipeline}: {pluralize(len(self.mistakes), 'mistake')}"
        judged = f"{pluralize(self.rules, 'rule')} in {self.suite}" if self.suite else NO_SUITE
        return f"ok      {self.pipeline}: {judged}"

    def json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "file": str(self.file),
            "suite": self.suite and str(self.suite),
            "rules": self.rules,
            "mistakes": [mistake.json() for mistake in self.mistakes],
        }


def check(*names: str, settings: Settings | None = None) -> list[Checked]:
    """Check the declarations of these names and their suites; of all pipelines, where none is named.

    Also for tests of users, as `etl.check`. `settings` None: those in force.

    Raises SetupError where there is nothing to check: no such pipeline, no pipeline at all, or a folder that is not there.
    """
    settings = settings or load_settings()
    loaded = load_files(settings.pipelines)
    for name in names:
        require_name(name, loaded, settings.pipelines)
    if not loaded:
        folders = ", ".join(str(folder) for folder in settings.pipelines)
        raise SetupError(
            f"No pipeline is declared in {folders}: no file there ends with .py",
            remedy="`sluice new NAME --like FILE` drafts one; SLUICE_PIPELINES or sluice.toml names other folders",
        )
    return [_checked(one, settings) for one in loaded if not names or one.name in names]


def _of_types(one: Loaded) -> Iterator[str]:
    """Yield what is wrong with the types of its schemas, as far as that is seen without Spark's parser."""
    if one.pipeline is None:
        return
    schemas: dict[str, str] = {}
    if not one.wrong:  # else these may be anything
        schemas = {f"streams[{name!r}].schema": kind.schema for name, kind in one.pipeline.streams.items()}
        schemas |= {f"lookups[{name!r}].schema": kind.schema for name, kind in one.pipeline.lookups.items()}
    for place, schema in {"schema": one.pipeline.schema, **schemas}.items():
        for column, word in unknown_types(schema) if isinstance(schema, str) else ():
            known = f"Spark has no type {word!r}{meant(word.lower(), TYPES)}" if word else "it has no type"
            yield f"{place}: {column}: {known}"


def _checked(one: Loaded, settings: Settings) -> Checked:
    remedy = f"correct the file, then `sluice check {one.name}`"
    sentences = (*one.wrong, *_of_types(one))
    wrong = [Mistake(file=one.file, seen=sentence, remedy=remedy) for sentence in sentences]
    suite, rules = None, 0
    # A name that is none is told of already.
    if one.pipeline and one.pipeline.suite and not any(said.startswith("suite: ") for said in one.wrong):
        try:
            suite = suite_path(one.pipeline, settings)
            declared = read_suite(suite)
            rules = len(declared.rules)
            wrong += (
                Mistake(
                    file=suite, seen=sentence, remedy=f"correct the suite, then `sluice check {one.name}`"
                )
                for sentence in mistakes(declared)
            )
        except SetupError as error:
            names = (file.stem for folder in settings.suites for file in folder.glob("*.json"))
            near = "" if suite else meant(one.pipeline.suite, names)
            wrong.append(Mistake(file=suite or one.file, seen=f"{error.seen}{near}", remedy=error.remedy))
    return Checked(pipeline=one.name, file=one.file, suite=suite, rules=rules, mistakes=tuple(wrong))
