"""Data sets land on S3 as they do in a folder: each file once, a changed one mended."""

from __future__ import annotations

import boto3

from etl.generated import generated, land_generated
from etl.landing import parse_range
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
