"""The commands as a user has them: processes of their own, judged by what they print and how they end."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import psutil
import pyarrow as pa
import pytest
from psycopg2 import sql
from psycopg2.extensions import make_dsn, parse_dsn

from etl.common.database import transaction
from etl.common.errors import SetupError
from etl.common.migrations import migrate
from etl.common.outcome import RunOutcome
from etl.common.settings import Settings
from etl.ledger import leases
from etl.operations.audit.audit import audit
from etl.operations.control import machine
from etl.pipeline import Append, day
from etl.runs.replay.plan import Selection, plan
from etl.services import Services, java
from etl.sinks.lake.lake import Lake
from tests.support import forked, oracle
from tests.support.databases import new_database
from tests.support.delivering import DECLARATION, Delivering
from tests.support.environment import FOREIGN, REPOSITORY

pytestmark = pytest.mark.long

COLUMNS = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("text", pa.string())])
AWKWARD = """Ann's "own" $HOME `it` \\ &"""
SPARK_CONF = '{"spark.app.name": "Ann\'s own"}'
LET_IN = 'set -e; eval "$(sluice env)"'
READERS = """
import json, os, sys
import boto3, psycopg2
from pyiceberg.catalog import load_catalog

query = "SELECT id, text FROM {} ORDER BY id"
with psycopg2.connect("") as connection, connection.cursor() as cursor:
    cursor.execute(query.format("warehouse.events"))
    found = {"user": connection.info.user, "psycopg2": cursor.fetchall()}
table = load_catalog("sluice").load_table("warehouse.events")
found["pyiceberg"] = sorted([row["id"], row["text"]] for row in table.scan().to_arrow().to_pylist())
found["duckdb"] = table.scan().to_duckdb("events").sql(query.format("events")).fetchall()
bucket, _, prefix = sys.argv[1].removeprefix("s3://").partition("/")
listed = boto3.Session().client("s3").list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/data/")
found["boto3"] = [f"s3://{bucket}/{one['Key']}" for one in listed["Contents"]]
print(json.dumps(found | {"environment": dict(os.environ)}))
"""
DELIVERED = [[number, f"row {number}"] for number in range(6, 90)]


def rows(count: int, start: int = 0) -> pa.Table:
    ids = pa.array(range(start, start + count), pa.int64())
    texts = pa.array([f"row {n}" for n in range(start, start + count)])
    return pa.table([ids, ids.cast(COLUMNS.field("at").type), texts], schema=COLUMNS)


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    said: str  # on standard error


