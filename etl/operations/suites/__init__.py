"""Tries, drafts and shows suites and pipelines."""
