"""Finds the folders that come with Sluice: its SQL, its suites, its DAG files and the shipped pipelines."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def shipped(folder: str) -> Path:
    """Return a folder that comes with Sluice: within the package, as a wheel has it, else beside it, as in a checkout."""
    within = PACKAGE / folder
    return within if within.is_dir() else PACKAGE.parent / folder
