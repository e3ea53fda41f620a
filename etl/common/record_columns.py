"""The names of the columns that Sluice adds to a record on its way to the sinks."""

from __future__ import annotations

MALFORMED_COLUMN = "_malformed"  # the record's raw text where it is malformed, else null
DETAIL = "_detail"  # what is wrong with a malformed record, in a sentence; null where its parser does not say
MALFORMED_REASON = "malformed"  # why such a record is held
SOURCE_PATH = "_source_path"
RAW = "_raw"
REASONS = "_reasons"
WHY = "_why"  # of a record that never became a row: the one reason
BEHIND = "_behind"  # tells of a record that it is behind the watermark, where late ones are not held

# No field of an input may be called so: these, and the column that Spark hides in each row of a file.
RESERVED = frozenset({MALFORMED_COLUMN, DETAIL, SOURCE_PATH, RAW, REASONS, WHY, BEHIND, "_metadata"})