@dataclass(frozen=True, kw_only=True)
class Shell:
    """A user's shell: its folder, and an environment that has nothing of Sluice but what is set here."""

    folder: Path
    environment: Mapping[str, str]

    @classmethod
    def at(cls, folder: Path, **settings: str) -> Shell:
        (folder / "sluice.toml").touch()  # so that none further up is found
        without = (*FOREIGN, "PYICEBERG_", "NO_PROXY", "no_proxy")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
        own = {
            "HOME": str(folder),
            "PATH": str(Path(sys.executable).parent),  # no psql but the embedded server's
            "JAVA_HOME": str(java().resolve().parents[1]),
            "PYTHONPATH": str(REPOSITORY),
            "LANG": "C.UTF-8",
            "COLUMNS": "160",
        }
        return cls(folder=folder, environment=kept | own | settings)

    def start(self, *words: str, **settings: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env={**self.environment, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def sluice(self, *words: str, **settings: str) -> Done:
        return ended(self.start("sluice", *words, **settings))

    def forked(self, *words: str) -> Done:
        """Run a command whose start is not the point, in a process that need import nothing."""
        done = forked.sluice(words, environment=self.environment, folder=self.folder)
        return Done(code=done.returncode, out=done.stdout, said=done.stderr)

    def at_once(self, *commands: str, **settings: str) -> list[Done]:
        started = [self.start("sluice", *command.split(), **settings) for command in commands]
        return [ended(process) for process in started]

    def bash(self, script: str, *words: str) -> Done:
        return ended(self.start(str(shutil.which("bash")), "-c", script, "bash", *words))


def ended(process: subprocess.Popen[str]) -> Done:
    out, said = process.communicate(timeout=240)
    return Done(code=process.returncode, out=out, said=said)


def delivered(services: Services, dsn: str, lake: Lake, home: Path) -> Delivering:
    """Two deliveries of a run that ended well: 84 rows, and 6 that are held."""
    events = Delivering.start(services, dsn, lake, home, COLUMNS, Append(partition_by=day("at")))
    events.deliver(rows(60), bad=range(6))
    events.deliver(rows(30, start=60))
    with transaction(dsn) as cursor:
        leases.end_run(cursor, events.session.lease, RunOutcome(outcome="done"))
        leases.give_lease_back(cursor, events.session.lease)
    return events


def own_settings(events: Delivering) -> dict[str, str]:
    """Return the settings of a user, wherever the services are."""
    home = events.place.settings.home
    (home / "pipelines").mkdir()
    (home / "pipelines" / "events.py").write_text(DECLARATION)
    return {
        "SLUICE_LANDING": str(events.landing),
        "SLUICE_PIPELINES": str(home / "pipelines"),
        "SLUICE_SPARK_CONF": SPARK_CONF,
    }


def services_elsewhere(events: Delivering) -> dict[str, str]:
    """Return the settings of a user whose PostgreSQL and S3 are not embedded."""
    return {
        "SLUICE_HOME": str(events.place.settings.home),
        "SLUICE_POSTGRES": events.dsn,
        "SLUICE_LAKE": events.place.lake.root,
        "SLUICE_S3_ENDPOINT": events.place.services.s3_endpoint or "",
        **events.place.services.environment,
    }


@pytest.fixture
def events(services: Services, dsn: str, lake: Lake, tmp_path: Path) -> Delivering:
    return delivered(services, dsn, lake, tmp_path / AWKWARD)


@pytest.fixture
def shell(events: Delivering, tmp_path: Path) -> Shell:
    return Shell.at(tmp_path, **own_settings(events), **services_elsewhere(events))


@pytest.fixture
def embedded(services: Services, lake: Lake, tmp_path: Path) -> Iterator[Delivering]:
    """Delivered to the embedded database and bucket themselves."""
    migrate(services.postgres)
    try:
        yield delivered(services, services.postgres, Lake(services.lake, lake.store), tmp_path / AWKWARD)
    finally:
        oracle.ask(services.postgres, "DROP SCHEMA IF EXISTS sluice, sluice_stage, warehouse CASCADE")


@pytest.fixture
def role(services: Services) -> Iterator[str]:
    """Return the connection string of a role that may log in, and nothing else, to an empty database of another's."""
    name, secret = f"{AWKWARD} {uuid.uuid4().hex[:8]}", f"{AWKWARD} %20"
    owner = superuser(services.postgres)
    create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(secret))
    with transaction(owner) as cursor:
        cursor.execute(create)
    try:
        with new_database(services.postgres) as dsn:
            known = parse_dsn(dsn)
            server = {key: known[key] for key in ("host", "port", "dbname")}
            yield make_dsn(**server, user=name, password=secret)
    finally:
        with transaction(owner) as cursor:
            cursor.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def committed_paths(events: Delivering) -> list[str]:
    kept = "SELECT path FROM sluice.delivered_file WHERE kind = 'data' ORDER BY delivery_id, path"
    return [str(path) for (path,) in events.execute(kept)]


def superuser(dsn: str, **changes: str) -> str:
    """Return the connection string of the cluster's owner, whose password is in the same file."""
    return str(make_dsn(dsn, user="postgres", **changes))


def grant(services: Services, role: str, folder: Path) -> None:
    """Run the script of `sluice doctor --rights`, as a DBA does."""
    printed = Shell.at(folder).sluice("doctor", "--rights", SLUICE_POSTGRES=role)
    assert printed.code == 0, printed.said
    with transaction(superuser(services.postgres, dbname=parse_dsn(role)["dbname"])) as cursor:
        cursor.execute(printed.out)


# Other tools are let in


def test_env_lets_psql_psycopg2_boto3_pyiceberg_and_duckdb_in(
    embedded: Delivering, settings: Settings, tmp_path: Path
) -> None:
    place = {**own_settings(embedded), "SLUICE_HOME": str(settings.home), "SLUICE_JARS": str(settings.jars)}
    psql = "psql -At -c 'SELECT count(*), sum(id) FROM warehouse.events'"
    script = f'{LET_IN}; {psql}; python -c "$1" "$2"'
    done = Shell.at(tmp_path, **place).bash(script, READERS, embedded.table.location)
    assert done.code == 0, done.said
    counted, read = done.out.splitlines()
    assert counted == f"84|{sum(range(6, 90))}"
    found = json.loads(read)
    assert found["psycopg2"] == found["pyiceberg"] == found["duckdb"] == DELIVERED
    assert found["environment"].items() >= place.items()
    assert {*committed_paths(embedded)} <= {*found["boto3"]}


def test_env_keeps_names_and_passwords_with_quotes_whole(
    services: Services, role: str, lake: Lake, tmp_path: Path
) -> None:
    grant(services, role, tmp_path)
    migrate(role)
    events = delivered(services, role, lake, tmp_path / AWKWARD)
    place = own_settings(events) | services_elsewhere(events)
    script = f'{LET_IN}; python -c "$1" "$2"'
    done = Shell.at(tmp_path, **place).bash(script, READERS, events.table.location)
    assert done.code == 0, done.said
    found = json.loads(done.out)
    assert found["user"] == parse_dsn(role)["user"]
    assert found["psycopg2"] == found["pyiceberg"] == found["duckdb"] == DELIVERED
    assert found["environment"].items() >= place.items()


def test_env_hands_on_all_that_libpq_takes_from_the_environment(tmp_path: Path) -> None:
    dsn = (
        "service=mydb user=ann hostaddr=127.0.0.1 sslmode=verify-full sslrootcert=/x/ca sslcert=/x/crt sslkey=/x/key"
        " options='-c a=b' connect_timeout=3 target_session_attrs=read-write sslpassword=unsaid"
    )
    place = {"SLUICE_POSTGRES": dsn, "SLUICE_LAKE": "s3://none"}
    done = Shell.at(tmp_path, **place).sluice("env")
    assert (done.code, done.said) == (0, "")
    exports = (shlex.split(line)[1].split("=", 1) for line in done.out.splitlines())
    assert {name: value for name, value in exports if name.startswith("PG")} == {
        "PGSERVICE": "mydb",
        "PGUSER": "ann",
        "PGHOSTADDR": "127.0.0.1",
        "PGSSLMODE": "verify-full",
        "PGSSLROOTCERT": "/x/ca",
        "PGSSLCERT": "/x/crt",
        "PGSSLKEY": "/x/key",
        "PGOPTIONS": "-c a=b",
        "PGCONNECT_TIMEOUT": "3",
        "PGTARGETSESSIONATTRS": "read-write",
    }


def test_up_prints_names_as_they_are_and_no_password(tmp_path: Path) -> None:
    place = {"SLUICE_POSTGRES": "dbname=[bold]x password=unsaid", "SLUICE_LAKE": "s3://b/[/x]"}
    done = Shell.at(tmp_path).sluice("up", **place)
    assert (done.code, done.said) == (0, "")
    assert done.out.startswith("PostgreSQL  dbname=[bold]x\nS3          s3://b/[/x] at AWS\n")


# The doctor


def test_the_script_of_rights_lets_a_plain_role_migrate_and_deliver(
    services: Services, settings: Settings, role: str, lake: Lake, tmp_path: Path
) -> None:
    with pytest.raises(SetupError, match=r"(?s)permission denied.*doctor --rights"):
        migrate(role)
    shell = Shell.at(tmp_path, SLUICE_POSTGRES=role, SLUICE_JARS=str(settings.jars))
    examined = shell.sluice("doctor")
    assert examined.code == 2
    assert not (tmp_path / "home").exists(), "a look makes no home"
    assert "WARNING home: there is none" in examined.out
    assert "who may not create tables in sluice, sluice_stage, warehouse" in examined.out
    grant(services, role, tmp_path)
    assert migrate(role)
    events = delivered(services, role, lake, tmp_path / "home")
    report = audit(events.place, events.pipeline)
    assert report.clean, report.lines()
    assert report.rows["table"] == len(DELIVERED)


def test_the_doctor_finds_nothing_wrong_with_a_healthy_place(shell: Shell) -> None:
    done = shell.sluice("doctor")
    assert (done.code, done.said) == (0, "")
    assert {line.split()[0] for line in done.out.splitlines()} == {"ok", "WARNING"}
    looked_at = re.findall("^ok +([A-Za-z]+): ", done.out, re.MULTILINE)
    assert looked_at == [
        *("Python", "Java", "settings", "Spark", "locale", "disk", "rights", "pipelines", "suites"),
        *("services", "PostgreSQL", "clock", "lake", "memory"),
    ]  # fmt: skip


def test_the_doctor_warns_of_all_that_it_doubts(shell: Shell, tmp_path: Path) -> None:
    declared = tmp_path / "kept_up"
    declared.mkdir()
    for number in range(4):
        name = f"kept_up_{number}"
        text = DECLARATION.replace('name="events"', f'name="{name}", follow=True')
        (declared / f"{name}.py").write_text(text)
    config = tmp_path / "sluice.toml"
    config.touch()
    config.chmod(0o644)
    doubted = shell.sluice(
        "doctor",
        SLUICE_CONFIG=str(config),
        SLUICE_PIPELINES=str(declared),
        SLUICE_JARS=str(tmp_path),
        SLUICE_LAKE="s3://bucket/lake",
        AWS_ENDPOINT_URL_S3="http://192.0.2.1",
    )
    warned = re.findall("^WARNING ([a-z]+): ", doubted.out, re.MULTILINE)
    assert warned == ["home", "landing", "checkpoints", "start", "secrets", "encryption", "slots"], (
        doubted.out
    )


def test_a_clock_far_from_postgresqls_is_named(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"[0-9.]+ s from PostgreSQL's", machine.clock(dsn))
    monkeypatch.setattr(machine, "time", SimpleNamespace(time=lambda: time.time() + 100))
    with pytest.raises(SetupError, match=r"PostgreSQL's clock is -100 s from this machine's"):
        machine.clock(dsn)


def test_an_unreachable_postgres_is_one_finding_and_one_message(events: Delivering, shell: Shell) -> None:
    away = str(make_dsn(events.dsn, port=1, password="unsaid"))
    examined, status = shell.at_once("doctor", "status", SLUICE_POSTGRES=away)
    assert (examined.code, examined.said) == (2, "")
    wrong = [line for line in examined.out.splitlines() if line.startswith("WRONG")]
    assert [line.split(":")[:2] for line in wrong] == [["WRONG   PostgreSQL", " PostgreSQL can't be reached"]]
    assert (status.code, status.out) == (75, "")
    assert status.said.startswith("sluice: PostgreSQL can't be reached: ")
    assert len(status.said.splitlines()) == 2, "libpq's own lines and tabs are put on one"
    for text in (examined.out, status.said):
        assert len(re.findall("^  next: .*SLUICE_POSTGRES", text, re.MULTILINE)) == 1
        assert "Traceback" not in text
        assert "unsaid" not in text


def test_a_password_for_another_server_is_told_before_the_embedded_one_refuses_it(
    settings: Settings, tmp_path: Path
) -> None:
    place = {"SLUICE_HOME": str(settings.home), "SLUICE_JARS": str(settings.jars)}
    done = Shell.at(tmp_path, **place).sluice("status", PGPASSWORD="another's")
    assert (done.code, done.out) == (2, "")
    assert "unset PGPASSWORD" in done.said
    assert "another's" not in done.said


# Reports


def test_a_pipeline_that_stays_up_is_not_triggered_and_waited_for(shell: Shell) -> None:
    declared = Path(shell.environment["SLUICE_PIPELINES"], "events.py")
    declared.write_text(DECLARATION.replace("sink=", "follow=True,\n    sink="))
    done = shell.sluice("trigger", "events")
    assert (done.code, done.out) == (2, "")
    assert "  next: `sluice airflow dags unpause events` keeps one up; `sluice status events`" in done.said


@pytest.mark.parametrize("command", ["trigger events", "airflow dags list", "airflow --detach"])
def test_beside_the_processes_of_another_airflow_no_second_one_is_advised_or_started(
    shell: Shell, command: str
) -> None:
    theirs = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql+psycopg2://127.0.0.1:1/airflow",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": "http://airflow-api-server:8080/execution/",
    }
    done = shell.sluice(*command.split(), **theirs)
    assert (done.code, done.out) == (2, "")
    assert "this machine's Airflow is not Sluice's own: AIRFLOW__CORE__EXECUTION_API_SERVER_URL" in done.said
    assert "`airflow dags trigger NAME`" in done.said
    assert "sluice airflow --detach" not in done.said


