"""Finds deliveries that only the lake has and that can't be put back, so that their rows are not lost in silence.

Their inputs are read again where they are still there. Where they are not, or where a part of a topic would be taken
for unread, a person decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from etl.common.database import transaction
from etl.common.errors import NeedsPerson
from etl.common.wording import first_few, pluralize
from etl.ledger import deliveries, offsets
from etl.ledger.offsets import TopicPartition
from etl.pipeline import Pipeline
from etl.runs.recovery.lost_deliveries import LostDelivery
from etl.sources.cutoff import in_stream
from etl.sources.evidence import look, other_content, uri_at
from etl.sources.landing import source_of


def refuse_stranded(
    dsn: str, pipeline: Pipeline, gone: Sequence[LostDelivery], landing: str, way_back: str
) -> None:
    """Raise NeedsPerson where the rows of a lost delivery are in neither sink and what it had read can't be read again."""
    with transaction(dsn) as cursor:
        live = {one.path for one in deliveries.live_inputs(cursor, pipeline.name)}
        reached = {
            TopicPartition(at.topic_id, at.partition): at.reached
            for at in offsets.reached(cursor, pipeline.name)
        }
    problems = [
        problem
        for one in sorted(gone, key=lambda one: one.delivery_id)
        if (
            problem := _unreadable(pipeline, one, live, landing)
            or _unread(pipeline, one, reached)
            or _passed(pipeline, one)
        )
    ]
    if problems:
        raise NeedsPerson(
            first_few(problems),
            remedy=f"{way_back}, then `sluice recover {pipeline.name}` again; or restore PostgreSQL to a moment"
            " after these deliveries; or take the rows from the objects, remove these manifests, and"
            f" `sluice recover {pipeline.name}`",
        )


def _unreadable(pipeline: Pipeline, one: LostDelivery, live: set[str], landing: str) -> str | None:
    """Say which files of a lost delivery no delivery in force has and nothing will find; None if there are none.

    A file that has other content by now is not found either. Files of an attempt of the stream that was never
    committed count as well, whatever their content; a replay that failed has told so itself. Files of a replay may
    also be history, which another replay loads.
    """
    wanted = {file.path: file for file in one.manifest.inputs if file.path not in live}
    if not wanted or (one.known and not one.of_the_stream):
        return None
    taken = in_stream(pipeline)
    read = [
        path
        for path in wanted
        if source_of(pipeline, path, landing) is not None and (taken(path) or not one.of_the_stream)
    ]
    present = {file.path: file for file in look([uri_at(path, landing) for path in read], landing=landing)}
    missing = [path for path in wanted if path not in present]
    if not one.known:
        missing += [
            f"{path}, which {difference}"
            for path, now in present.items()
            if (difference := other_content(wanted[path], now))
        ]
    if not missing:
        return None
    files = f"{len(missing):,} of its {pluralize(len(one.manifest.inputs), 'input file')}"
    finds = "run" if one.of_the_stream else "replay"
    return (
        f"{_lost(pipeline, one)}, and no {finds} will find {files}, such as {missing[0]}: only {one.uri} and"
        f" {_objects(one)}"
    )


def _unread(pipeline: Pipeline, one: LostDelivery, reached: dict[TopicPartition, int]) -> str | None:
    """Say that what a whole delivery had read of topics would be taken for unread; None if the ledger is past it."""
    if one.known or not one.whole or not one.of_the_stream:
        return None
    if all(part.empty or part.end <= reached.get(part.where, 0) for part in one.manifest.ranges):
        return None
    return (
        f"{_lost(pipeline, one)}, and what it had read of its topics would be taken for unread: {one.uri} and"
        f" {_objects(one)}"
    )


def _passed(pipeline: Pipeline, one: LostDelivery) -> str | None:
    """Say that a delivery had rows of a source that can't be read again; None if it had not.

    Nobody knows whether one whose number was taken was ever committed: it counts where it is whole.
    """
    if (
        pipeline.replayable
        or one.known
        or not one.of_the_stream
        or not (one.committed or (one.taken and one.whole))
    ):
        return None
    return f"{_lost(pipeline, one)}: only {one.uri} and {_objects(one)}"


def _lost(pipeline: Pipeline, one: LostDelivery) -> str:
    name = f"Delivery {one.delivery_id} of {pipeline.name}"
    if one.known:
        return f"{name} was never committed, as far as is known"
    if one.taken:
        return f"{name} was lost, its number was given to another run since"
    if not one.of_the_stream:
        return f"{name} was lost, a {one.entry.kind}, which is not put back by itself"
    why = (
        f"the one before it, {one.entry.previous}, was not put back"
        if one.whole
        else "not all of its objects are there"
    )
    return f"{name} was lost, it can't be put back because {why}"


def _objects(one: LostDelivery) -> str:
    return (
        "the objects it names have its rows"
        if one.whole
        else "what is left of its objects have any of its rows"
    )
