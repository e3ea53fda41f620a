"""A service that is away is told as that, from the errors that its libraries really raise; nothing else is."""

from __future__ import annotations

from contextlib import closing

import boto3
import psycopg2
import psycopg2.extensions
import pytest
from botocore.config import Config

from etl.common.database import transaction
from etl.common.errors import ContractBroken, ServiceAway, SetupError
from etl.common.outages import raising_service_errors, service_error
from etl.services.process import free_ports
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.parquet_writer import ObjectStore
from etl.sources.parquet_types import _footer


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an address of S3 where nothing listens."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    return f"http://127.0.0.1:{free_ports(1)[0]}"


def test_a_postgresql_that_is_away_or_ends_the_connection(dsn: str) -> None:
    unreached = psycopg2.extensions.make_dsn(dsn, host="127.0.0.1", port=free_ports(1)[0])
    with (
        pytest.raises(ServiceAway, match=r"PostgreSQL could not do its part: .*refused"),
        raising_service_errors(),
    ):
        psycopg2.connect(unreached)
    with (
        closing(psycopg2.connect(dsn)) as connection,
        connection.cursor() as cursor,
        transaction(dsn) as other,
    ):
        other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
        with (
            pytest.raises(ServiceAway, match=r"(terminating|closed the) connection"),
            raising_service_errors(),
        ):
            cursor.execute("SELECT 1")


def test_an_s3_that_is_away(nowhere: str) -> None:
    store = ObjectStore(endpoint=nowhere, region="us-east-1").open(connect_seconds=1, request_seconds=1)
    with pytest.raises(ServiceAway, match=r"S3 could not do its part: .*AWS Error"), raising_service_errors():
        store.get_file_info("bucket/key")
    with pytest.raises(
        ServiceAway, match="AWS Error"
    ):  # and not a file that fits, which Spark reads a moment later
        _footer(store, "bucket/key.parquet")
    of_a_head = OSError(
        "When reading: AWS Error UNKNOWN (HTTP status 503) during HeadObject operation: no body"
    )
    assert isinstance(service_error(of_a_head), ServiceAway)
    client = boto3.Session().client(
        "s3", endpoint_url=nowhere, region_name="us-east-1", config=Config(retries={"max_attempts": 0})
    )
    with (
        pytest.raises(ServiceAway, match="S3 could not do its part: Could not connect"),
        raising_service_errors(),
    ):
        client.list_buckets()


def test_an_s3_that_refuses_a_key_is_no_outage(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "another")
    store = lake.store.open(connect_seconds=5, request_seconds=5)
    bucket = lake.root.removeprefix("s3://").partition("/")[0]
    with (
        pytest.raises(SetupError, match=r"S3 refuses it: .*AWS Error"),
        raising_service_errors(),
        store.open_output_stream(f"{bucket}/key") as stream,
    ):
        stream.write(b"refused")


def test_what_tells_of_no_outage_stays_what_it_is(dsn: str) -> None:
    for error in (
        FileNotFoundError("no such file"),
        OSError("When getting key: AWS Error UNKNOWN (HTTP status 400) during HeadObject operation"),
        ValueError("psycopg2 was not asked"),
    ):
        assert service_error(error) is None
    with pytest.raises(psycopg2.errors.UndefinedTable), raising_service_errors(), transaction(dsn) as cursor:
        cursor.execute("SELECT * FROM no_such_table")
    told = ContractBroken("psycopg2.OperationalError: as a sample", remedy="decide")
    with pytest.raises(ContractBroken) as found, raising_service_errors():
        raise told
    assert found.value is told
