"""Lists the files that have landed for a pipeline, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyarrow import fs

from etl.common.errors import ServiceAway, SetupError
from etl.common.paths import filesystem, is_utf8, landing_path
from etl.ledger.inputs import Input
from etl.pipeline import Files, Lookup, Pipeline
from etl.pipeline.declaration import DeclaredSource
from etl.pipeline.patterns import Pattern, fits, is_glob, is_hidden, split_pattern
from etl.sources.evidence import identity, place_at

# Which data set of ours lands the folder.
_LANDS = {"reference": "flights", "weather": "flights"} | {
    name: name for name in ("flights", "devices", "actions", "requests")
}


def landed(pipeline: Pipeline, landing: str) -> set[str]:
    """Return the identities of all files that the sources' patterns mean: paths below the landing, or places.

    A folder that is not there has none. Names that are no UTF-8 are among them, which Spark can't read.
    """
    return set[str]().union(*(files_there(pattern, landing) for _, pattern in _patterns(pipeline)))


def source_of(pipeline: Pipeline, path: str, landing: str) -> int | None:
    """Return the number of the source that reads the file of this identity; None when none does.

    It is the first whose pattern means the file. An absolute pattern may mean files below the landing too.
    """
    whole = place_at(path, landing)
    numbers = (n for n, one in _patterns(pipeline) if fits(one, whole if _is_absolute(one) else path))
    return next(numbers, None)


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


def _is_absolute(pattern: str) -> bool:
    return pattern.startswith(("/", "s3a://"))


def files_there(pattern: str, landing: str) -> set[str]:
    """Return the identities of the files that a pattern means. Raises ServiceAway when they can't be listed.

    Those that Spark passes over for names with _ or a dot are left out.
    """
    root = "" if _is_absolute(pattern) else landing_path(landing).rstrip("/") + "/"
    prefix = "s3a://" if (root or pattern).startswith("s3a://") else ""
    fixed = split_pattern(pattern).folder if is_glob(pattern) else pattern
    store, base = filesystem(root + fixed)
    deep = "/" in pattern.removeprefix(fixed).lstrip("/")
    selector = fs.FileSelector(base, recursive=deep, allow_not_found=True)

    def meant(listing: list[fs.FileInfo], kind: fs.FileType) -> set[str]:
        paths = ((prefix + _path(one)).removeprefix(root) for one in listing if one.type == kind)
        return {path for path in paths if fits(pattern, path) and not is_hidden(pattern, path)}

    try:
        listing = store.get_file_info(selector if is_glob(pattern) else [base])
        paths = meant(listing, fs.FileType.File)
        for folder in meant(listing, fs.FileType.Directory) if not deep else ():
            if not is_utf8(folder):
                paths.add(folder)  # by itself: it can't be listed
                continue
            below = fs.FileSelector(
                (root + folder).removeprefix(prefix), recursive=True, allow_not_found=True
            )
            paths |= meant(store.get_file_info(below), fs.FileType.File)
    except OSError as error:
        raise ServiceAway(f"{root}{fixed} can't be listed: {error}", remedy="run again") from error
    return {identity(path, landing) for path in paths}


def _path(one: fs.FileInfo) -> str:
    """Return a listed path, with lone surrogates for bytes that are no UTF-8, as Python itself names it."""
    try:
        return str(one.path)
    except UnicodeDecodeError as error:
        return bytes(error.object).decode("utf-8", "surrogateescape")


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


def _below_landing(pattern: Pattern, landing: str) -> tuple[str, str]:
    """Return (the fixed folder, the path to list) of a pattern, both absolute."""
    root = landing_path(landing)
    if _is_absolute(pattern.path):
        return pattern.folder or "/", pattern.path
    # The landing's own name is no glob, so what could be one in it is escaped.
    listed = _escaped(root) if is_glob(pattern.path) else root
    return f"{root}/{pattern.folder}".rstrip("/"), f"{listed}/{pattern.path}".rstrip("/")


def _escaped(path: str) -> str:
    return "".join("\\" + char if char in "*?[]{}\\" else char for char in path)
