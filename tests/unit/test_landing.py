"""Landing writes every flight once, and landing again changes nothing."""

from __future__ import annotations

import csv
import datetime as dt
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyarrow import fs

from etl.common.errors import InputsDoubled, SetupError
from etl.common.paths import shown, to_path, to_uri
from etl.operations.datasets import flights
from etl.operations.datasets.flights import land_flights, parse_days
from etl.pipeline import Append, Files, Pipeline
from etl.sources.cutoff import before_start
from etl.sources.evidence import changed, look, uri_at
from etl.sources.landing import files_there, refuse_doubled_by_links, source_of


@dataclass(frozen=True, kw_only=True)
class Landing:
    landing: str


def seen(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in root.rglob("*")
        if path.is_file()
    }


def records(path: Path) -> list[dict[str, object]]:
    text = path.read_text()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(text.splitlines()))


def test_files_that_land_at_once_have_each_a_millisecond_of_their_own(tmp_path: Path) -> None:
    """Spark takes files by it, and those of one millisecond in any order."""
    here, switching = fs.LocalFileSystem(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as writers:
            assert all(
                writers.map(lambda number: flights.put(here, f"{tmp_path}/{number}", b"x"), range(800))
            )
    finally:
        sys.setswitchinterval(switching)
    assert len({path.stat().st_mtime_ns // 1_000_000 for path in tmp_path.iterdir()}) == 800


@pytest.mark.slow
def test_every_flight_of_2013_lands_once_and_landing_again_changes_nothing(tmp_path: Path) -> None:
    landing = Landing(landing=str(tmp_path))
    first = land_flights(landing)
    before = seen(tmp_path)
    days = sorted(tmp_path.glob("flights/dt=*/*"))
    assert (first.flights, first.files, first.written) == (336_776, 732, 732)
    assert [path.suffix for path in days] == [".jsonl", ".csv"] * 182 + [".jsonl"]
    assert sum(len(records(path)) for path in days) == 336_776
    for path in days[:2]:
        for row in records(path):
            assert path.parent.name == f"dt={int(row['year'])}-{int(row['month']):02}-{int(row['day']):02}"
    again = land_flights(landing)
    assert (again.flights, again.written) == (336_776, 0)
    assert seen(tmp_path) == before
    assert not any(re.search(rb",NA[,\n]|:NA[,}]", content) for _, content in before.values())


def test_only_the_days_asked_for_land_and_a_changed_file_is_mended(tmp_path: Path) -> None:
    landing = Landing(landing=str(tmp_path))
    first = land_flights(landing, parse_days("2013-01-01..2013-01-02"))
    landed = sorted(path.parent.name for path in tmp_path.glob("flights/*/*"))
    assert landed == ["dt=2013-01-01", "dt=2013-01-02"]
    file = tmp_path / "flights/dt=2013-01-02/flights.csv"
    whole = file.read_bytes()
    file.write_bytes(whole[:1000])
    assert land_flights(landing, parse_days("2013-01-02")).written == 1
    assert file.read_bytes() == whole and first.flights == 842 + 943


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("January", "neither YYYY-MM-DD nor"),
        ("2013-02-30", "day is out of range"),
        ("2013-02-02..2013-02-01", "ends before it begins"),
        ("2014-01-01", "those of 2013"),
        ("2012-12-31..2013-01-01", "those of 2013"),
    ],
)
def test_days_that_make_no_sense_are_refused(text: str, told: str) -> None:
    with pytest.raises(SetupError, match=told):
        parse_days(text)


def test_a_changed_input_is_told(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a b.json", "b.json", "c%20.json")]
    for file in files:
        file.write_text("x")
    before = look([str(file) for file in files], landing=str(tmp_path))
    assert [one.path for one in before] == ["a b.json", "b.json", "c%20.json"]
    assert changed(before, look([one.uri for one in before], landing=str(tmp_path))) == []
    files[0].write_text("xy")
    files[1].unlink()
    after = look([one.uri for one in before], landing=str(tmp_path))
    assert changed(before, after) == ["a b.json has 2 bytes and had 1", "b.json is gone"]


@pytest.mark.parametrize("name", ["/a b/%20/ü+&=.json", "s3a://bucket/a b/{x}[1].json"])
def test_a_place_and_its_uri_are_two_names_of_one_file(name: str) -> None:
    assert to_path(to_uri(name)) == name


# By `new URI("file", "", "/l/" + name, null, null)` of Java 17.
BY_JAVA = {
    "Screenshot 10.00\u202fAM.csv": "Screenshot%2010.00%E2%80%AFAM.csv",
    "a\u3000b.jsonl": "a%E3%80%80b.jsonl",
    "caf\u00e9\u00a0.csv": "caf\u00e9%C2%A0.csv",
    "a\u0085\u2028\u2029b": "a%C2%85%E2%80%A8%E2%80%A9b",
    "\u1680\u2000\u200a\u205f": "%E1%9A%80%E2%80%80%E2%80%8A%E2%81%9F",
    "nl\n\u007f\u0080\u009f": "nl%0A%7F%C2%80%C2%9F",
    "zero\u200bwidth\ufeff\u180e": "zero\u200bwidth\ufeff\u180e",
    "em\U0001f600ji": "em\U0001f600ji",
    'q"<>\\^`{|}#?%[]': "q%22%3C%3E%5C%5E%60%7B%7C%7D%23%3F%25%5B%5D",
    "a+b;c=d@e&f$g,h!i~j*k'(l)": "a+b;c=d@e&f$g,h!i~j*k'(l)",
}


@pytest.mark.parametrize("name", BY_JAVA)
def test_a_name_is_encoded_as_java_encodes_it(name: str) -> None:
    assert to_uri(f"/l/{name}") == f"file:///l/{BY_JAVA[name]}"
    assert to_path(f"file:///l/{BY_JAVA[name]}") == f"/l/{name}"


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("x/*.csv", {"x/a.csv", "x/d.csv/part-0", "x/d.csv/y/part-1.csv"}),
        ("x/d*.csv", {"x/d.csv/part-0", "x/d.csv/y/part-1.csv"}),
        ("x/d.csv", {"x/d.csv/part-0", "x/d.csv/y/part-1.csv"}),
        ("*/*.csv", {"x/a.csv", "x/d.csv/part-0", "x/d.csv/y/part-1.csv", "_z/b.csv"}),
        ("x/**/*.csv", {"x/a.csv", "x/d.csv/y/part-1.csv"}),
        ("**/*.csv", {"x/a.csv", "x/d.csv/y/part-1.csv"}),
    ],
)
def test_a_folder_that_a_pattern_means_is_read_whole(tmp_path: Path, pattern: str, meant: set[str]) -> None:
    put(tmp_path, "x/a.csv", "x/d.csv/part-0", "x/d.csv/y/part-1.csv", "x/e/other", "_z/b.csv")
    put(tmp_path, "x/_b.csv", "x/d.csv/_SUCCESS", "x/d.csv/.part-0.crc", "x/d.csv/_temporary/0/part-2.csv")
    assert files_there(pattern, str(tmp_path)) == meant


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("x/*.csv", {"x/a.csv", "x/b.csv", "x/to nothing.csv", "x/itself.csv", "x/all.csv/c.csv"}),
        ("x/**/*.csv", {"x/a.csv", "x/b.csv", "x/to nothing.csv", "x/itself.csv", "x/all.csv/c.csv", "x/all/c.csv"}),
        ("x/b.csv", {"x/b.csv"}),
        ("x/all.csv", {"x/all.csv/c.csv"}),
        ("x/to nothing.csv", {"x/to nothing.csv"}),
        ("x/up/*.csv", {"x/up/d.csv"}),
        ("x/none.csv", set()),
        ("none/**/*.csv", set()),
    ],
)  # fmt: skip
def test_links_are_followed_and_those_that_lead_nowhere_told(
    tmp_path: Path, pattern: str, meant: set[str]
) -> None:
    landing = tmp_path / "landing"
    put(landing, "x/a.csv", "d.csv")
    put(tmp_path, "elsewhere/c.csv")
    for name, to in {
        "b": "a.csv",
        "to nothing": "gone.csv",
        "itself": "itself.csv",
        "all": "../../elsewhere",
    }.items():
        (landing / f"x/{name}.csv").symlink_to(to)
    (landing / "x/all").symlink_to("../../elsewhere")
    (landing / "x/gone").symlink_to("nowhere")
    if "**" not in pattern:
        (landing / "x/up").symlink_to("..")  # a glob of single levels does not go round
    assert files_there(pattern, str(landing)) == meant


