"""A lookup's version is that of the files that Spark would read, local or on S3, whatever they are called."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from etl.common.errors import ServiceAway
from etl.common.paths import s3_client
from etl.pipeline import Lookup
from etl.services import Services
from etl.sources.side_inputs.lookups import version

NAMES = ("ref/a.csv", "ref/deep/b ü%20+.csv")
HIDDEN = (
    "ref/_temporary/0/part.csv",
    "ref/.a.csv",
    "ref/_b.csv",
    "ref/deep/.hidden/c.csv",
    "elsewhere/a.csv",
)


@pytest.fixture(params=["local", "s3a"])
def landing(request: pytest.FixtureRequest, tmp_path: Path, services: Services) -> Iterator[str]:
    """Return the folder that has all of these files."""
    if request.param == "local":
        for name in (*NAMES, *HIDDEN):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(name)
        yield str(tmp_path)
        return
    client = s3_client()
    bucket = f"lookups-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket)
    for name in (*NAMES, *HIDDEN):
        client.put_object(Bucket=bucket, Key=f"my landing/{name}", Body=name.encode())
    yield f"s3a://{bucket}/my landing"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("ref/**/*.csv", NAMES),
        ("ref/*.csv", NAMES[:1]),
        ("ref/a.csv", NAMES[:1]),
        ("ref/none.csv", ()),
        ("no/*.csv", ()),
    ],
)
def test_what_spark_would_read_is_the_version(landing: str, pattern: str, found: tuple[str, ...]) -> None:
    seen = version(Lookup(pattern, schema="a int", key=("a",)), landing)
    assert [(one.path, one.size) for one in seen] == [(name, len(name.encode())) for name in found]
    assert all(" " not in one.uri for one in seen), "as Spark writes it"


def test_a_storage_that_does_not_answer_is_no_lookup_without_files(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(ServiceAway, match="can't be listed"):
        version(Lookup("ref/*.csv", schema="a int", key=("a",)), "s3a://nowhere/landing")
