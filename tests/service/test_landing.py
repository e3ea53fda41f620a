"""Data sets land on S3 as they do in a folder: each file once, a changed one mended."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import boto3

from etl.operations.datasets.flights import parse_range
from etl.operations.datasets.generated import generated, land_generated
from etl.services import Services

DAYS = "2026-01-01..2026-01-01"


def test_a_data_set_lands_on_s3_once_and_landing_again_mends_what_changed(
    services: Services, lake_uri: str
) -> None:
    landing, days = lake_uri.replace("s3://", "s3a://"), parse_range(DAYS)
    wanted = {file.path: file.content for file in generated("actions", days, seed=1)}
    assert land_generated(landing, "actions", days, seed=1).written == len(wanted) == 24
    bucket, _, prefix = lake_uri.removeprefix("s3://").partition("/")
    client = boto3.Session().client("s3", endpoint_url=services.s3_endpoint)

    def seen() -> dict[str, tuple[str, bytes]]:
        listed = client.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]
        return {
            one["Key"].removeprefix(f"{prefix}/"): (
                one["LastModified"].isoformat(),
                client.get_object(Bucket=bucket, Key=one["Key"])["Body"].read(),
            )
            for one in listed
        }

    first = seen()
    assert {path: content for path, (_, content) in first.items()} == wanted
    assert land_generated(landing, "actions", days, seed=1).written == 0
    assert seen() == first
    torn = next(iter(wanted))
    client.put_object(Bucket=bucket, Key=f"{prefix}/{torn}", Body=b"torn")
    assert land_generated(landing, "actions", days, seed=1).written == 1
    assert {path: content for path, (_, content) in seen().items()} == wanted


def test_files_land_in_the_order_of_their_times(tmp_path: Path) -> None:
    """Spark takes files by the millisecond of their last change; those of one in any order, and hours would be late."""
    land_generated(str(tmp_path), "devices", [dt.date(2024, 3, 1)], seed=1)
    files = sorted(tmp_path.glob("devices/**/*.jsonl"))
    moments = [file.stat().st_mtime_ns // 1_000_000 for file in files]
    assert len(files) == 24
    assert moments == sorted(set(moments))
