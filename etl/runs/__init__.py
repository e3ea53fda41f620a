"""A run of a pipeline, from its lease to its summary."""
