"""Lists the files that have landed for a pipeline, without Spark."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cache
from pathlib import Path

from pyarrow import fs

from etl.common.errors import InputsDoubled, ServiceAway, SetupError
from etl.common.outages import refused
from etl.common.paths import filesystem, landing_path, shown
from etl.ledger.inputs import Input
from etl.pipeline import Files, Lookup, Pipeline
from etl.pipeline.declaration import DeclaredSource
from etl.pipeline.patterns import Pattern, escaped, fits, is_absolute, is_glob, is_read, split_pattern
from etl.sources.evidence import identity, place_at
from etl.sources.listing.files import local_files, s3_files
from etl.sources.listing.folder_states import LandingLook

# Which data set of ours lands the folder.
_LANDS = {"reference": "flights", "weather": "flights"} | {
    name: name for name in ("flights", "devices", "actions", "requests")
}


def landed(pipeline: Pipeline, landing: str, look: LandingLook | None = None) -> set[str]:
    """Return the identities of all files that the sources' patterns mean: paths below the landing, or places.

    Those in folders that the `look` knows, or that are closed, are left out. A folder that is not there has none. Names
    that are no UTF-8 are among them, which Spark can't read.
    """
    return set[str]().union(*(files_there(pattern, landing, look) for _, pattern in _patterns(pipeline)))


def source_of(pipeline: Pipeline, path: str, landing: str) -> int | None:
    """Return the number of the source that reads the file of this identity; None when none does.

    It is the first whose pattern means the file. An absolute pattern may mean files below the landing too.
    """
    whole = place_at(path, landing)
    numbers = (n for n, one in _patterns(pipeline) if fits(one, whole if is_absolute(one) else path))
    return next(numbers, None)


def refuse_doubled_by_links(pipeline: Pipeline, paths: Iterable[str], landing: str) -> None:
    """Raise InputsDoubled for a local file that has two names by a link, and is read under both.

    The other name is one of these identities, or any other that the pipeline reads.
    """
    real_folder = cache(os.path.realpath)
    root = real_folder(Path(landing_path(landing)))
    names: dict[Path, str] = {}
    for path in paths:
        place = Path(place_at(path, landing))
        if not place.is_absolute():  # on S3
            continue
        real = Path(
            os.path.realpath(place) if place.is_symlink() else f"{real_folder(place.parent)}/{place.name}"
        )
        other = str(real.relative_to(root) if real.is_relative_to(root) else real)
        if other == path or not _is_read(pipeline, other, landing):
            other = names.setdefault(real, path)
        if other != path:
            raise InputsDoubled(
                f"{shown(path)} and {shown(other)} are one file, by a link: pipeline {pipeline.name} would deliver it twice",
                remedy="remove the link, or give it a name that begins with _ or a dot, then"
                f" `sluice recover {pipeline.name}`",
            )


def _is_read(pipeline: Pipeline, path: str, landing: str) -> bool:
    whole = place_at(path, landing)
    return any(is_read(one, whole if is_absolute(one) else path) for _, one in _patterns(pipeline))


def _patterns(pipeline: Pipeline) -> list[tuple[int, str]]:
    """Return the patterns of landed files, each with the number of its source."""
    sources: Sequence[DeclaredSource] = pipeline.sources
    return [(number, one) for number, source in enumerate(sources) for one in source.patterns]


def assigned(inputs: Sequence[Input], pipeline: Pipeline, landing: str) -> list[Input]:
    """Return the inputs under the sources that read them as declared now, without those that none reads."""
    of_sources = []
    for one in inputs:
        source = source_of(pipeline, one.path, landing)
        if source is not None:
            of_sources.append(replace(one, source=source))
    return of_sources


def files_there(pattern: str, landing: str, look: LandingLook | None = None) -> set[str]:
    """Return the identities of the files that a pattern means, without those that Spark passes over for _ or a dot.

    Those in folders that the `look` knows, or that are closed, are left out. Raises ServiceAway when they can't be listed
    now, and SetupError where this user may not, the path is none that a file system takes, or a folder holds itself, by a
    link.
    """
    root = landing_path(landing)
    place = pattern if is_absolute(pattern) else root
    try:
        list_files = s3_files if place.startswith("s3a://") else local_files
        found = list_files(pattern, root, (look or LandingLook()).at(pattern))
        if not is_absolute(pattern):  # they are below the landing, and named from there
            return set(found)
        return {identity(path, landing) for path in found}
    except OSError as error:
        if (why := refused(error)) is not None:
            raise SetupError(
                f"The files of {pattern} can't be listed. {why.seen}", remedy=why.remedy
            ) from error
        raise ServiceAway(f"The files of {pattern} can't be listed: {error}", remedy="run again") from error


def is_listed_by_log(files: Files, landing: str) -> bool:
    """Tell whether Spark reads only what the log of its own file sink names there, and nothing beside it."""
    split = split_pattern(files.pattern)
    if not split.recursive or is_glob(split.path):
        return False
    folder, _ = _below_landing(split, landing)
    store, log_folder = filesystem(f"{folder}/_spark_metadata")
    return bool(store.get_file_info(log_folder).type == fs.FileType.Directory)


def listed_path(files: Files | Lookup, landing: str, where: str) -> str:
    """Return the path that Spark lists for files. Raises SetupError when its folder is not there."""
    pattern = split_pattern(files.pattern)
    folder, path = _below_landing(pattern, landing)
    store, inner = filesystem(folder)
    if store.get_file_info(inner).type != fs.FileType.Directory:
        dataset = _LANDS.get(pattern.folder.split("/")[0])
        remedy = f"`sluice land {dataset}`" if dataset else "create it, or land its first files there"
        seen = f"The {where} reads {files.pattern}, and the folder {folder} is not there"
        raise SetupError(seen, remedy=remedy)
    return path


def folders_gone(pipeline: Pipeline, landing: str, paths: AbstractSet[str]) -> dict[int, str]:
    """Return the folder of each source of which it is not there, by the source's number; on S3, its bucket.

    There a folder is gone with the last object in it. A bucket that may not be looked at counts as there, and so does the
    folder of a source that one of the files is of which have landed, with these paths.
    """
    gone = {}
    for number, one in _patterns(pipeline):
        folder, _ = _below_landing(split_pattern(one), landing)
        if folder.startswith("s3a://"):
            folder = "/".join(folder.split("/")[:3])
        if _is_there(folder) or any(source_of(pipeline, path, landing) == number for path in paths):
            continue
        gone[number] = folder
    return gone


def _is_there(folder: str) -> bool:
    store, inner = filesystem(folder)
    try:
        return bool(store.get_file_info(inner).type == fs.FileType.Directory)
    except OSError:
        return True


def _below_landing(pattern: Pattern, landing: str) -> tuple[str, str]:
    """Return (the fixed folder, the path to list) of a pattern, both absolute."""
    root = landing_path(landing)
    if is_absolute(pattern.path):
        return pattern.folder or "/", pattern.path
    # The landing's own name is no glob, so what could be one in it is escaped.
    listed = escaped(root) if is_glob(pattern.path) else root
    return f"{root}/{pattern.folder}".rstrip("/"), f"{listed}/{pattern.path}".rstrip("/")
