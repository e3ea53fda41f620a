"""Finds a pipeline's suite and reads its JSON, without a look at its rules: light to import, for each run asks for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etl.common.errors import SetupError
from etl.common.settings import Settings
from etl.common.wording import pluralize
from etl.pipeline import Pipeline

NO_SUITE: Mapping[str, Any] = {"name": "none", "expectations": []}  # by which every row passes
# Of a suite that GX before 1.0 wrote.
_RENAMED = {"expectation_suite_name": "name", "evaluation_parameters": "suite_parameters"}
_GONE = ("data_asset_type", "ge_cloud_id")


def suite_path(pipeline: Pipeline, settings: Settings) -> Path:
    """Find the pipeline's suite in the first folder that has it; raise SetupError where none does."""
    name = f"{pipeline.suite}.json"
    for folder in settings.suites:
        if (folder / name).is_file():
            return folder / name
    folders = ", ".join(str(folder) for folder in settings.suites)
    raise SetupError(
        f"Suite {name} of pipeline {pipeline.name} is in none of the folders {folders}",
        remedy="put it there, or name its folder in SLUICE_SUITES",
    )


def digest_of(pipeline: Pipeline, settings: Settings) -> str:
    """Return the digest of the suite that the pipeline is judged by today."""
    return digest(suite_of(pipeline, settings))


def suite_source(pipeline: Pipeline, settings: Settings) -> Path | Mapping[str, Any]:
    """Return what the pipeline is judged by: its suite's file, or a suite without a rule."""
    return suite_path(pipeline, settings) if pipeline.suite else NO_SUITE


def suite_of(pipeline: Pipeline, settings: Settings) -> Mapping[str, Any]:
    """Return the JSON of the suite that the pipeline is judged by today."""
    return read_json(suite_source(pipeline, settings))


def read_json(source: Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """Read the JSON of a suite, without a look at its rules. Raises SetupError for what is no suite."""
    where = str(source) if isinstance(source, Path) else "the suite"
    remedy = "give the path of a suite that GX wrote (ExpectationSuite.to_json_dict)"
    try:
        document = json.loads(source.read_text(encoding="utf-8-sig")) if isinstance(source, Path) else source
    except (OSError, ValueError) as wrong:
        raise SetupError(f"{where} can't be read as a suite: {wrong}", remedy=remedy) from wrong
    if isinstance(document, Mapping) and (older := _of_older_gx(document)):
        raise SetupError(
            f"{where} is a suite of an older Great Expectations: {older}",
            remedy="rename it so, or write the suite again with GX 1",
        )
    if not (
        isinstance(document, Mapping)
        and isinstance(document.get("name"), str)
        and isinstance(document.get("expectations"), list)
    ):
        raise SetupError(f"{where} is no suite: it needs a name and a list of expectations", remedy=remedy)
    return document


def _of_older_gx(document: Mapping[str, Any]) -> str | None:
    """Say what GX before 1.0 has named otherwise in a suite; None where there is nothing of it."""
    told = [f"`{old}` is `{new}` now" for old, new in _RENAMED.items() if old in document]
    told += [f"`{name}` is no more" for name in _GONE if name in document]
    entries = document.get("expectations")
    old = [
        number
        for number, entry in enumerate(entries if isinstance(entries, list) else [])
        if isinstance(entry, Mapping) and "expectation_type" in entry and "type" not in entry
    ]
    if old:
        several = f" in {pluralize(len(old), 'expectation')}"
        told.append(f"`expectation_type` is `type` now{several}")
    return "; ".join(told) if old or document.keys() & _RENAMED.keys() else None


def digest(document: Mapping[str, Any]) -> str:
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode(errors="surrogatepass")).hexdigest()
