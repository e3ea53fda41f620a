"""Checks that the lake's bucket exists and is usable, and lets unfinished uploads expire where the store can do that."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etl.common.errors import SetupError
from etl.common.outages import raising_service_errors
from etl.common.paths import s3_client as chained_client
from etl.common.wording import first_few
from etl.sinks.lake.s3 import bucket_of, failures, s3_client, status_of, translated

if TYPE_CHECKING:
    from botocore.exceptions import BotoCoreError, ClientError
    from mypy_boto3_s3 import S3Client

    from etl.sinks.lake.lake import Lake

RULE = "sluice-unfinished-uploads"
DAYS = 7  # a killed writer's parts are paid for until then
BY_A_RULE = "unfinished uploads end by a rule of the bucket"
LEAST_SIZE = "TransitionDefaultMinimumObjectSize"
# Below it nothing is ever written: whether the bucket may be listed shows in one request, whatever else is in it.
_NOT_THERE = "_sluice_look"
_UNABLE = (400, 404, 405, 501)


def require_bucket(lake: Lake) -> None:
    """Require that the bucket of a lake is there and may be listed, or raise SetupError.

    It asks by Arrow's client: a run that finds nothing new needs no other, and boto's costs it a fifth of its time.
    """
    bucket, prefix = bucket_of(f"{lake.root}/")
    with raising_service_errors():
        if not lake.is_folder(bucket):
            raise _gone(bucket, lake.root)
        lake.folders(f"{bucket}/{prefix}{_NOT_THERE}")


def end_uploads(lake: Lake, schemas: Iterable[str]) -> str:
    """Add rules to the bucket, beside its others, that end unfinished uploads of the tables in these schemas.

    Returns one line on it.
    """
    bucket, prefix = bucket_of(f"{lake.root}/")
    return f"{lake.root}: {_end_uploads(s3_client(lake.store), bucket, _prefixes(prefix, schemas))}"


def look_at_bucket(lake: str, schemas: Iterable[str]) -> str:
    """Require that the bucket of `lake` is there and may be used, or raise SetupError; change nothing of it."""
    client, bucket, prefixes = _usable(lake, schemas)
    try:
        missing = _Rules.of(client, bucket).missing(prefixes)
    except failures() as error:
        return f"{lake}: {_unable(error, bucket)}"
    if missing:
        return f"{lake}: no rule of the bucket ends unfinished uploads below {first_few(missing)} yet; a run adds it"
    return f"{lake}: {BY_A_RULE}"


def _gone(bucket: str, lake: str) -> SetupError:
    return SetupError(
        f"Bucket {bucket} of the lake {lake} is not there", remedy="create it, or set SLUICE_LAKE to another"
    )


def _usable(lake: str, schemas: Iterable[str]) -> tuple[S3Client, str, Sequence[str]]:
    """Return a client, the bucket's name and below which prefixes the tables' uploads are."""
    client = chained_client()
    bucket, prefix = bucket_of(lake.rstrip("/") + "/")
    try:
        client.head_bucket(Bucket=bucket)
        client.list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
    except failures() as error:
        if status_of(error) == 404:
            raise _gone(bucket, lake) from error
        raise translated(error, lake) from error
    return client, bucket, _prefixes(prefix, schemas)


def _prefixes(prefix: str, schemas: Iterable[str]) -> Sequence[str]:
    """Return the lake's own prefix; at a bucket's root, which others may use too, the folder of each schema."""
    return [prefix] if prefix else sorted({f"{schema}/" for schema in schemas})


@dataclass(frozen=True)
class _Rules:
    """A bucket's lifecycle, which S3 gives and takes as a whole."""

    rules: Sequence[Any]
    # Of objects that other rules move, where the store says it: a PUT without it resets it.
    least_size: Mapping[str, Any]

    @classmethod
    def of(cls, client: S3Client, bucket: str) -> _Rules:
        """Read the bucket's rules."""
        try:
            found: Any = client.get_bucket_lifecycle_configuration(Bucket=bucket)
        except client.exceptions.ClientError as error:
            if error.response.get("Error", {}).get("Code") == "NoSuchLifecycleConfiguration":
                return cls((), {})
            raise
        # Sluice's own of before was the whole bucket's, others' uploads included
        rules = [rule for rule in found["Rules"] if rule.get("ID") != _rule_id("")]
        return cls(rules, {name: found[name] for name in (LEAST_SIZE,) if found.get(name)})

    def missing(self, prefixes: Sequence[str]) -> Sequence[str]:
        """Return the prefixes of which no rule ends the uploads."""
        return [one for one in prefixes if not any(_ends_uploads(rule, one) for rule in self.rules)]


def _end_uploads(client: S3Client, bucket: str, prefixes: Sequence[str]) -> str:
    try:
        there = _Rules.of(client, bucket)
        if not (missing := there.missing(prefixes)):
            return BY_A_RULE
        ours: list[Any] = [
            {
                "ID": _rule_id(prefix),
                "Status": "Enabled",
                "Filter": {"Prefix": prefix},
                "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": DAYS},
            }
            for prefix in missing
        ]
        names = {rule["ID"] for rule in ours}
        kept = [rule for rule in there.rules if rule.get("ID") not in names]
        client.put_bucket_lifecycle_configuration(
            Bucket=bucket, LifecycleConfiguration={"Rules": [*kept, *ours]}, **there.least_size
        )
    except failures() as error:
        return _unable(error, bucket)
    return f"unfinished uploads below {first_few(missing)} now end after {DAYS} days"


def _unable(error: BotoCoreError | ClientError, bucket: str) -> str:
    """Say why a bucket has no rule, or raise what the error means."""
    if status_of(error) == 403:
        return "the bucket's rules may not be read or changed, so only `sluice sweep` ends unfinished uploads"
    if status_of(error) in _UNABLE:
        return "the store has no lifecycle rules, so only `sluice sweep` ends unfinished uploads"
    raise translated(error, bucket) from error


def _rule_id(prefix: str) -> str:
    """Name the rule for this prefix: a bucket may hold several lakes, and takes each name once."""
    return f"{RULE}-{hashlib.sha256(prefix.encode()).hexdigest()[:8]}"


def _ends_uploads(rule: Any, prefix: str) -> bool:
    covered = rule.get("Filter", {}).get("Prefix", rule.get("Prefix", ""))
    return (
        rule["Status"] == "Enabled"
        and "AbortIncompleteMultipartUpload" in rule
        and prefix.startswith(covered)
        and not {"And", "Tag"} & rule.get("Filter", {}).keys()
    )
