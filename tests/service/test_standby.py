"""A standby that is promoted without the last commits of its primary: nothing is lost, and no number is given out twice."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import psycopg2
import pyarrow as pa
import pytest
from psycopg2.extensions import make_dsn, parse_dsn

from etl.common.database import transaction
from etl.common.errors import LedgerBehind, ServiceAway
from etl.common.migrations import migrate
from etl.common.outages import service_error
from etl.operations.audit.audit import audit
from etl.pipeline import Append, Files
from etl.runs.recovery.recover import recover
from etl.runs.run import run
from etl.services import Services, postgres
from etl.services.postgres import OWNER, Postgres
from etl.services.process import HOST, have_ended
from etl.sinks.lake.lake import Lake
from tests.support.delivering import Delivering
from tests.support.waiting import until

pytestmark = pytest.mark.long

COLUMNS = pa.schema([("id", pa.int64())])
PATIENCE = 60  # seconds; nothing is decided by it, a test that waits so long has failed
LAG = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A primary and its standby; each has PostgreSQL's own asynchronous replication and nothing else."""

    primary: Postgres
    standby: Postgres
    dsn: str

    @property
    def dsn_of_standby(self) -> str:
        port = postgres.running(self.standby)
        assert port is not None
        return self.standby.dsn(port)

    def catch_up(self) -> None:
        """Wait until the standby has all that the primary has committed."""
        [(newest,)] = ask(self.primary, self.dsn, "SELECT pg_current_wal_lsn()::text")
        until(
            lambda: ask(self.standby, self.dsn_of_standby, LAG, newest) == [(True,)],
            "the standby to have it all",
            patience=PATIENCE,
        )

    def cut(self) -> None:
        """End the replication, as a network that is cut; the primary goes on."""
        ask(self.standby, self.dsn_of_standby, "ALTER SYSTEM SET primary_conninfo = ''")
        ask(self.standby, self.dsn_of_standby, "SELECT pg_reload_conf()")
        receivers = "SELECT count(*) FROM pg_stat_wal_receiver"
        until(
            lambda: ask(self.standby, self.dsn_of_standby, receivers) == [(0,)],
            "the receiver to have ended",
            patience=PATIENCE,
        )

    def fail_over(self) -> None:
        """End the primary at once, and promote the standby."""
        process = psutil.Process(int((self.primary.data / "postmaster.pid").read_text().split()[0]))
        process.send_signal(signal.SIGQUIT)
        assert have_ended([process], within=PATIENCE)
        assert ask(self.standby, self.dsn_of_standby, "SELECT pg_promote()") == [(True,)]


def ask(server: Postgres, dsn: str, query: str, *values: str) -> list[tuple[object, ...]]:
    """Execute one statement as the cluster's owner, in no transaction."""
    with closing(psycopg2.connect(dsn, user=OWNER, dbname="postgres")) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def pair(short_home: Path, services: Services) -> Iterator[Pair]:
    """Start a primary with Sluice's schema, and a standby that follows it."""
    folders = [short_home / name for name in ("primary", "standby")]
    for folder in folders:
        folder.mkdir(mode=0o711)
    primary, standby = (postgres.cluster(folder, 0) for folder in folders)
    try:
        dsn = postgres.start(primary)
        migrate(dsn)
        copy_to(primary, standby, dsn)
        postgres.start(standby)
        found = Pair(primary=primary, standby=standby, dsn=dsn)
        found.catch_up()
        yield found
    finally:
        for server in (primary, standby):
            postgres.stop(server)
        for folder in folders:
            shutil.rmtree(folder)


def copy_to(primary: Postgres, standby: Postgres, dsn: str) -> None:
    """Copy the primary's cluster to the standby's folder, with how to follow it."""
    shutil.copytree(primary.passfile.parent, standby.passfile.parent)
    postgres._place(standby)
    binaries = postgres._binaries(standby)
    words = standby.folder / "pgpass"  # which the server itself reads
    shutil.copy(primary.passfile, words)
    if standby.user:
        shutil.chown(words, standby.user)
    source = make_dsn(host=HOST, port=parse_dsn(dsn)["port"], user=OWNER, passfile=str(words))
    done = postgres._as_user(
        standby,
        [binaries / "pg_basebackup", "-d", source, "-D", standby.data, "-R", "-X", "stream", "-c", "fast"],
    )
    assert done.returncode == 0, done.stdout


def rows(start: int) -> pa.Table:
    return pa.table([pa.array(range(start, start + 10), pa.int64())], schema=COLUMNS)


def test_what_a_promoted_standby_lacks_comes_back_under_its_own_numbers(
    pair: Pair, services: Services, lake: Lake, tmp_path: Path
) -> None:
    events = Delivering.start(services, pair.dsn, lake, tmp_path, COLUMNS, Append())
    events.pipeline = replace(events.pipeline, sources=(Files("*.jsonl"),))
    kept = events.deliver(rows(0)).delivery_id
    pair.catch_up()
    pair.cut()
    lost = [events.deliver(rows(start)).delivery_id for start in (10, 20)]
    reading = make_dsn(pair.dsn_of_standby, options="-c default_transaction_read_only=on")
    with pytest.raises(psycopg2.errors.ReadOnlySqlTransaction) as refused, transaction(reading) as cursor:
        cursor.execute("DELETE FROM sluice.pipeline")
    assert isinstance(service_error(refused.value), ServiceAway), "it may be a primary soon"
    pair.fail_over()

    place = replace(events.place, services=replace(events.place.services, postgres=pair.dsn_of_standby))
    events.place = place
    assert events.execute("SELECT delivery_id FROM sluice.delivery") == [(kept,)]
    events.end()  # of the primary's run, which died with it
    with pytest.raises(LedgerBehind, match=f"Delivery {lost[-1]} of events was committed"):
        run(place, events.pipeline)
    others = Delivering.start(services, events.dsn, lake, tmp_path / "others", COLUMNS, Append(), "others")
    assert others.deliver(rows(0)).delivery_id > max(lost)
    assert [one.delivery_id for one in recover(place, events.pipeline).restored] == lost
    assert events.execute("SELECT id FROM {t} ORDER BY id") == [(number,) for number in range(30)]
    assert audit(place, events.pipeline).clean