def test_the_reports_of_a_clean_place(events: Delivering, shell: Shell) -> None:
    commands = ("status", "status --json", "files events --json", "audit events")
    ended_well = [shell.forked(*command.split()) for command in commands]
    assert [(done.code, done.said) for done in ended_well] == [(0, "")] * len(commands)
    table, states, files, audited = (done.out for done in ended_well)
    assert ["events", "2", "84", "6"] in [line.split()[:4] for line in table.splitlines()]
    assert "events: idle; next: sluice run events\ndelivers to warehouse.events\n" in table
    (state,) = json.loads(states)
    counted = {"deliveries": 2, "delivered": 84, "quarantined": 6}
    standing = {"stream": events.session.stream_id, "state": "idle", "next": "sluice run events"}
    assert state.items() >= (counted | standing).items()
    found = json.loads(files)
    assert {*found} == {"pipeline", "snapshot_id", "files"}
    assert [one["path"] for one in found["files"]] == committed_paths(events)
    assert sum(one["rows"] for one in found["files"]) == len(DELIVERED)
    assert audited.startswith("events: clean: both sinks hold what was delivered\n")


def test_deliveries_are_listed_newest_first_with_what_replaced_them(events: Delivering, shell: Shell) -> None:
    first, second = (
        number for (number,) in events.execute("SELECT delivery_id FROM sluice.delivery ORDER BY commit_seq")
    )
    events.execute("UPDATE sluice.quarantine SET status = 'discarded' WHERE quarantine_id = 1")
    listed = shell.forked("deliveries", "events")
    cells = [line.split() for line in listed.out.splitlines()[2:]]
    assert [(*line[:5], line[-2:]) for line in cells] == [
        (str(second), "stream", "1", "30", "0", ["in", "force"]),
        (str(first), "stream", "0", "54", "6", ["in", "force"]),
    ]
    events.execute("UPDATE sluice.delivery SET records = 1186 WHERE delivery_id = %s", second)
    with_records = shell.forked("deliveries", "events").out.splitlines()
    assert "records" not in listed.out
    assert [line.split()[2:6] for line in (with_records[0], *with_records[2:])] == [
        ["batch", "records", "delivered", "held"],
        ["1", "1,186", "30", "0"],
        ["0", "-", "54", "6"],
    ]
    assert max(map(len, with_records)) <= 80
    events.execute("UPDATE sluice.delivery SET records = NULL WHERE delivery_id = %s", second)
    newest = shell.forked("deliveries", "events", "--last", "1").out.splitlines()
    assert newest[-1] == "1 earlier delivery: `sluice deliveries events --last 2`"
    assert len(newest) == 4
    supersede = "UPDATE sluice.delivery SET live = false, superseded_by = %s WHERE delivery_id = %s"
    events.execute(supersede, second, first)
    for kind, how in (("replay", "replaced"), ("withdrawal", "withdrawn")):
        rows_in = ", rows_in = 0, delivered = 0" if kind == "withdrawal" else ""
        events.execute(f"UPDATE sluice.delivery SET kind = %s{rows_in} WHERE delivery_id = %s", kind, second)
        told = shell.forked("deliveries", "events").out
        assert f"{kind} of {first} " in told
        assert f" {how} by {second}\n" in told
    found = json.loads(shell.forked("deliveries", "events", "--json").out)
    assert [(one["delivery_id"], one["held"], one["superseded_by"], one["replaced"]) for one in found] == [
        (second, 0, None, [first]),
        (first, 5, second, []),
    ]
    unknown = shell.forked("deliveries", "evnts")
    assert (unknown.code, "No pipeline is called 'evnts'" in unknown.said) == (2, True)
    Path(shell.environment["SLUICE_PIPELINES"], "events.py").unlink()
    assert shell.forked("deliveries", "events").out == told, "also of one that is declared no more"