def test_a_file_that_is_read_under_two_names_by_a_link_is_refused(tmp_path: Path) -> None:
    real, landing = tmp_path / "disk", tmp_path / "landing"
    put(real, "x/a.csv", "x/_v2/b.csv", "x/c.txt")
    put(tmp_path, "elsewhere/d.csv")
    landing.symlink_to("disk")
    declared = Pipeline(
        name="x",
        sources=(Files("x/**/*.csv"), Files("x/c.csv"), Files(f"{landing}/y/*.csv")),
        schema="id int",
        transform=lambda df: df,
        sink=Append(),
    )
    links = {"x/now": "_v2", "x/c.csv": "c.txt", "x/d.csv": "../../elsewhere/d.csv", "z": "x"}
    for name, to in links.items():
        (landing / name).symlink_to(to)
    once = ["x/a.csv", "x/now/b.csv", "x/c.csv", "x/d.csv", "s3a://bucket/x/a.csv"]
    refuse_doubled_by_links(declared, once, str(landing))
    (real / "x/e.csv").symlink_to("a.csv")
    (real / "x/f.csv").symlink_to("../../elsewhere/d.csv")
    (real / "y").symlink_to("x")
    for more, other in (("x/e.csv", "x/a.csv"), ("x/f.csv", "x/d.csv"), ("y/a.csv", "x/a.csv")):
        with pytest.raises(InputsDoubled, match=f"{more} and {other} are one file, by a link"):
            refuse_doubled_by_links(declared, [*once, more], str(landing))


