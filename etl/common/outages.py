"""Recognises a service that can't be reached from the errors of its client library, and raises it with the next step.

Workers' errors reach the driver as text, so this module looks at the text, for errors of this process too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from etl.common.errors import Busy, ServiceAway, SluiceError

_LOCKED = r"\bpsycopg2\.errors\.LockNotAvailable[:)] *(.+)"
_PSYCOPG2 = (
    "OperationalError",
    r"errors\.AdminShutdown",
    r"errors\.CrashShutdown",
    r"errors\.CannotConnectNow",
    r"errors\.DeadlockDetected",
    r"errors\.DiskFull",
    r"errors\.OutOfMemory",
    r"errors\.ReadOnlySqlTransaction",
    r"errors\.TooManyConnections",
)
_ARROW = (
    "INTERNAL_FAILURE",
    "NETWORK_CONNECTION",
    "REQUEST_TIMEOUT",
    "SERVICE_UNAVAILABLE",
    "SLOW_DOWN",
    "THROTTLING",
    r"UNKNOWN \(HTTP status 5\d\d\)",
)
_BOTOCORE = ("Connect", "EndpointConnection", "ProxyConnection", "Read")
_SPARK = ("SdkClientException", "AWSServiceThrottledException", "AWSStatus500Exception")
# By the service that is away; what a sign has in brackets is what its client says.
SIGNS: Mapping[str, tuple[str, ...]] = {
    "PostgreSQL": tuple(rf"\bpsycopg2\.{kind}[:)] *(.+)" for kind in _PSYCOPG2),
    "S3": (
        *(rf"\bOSError: (.*AWS Error {kind}(?!\w).*)" for kind in _ARROW),
        *(rf"\bbotocore\.exceptions\.{kind}\w*Error: (.+)" for kind in _BOTOCORE),
        *(rf"\b{kind}: (.+)" for kind in _SPARK),
    ),
}


def service_error(error: BaseException) -> SluiceError | None:
    """Return what `error` tells of a service, as ServiceAway or Busy; None where it tells of none."""
    kind = type(error)
    text = f"{kind.__module__}.{kind.__qualname__}: {error}\n{getattr(error, 'java_exception', None) or ''}"
    text = text.replace("builtins.", "", 1)
    again = "then run the same command again, which goes on from the ledger"
    if found := re.search(_LOCKED, text):
        return Busy(
            f"Another session's lock was held for longer than lock_timeout: {found[1].strip()}",
            remedy=f"find its holder in pg_locks and pg_stat_activity; {again}",
        )
    for service, signs in SIGNS.items():
        if found := next(filter(None, (re.search(sign, text) for sign in signs)), None):
            return ServiceAway(
                f"{service} could not do its part: {found[1].strip()}",
                remedy=f"check that it is running (`sluice doctor`); {again}",
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