def test_what_is_to_be_replayed_and_never_was_is_refused(events: Delivering, shell: Shell) -> None:
    stranger = "7b0c1c9e-6f44-4a70-9c93-3f6d1a0a5d11"
    for named in (("--batches", "90..91"), ("--run", stranger), ("--deliveries", "90")):
        done = shell.forked("replay", "events", *named, "--plan")
        assert (done.code, "Pipeline events has none of " in done.said) == (2, True), done
        assert "`sluice deliveries events` lists its last deliveries" in done.said
    [(run,)] = events.execute("SELECT DISTINCT run_id::text FROM sluice.delivery WHERE batch_id = 1")
    assert plan(events.place, events.pipeline, Selection(runs=(run,))).numbers == [1, 2]


def test_rows_that_are_chosen_are_counted_alone(events: Delivering, shell: Shell) -> None:
    [every] = json.loads(shell.forked("quarantine", "list", "events", "--json").out)["reasons"]
    chosen = json.loads(shell.forked("quarantine", "list", "events", "--id", "1", "--id", "2", "--json").out)
    assert (every["rows"], [one["rows"] for one in chosen["reasons"]]) == (6, [2])
    none = shell.forked("quarantine", "list", "events", "--delivery", "90")
    assert none.out == "events: no such row\n"


