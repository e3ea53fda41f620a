"""Which files have landed for a pipeline, seen without Spark."""

from __future__ import annotations

from pyarrow import fs

from etl.declaration import Pipeline
from etl.patterns import fits, split_pattern
from etl.places import filesystem, landing_place


def landed(pipeline: Pipeline, landing: str) -> set[str]:
    """The identities of all files that the sources' patterns mean: paths below the landing, or places.

    A folder that is not there has none. May name a file that Spark passes over, and misses none that it reads.
    """
    found: set[str] = set()
    for source in pipeline.sources:
        outside = source.pattern.startswith(("/", "s3a://"))
        root = "" if outside else landing_place(landing).rstrip("/") + "/"
        store, folder = filesystem(root + split_pattern(source.pattern).folder)
        prefix = "s3a://" if (root or source.pattern).startswith("s3a://") else ""
        listing = store.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
        paths = ((prefix + one.path).removeprefix(root) for one in listing if one.type == fs.FileType.File)
        found |= {path for path in paths if fits(source.pattern, path)}
    return found
