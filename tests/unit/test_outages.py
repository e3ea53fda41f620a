"""Each sign of a service that is away is in what its client says, and nobody's else."""

from __future__ import annotations

from pathlib import Path

import pytest

from etl.common.errors import Busy, ServiceAway, SetupError, TableRefused
from etl.common.outages import SIGNS, service_error
from etl.common.outcome import in_short

# As they are printed at the end of a worker's traceback, which is all that the driver has of them.
TOLD = {
    "PostgreSQL": (
        'psycopg2.OperationalError: connection to server at "127.0.0.1", port 5432 failed: Connection refused',
        "(psycopg2.OperationalError) server closed the connection unexpectedly",
        "psycopg2.errors.AdminShutdown: terminating connection due to administrator command",
        "psycopg2.errors.CrashShutdown: terminating connection because of crash of another server process",
        "psycopg2.errors.CannotConnectNow: the database system is starting up",
        "psycopg2.errors.DeadlockDetected: deadlock detected",
        'psycopg2.errors.DiskFull: could not extend file "base/5/16390": No space left on device',
        "psycopg2.errors.IdleInTransactionSessionTimeout: terminating connection due to idle-in-transaction timeout",
        "psycopg2.errors.OutOfMemory: out of memory",
        "psycopg2.errors.ReadOnlySqlTransaction: cannot execute INSERT in a read-only transaction",
        "psycopg2.errors.TooManyConnections: sorry, too many clients already",
        "psycopg2.errors.TransactionTimeout: terminating connection due to transaction timeout",
    ),
    "S3": (
        "OSError: When reading information for key 'a': AWS Error NETWORK_CONNECTION during HeadObject operation: curl 7",
        "OSError: When reading: AWS Error UNKNOWN (HTTP status 503) during HeadObject operation: no body",
        "OSError: When completing: AWS Error INTERNAL_FAILURE during CompleteMultipartUpload operation: We encountered one",
        "OSError: When uploading part: AWS Error REQUEST_TIMEOUT during UploadPart operation: idle connections are closed",
        "OSError: When getting: AWS Error SERVICE_UNAVAILABLE during GetObject operation: Please try again.",
        "OSError: When getting: AWS Error SLOW_DOWN during GetObject operation: Please reduce your request rate.",
        "OSError: When getting: AWS Error THROTTLING during GetObject operation: Rate exceeded",
        'botocore.exceptions.ConnectTimeoutError: Connect timeout on endpoint URL: "http://s3:9000/b"',
        'botocore.exceptions.ConnectionClosedError: Connection was closed before we received a response from "http://s3/b"',
        'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "http://s3:9000/b"',
        'botocore.exceptions.ProxyConnectionError: Failed to connect to proxy URL: "http://proxy"',
        'botocore.exceptions.ReadTimeoutError: Read timeout on endpoint URL: "http://s3:9000/b"',
        "software.amazon.awssdk.core.exception.SdkClientException: Unable to execute HTTP request: Read timed out",
        "org.apache.hadoop.fs.s3a.AWSServiceThrottledException: getFileStatus on s3a://b/a: Slow Down",
        "org.apache.hadoop.fs.s3a.AWSStatus500Exception: getFileStatus on s3a://b/a: Internal Error",
    ),
}
ROWS = [(service, sign) for service, signs in SIGNS.items() for sign in signs]


def away(said: str) -> str | None:
    error = service_error(RuntimeError(f"Traceback (most recent call last):\n  in a worker\n{said}\n"))
    return error.seen if isinstance(error, ServiceAway) else None


@pytest.mark.parametrize(("service", "said"), [(name, one) for name, some in TOLD.items() for one in some])
def test_what_a_client_says_is_told_of_its_service(service: str, said: str) -> None:
    seen = away(said)
    assert seen is not None
    assert seen.startswith(f"{service} could not do its part: ")
    assert said.endswith(seen.partition(": ")[2])


@pytest.mark.parametrize(("service", "sign"), ROWS)
def test_without_a_sign_what_a_client_said_would_not_be_told(
    service: str, sign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIGNS, service, tuple(other for other in SIGNS[service] if other != sign))
    assert not all(away(said) for said in TOLD[service])


def test_what_s3_does_not_explain_is_told_with_what_it_may_be() -> None:
    said = "OSError: When testing: AWS Error UNKNOWN (HTTP status 400) during HeadBucket operation: No response body."
    told = service_error(RuntimeError(said))
    assert isinstance(told, ServiceAway)
    assert told.remedy is not None
    assert "SLUICE_S3_REGION" in told.remedy


def test_a_lock_of_another_session_is_no_outage() -> None:
    told = service_error(
        RuntimeError("psycopg2.errors.LockNotAvailable: canceling statement due to lock timeout")
    )
    assert isinstance(told, Busy)


def test_a_row_that_postgres_can_not_hold_is_told_without_where_it_was_copied_to() -> None:
    worker = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  in a worker\n"
        "psycopg2.errors.ProgramLimitExceeded: row is too big: size 8808, maximum size 8160\n"
        "CONTEXT:  COPY d68_1a2b3c4d, line 3\n"
    )
    told = service_error(RuntimeError(worker))
    assert isinstance(told, TableRefused)
    assert told.exit_code == 2
    assert told.seen.endswith(": row is too big: size 8808, maximum size 8160")
    assert in_short(RuntimeError(worker)).endswith(
        "ProgramLimitExceeded: row is too big: size 8808, maximum size 8160"
    )


def test_a_full_disk_is_tried_again_and_a_refused_path_is_not(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as full, Path("/dev/full").open("wb", 0) as disk:
        disk.write(b"x")
    found = service_error(full.value)
    assert isinstance(found, ServiceAway)
    assert found.seen.startswith("A disk is full: [Errno 28] No space left on device")
    told = "Traceback\n  in a worker\njava.io.IOException: No space left on device\n"
    assert isinstance(service_error(RuntimeError(told)), ServiceAway)

    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for place in (loop, tmp_path / ("x" * 300), Path("/dev/null/x")):
        with pytest.raises(OSError, match=r"\[Errno") as wrong:
            place.open("rb")
        refusal = service_error(wrong.value)
        assert isinstance(refusal, SetupError)
        assert str(place) in refusal.seen
    assert service_error(FileNotFoundError(2, "No such file")) is None