def test_consumers_are_listed_with_their_lag_put_elsewhere_and_forgotten(
    events: Delivering, shell: Shell
) -> None:
    assert "no consumer; etl.changes" in shell.forked("consumers").out
    first, second = (
        str(number)
        for (number,) in events.execute("SELECT delivery_id FROM sluice.delivery ORDER BY commit_seq")
    )
    made = shell.forked("consumers", "events", "delays", "--after", first)
    heading, _, line = made.out.splitlines()
    assert " ".join(heading.split()) == "pipeline consumer has read newest deliveries rows behind moved"
    assert line.split()[:6] == ["events", "delays", first, second, "1", "30"]
    [found] = json.loads(shell.forked("consumers", "--json").out)
    named = ("pipeline", "consumer", "deliveries", "rows", "limit_seconds", "late")
    assert tuple(found[name] for name in named) == ("events", "delays", 1, 30, None, False)
    events.execute("UPDATE sluice.delivery SET committed_at = now() - interval '5 hours'")
    events.execute("UPDATE sluice.pipeline SET consumer_lag_limit = interval '2 hours'")
    assert shell.forked("consumers").out.splitlines()[-1] == "events: delays is 5 h behind, more than 2 h"
    put = shell.forked("consumers", "events", "delays", "--after", "newest", "--json")
    assert json.loads(put.out)[0]["deliveries"] == 0
    for words, told in {
        ("events", "--after", "1"): "Whose place is meant?",
        ("events", "delays", "--after", "1", "--forget"): "either --after or --forget",
        ("events", "delays", "--after", "99"): "has no delivery 99",
        ("events", "delay", "--forget"): "did you mean delays?",
        ("events", "", "--after", "start"): "is no name of a consumer",
        ("evnts",): "No pipeline is called 'evnts'",
    }.items():
        refused = shell.forked("consumers", *words)
        assert (refused.code, told in refused.said) == (2, True), refused.said
    assert shell.forked("consumers", "events", "delays", "--forget").code == 0
    assert "no consumer; etl.changes" in shell.forked("consumers", "events").out


