"""Reads rows from files, topics and live sources; separates malformed and late records."""
