"""A project of one's own: begun, and checked without a run."""
