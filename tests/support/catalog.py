"""The Iceberg catalog as a program of somebody else opens it: by what `sluice env` prints."""

from __future__ import annotations

from pyiceberg.catalog import Catalog, load_catalog

from etl.operations.serving.environment import exports
from etl.runs.workspace import Workspace

PREFIX = "PYICEBERG_CATALOG__SLUICE__"


def open_catalog(place: Workspace) -> Catalog:
    """Open the catalog, reading the names of the variables as pyiceberg does."""
    told = {
        name.removeprefix(PREFIX).lower().replace("__", ".").replace("_", "-"): value
        for name, value in exports(place).items()
        if name.startswith(PREFIX)
    }
    return load_catalog("sluice", **told)
