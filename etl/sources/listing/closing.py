"""Tells by the interval in a folder's name that the folder is closed: no run needs to list it again.

A folder is open until a run has begun at least `open_for` after the end of its interval, and has left nothing unread. So
each folder was listed when its time was up, however long no run had been. What lands in it later is late: `sluice audit`
names it, and `sluice run --closed` reads it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from etl.pipeline import Pipeline
from etl.pipeline.intervals import PathTemplate, is_template


@dataclass(frozen=True, kw_only=True)
class Closing:
    """Which folders of a pattern are closed."""

    template: PathTemplate
    until: dt.datetime  # aware: intervals that had ended by then

    def names(self, folder: str) -> bool:
        """Tell whether a folder has an interval, and so all that is below."""
        return self.template.of(folder) is not None

    def has(self, folder: str) -> bool:
        """Tell whether a folder is closed."""
        above = (one.of(f"{folder}/") for one in self.template.beginnings)
        return any(
            named is not None and named[1] <= self.until for named in (self.template.of(folder), *above)
        )


def any_closed(pipeline: Pipeline, paths: Iterable[str]) -> bool:
    """Tell whether one of the files with these paths is in a folder that runs list no more, or will soon not."""
    closed = closings(pipeline, dt.datetime.now(dt.UTC)).values()
    return any(one.has(path.rpartition("/")[0]) for path in paths for one in closed)


def closings(pipeline: Pipeline, began: dt.datetime) -> Mapping[str, Closing]:
    """Return what is closed, by pattern, once a run that `began` then has left nothing unread."""
    interval = pipeline.interval
    if interval is None or not is_template(interval):
        return {}
    template = PathTemplate(text=interval)
    return {
        pattern: Closing(template=template, until=began - source.open_for)
        for source in pipeline.sources
        if source.open_for is not None
        for pattern in source.patterns
    }
