"""Replays of delivered batches, and releases of held rows."""
