"""A pattern of files means what Hadoop means by it, and one that Spark would read otherwise is refused."""

from __future__ import annotations

import pytest

from etl.pipeline.patterns import fits, inferred_format, pattern_problems, split_pattern


@pytest.mark.parametrize(
    ("pattern", "folder", "path", "name", "recursive"),
    [
        ("flights/**/*.jsonl", "flights", "flights", "*.jsonl", True),
        ("flights/*.csv", "flights", "flights/*.csv", "*", False),
        ("a/dt=*/**/x-*.csv.gz", "a", "a/dt=*", "x-*.csv.gz", True),
        ("a/*/data.json", "a", "a/*/data.json", "*", False),
        ("reference/planes.csv", "reference", "reference/{planes.csv}", "*", False),
        ("**/*.json", "", "", "*.json", True),
        ("s3a://bucket/a/**/*.json", "s3a://bucket/a", "s3a://bucket/a", "*.json", True),
        ("/srv/a/*.json", "/srv/a", "/srv/a/*.json", "*", False),
    ],
)
def test_a_pattern_is_a_folder_and_a_glob(
    pattern: str, folder: str, path: str, name: str, recursive: bool
) -> None:
    assert pattern_problems(pattern) == []
    split = split_pattern(pattern)
    assert (split.folder, split.path, split.name, split.recursive) == (folder, path, name, recursive)


@pytest.mark.parametrize(
    "pattern",
    ["", "a/**", "a/**/b/*.json", "a/b**/*.json", "a//b.json", "../a.json", "hdfs://h/a/*.json",
     "a/_x/*.json", "s3a:///a.json", "s3a://*/a.json", "a/", 7, "a/[b/*.json", "a/{b,c/*.json", "[z-a].json"],
)  # fmt: skip
def test_a_pattern_spark_would_read_otherwise_is_refused(pattern: object) -> None:
    assert pattern_problems(pattern)


@pytest.mark.parametrize(
    ("pattern", "meant", "others"),
    [
        ("in/[!x]*.jsonl", ["in/a.jsonl", "in/!.jsonl"], ["in/x.jsonl", "in//a.jsonl"]),
        ("in/[^x]*.jsonl", ["in/a.jsonl"], ["in/x.jsonl"]),
        ("in/[x!]*.jsonl", ["in/x.jsonl", "in/!.jsonl"], ["in/a.jsonl"]),
        ("in/a[!b]c.csv", ["in/axc.csv"], ["in/abc.csv", "in/a/c.csv"]),
        ("in/**/[!a-c]{1,2}.csv", ["in/d1.csv", "in/x/y/d2.csv"], ["in/a1.csv", "in/d3.csv"]),
        (
            "in/d*.csv",
            ["in/d.csv", "in/d.csv/part-0", "in/d2.csv/x/y.gz"],
            ["in/d.json", "in/x/d.csv", "in/d.csv2/a"],
        ),
        ("in/{a,b}.csv", ["in/a.csv", "in/b.csv/c"], ["in/a", "in/a.csvc"]),
    ],
)
def test_a_pattern_means_what_hadoop_means(pattern: str, meant: list[str], others: list[str]) -> None:
    assert [path for path in (*meant, *others) if fits(pattern, path)] == meant


def test_the_suffix_tells_the_format() -> None:
    ends = (".jsonl", ".json.gz", ".csv", ".csv.gz", ".parquet", ".log.gz", ".xml")
    told = [inferred_format(f"x/*{end}") for end in ends]
    assert told == ["json", "json", "csv", "csv", "parquet", "text", None]
