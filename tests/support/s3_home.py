"""A user's place whose landing and checkpoints are on S3."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
from botocore.config import Config

from etl.operations.audit.report import AuditReport
from tests.support.data.orders import NAME
from tests.support.home import Home


@dataclass(kw_only=True)
class S3Home(Home):
    """A home whose landing and checkpoints are on S3; objects have a time of the server's, in whole seconds."""

    @property
    def client(self) -> Any:
        services = self.place.services
        config = Config(s3={"addressing_style": "path"})
        return boto3.Session().client("s3", endpoint_url=services.s3_endpoint, config=config)

    @property
    def bucket(self) -> str:
        return self.place.settings.landing.removeprefix("s3a://").partition("/")[0]

    def key(self, path: str) -> str:
        return f"{self.place.settings.landing.removeprefix(f's3a://{self.bucket}/')}/{path}"

    def write(self, path: str, content: str | bytes) -> Path:
        body = content.encode() if isinstance(content, str) else content
        self.client.put_object(Bucket=self.bucket, Key=self.key(path), Body=body)
        return Path(path)

    def uri(self, path: str) -> str:
        return f"s3a://{self.bucket}/" + "".join(
            quote(char, safe="/=+&'(:*") if char.isascii() or char.isspace() else char
            for char in self.key(path)
        )

    def make_folder(self, name: str) -> None:
        """S3 has no folders."""

    def time(self, path: str) -> object:
        return self.client.head_object(Bucket=self.bucket, Key=self.key(path))["LastModified"]

    def below(self, place: str) -> dict[str, str]:
        """Return the etag of every object below `s3a://bucket/prefix`."""
        bucket, _, prefix = place.removeprefix("s3a://").partition("/")
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
        return {one["Key"]: one["ETag"] for page in pages for one in page.get("Contents", ())}

    def remove(self, place: str) -> None:
        """Delete every object below a place."""
        found = self.below(place)
        assert found
        for key in found:
            self.client.delete_object(Bucket=place.removeprefix("s3a://").partition("/")[0], Key=key)

    def assert_clean(self, name: str = NAME) -> AuditReport:
        report = super().assert_clean(name)
        assert report.changed_inputs == []
        return report
