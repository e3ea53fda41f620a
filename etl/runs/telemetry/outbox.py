"""Says what a run notes of its deliveries for their OpenLineage events, and where these events go.

While the setting is off nothing is noted, sent or imported.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

from etl.common.errors import SetupError
from etl.common.settings import Settings
from etl.ledger.telemetry.lineage import LineageNote
from etl.pipeline import Pipeline
from etl.pipeline.patterns import split_pattern

PARENT = "OPENLINEAGE_PARENT_ID"  # namespace/job/run, as other tools of OpenLineage take it


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What became of events."""

    sent: int
    problems: tuple[str, ...]  # why others were not: one sentence each

    @property
    def whole(self) -> bool:
        return not self.problems

    def json(self) -> dict[str, Any]:
        return asdict(self)


def lineage_note(settings: Settings, pipeline: Pipeline) -> LineageNote | None:
    """Return what each delivery's event needs to know of the run; None while no events are sent."""
    if settings.openlineage is None:
        return None
    sources = (
        _folder(one.patterns[0], settings.landing) if one.patterns else None for one in pipeline.sources
    )
    return LineageNote(sources=tuple(sources), parent=os.environ.get(PARENT))


def _folder(pattern: str, landing: str) -> str:
    folder = split_pattern(pattern).folder
    return folder if "://" in folder or folder.startswith("/") else f"{landing}/{folder}".rstrip("/")


def require_openlineage(settings: Settings) -> str:
    """Return where events go. Raises SetupError where nothing says so, or where the library is missing."""
    if settings.openlineage is None:
        raise SetupError(
            "Nothing says where OpenLineage events go",
            remedy="set SLUICE_OPENLINEAGE, such as to http://marquez.example:5000; docs/monitoring.md",
        )
    if find_spec("openlineage") is None:
        raise SetupError(
            "SLUICE_OPENLINEAGE is set, and openlineage-python is not installed",
            remedy="install Sluice with its extra: sluice[openlineage]; or unset SLUICE_OPENLINEAGE",
        )
    return settings.openlineage.get_secret_value()
