"""The events by dlt, run by an environment of its own: Arrow tables to PostgreSQL and as Parquet to S3, without any rule.

It imports nothing of ours. What it is to do comes as JSON on its standard input, and it prints the seconds that the two
loads took, without the imports.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import dlt
import pyarrow as pa
import pyarrow.json as pj
from dlt.destinations import filesystem, postgres


def main() -> None:
    job = json.load(sys.stdin)
    started = time.monotonic()
    # CSV by COPY is the fastest that dlt has for Arrow tables and PostgreSQL.
    _load("warehouse", postgres(job["postgres"]), "csv", job)
    _load("lake", filesystem(job["lake"], credentials=job["s3"]), "parquet", job)
    print(time.monotonic() - started)


def _load(name: str, destination: object, file_format: str, job: dict[str, Any]) -> None:
    pipeline = dlt.pipeline(
        f"bench_{name}",
        destination=destination,
        dataset_name=f"dlt_{name}",
        pipelines_dir=job["folder"],
        dev_mode=True,
    )
    pipeline.run(
        dlt.resource(_tables(job["files"]), name="events"),
        loader_file_format=file_format,
        write_disposition="append",
    )


def _tables(files: list[str]) -> Iterator[pa.Table]:
    for file in files:
        yield pj.read_json(file)


if __name__ == "__main__":
    main()
