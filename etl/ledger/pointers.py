"""Pointers: which metadata of a lake table is current, a row that the commit swaps."""

from __future__ import annotations

CATALOG = "sluice"
