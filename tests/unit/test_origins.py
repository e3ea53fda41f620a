"""The numbers of files, by which a held row is told its own."""

from __future__ import annotations

from etl.sources.raw.origins import by_origin, origin


def test_a_file_has_the_number_of_its_uri_as_logs_and_as_readers_spell_it() -> None:
    files = by_origin(["file:///in/a", "s3a://in/b"])
    assert files == {
        origin("file:///in/a"): "file:///in/a",
        origin("file:/in/a"): "file:///in/a",
        origin("s3a://in/b"): "s3a://in/b",
    }


def test_of_two_files_with_one_number_none_is_told() -> None:
    alike = ["s3a://in/plumless", "s3a://in/buckeroo"]
    assert origin(alike[0]) == origin(alike[1])
    assert by_origin([*alike, "s3a://in/c"]) == {origin("s3a://in/c"): "s3a://in/c"}
    assert by_origin([alike[0], alike[0]]) == {origin(alike[0]): alike[0]}
