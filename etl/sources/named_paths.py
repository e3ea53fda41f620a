"""Names to Spark what has landed and is to be read, so that it need not list the landing again."""

from __future__ import annotations

import re
from collections.abc import Iterable

from etl.common.paths import landing_path
from etl.pipeline import Files
from etl.pipeline.patterns import escaped, is_absolute, is_read, split_pattern
from etl.sources.evidence import place_at
from etl.sources.landing import is_listed_by_log

FILES = 8  # of a source: for each Spark asks S3 several times, for its folder once for a thousand names
FOLDERS = 32  # of a source: more are listed by a job of Spark
# HAZARD: within braces Hadoop takes a backslash away before it looks for globs; what is before a colon is a scheme to it.
_PLAIN = re.compile(r"[\w./= -]+")
# It is hidden, so never input. For its slash Hadoop takes what is in the same braces as paths, and lists nothing for them.
_NOTHING = "_/_"


def named_path(files: Files, landing: str, paths: Iterable[str]) -> str | None:
    """Return one path by which Spark finds those of the landed files that the pattern means: them, or their folders.

    None: Spark has to list all that the pattern means. The files are given by their identities.
    """
    pattern, root = files.pattern, landing_path(landing)
    if is_absolute(pattern):
        root = "/".join(pattern.split("/")[:3]) if pattern.startswith("s3a://") else "/"
        paths = [place_at(path, landing) for path in paths]
    meant = {path.removeprefix(root).removeprefix("/") for path in paths if is_read(pattern, path)}
    if len(meant) > FILES:
        meant = {path.rpartition("/")[0] for path in meant}
        if not split_pattern(pattern).recursive or len(meant) > FOLDERS:
            return None
    if not all(map(_PLAIN.fullmatch, meant)) or is_listed_by_log(files, landing):
        return None
    if not any("/" in path for path in meant):
        meant.add(_NOTHING)
    return f"{escaped(root).rstrip('/')}/{{{','.join(sorted(meant))}}}"
