"""Reads JSON records, one object each, as docs/reading.md says."""
