"""Writes a pipeline and its suite that were drafted: into the first folders of the project, both of them or neither."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etl.common.errors import SetupError
from etl.common.settings import Settings
from etl.common.shipped import shipped
from etl.common.wording import first_few
from etl.operations.projects.writing import write_all
from etl.pipeline.checks import name_problems
from etl.pipeline.ddl import ddl_columns, ddl_name
from etl.pipeline.loader import load_files

DECLARATION = '''"""{title}

{origin}
"""

from __future__ import annotations

{imports}from typing import TYPE_CHECKING

from etl.pipeline import {classes}

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = """
{schema}
"""


def transform(df: DataFrame) -> DataFrame:
    """Return the rows as they are read."""
    return df


PIPELINE = Pipeline(
    name="{name}",
    sources=(Files({source}),),  # below the landing
    schema=SCHEMA,
    transform=transform,
    suite="{name}",
    sink={sink},
{fields})
'''


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A pipeline that is drafted."""

    name: str
    title: str  # a sentence
    origin: str  # what it was drafted from
    columns: Mapping[str, str]  # by name, what DDL says behind it
    source: str  # the arguments of its Files
    sink: str = "Append()"
    fields: Mapping[str, str] | None = None  # more of the Pipeline, each as Python writes its value

    @property
    def text(self) -> str:
        """Return the file that declares it."""
        fields = self.fields or {}
        called = {
            word
            for word in ("Append", "Replace", "Upsert", "day", "hour", "identity", "month")
            if f"{word}(" in self.sink
        }
        schema = ",\n".join(f"    {ddl_name(name)} {kind}" for name, kind in self.columns.items())
        return DECLARATION.format(
            title=_within_quotes(self.title),
            origin=_within_quotes(self.origin),
            imports="import datetime as dt\n" if any("dt." in value for value in fields.values()) else "",
            classes=", ".join(
                sorted({"Files", "Pipeline", *called}, key=lambda one: (one[0].islower(), one))
            ),
            schema=_within_quotes(schema),
            name=self.name,
            source=self.source,
            sink=self.sink,
            fields="".join(f"    {name}={value},\n" for name, value in fields.items()),
        )


@dataclass(frozen=True, kw_only=True)
class DraftPaths:
    """Where the two files of a draft go."""

    pipeline: Path
    suite: Path

    @classmethod
    def of(cls, name: str, settings: Settings) -> DraftPaths:
        """Return where drafts of this name go. Raises SetupError where one is there, or the name will not do."""
        if wrong := name_problems(name):
            raise SetupError(first_few(wrong), remedy="take another name")
        _require_project(settings)
        paths = cls(pipeline=settings.pipelines[0] / f"{name}.py", suite=settings.suites[0] / f"{name}.json")
        _require_new(name, paths, settings)
        return paths

    def write(self, declaration: Declaration, suite: Mapping[str, Any], *, remedy: str) -> None:
        """Write both, or neither. Raises SetupError where one can't be written, or the declaration would have mistakes."""
        text = declaration.text
        _require_right(declaration.name, text, list(declaration.columns), remedy)
        try:
            write_all(
                {self.pipeline: text, self.suite: json.dumps(suite, indent=2, ensure_ascii=False) + "\n"}
            )
        except OSError as error:
            raise SetupError(
                f"{error.filename or 'A draft'} can't be written, and nothing was: {error.strerror}",
                remedy="correct that, and try again",
            ) from error


def drafted_suite(name: str, rules: Iterable[Mapping[str, Any]], notes: str) -> dict[str, Any]:
    """Return a drafted suite in GX's own JSON."""
    return {"name": name, "id": None, "expectations": list(rules), "meta": {}, "notes": notes}


def _require_project(settings: Settings) -> None:
    if shipped("pipelines") in settings.pipelines[:1] or shipped("expectations") in settings.suites[:1]:
        raise SetupError(
            f"There is no project here: pipelines and suites in force are the shipped ones, in {settings.pipelines[0]}"
            f" and {settings.suites[0]}",
            remedy="`sluice init FOLDER` makes one; else name your folders as pipelines and suites in a sluice.toml here",
        )


def _require_new(name: str, paths: DraftPaths, settings: Settings) -> None:
    if there := [str(path) for path in (paths.pipeline, paths.suite) if path.exists()]:
        raise SetupError(
            f"{' and '.join(there)}: there already, and not changed; nothing was written",
            remedy="take another name",
        )
    folders = [folder for folder in settings.pipelines if folder.is_dir()]
    if clash := next((one for one in load_files(folders) if one.name == name), None):
        raise SetupError(
            f"{name!r} is declared in {clash.file}; nothing was written", remedy="take another name"
        )


def _require_right(name: str, text: str, columns: Sequence[str], remedy: str) -> None:
    """Load the draft by itself. Raises SetupError with what is wrong with it, such as a column's name that none may have."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        (Path(folder) / f"{name}.py").write_text(text, encoding="utf-8")
        [loaded] = load_files([Path(folder)])
    wrong = list(loaded.wrong)
    if loaded.pipeline is not None and ddl_columns(loaded.pipeline.schema) != columns:
        wrong.append(f"schema: it would not have the columns {', '.join(map(repr, columns))}")
    if wrong:
        raise SetupError(
            f"The pipeline would have mistakes, and nothing was written: {first_few(wrong)}", remedy=remedy
        )


def _within_quotes(text: str) -> str:
    """Write a text as it stands between three quotes of Python."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
