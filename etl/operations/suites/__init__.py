"""Suites and pipelines tried, drafted and shown."""
