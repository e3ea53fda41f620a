"""Removes what nothing refers to any more."""
