"""The inputs of a transform beside its rows: lookups, and models that score."""
