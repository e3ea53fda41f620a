"""Reads CSV records, as docs/reading.md says: by the names of each file's header, every one a row or held."""
