"""Connects to PostgreSQL and runs transactions; translates a driver's error here, once, by its SQLSTATE or constraint."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import psycopg2
import psycopg2.extensions
from psycopg2 import errorcodes, sql
from psycopg2.extensions import TRANSACTION_STATUS_ACTIVE, TRANSACTION_STATUS_IDLE

from etl.common.errors import ServiceAway, SetupError
from etl.common.outages import writes_refused
from etl.common.outcome import in_short
from etl.common.statements import Statements

STATEMENTS = Statements(__name__)

Connection = psycopg2.extensions.connection
Cursor = psycopg2.extensions.cursor

# Of our own transactions; a driver that hangs must not hold the pipeline's row for ever.
TIMEOUTS = {
    "lock_timeout": "30s",
    "statement_timeout": "30min",
    "idle_in_transaction_session_timeout": "5min",
    "transaction_timeout": "60min",
}
CLOCKS_APART = 5.0  # seconds, for what lies between setting a limit and the first look at our own clock
# Settings that wait for a standby in another way stay as they are.
DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', true)"
    " WHERE current_setting('synchronous_commit') IN ('off', 'local')"
)
# Limits of a transaction that end its session too; no kind of psycopg2's OperationalError.
ENDED = (psycopg2.errors.IdleInTransactionSessionTimeout, psycopg2.errors.TransactionTimeout)
OLDEST_SERVER = 170000
READ_ONLY = "session is read-only"  # in libpq's word of a server, where target_session_attrs is read-write
SCHEMA_LOCK = 0x51_0C_1C_F  # any constant of our own, but MIGRATION_LOCK
T = TypeVar("T")

_ours: WeakSet[Connection] = WeakSet()  # connections of this process


def connect(dsn: str, **options: Any) -> Connection:
    """Open a new connection, with libpq's `options` besides ours.

    Raises ServiceAway where none can be opened, and SetupError where sessions that may write are asked for and refused.
    """
    try:
        connection: Connection = psycopg2.connect(dsn, **{**CONNECTION, **options})
    except psycopg2.OperationalError as error:
        if READ_ONLY in str(error) and (off := _primary_refuses_writes(dsn, options)):
            raise off from error
        raise ServiceAway(
            f"PostgreSQL can't be reached: {' '.join(str(error).split())}",
            remedy="check that it is running and that SLUICE_POSTGRES is right (`sluice doctor`), then run again",
        ) from error
    _ours.add(connection)
    return connection


def _primary_refuses_writes(dsn: str, options: Mapping[str, Any]) -> SetupError | None:
    """Return what `writes_refused` has of a session on the primary; None where there is none."""
    with suppress(psycopg2.OperationalError):
        primary = {**CONNECTION, **options, "target_session_attrs": "primary"}
        with closing(psycopg2.connect(dsn, **primary)) as connection, connection.cursor() as cursor:
            return writes_refused(cursor)
    return None


def cancel_statements() -> None:
    """End the statements that this process waits for, each with an error in the thread that waits."""
    for connection in list(_ours):
        with suppress(psycopg2.Error):  # it was closed meanwhile
            if not connection.closed and connection.info.transaction_status == TRANSACTION_STATUS_ACTIVE:
                connection.cancel()


class Pool:
    """Keeps connections to one database open from one transaction to the next, each in the hands of one thread."""

    def __init__(self, dsn: str, **options: Any) -> None:
        self._dsn, self._options = dsn, options
        self._idle: list[Connection] = []
        self._closed = False

    @contextmanager
    def transaction(self, *, one_snapshot: bool = False) -> Iterator[Cursor]:
        """Run one READ COMMITTED transaction with our timeouts and in UTC, whatever the server's zone.

        With `one_snapshot` all that it reads is what one moment had, and it writes nothing.

        All of it is done, or nothing. An error inside rolls back and goes on upwards: caught within, PostgreSQL
        would turn COMMIT into ROLLBACK and tell nobody.
        """
        connection = self._begun(_settings(one_snapshot=one_snapshot))
        try:
            with _committed(connection) as cursor:
                yield cursor
        finally:
            self._put_back(connection)

    def _begun(self, settings: sql.Composed) -> Connection:
        """Return a connection in a new transaction: an idle one that still lives, or a new one.

        One that broke while it was idle tells so by its first statement, before anything is done on it.
        """
        while (idle := self._take()) is not None:
            try:
                return _begin(idle, settings)
            except psycopg2.errors.QueryCanceled:  # it lives, and whoever cancels means the transaction
                raise
            except psycopg2.Error:
                continue
        return _begin(connect(self._dsn, **self._options), settings)

    def _take(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:  # another thread may have been faster
            return None

    def _put_back(self, connection: Connection) -> None:
        if connection.info.transaction_status == TRANSACTION_STATUS_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        if self._closed:  # asked last: another thread may close at any moment
            self.close()

    def close(self) -> None:
        """Close what is idle now, and what is in a transaction when that has ended."""
        self._closed = True
        while (idle := self._take()) is not None:
            idle.close()


def _begin(connection: Connection, settings: sql.Composed) -> Connection:
    """Begin a transaction with our settings; close the connection where that fails."""
    try:
        require_version(connection)  # older servers lack some of the settings
        with connection.cursor() as cursor:
            cursor.execute(settings)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _committed(connection: Connection) -> Iterator[Cursor]:
    with connection.cursor() as cursor:
        try:
            yield cursor
        except BaseException as error:
            if not connection.closed:
                connection.rollback()
            if isinstance(error, psycopg2.errors.InsufficientPrivilege):
                raise _refused(error) from error
            if isinstance(error, psycopg2.errors.ReadOnlySqlTransaction) and (off := writes_refused(cursor)):
                raise off from error
            raise
        connection.commit()


def _settings(*, one_snapshot: bool) -> sql.Composed:
    """Compose one transaction's settings as a single statement, whatever the server's or the role's own say.

    HAZARD: where a server, database or role acknowledges a COMMIT before it is on disk, a crash takes back what a
    sweep or an orchestrator has acted on.
    """
    levels = "REPEATABLE READ, READ ONLY" if one_snapshot else "READ COMMITTED"
    durable = [] if one_snapshot else [sql.SQL(DURABLE)]
    one = sql.SQL("SET LOCAL {} = {}")
    found = {
        **TIMEOUTS,
        "timezone": "UTC",
        "extra_float_digits": 1,  # or text loses of a fraction
        "row_security": "off",  # a policy that would hide rows from a recount is an error
    }
    return sql.SQL("; ").join(
        [
            sql.SQL(f"SET TRANSACTION ISOLATION LEVEL {levels}"),
            *(one.format(sql.Identifier(name), sql.Literal(value)) for name, value in found.items()),
            *durable,
        ]
    )


def lacks_rights(seen: str) -> SetupError:
    """Make the SetupError for `seen`, a lack of rights that only whoever may grant them can mend."""
    return SetupError(
        seen,
        remedy="`sluice doctor --rights` prints the rights that the role needs, for a person who may grant them",
    )


def _refused(error: psycopg2.Error) -> SetupError:
    seen = f"PostgreSQL refuses it: {in_short(error)}"
    if "row-level security" in seen:
        return SetupError(
            seen,
            remedy="take row level security off this table (`ALTER TABLE … DISABLE ROW LEVEL SECURITY`): it hides rows from"
            " Sluice as well, which could not tell them from lost ones. Let readers have a view with a condition, or a table"
            " of your own",
        )
    return lacks_rights(seen)


_pools: dict[str, Pool] | None = None  # by connection string; None: no connection is kept


@contextmanager
def kept_connections() -> Iterator[None]:
    """Keep connections open within, from one `transaction` to the next, for all threads of this process."""
    global _pools
    if _pools is not None:  # somebody around it, or beside it, does
        yield
        return
    pools = _pools = {}
    try:
        yield
    finally:
        _pools = None
        for pool in list(pools.values()):  # another thread may still begin one
            pool.close()


def _leave_to_parent() -> None:
    """Forget in a forked process what is its parent's: two that use one connection take each other's answers.

    psycopg2 ends a connection that nothing refers to any more only in the process that opened it.
    """
    _ours.clear()
    if _pools is not None:
        _pools.clear()


os.register_at_fork(after_in_child=_leave_to_parent)


@contextmanager
def transaction(dsn: str, *, one_snapshot: bool = False) -> Iterator[Cursor]:
    """Run one transaction, as a Pool does: on a kept connection, or else on one that is closed behind it."""
    pools = _pools
    if pools is not None:
        with pools.setdefault(dsn, Pool(dsn)).transaction(one_snapshot=one_snapshot) as cursor:
            yield cursor
    else:
        with closing(Pool(dsn)) as own, own.transaction(one_snapshot=one_snapshot) as cursor:
            yield cursor


def lift_limits(cursor: Cursor) -> None:
    """Let what follows in the transaction take as long as it does; a lock is waited for no longer than before."""
    STATEMENTS.execute(cursor, "set_limits", lock=TIMEOUTS["lock_timeout"], statement="0", transaction="0")


def limit_statements(cursor: Cursor, longest: str) -> None:
    """End each statement that follows in the transaction and takes longer, such as than `5s`."""
    STATEMENTS.execute(
        cursor,
        "set_limits",
        lock=TIMEOUTS["lock_timeout"],
        statement=longest,
        transaction=TIMEOUTS["transaction_timeout"],
    )


def wait_for_locks(cursor: Cursor, patience: str) -> None:
    """Bound how long what follows in the transaction waits for a lock, such as `30s`."""
    STATEMENTS.execute(cursor, "wait_for_locks", patience=patience)


@contextmanager
def waiting_apart(cursor: Cursor, patience: str) -> Iterator[None]:
    """Wait for locks for up to `patience` within, and for as long as that takes: our other limits begin behind it."""
    STATEMENTS.execute(cursor, "set_limits", lock=patience, statement="0", transaction="0")
    yield
    STATEMENTS.execute(
        cursor,
        "set_limits",
        lock=TIMEOUTS["lock_timeout"],
        statement=TIMEOUTS["statement_timeout"],
        transaction=TIMEOUTS["transaction_timeout"],
    )


@contextmanager
def telling_of_limit() -> Iterator[None]:
    """Raise TransactionTimeout where the connection is lost after the block has lasted for as long as a transaction may.

    PostgreSQL says why it ends a session; libpq hands on only that it did (17). Its clock began a little before the block.
    """
    began = time.monotonic()
    try:
        yield
    except psycopg2.OperationalError as error:
        lasted = time.monotonic() - began + CLOCKS_APART
        if is_lost(error) and lasted >= _seconds(TIMEOUTS["transaction_timeout"]):
            raise psycopg2.errors.TransactionTimeout(
                "the session was ended at transaction_timeout"
            ) from error
        raise


def _seconds(limit: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(ms|s|min)", limit).groups()  # type: ignore[union-attr] # ours alone
    return int(number) * {"ms": 0.001, "s": 1, "min": 60}[unit]


@contextmanager
def idling(cursor: Cursor) -> Iterator[None]:
    """Let the transaction be idle within for as long as one of our statements may take."""
    STATEMENTS.execute(cursor, "set_idle_limit", idle=TIMEOUTS["statement_timeout"])
    yield
    STATEMENTS.execute(cursor, "set_idle_limit", idle=TIMEOUTS["idle_in_transaction_session_timeout"])


@contextmanager
def savepoint(cursor: Cursor) -> Iterator[None]:
    """Take back what was done within, and that alone, where it fails; the error goes on upwards."""
    cursor.execute("SAVEPOINT within")
    try:
        yield
    except BaseException:
        if not cursor.connection.closed:
            cursor.execute("ROLLBACK TO SAVEPOINT within; RELEASE SAVEPOINT within")
        raise
    cursor.execute("RELEASE SAVEPOINT within")


def create_database(cursor: Cursor, name: str, *, owner: str | None = None) -> None:
    """Create the database where it is missing. The connection commits by itself: no transaction can do it."""
    cursor.execute("SELECT FROM pg_database WHERE datname = %s", (name,))
    if cursor.rowcount == 0:
        create = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        cursor.execute(
            create if owner is None else create + sql.SQL(" OWNER {}").format(sql.Identifier(owner))
        )


def row(cursor: Cursor) -> dict[str, Any] | None:
    """Return the next row by column name, or None."""
    found = cursor.fetchone()
    return None if found is None else _named(cursor, found)


def rows(cursor: Cursor) -> list[dict[str, Any]]:
    """Return all rows that are left, by column name."""
    return [_named(cursor, found) for found in cursor.fetchall()]


def row_as(cursor: Cursor, kind: Callable[..., T]) -> T | None:
    """Return the next row as a `kind`, whose fields are its columns, or None."""
    found = row(cursor)
    return None if found is None else kind(**found)


def rows_as(cursor: Cursor, kind: Callable[..., T]) -> list[T]:
    """Return all rows that are left, each as a `kind`, whose fields are its columns."""
    return [kind(**found) for found in rows(cursor)]


def _named(cursor: Cursor, values: tuple[Any, ...]) -> dict[str, Any]:
    return {column.name: value for column, value in zip(cursor.description or (), values, strict=True)}


def require_version(connection: Connection) -> None:
    """Raise SetupError unless the server is new enough and the database can hold every text."""
    version = connection.server_version
    if version < OLDEST_SERVER:
        raise SetupError(
            f"PostgreSQL {version // 10000} was found; {OLDEST_SERVER // 10000} or later is needed",
            remedy="point SLUICE_POSTGRES to a newer server",
        )
    encoding = connection.get_parameter_status("server_encoding")
    if encoding != "UTF8":
        raise SetupError(
            f"The database's encoding is {encoding}, which can't hold every text; UTF8 is needed",
            remedy="point SLUICE_POSTGRES to a database made with CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8'",
        )


def ensure_schema(cursor: Cursor, name: str) -> None:
    """Create the schema where it is missing. IF NOT EXISTS would ask for the right even where it exists."""
    cursor.execute("SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL", (name,))
    if cursor.fetchone() == (False,):
        lock_schemas(cursor)
        cursor.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(name)))


def lock_schemas(cursor: Cursor) -> None:
    """Lock out all others that make something IF NOT EXISTS: two at once would collide.

    Within the lock, which lasts until the transaction ends, this one sees what the other has made.
    """
    cursor.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))


def is_lost(error: psycopg2.Error) -> bool:
    """Return True if the connection is gone, so that nobody knows how far the server got."""
    if isinstance(error, psycopg2.InterfaceError):
        return True
    code = error.pgcode
    if code == errorcodes.QUERY_CANCELED:  # by a timeout; never once COMMIT has begun
        return False
    if isinstance(error, ENDED):
        return True
    return isinstance(error, psycopg2.OperationalError) and (code is None or code[:2] in ("08", "57"))


class Writable(Protocol):
    """A file that takes what a COPY puts out, a whole row at a time."""

    def write(self, row: bytes, /) -> int: ...


def copy_out(cursor: Cursor, command: sql.Composable, file: Writable) -> None:
    """Run a COPY … TO STDOUT that writes to the file. Raises OperationalError where the connection is lost meanwhile.

    psycopg2 (2.9) raises DatabaseError then, and says that libpq has no message.
    """
    try:
        cursor.copy_expert(command, file)
    except psycopg2.DatabaseError as error:
        if cursor.connection.closed and type(error) is psycopg2.DatabaseError:
            raise psycopg2.OperationalError("the connection was lost during a COPY") from error
        raise


def constraint_of(error: psycopg2.Error) -> str | None:
    """Return the name of the unique constraint that `error` violated, None if it violated none."""
    return error.diag.constraint_name if error.pgcode == errorcodes.UNIQUE_VIOLATION else None


# A peer that vanished without a word is noticed within a minute or two, not after hours.
CONNECTION: Mapping[str, Any] = {
    "connect_timeout": 10,
    "application_name": "sluice",
    # Binary COPY holds UTF-8, whatever PGCLIENTENCODING or the role's own settings say.
    "client_encoding": "UTF8",
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
