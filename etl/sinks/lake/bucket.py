"""Checks that the lake's bucket exists and is usable, and lets unfinished uploads expire where the store can do that."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from etl.common.errors import SetupError
from etl.common.paths import s3_client as chained_client
from etl.sinks.lake.parquet_writer import ObjectStore
from etl.sinks.lake.s3 import bucket_of, s3_client, status_of, translated

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

RULE = "sluice-unfinished-uploads"
DAYS = 7  # a killed writer's parts are paid for until then
_UNABLE = (400, 404, 405, 501)


def ensure_bucket(lake: str, store: ObjectStore | None = None) -> str:
    """Require that the bucket of `lake` is there and may be used, or raise SetupError; return one line on it.

    A rule that ends unfinished uploads is added beside the bucket's other rules, which stay as they are.
    """
    client = s3_client(store) if store else chained_client()
    bucket, prefix = bucket_of(lake.rstrip("/") + "/")
    try:
        client.head_bucket(Bucket=bucket)
        client.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
    except ClientError as error:
        if status_of(error) == 404:
            raise SetupError(
                f"Bucket {bucket} of the lake {lake} is not there",
                remedy="create it, or set SLUICE_LAKE to another",
            ) from error
        raise translated(error, lake) from error
    except BotoCoreError as error:
        raise translated(error, lake) from error
    return f"{lake}: {_end_uploads(client, bucket, prefix)}"


def _end_uploads(client: S3Client, bucket: str, prefix: str) -> str:
    try:
        rules = _rules(client, bucket)
        if any(_ends_uploads(rule, prefix) for rule in rules):
            return "unfinished uploads end by a rule of the bucket"
        ours: Any = {
            "ID": _rule_id(prefix),
            "Status": "Enabled",
            "Filter": {"Prefix": prefix},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": DAYS},
        }
        client.put_bucket_lifecycle_configuration(
            Bucket=bucket,
            LifecycleConfiguration={"Rules": [*(one for one in rules if one.get("ID") != ours["ID"]), ours]},
        )
    except ClientError as error:
        if status_of(error) == 403:
            return "the bucket's rules may not be changed, so only `sluice sweep` ends unfinished uploads"
        if status_of(error) in _UNABLE:
            return "the store has no lifecycle rules, so only `sluice sweep` ends unfinished uploads"
        raise translated(error, bucket) from error
    return f"unfinished uploads now end after {DAYS} days"


def _rule_id(prefix: str) -> str:
    """Name the rule for this prefix: a bucket may hold several lakes, and takes each name once."""
    return f"{RULE}-{hashlib.sha256(prefix.encode()).hexdigest()[:8]}"


def _rules(client: S3Client, bucket: str) -> list[Any]:
    try:
        return list(client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"])
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") == "NoSuchLifecycleConfiguration":
            return []
        raise


def _ends_uploads(rule: Any, prefix: str) -> bool:
    covered = rule.get("Filter", {}).get("Prefix", rule.get("Prefix", ""))
    return (
        rule["Status"] == "Enabled"
        and "AbortIncompleteMultipartUpload" in rule
        and prefix.startswith(covered)
        and not {"And", "Tag"} & rule.get("Filter", {}).keys()
    )
