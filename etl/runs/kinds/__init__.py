"""Continues the stream of a pipeline, by the kind of its sources."""