def test_what_a_pipelines_file_or_a_library_prints_is_no_part_of_a_result(
    events: Delivering, shell: Shell
) -> None:
    noise = 'import os\nprint("a banner")\nos.write(1, b"a library\\n")\nos.system("echo a child")\n'
    (events.place.settings.home / "pipelines" / "noisy.py").write_text(
        noise + DECLARATION.replace('name="events"', 'name="noisy"')
    )
    loading = ("status --json", "audit events --json", "files events --json", "columns events --json")
    known = (
        "quarantine list events --json",
        "quarantine show events 1 --json",
    )  # on record: no file is loaded
    for command in (*loading, *known):
        done = shell.forked(*command.split())
        assert done.code == 0, done
        assert isinstance(json.loads(done.out), dict | list), command
        for said in ("a banner", "a library", "a child"):
            assert (said in done.said) == (command in loading), command
    paths = shell.forked("files", "events")
    assert paths.out.splitlines() == committed_paths(events)
    rows = shell.forked("quarantine", "export", "events").out.splitlines()
    assert [json.loads(row)["quarantine_id"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert "a banner" in shell.forked("audit", "events").out, "what is for people may be mixed"


def test_what_is_wrong_with_a_held_record_is_told_beside_its_reasons(
    events: Delivering, shell: Shell
) -> None:
    events.execute("UPDATE sluice.quarantine SET detail = 'at: no timestamp' WHERE quarantine_id = 2")
    assert "\ndetail       at: no timestamp\n" in shell.forked("quarantine", "show", "events", "2").out
    listed, exported = (
        shell.forked("quarantine", word, "events", "--id", "2").out for word in ("list", "export")
    )
    assert "rule: at: no" in listed  # it goes on in the next line
    assert json.loads(exported)["detail"] == "at: no timestamp"


def test_what_is_held_of_a_pipeline_that_is_declared_no_more_can_be_seen_and_discarded_and_its_run_stopped(
    shell: Shell,
) -> None:
    given = shell.forked("publish", "events", "--as", "reports.events")
    assert given.code == 0, given.said
    Path(shell.environment["SLUICE_PIPELINES"], "events.py").unlink()
    assert shell.forked("publish", "events", "--as", "reports.events", "--withdraw").code == 0
    assert [
        json.loads(row)["quarantine_id"]
        for row in shell.forked("quarantine", "export", "events").out.splitlines()
    ] == [1, 2, 3, 4, 5, 6]
    done = shell.forked("quarantine", "discard", "events", "--all", "--why", "moved")
    assert (done.code, shell.forked("quarantine", "export", "events").out) == (0, "")
    stopped = shell.forked("stop", "events")
    assert (stopped.code, stopped.out) == (0, "events: nothing runs\n"), stopped.said
    for command in (("quarantine", "list"), ("stop",)):
        unknown = shell.forked(*command, "evnts")
        assert (unknown.code, "evnts" in unknown.said) == (2, True)


def test_a_name_for_readers_is_given_and_withdrawn(shell: Shell) -> None:
    name = "reports.events"
    for command, printed in (
        (("publish", "events", "--as", name), f"{name}: readers of both sinks see the rows of events\n"),
        (
            ("publish", "events", "--as", name, "--withdraw"),
            f"{name}: no longer there; the rows of events stay where they are\n",
        ),
    ):
        done = shell.forked(*command)
        assert (done.code, done.out) == (0, printed)
    done = shell.forked("publish", "events", "--as", "events")
    assert (done.code, done.out) == (2, "")
    assert "'events' can't be published\n  next: name it schema.name, such as reports.departures" in done.said


def test_audit_names_the_delivery_whose_row_was_changed_by_hand(events: Delivering, shell: Shell) -> None:
    events.execute("UPDATE {t} SET text = 'changed' WHERE id = 60")
    done = shell.forked("audit", "events")
    assert (done.code, done.said) == (1, "")
    assert done.out.startswith("events: NOT clean\n")
    assert re.findall(r"delivery (\d+) \(stream .*: 30 rows everywhere, but values differ", done.out) == ["2"]


# What a person got wrong


def test_a_home_that_cannot_be_made_and_a_port_in_use_are_told_in_two_lines(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        shell = Shell.at(tmp_path, SLUICE_JARS=str(settings.jars))
        refused = {
            "can't be made": shell.start("sluice", "up", SLUICE_HOME=str(tmp_path / "file" / "home")),
            f"port {port} on 127.0.0.1, wanted for s3, is in use": shell.start(
                "sluice", "up", SLUICE_HOME=str(tmp_path / "home"), SLUICE_S3_PORT=port
            ),
        }
        for seen, process in refused.items():
            done = ended(process)
            assert (done.code, done.out) == (2, "")
            assert re.fullmatch(f"sluice: .*{re.escape(seen)}.*\n  next: .*\n", done.said), done.said


@pytest.mark.parametrize(
    ("command", "setting", "seen"),
    [
        ("files", {}, "Missing argument 'PIPELINE'"),
        ("down", {"SLUICE_HOEM": "elsewhere"}, "did you mean SLUICE_HOME?"),
    ],
)
def test_a_wrong_word_is_told_without_a_traceback(
    tmp_path: Path, command: str, setting: dict[str, str], seen: str
) -> None:
    done = Shell.at(tmp_path).sluice(command, **setting)
    assert (done.code, done.out) == (2, "")
    assert seen in done.said
    assert "Traceback" not in done.said


# A command is stopped


def await_condition(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait until `condition` holds, while the process goes on."""
    while not condition():
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_command_that_waits_for_another(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with (home / "services.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = Shell.at(tmp_path).start("sluice", "down", SLUICE_HOME=str(home))
        opened = psutil.Process(process.pid).open_files
        await_condition(lambda: lock.name in {file.path for file in opened()}, process)
        process.send_signal(number)
        done = ended(process)
    assert (done.code, done.out) == (code, "")
    assert (
        done.said
        == f"sluice: stopped by {number.name}; what it had done stays; the same command does the rest\n"
    )


def test_an_audit_that_is_stopped_gives_no_verdict(events: Delivering, shell: Shell) -> None:
    waiting = "SELECT 1 FROM pg_locks WHERE relation = 'warehouse.events'::regclass AND NOT granted"
    with ExitStack() as held:
        held.enter_context(transaction(events.dsn)).execute("LOCK TABLE warehouse.events")
        process = shell.start("sluice", "audit", "events")
        await_condition(lambda: oracle.ask(events.dsn, waiting), process)
        process.send_signal(signal.SIGTERM)
        held.close()  # what waits in PostgreSQL is not woken by a signal
        done = ended(process)
    assert (done.code, done.out) == (143, "")
    assert done.said == "sluice: stopped by SIGTERM; nothing was changed; the same command starts again\n"
