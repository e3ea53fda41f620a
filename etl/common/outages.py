"""Recognises a service that can't be reached, a full disk and what may not be opened, and raises it with the next step.

Workers' errors reach the driver as text, so this module looks at the text, for errors of this process too.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from psycopg2.extensions import cursor as Cursor

from etl.common.errors import Busy, ServiceAway, SetupError, SluiceError, TableRefused
from etl.common.statements import Statements

STATEMENTS = Statements(__name__)

_LOCKED = r"\bpsycopg2\.errors\.LockNotAvailable[:)] *(.+)"
_TOO_LARGE = r"\bpsycopg2\.errors\.ProgramLimitExceeded[:)] *(.+)"
_PSYCOPG2 = (
    "OperationalError",  # in which libpq 17 tells of all that ends a session; others name some of them
    r"errors\.AdminShutdown",
    r"errors\.CrashShutdown",
    r"errors\.CannotConnectNow",
    r"errors\.DeadlockDetected",
    r"errors\.DiskFull",
    r"errors\.IdleInTransactionSessionTimeout",
    r"errors\.OutOfMemory",
    r"errors\.ReadOnlySqlTransaction",
    r"errors\.TooManyConnections",
    r"errors\.TransactionTimeout",
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
# By the source that pg_settings names: what has turned default_transaction_read_only on, and what turns it off.
_READ_ONLY_BY = {
    "user": ("the role's settings", "`ALTER ROLE {role} RESET {name}`"),
    "database": ("the database's settings", "`ALTER DATABASE {database} RESET {name}`"),
    "database user": (
        "the role's settings in this database",
        "`ALTER ROLE {role} IN DATABASE {database} RESET {name}`",
    ),
    "global": ("the settings of all roles", "`ALTER ROLE ALL RESET {name}`"),
    "client": ("the connection's options", "take {name} out of SLUICE_POSTGRES and PGOPTIONS"),
    "session": (
        "a statement of this session, such as a pooler's",
        "take it out of what the pooler begins with",
    ),
    "command line": ("the server's command line", "start the server without it"),
}
_BY_SERVER = (
    "the server's settings",
    "`ALTER SYSTEM RESET {name}` and `SELECT pg_reload_conf()`, or correct the file of its settings",
)
_FULL = re.compile(
    r"\b(?:OSError|IOException|FSError): (.*(?:No space left on device|Disk quota exceeded).*)"
)
_REFUSED = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG),
        *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST),  # something of another kind is there
    }
)
_TOO_MANY_OPEN = frozenset({errno.EMFILE, errno.ENFILE})
# Of AWS' files and variables, which boto reads also where the store is not AWS.
_AWS_SETTINGS = re.compile(
    r"\bbotocore\.exceptions\.(?:ProfileNotFound|Config\w+|InvalidConfigError|\w*Credential\w*|\w*(?:SSO|Token)\w*Error"
    r"|NoRegionError|UnknownRegionError|InvalidRegionError): (.+)"
)
_ARROW_REFUSED = re.compile(
    r"\bOSError: (.*AWS Error (?:ACCESS_DENIED|EXPIRED_TOKEN|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID"
    r"|MISSING_AUTHENTICATION_TOKEN|NO_SUCH_BUCKET|REQUEST_EXPIRED|SIGNATURE_DOES_NOT_MATCH|UNRECOGNIZED_CLIENT).*)"
)
# Asked for a bucket's headers alone, S3 gives no reason.
_ARROW_UNTOLD = re.compile(
    r"\bOSError: (.*AWS Error UNKNOWN \(HTTP status (?:301|307|400)\) during HeadBucket.*)"
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
    """Return what `error` tells of a service, or of the disk, as ServiceAway, Busy or TableRefused; None where of none.

    What a file system or S3 refuses to this process, and settings of AWS that can't be used, are a SetupError.
    """
    kind = type(error)
    text = f"{kind.__module__}.{kind.__qualname__}: {error}\n{getattr(error, 'java_exception', None) or ''}"
    text = text.replace("builtins.", "", 1)
    again = "then run the same command again"
    if found := re.search(_LOCKED, text):
        return Busy(
            f"Another session's lock was held for longer than lock_timeout: {found[1].strip()}",
            remedy=f"find its holder in pg_locks and pg_stat_activity; {again}",
        )
    if found := re.search(_TOO_LARGE, text):
        return TableRefused(
            f"PostgreSQL can't hold a row that was to be delivered: {found[1].strip()}",
            remedy="deliver less in a row (fewer columns, or columns apart in a table of another pipeline), or let a rule of"
            " the suite hold such rows; then run the same command again",
        )
    for service, signs in SIGNS.items():
        if found := next(filter(None, (re.search(sign, text) for sign in signs)), None):
            return ServiceAway(
                f"{service} could not do its part: {found[1].strip()}",
                remedy=f"check that it is running (`sluice doctor`); {again}",
            )
    if found := _FULL.search(text):
        return ServiceAway(
            f"A disk is full: {found[1].strip()}",
            remedy=f"free some of it (`df -h` shows which), {again}",
        )
    if found := _ARROW_REFUSED.search(text):
        return SetupError(
            f"S3 refuses it: {found[1].strip()}",
            remedy="let the AWS key do there what is named (read, write and list below the lake; read and list below the"
            " landing), or set the settings to another place; then run again",
        )
    if found := _ARROW_UNTOLD.search(text):
        return ServiceAway(
            f"S3 does not say why it refuses: {found[1].strip()}",
            remedy=f"check that the credentials have not expired, and that SLUICE_S3_REGION is the bucket's; {again}",
        )
    if found := _AWS_SETTINGS.search(text):
        return SetupError(
            f"AWS' settings can't be used: {found[1].strip()}",
            remedy="set, correct or unset what it names: AWS_PROFILE and other AWS_* variables, or the files in ~/.aws",
        )
    return (refused(error) or _scarce(error)) if isinstance(error, OSError) else None


def _scarce(error: OSError) -> SluiceError | None:
    """Return what the machine has too little of for this process, as far as that is the error."""
    if error.errno in _TOO_MANY_OPEN:
        return SetupError(
            f"More files are open than may be: {error}",
            remedy="`ulimit -n` shows how many this process may have open; `ulimit -n 4096`, and run again",
        )
    if error.errno == errno.ENOMEM:
        return ServiceAway(
            f"The machine has no memory left: {error}",
            remedy="`free -h` shows it; run again when others have ended",
        )
    return None


def writes_refused(cursor: Cursor) -> SetupError | None:
    """Return, as SetupError, that default_transaction_read_only keeps this session from writing, and how to reset it.

    None where that is off, and on a standby, which may become a primary.
    """
    found = STATEMENTS.execute(cursor, "read_only_by").fetchone()
    if found is None:
        return None
    source, role, database = found
    name = "default_transaction_read_only"
    by, reset = _READ_ONLY_BY.get(source, _BY_SERVER)
    return SetupError(
        f"PostgreSQL lets role {role} write nothing in database {database}: {name} is on, by {by}",
        remedy="find out why it was set, as some providers do for a full disk; then"
        f" {reset.format(name=name, role=role, database=database)}, and run again",
    )


def refused(error: OSError) -> SetupError | None:
    """Return, as SetupError, that the file system refuses a path by its rights or its name; None of any other error."""
    if error.errno not in _REFUSED:
        return None
    who = f"user {os.geteuid()}"
    return SetupError(
        f"The file system refuses it to {who}: {error}",
        remedy=f"give {who} the right to it (`namei -l PATH` shows each folder's), or name another place in the settings",
    )


@contextmanager
def raising_service_errors() -> Iterator[None]:
    """Raise an error within that tells of an outage, or of a right, as `service_error` has it; any other as it is."""
    try:
        yield
    except SluiceError:
        raise
    except Exception as error:
        if (away := service_error(error)) is not None:
            raise away from error
        raise
