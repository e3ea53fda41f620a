"""The names of the columns that Sluice adds to a record on its way to the sinks."""

from __future__ import annotations

MALFORMED_COLUMN = "_malformed"  # the record's raw text where it is malformed, else null
DETAIL = "_detail"  # what is wrong with a malformed record, in a sentence; null of a row
# What a task that read records tells of those that are no rows, see `sources.counts.Reporter`: null of a row; all else is
# null where it is not.
REPORT = "_task_report"
MALFORMED_REASON = "malformed"  # why such a record is held
FUTURE_REASON = "future"  # why a good record is held of which a moment is ahead of its bound
SOURCE_PATH = "_source_path"
ORIGIN = "_file_number"  # the number of the record's file, see `sources.raw.origins`
# What is wrong with a record, or a file, that has more than the schema where that is held.
HELD_UNKNOWN = 'not in the schema, and unknown is "hold"'
UNKNOWN = "_unknown"  # where a pipeline keeps them: the members that its schema does not name, as JSON; else there is none
RAW = "_raw"
REASONS = "_reasons"
WHY = "_why"  # of a record that never became a row: the one reason
BEHIND = "_behind"  # tells of a record that it is behind the watermark, where late ones are not held

# No field of an input may be called so: these, and the column that Spark hides in each row of a file.
RESERVED = frozenset(
    {MALFORMED_COLUMN, DETAIL, REPORT, SOURCE_PATH, ORIGIN, UNKNOWN, RAW, REASONS, WHY, BEHIND, "_metadata"}
)


def is_own(name: str) -> bool:
    """Tell whether a sink's column is one of Sluice's own, which begin with an underscore; UNKNOWN is the transform's."""
    return name.startswith("_") and name != UNKNOWN
