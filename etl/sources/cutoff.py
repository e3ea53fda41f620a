"""Files of intervals before a pipeline's `start`: the stream never reads them, a replay of their interval loads them.

The path alone decides, so the result is the same for a file that lands late, for a new checkpoint, and for every
caller: Spark lists these files and does not open them, and they are not inputs of its batches.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from etl.common.paths import is_utf8, require_utf8
from etl.ledger.inputs import Input
from etl.pipeline import Pipeline
from etl.pipeline.intervals import PathTemplate, is_template, moment_of
from etl.sources.evidence import look, path_column, uri_at
from etl.sources.landing import landed, refuse_doubled_by_links, source_of
from etl.sources.listing.folder_states import LandingLook

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True, kw_only=True)
class StartCutoff:
    """What is left out, by a declared `start` and an `interval` that is a part of paths."""

    template: PathTemplate
    start: dt.datetime  # aware

    @classmethod
    def of(cls, pipeline: Pipeline) -> Self | None:
        """Return what a pipeline's stream leaves out; None when it takes all that lands."""
        if pipeline.start is None or not is_template(pipeline.interval or ""):
            return None
        return cls(template=PathTemplate(text=pipeline.interval or ""), start=moment_of(pipeline.start))

    def has(self, path: str) -> bool:
        """Tell whether the interval of the file of this identity begins before the start.

        A file without an interval does not.
        """
        named = self.template.of(path)
        return named is not None and named[0] < self.start

    def column(self, uri: Column, landing: str) -> Column:
        """Tell within Spark, of a file's URI, whether the file's interval begins before the start."""
        from pyspark.sql import functions as F

        return F.coalesce(self._begin(path_column(uri, landing)) < F.lit(self.start), F.lit(False))

    def _begin(self, path: Column) -> Column:
        """Return when the interval of a file's path begins, as a column; null where it names none."""
        from pyspark.sql import functions as F

        pattern, directives = self.template.groups
        parts = {
            one: F.regexp_extract(path, pattern, n).try_cast("int") for n, one in enumerate(directives, 1)
        }
        year, day_of_year = F.when(parts["Y"] >= 1, parts["Y"]), parts.get("j")
        first, zero = F.lit(1), F.lit(0)
        month, day = (first if day_of_year is not None else parts.get(one, first) for one in "md")
        hour, minute = (parts.get(one, zero) for one in "HM")
        begin = F.try_make_timestamp(year, month, day, hour, minute, zero, F.lit("UTC"))
        if day_of_year is None:
            return begin
        days = F.make_dt_interval(F.when(day_of_year.between(1, 366), day_of_year - 1))
        return begin + days


def in_stream(pipeline: Pipeline) -> Callable[[str], bool]:
    """Return a function that tells of a landed file, by its path, whether the stream takes it."""
    cutoff = StartCutoff.of(pipeline)
    return lambda path: cutoff is None or not cutoff.has(path)


def undelivered(
    pipeline: Pipeline, landing: str, delivered: AbstractSet[str], look: LandingLook | None = None
) -> set[str]:
    """Return the paths of the landed files that the stream takes and that are not among the `delivered` ones.

    Those in folders that the `look` knows, or that are closed, are left out.
    """
    return set(filter(in_stream(pipeline), landed(pipeline, landing, look) - delivered))


def before_start(
    pipeline: Pipeline,
    landing: str,
    interval: tuple[dt.datetime, dt.datetime] | None = None,
    live: AbstractSet[str] = frozenset(),
) -> list[Input]:
    """Return the landed files, of an interval or of all, that the stream leaves out.

    Those whose paths are `live` are not among them. Of an interval, it raises SetupError for a name that is
    no UTF-8, and InputsDoubled for a file that is read under two names.
    """
    cutoff = StartCutoff.of(pipeline)
    if cutoff is None:
        return []
    left_out = [
        path
        for path in sorted(landed(pipeline, landing) - live)
        if cutoff.has(path) and (interval is None or cutoff.template.overlaps(path, interval))
    ]
    if interval is not None:
        require_utf8(left_out)
        refuse_doubled_by_links(pipeline, left_out, landing)
    uris_by_source: dict[int, list[str]] = {}
    for path in filter(is_utf8, left_out):  # Spark does not find another, so there is nothing to keep it from
        if (source := source_of(pipeline, path, landing)) is not None:
            uris_by_source.setdefault(source, []).append(uri_at(path, landing))
    return [
        one
        for source in uris_by_source
        for one in look(uris_by_source[source], landing=landing, source=source)
    ]
