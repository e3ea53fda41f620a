"""The log of files that Spark has read: parsed at once it tells what it tells line by line, and damage is never read."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from etl.spark.checkpoint.format import LOG, Torn, log_text, parse_log
from etl.spark.checkpoint.reader import LoggedFile

NAMES = [
    "a.jsonl",
    "dt=2013-01-01/x%20y.jsonl",
    'quote".jsonl',
    "back\\slash",
    "tab\t",
    "Łódź-\u2028-🛬.csv",
    "",
]


def line(**changed: object) -> str:
    return json.dumps({"path": "file:///a", "timestamp": 1, "batchId": 0} | changed)


def parsed(*lines: str, version: str = "v1") -> list[tuple[object, ...]]:
    table = parse_log("sources/0/9.compact", pa.py_buffer("\n".join([version, *lines]).encode()))
    assert table.schema == LOG
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_each_file_is_told_as_it_was_logged() -> None:
    files = [
        LoggedFile(uri=f"file:///{name}", mtime_ms=-(10**15) * n, source=0, entry=n % 3)
        for n, name in enumerate(NAMES)
    ]
    text = log_text({entry: [file for file in files if file.entry == entry] for entry in range(3)})
    assert parsed(*text.split("\n")[1:]) == [
        (file.uri, file.mtime_ms, file.entry) for file in sorted(files, key=lambda file: file.entry)
    ]


@pytest.mark.parametrize("count", [1, 10, 30_000])  # the last is of several blocks of Arrow's reader
def test_what_arrow_can_not_parse_is_told_line_by_line(count: int) -> None:
    odd = line(timestamp="7", more=[1])  # a number as text, and a member that Spark does not write
    assert parsed(*[line()] * count, odd) == [("file:///a", 1, 0)] * count + [("file:///a", 7, 0)]


def test_a_log_without_a_file_is_empty() -> None:
    assert parsed() == []


TORN = {
    "": "''",
    line()[:-1]: "batchId",
    line() + line(): "path",
    line() + "x": "path",
    line(timestamp=None): "names no file",
    line(path="\ud800"): "names no file",
    line(timestamp=2**63): "names no file",
    "[]": "[]",
    '{"path": "file:///a"}': "names no file",
    "\0" * 20: "x00",
}


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_line_that_names_no_file_is_told_as_torn(torn: str, place: int) -> None:
    lines = [line(), line()]
    lines.insert(place, torn)
    with pytest.raises(Torn, match="compact is torn: ") as told:
        parsed(*lines)
    assert TORN[torn] in str(told.value)


@pytest.mark.parametrize("version", ["", "v2", "v", "v1 ", "\0\0"])
def test_another_version_is_not_read(version: str) -> None:
    with pytest.raises(Torn, match="another version than v1"):
        parsed(line(), version=version)


def test_what_is_no_text_is_not_read() -> None:
    with pytest.raises(Torn, match="it is no text"):
        parse_log("sources/0/0", pa.py_buffer(b"v1\n\xff\xfe"))
    with pytest.raises(Torn, match="it is no text"):
        parse_log(
            "sources/0/0",
            pa.py_buffer(
                b"v1\n" + line(path="file:///_").replace("_", "\udcff").encode(errors="surrogateescape")
            ),
        )


def test_two_files_on_a_line_are_torn_whatever_ends_the_log() -> None:
    with pytest.raises(Torn, match="compact is torn: "):
        parsed(line() + line(), "")
