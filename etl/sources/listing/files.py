"""Lists the files that a pattern means, as Spark finds them: on this machine, with links followed, or on S3."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pyarrow import fs

from etl.common.errors import SetupError
from etl.common.paths import REQUESTS, filesystem, shown
from etl.pipeline.patterns import is_glob, is_hidden, is_listed_whole, is_read, split_pattern
from etl.sources.listing.folder_states import PatternLook

_SPECIAL = {
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}
_S3_KINDS = (fs.FileType.File, fs.FileType.Directory)


def local_files(pattern: str, root: str, look: PatternLook) -> Iterator[str]:
    """Yield the path of each file below `root` that a pattern means, and of each link there that leads nowhere.

    Those in folders that the look knows, or that are closed, are left out. An absolute pattern gives absolute paths. Raises
    SetupError for what Spark would read without end: a folder that holds itself, by a link, and what is called like a file
    and is none.
    """
    top = "/" if pattern.startswith("/") else ""
    start = split_pattern(pattern).folder if is_glob(pattern) else pattern
    if not is_glob(pattern) and not Path(root, start).is_dir():
        refuse_special(Path(root, start))
        if Path(root, start).is_file() or Path(root, start).is_symlink():
            yield pattern
        return
    pending: list[tuple[str, frozenset[tuple[int, int]]]] = [(start, frozenset())]
    while pending:
        folder, above = pending.pop()
        if look.is_closed(folder):
            continue
        place = Path(root, folder or top)
        seen = _seen(place)
        if seen is not None and is_listed_whole(pattern, folder):
            above = _with(place, seen, above)
        if (below := look.unchanged(folder, seen)) is not None:
            pending += [(path, above) for path in below]
            continue
        for entry in _entries(place):
            path = f"{folder}/{entry.name}" if folder else f"{top}{entry.name}"
            if is_link := entry.is_symlink():
                look.note_link(folder)
            if _is_folder(entry):
                if _leads_on(pattern, path):
                    pending.append((path, above))
            elif is_read(pattern, path):
                if not entry.is_file(follow_symlinks=False):
                    refuse_special(entry)
                if is_link or entry.is_file():
                    yield path


def refuse_special(place: Path | os.DirEntry[str]) -> None:
    """Raise SetupError for a named pipe, a socket or a device, or a link to one; what is not there is none of them."""
    with suppress(OSError):
        refuse_no_file(os.fspath(place), place.stat().st_mode)


def refuse_no_file(path: str, mode: int) -> None:
    """Raise SetupError for a path whose mode tells that whoever reads it may wait without end."""
    kind = next((name for is_one, name in _SPECIAL.items() if is_one(mode)), None)
    if kind is not None:
        raise SetupError(
            f"{shown(path)} is {kind} and not a file: Spark would wait for what it gives, without end",
            remedy="remove it, or give it a name that begins with _ or a dot, and land files",
        )


def _leads_on(pattern: str, folder: str) -> bool:
    """Tell whether files that the pattern means may be below the folder."""
    if is_listed_whole(pattern, folder):
        return not is_hidden(pattern, f"{folder}/-")
    return folder.count("/") < pattern.count("/")


def _seen(folder: Path) -> os.stat_result | None:
    """Return a folder's state; None where it is not there, or no longer."""
    try:
        return folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):  # it is not there, or no longer
        return


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Tell whether an entry is a folder or a link to one; a link that can't be followed is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _with(
    folder: Path, seen: os.stat_result, above: frozenset[tuple[int, int]]
) -> frozenset[tuple[int, int]]:
    """Return the folders that one lies in, by device and inode, with itself. Raises SetupError if it is among them."""
    if (seen.st_dev, seen.st_ino) in above:
        raise SetupError(
            f"{shown(str(folder))} leads back, by a link, to a folder that it is in: Spark would read it without end",
            remedy="remove the link, or give it a name that begins with _ or a dot",
        )
    return above | {(seen.st_dev, seen.st_ino)}


def s3_files(pattern: str, root: str, look: PatternLook) -> Iterator[str]:
    """Yield the path below `root` of each object that a pattern means; an absolute pattern gives absolute paths.

    Those in closed folders are left out. A request names a thousand objects, whatever their folders; where folders may be
    closed, each is listed by itself down to those that have an interval.
    """
    below = "" if pattern.startswith("s3a://") else f"{root}/"
    fixed = split_pattern(pattern).folder if is_glob(pattern) else pattern
    deep = "/" in pattern.removeprefix(fixed).lstrip("/")
    store, _ = filesystem(below + fixed)

    def listed(folder: str) -> tuple[list[str], list[str]]:
        """Return the files in a folder, and the folders in it that are to be listed."""
        whole = look.closing.names(folder) if look.closing else deep or folder != fixed
        base = f"{below}{folder}".removeprefix("s3a://").rstrip("/")
        found = store.get_file_info(fs.FileSelector(base, recursive=whole, allow_not_found=True))
        paths = {
            kind: [f"s3a://{one.path}".removeprefix(below) for one in found if one.type == kind]
            for kind in _S3_KINDS
        }
        folders = [] if whole else paths[fs.FileType.Directory]
        return (
            [path for path in paths[fs.FileType.File] if is_read(pattern, path)],
            [path for path in folders if _leads_on(pattern, path)],
        )

    if not is_glob(pattern):
        [named] = store.get_file_info([f"{below}{fixed}".removeprefix("s3a://")])
        if named.type == fs.FileType.File:
            yield pattern
        if named.type != fs.FileType.Directory:
            return
    with ThreadPoolExecutor(REQUESTS) as pool:
        folders = [fixed]
        while folders:
            level = list(pool.map(listed, [one for one in folders if not look.is_closed(one)]))
            folders = [path for _, further in level for path in further]
            for files, _ in level:
                yield from files
