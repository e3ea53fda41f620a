"""A file that is one JSON array has its elements as records, or is told as broken where it is."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

from etl.sources.json_records.arrays import JsonArrays, elements
from etl.sources.json_records.blocks import JsonReader
from etl.sources.raw.lines import Lines
from etl.sources.unreadable import FileUnfit
from tests.support.parts import Land


def rows(*files: str | bytes, tolerant: bool = False) -> list[tuple[int | None, str | None]]:
    reader = JsonReader(schema=pa.schema([("v", pa.int32())]))
    read = JsonArrays(reader=reader, lines=Lines(tolerant=tolerant))
    with tempfile.TemporaryDirectory() as folder:
        land = Land(Path(folder))
        found = [row for one in read.rows(map(land, files)) for row in one.to_pylist()]
    return [(row["v"], row["_detail"]) for row in found]


def test_each_element_is_a_record_however_the_file_is_indented() -> None:
    records = [{"v": n, "note": '[{]}," \\ \n'} for n in range(100)]
    for indent in (None, 0, 2, "\t"):
        found = list(elements(json.dumps(records, indent=indent)))
        assert [json.loads(one) for one in found] == records
        assert [v for v, _ in rows(json.dumps(records, indent=indent))] == list(range(100))
    for text in ("", " \n", "\ufeff", "[]", " [ ] \n"):
        assert rows(text) == []


def test_an_element_that_is_no_record_is_held_by_itself() -> None:
    found = rows('[{"v": 1}, 5, {"v": "x"}, null, {"v": 2}]', b'[{"v": 3}, {"s": "\xff"}]')
    assert [v for v, _ in found] == [1, None, None, None, 2, 3, None]
    assert found[1][1] == "found 5, wanted a JSON object"
    assert found[6][1] == "found byte 0xff at byte 8, wanted UTF-8"


@pytest.mark.parametrize(
    ("text", "said", "before"),
    [
        ('{"v": 1}\n{"v": 2}\n', "it is no JSON array: it begins with '{'", 0),
        ('[{"v": 1}, {"v": 2}', "its JSON array ends early, after 2 elements", 2),
        ('[{"v": 1}, {"v": ', "its JSON array is broken at character 12, after 1 element", 1),
        ('[{"v": 1},', "its JSON array ends early, after 1 element", 1),
        ('[{"v": 1} {"v": 2}]', "its JSON array is broken at character 11, after 1 element", 1),
        ('[{"v": 1},]', "its JSON array is broken at character 11, after 1 element", 1),
        ('[{"v": 1}] x', "there is more after its JSON array, from character 11 on", 1),
        ("[" + "[" * 100_000, "its JSON array is broken at character 2, after 0 elements", 0),
    ],
)
def test_a_broken_array_is_told_and_what_is_before_the_fault_can_be_read(
    text: str, said: str, before: int
) -> None:
    with pytest.raises(FileUnfit) as told:
        rows(text)
    assert (
        str(told.value).startswith(said)
        and str(told.value).endswith("/0")
        and "\nfile: file:///" in str(told.value)
    )
    assert len(rows(text, tolerant=True)) == before


def test_a_file_cut_anywhere_gives_its_whole_elements_and_an_error() -> None:
    records = [{"v": n, "s": "é[" * (n % 3)} for n in range(30)]
    text = json.dumps(records, indent=1, ensure_ascii=False)
    for cut in random.Random(3).sample(range(1, len(text.rstrip("\n]"))), 60):
        with pytest.raises(FileUnfit):
            list(elements(text[:cut]))
        found = [v for v, _ in rows(text[:cut], tolerant=True) if v is not None]
        assert found == list(range(len(found)))