@pytest.mark.parametrize("pattern", ["x/**/*.csv", "**/*.csv", "x/*.csv", "x/d.csv", "{}/x/*.csv"])
def test_a_folder_that_holds_itself_by_a_link_is_refused(tmp_path: Path, pattern: str) -> None:
    put(tmp_path, "x/d.csv/a.csv", "x/d.csv/_hidden/b.csv", "x/d.csv/e/c.csv")
    (tmp_path / "x/d.csv/_hidden/up").symlink_to("../..")
    declared = pattern.format(tmp_path)
    assert len(files_there(declared, str(tmp_path))) == 2
    for name, to in {"one": "../f", "two": "../d.csv"}.items():
        (tmp_path / "x/f").mkdir(exist_ok=True)
        (tmp_path / f"x/{'d.csv' if name == 'one' else 'f'}/{name}").symlink_to(to)
    with pytest.raises(SetupError, match=r"leads back, by a link, to a folder that it is in"):
        files_there(declared, str(tmp_path))


@pytest.mark.parametrize("pattern", ["{}/x/*.csv", "{}/**/*.csv", "{}/x/a.csv", "{}*/x/a.csv"])
def test_a_file_has_one_identity_where_an_absolute_pattern_means_what_is_below_the_landing(
    tmp_path: Path, pattern: str
) -> None:
    landing = str(tmp_path / "landing")
    put(tmp_path / "landing", "x/a.csv")
    put(tmp_path, "beside/x/a.csv")
    absolute = pattern.format(landing)
    assert files_there(absolute, landing) == {"x/a.csv"}
    [seen] = look([uri_at("x/a.csv", landing)], landing=landing)
    declared = Pipeline(
        name="x", sources=(Files(absolute),), schema="id int", transform=lambda df: df, sink=Append()
    )
    assert source_of(declared, seen.path, landing) == 0
    assert source_of(declared, str(tmp_path / "beside/x/a.csv"), landing) is None


def test_names_that_are_no_utf_8_are_told_and_keep_no_other_from_being_found(tmp_path: Path) -> None:
    put(tmp_path, "x/ok.csv", "x/caf\udce9.csv", "x/caf\udce9.txt", "x/d\udce9.csv/a", "x/e\udce9/a.csv")
    shallow = {"x/ok.csv", "x/caf\udce9.csv", "x/d\udce9.csv/a"}
    assert files_there("x/*.csv", str(tmp_path)) == shallow
    assert files_there("x/**/*.csv", str(tmp_path)) == {"x/ok.csv", "x/caf\udce9.csv", "x/e\udce9/a.csv"}
    found = look((uri_at(path, str(tmp_path)) for path in shallow), landing=str(tmp_path))
    assert {one.path for one in found} == shallow
    assert shown("x/caf\udce9.csv") == "x/caf\\xe9.csv"


def test_a_replay_of_history_refuses_a_name_that_is_no_utf_8_and_a_first_run_needs_not(
    tmp_path: Path,
) -> None:
    put(tmp_path, "x/dt=2013-01-01/a.csv", "x/dt=2013-01-01/caf\udce9.csv", "x/dt=2013-01-03/b\udce9.csv")
    declared = Pipeline(
        name="x",
        sources=(Files("x/**/*.csv"),),
        schema="id int",
        transform=lambda df: df,
        sink=Append(),
        interval="dt={interval:%Y-%m-%d}",
        start=dt.date(2013, 1, 3),
    )
    assert [one.path for one in before_start(declared, str(tmp_path))] == ["x/dt=2013-01-01/a.csv"]
    first, second, third = (dt.datetime(2013, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3))
    with pytest.raises(SetupError, match=r"no UTF-8: x/dt=2013-01-01/caf\\xe9\.csv"):
        before_start(declared, str(tmp_path), (first, second))
    assert before_start(declared, str(tmp_path), (second, third)) == []
