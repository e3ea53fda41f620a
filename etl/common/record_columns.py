"""The names of the columns that Sluice adds to a record on its way to the sinks."""

from __future__ import annotations

MALFORMED_COLUMN = "_malformed"  # the record's raw text where it is malformed, else null
MALFORMED_REASON = "malformed"  # why such a record is held
SOURCE_PATH = "_source_path"
RAW = "_raw"
REASONS = "_reasons"
WHY = "_why"  # of a record that never became a row: the one reason
