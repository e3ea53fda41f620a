"""Matches files with a pattern as Spark's file source does.

`flights/**/*.jsonl` is a folder, read at any depth, and a glob for the file's name. Without `**` the whole
pattern is a glob of single levels; a folder that it means is read whole, at any depth, whatever the names in it.
What is below the folder that Spark lists and has a name that starts with `_` or `.` is never input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

FORMATS = ("json", "json-array", "csv", "parquet", "text")

_SUFFIXES = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
    ".log": "text",
}
_GLOB = re.compile(r"[*?\[\]{}\\]")
_HIVE_FOLDER = re.compile(r"(?:^|/)(([^/=]+)=[^/]*)(?=/)")
_MAY_HIDE = re.compile(r"(?:^|/)[._]|\._COPYING_")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A checked pattern."""

    folder: str  # the part before the first glob character, without a trailing slash; "" = the landing
    path: str  # what Spark lists: `folder`, or a glob of single levels
    name: str  # glob for the file's name, which Spark asks of each file that it finds below `path`
    recursive: bool  # at any depth below `path`


@lru_cache  # asked for each file that has landed
def split_pattern(pattern: str) -> Pattern:
    """Split a pattern in which `pattern_problems` finds nothing wrong into its parts."""
    *above, name = pattern.split("/")
    fixed = above
    for depth, part in enumerate(above):
        if _GLOB.search(part):
            fixed = above[:depth]
            break
    recursive = bool(above) and above[-1] == "**"
    if recursive:
        path = "/".join(above[:-1])
    elif _GLOB.search(pattern):
        path = pattern
    else:
        # Spark takes a path without a glob for a folder; braces make a glob that only this file matches.
        path = "/".join([*above, "{" + name + "}"])
    return Pattern(folder="/".join(fixed), path=path, name=name if recursive else "*", recursive=recursive)


def pattern_problems(pattern: object) -> list[str]:
    """Tell what is wrong with a pattern, as sentences."""
    if not isinstance(pattern, str) or not pattern.strip():
        return [f"{pattern!r} must be a path pattern, such as 'events/**/*.jsonl'"]
    scheme = _SCHEME.match(pattern)
    rest = pattern
    mistakes = []
    if scheme:
        rest = pattern[scheme.end() :]
        if scheme[1] != "s3a":
            mistakes.append(f"{pattern!r}: only s3a:// and local paths can be read, not {scheme[1]}://")
    *above, name = rest.removeprefix("/").split("/")
    if name in ("", ".", "..", "**"):
        mistakes.append(f"{pattern!r} must end in a file's name or a glob for it, such as '*.jsonl'")
    if "" in above or "." in above or ".." in above:
        mistakes.append(f"{pattern!r} has an empty, '.' or '..' part")
    if "**" in above[:-1] or any("**" in part and part != "**" for part in [*above, name]) or (name == "**"):
        mistakes.append(f"{pattern!r}: '**' may only be the whole folder just before the file's name")
    if any(part[:1] in ("_", ".") for part in [*above, name] if part not in (".", "..")):
        mistakes.append(f"{pattern!r}: names that start with '_' or '.' are hidden from Spark")
    if scheme and (not above or _GLOB.search(above[0])):
        mistakes.append(f"{pattern!r} must name a bucket")
    if not mistakes:
        try:
            _meant(pattern)
        except re.error as error:
            mistakes.append(f"{pattern!r} is no glob: {error.msg}")
    return mistakes


def is_glob(path: str) -> bool:
    """Tell whether Spark would take `path` for a glob."""
    return _GLOB.search(path) is not None


def escaped(path: str) -> str:
    """Return the glob that means this path alone."""
    return _GLOB.sub(lambda char: "\\" + char[0], path)


def is_absolute(pattern: str) -> bool:
    """Tell whether a pattern names its place by itself, and not below the landing."""
    return pattern.startswith(("/", "s3a://"))


def fits(pattern: str, path: str) -> bool:
    """Tell whether the pattern means the file at `path`, with Hadoop's globs; both from the same root."""
    return _meant(pattern).fullmatch(path) is not None


@lru_cache
def _meant(pattern: str) -> re.Pattern[str]:
    """Return what tells the paths that a pattern means: of a landing, a million are asked about."""
    split = split_pattern(pattern)
    whole = f"(?:{_regex(pattern)})(?:/.*)?"
    if split.recursive:
        above = f"{_regex(split.path)}/" if split.path else ""
        whole = f"{above}(?:.*/)?{_regex(split.name)}"
    return re.compile(whole, re.DOTALL)


def is_read(pattern: str, path: str) -> bool:
    """Tell whether Spark reads the file at `path` for the pattern; both from the same root."""
    return fits(pattern, path) and not is_hidden(pattern, path)


def is_listed_whole(pattern: str, folder: str) -> bool:
    """Tell whether Spark lists a folder with all that is below it; pattern and folder from the same root."""
    listed = split_pattern(pattern).path
    return not listed or re.fullmatch(f"{_regex(listed)}(?:/.*)?", folder, re.DOTALL) is not None


def is_hidden(pattern: str, path: str) -> bool:
    """Tell whether Spark passes over a file that the pattern means.

    It does so for the file's name, or a folder's below what Spark lists.
    """
    if not _MAY_HIDE.search(path):  # as of nearly all
        return False
    listed = split_pattern(pattern).path
    parts = path.split("/")
    below = parts[len(listed.split("/")) :] if listed else parts
    return any(
        part.startswith(".") or part.endswith("._COPYING_") or (part.startswith("_") and "=" not in part)
        for part in below or parts[-1:]
    )


def named_by_folders(path: str, columns: Iterable[str]) -> dict[str, str]:
    """Return those of the columns, whatever their case, that folders of a path such as `country=NL` name, each with it.

    Hive keeps a column so; no reader takes a value from there.
    """
    by_name = {one.lower(): one for one in columns}
    found = ((by_name.get(name.lower()), folder) for folder, name in _HIVE_FOLDER.findall(path))
    return {column: folder for column, folder in found if column is not None}


@lru_cache
def _regex(glob: str) -> str:
    out, braces, escaped, bracket = "", 0, False, False
    for char in glob:
        if escaped:
            out, escaped = out + re.escape(char), False
        elif char == "\\":
            escaped = True
        elif bracket and char in "!^" and out.endswith("["):
            out += "^/"  # not one of them; and Hadoop matches part by part
        elif bracket:
            out, bracket = out + char, char != "]"
        elif char == "[":
            out, bracket = out + "[", True
        elif char in "*?":
            out += "[^/]*" if char == "*" else "[^/]"
        elif char == "{":
            out, braces = out + "(?:", braces + 1
        elif char == "}" and braces:
            out, braces = out + ")", braces - 1
        elif char == "," and braces:
            out += "|"
        else:
            out += re.escape(char)
    return out


def inferred_format(pattern: object) -> str | None:
    """Return the format that the pattern's suffix tells, `.gz` aside; None when it tells none."""
    if not isinstance(pattern, str):
        return None
    name = pattern.rpartition("/")[2].removesuffix(".gz")
    return next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), None)
