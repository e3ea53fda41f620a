"""A service that is away, as the libraries that ask it tell: said as what it is, with the next step.

Workers' errors reach the driver as text, so text is what is looked at, for errors of this process too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from etl.common.errors import Busy, ServiceAway, SluiceError

_POSTGRES = re.compile(
    r"\bpsycopg2\.(?:OperationalError|errors\.(?:AdminShutdown|CrashShutdown|CannotConnectNow|DeadlockDetected"
    r"|DiskFull|OutOfMemory|ReadOnlySqlTransaction|TooManyConnections))[:)] *(.+)"
)
_LOCKED = re.compile(r"\bpsycopg2\.errors\.LockNotAvailable[:)] *(.+)")
_S3 = re.compile(
    r"\bOSError: (.*AWS Error (?:INTERNAL_FAILURE|NETWORK_CONNECTION|REQUEST_TIMEOUT|SERVICE_UNAVAILABLE"
    r"|SLOW_DOWN|THROTTLING|UNKNOWN \(HTTP status 5\d\d\))(?!\w).*)"
    r"|\bbotocore\.exceptions\.(?:Connect|Connection|EndpointConnection|ProxyConnection|Read)\w*Error: (.+)"
    r"|\b(?:SdkClientException|AWSServiceThrottledException|AWSStatus500Exception): (.+)"
)


def service_error(error: BaseException) -> SluiceError | None:
    """Return what `error` tells of a service, as ServiceAway or Busy; None where it tells of none."""
    kind = type(error)
    text = f"{kind.__module__}.{kind.__qualname__}: {error}\n{getattr(error, 'java_exception', None) or ''}"
    text = text.replace("builtins.", "", 1)
    again = "then the same command again, which goes on from the ledger"
    if found := _LOCKED.search(text):
        return Busy(
            f"Another session's lock was held for longer than lock_timeout: {found[1].strip()}",
            remedy=f"see who holds it, in pg_locks and pg_stat_activity; {again}",
        )
    for service, signs in (("PostgreSQL", _POSTGRES), ("S3", _S3)):
        if found := signs.search(text):
            said = next(filter(None, found.groups())).strip()
            return ServiceAway(
                f"{service} could not do its part: {said}",
                remedy=f"see that it runs (`sluice doctor` looks); {again}",
            )
    return None


@contextmanager
def raising_service_errors() -> Iterator[None]:
    """Raise an error within that tells of an outage as ServiceAway or Busy; any other goes on as it is."""
    try:
        yield
    except SluiceError:
        raise
    except Exception as error:
        if (away := service_error(error)) is not None:
            raise away from error
        raise
