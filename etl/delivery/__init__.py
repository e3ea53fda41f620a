"""Delivers one batch: stages it, judges it, commits it into both sinks or neither; replays and releases are corrections."""
