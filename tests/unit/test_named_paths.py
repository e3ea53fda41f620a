"""The paths by which Spark finds what has landed, and lists nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from etl.pipeline import Files
from etl.sources.named_paths import FILES, FOLDERS, named_path


def test_few_files_are_named_to_spark_and_of_more_their_folders(tmp_path: Path) -> None:
    deep, flat = Files("a/**/*.jsonl"), Files("a/*.jsonl")
    few = {f"a/{n}.jsonl" for n in range(2)}
    many = {f"a/{n}/{n}.jsonl" for n in range(FILES + 1)}
    other = {"b/0.jsonl", "a/0.csv"}
    assert named_path(deep, str(tmp_path), few | other) == f"{tmp_path}/{{a/0.jsonl,a/1.jsonl}}"
    assert (
        named_path(deep, str(tmp_path), many)
        == f"{tmp_path}/{{{','.join(f'a/{n}' for n in range(FILES + 1))}}}"
    )
    assert named_path(deep, str(tmp_path), {f"a/{n}/x.jsonl" for n in range(FOLDERS + 1)}) is None
    assert named_path(flat, str(tmp_path), {f"a/{n}.jsonl" for n in range(FILES + 1)}) is None
    assert named_path(deep, str(tmp_path), other) == f"{tmp_path}/{{_/_}}"
    assert (
        named_path(Files("*.jsonl"), f"{tmp_path}/[1]", {"x.jsonl"}) == rf"{tmp_path}/\[1\]/{{_/_,x.jsonl}}"
    )
    assert named_path(Files("s3a://b/x/*.csv"), "s3a://b/x", {"1.csv"}) == "s3a://b/{x/1.csv}"
    assert named_path(Files("/in/**/*.csv"), str(tmp_path), {"/in/1.csv"}) == "/{in/1.csv}"


@pytest.mark.parametrize("name", ["a,b", "a:b", "[1]", "a{b}", "a*", "a\\b", "a\nb", "\udc80"])
def test_of_a_name_that_may_mean_something_to_hadoop_spark_lists_all(tmp_path: Path, name: str) -> None:
    assert named_path(Files("a/**/*.csv"), str(tmp_path), {f"a/{name}.csv"}) is None


def test_where_spark_reads_what_a_log_of_its_own_names_it_lists_all(tmp_path: Path) -> None:
    (tmp_path / "a/_spark_metadata").mkdir(parents=True)
    assert named_path(Files("a/**/*.csv"), str(tmp_path), {"a/1.csv"}) is None
