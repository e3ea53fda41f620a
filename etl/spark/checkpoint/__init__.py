"""Spark's checkpoints, read and seeded without Spark."""
