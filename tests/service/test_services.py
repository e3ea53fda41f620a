from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import boto3
import psutil
import psycopg2
import pyarrow.fs
import pytest
from botocore.exceptions import ClientError

from etl import services as embedded
from etl.common.errors import ServiceAway, SetupError
from etl.common.settings import Settings
from etl.services import Services, postgres, s3
from etl.services.postgres import cluster
from etl.services.process import choose_port, make_folder
from etl.spark.launch import jvm_log
from tests.support.processes import answers

pytestmark = pytest.mark.long


@pytest.fixture
def own(settings: Settings) -> Iterator[Settings]:
    """Services of one test alone, not started yet, in a folder that any system user may pass through."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-"))
    folder.chmod(0o711)
    found = Settings(home=folder / "home", jars=settings.jars)
    yield found
    embedded.down(found)
    shutil.rmtree(folder)


def processes_of(settings: Settings) -> list[str]:
    found = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [line for line in found if str(settings.home) in line]


def test_data_outlives_down_and_down_leaves_no_process(own: Settings) -> None:
    first = embedded.up(own)
    with psycopg2.connect(first.postgres) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept AS SELECT 1 AS a")
    connection.close()
    assert set(embedded.down(own)) == {"postgres", "s3"}
    assert processes_of(own) == []
    assert embedded.down(own) == ()
    again = embedded.up(own)
    assert again == first
    with psycopg2.connect(again.postgres) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT a FROM kept")
        assert cursor.fetchall() == [(1,)]
    connection.close()


def test_two_ups_at_once_start_one_of_each(own: Settings) -> None:
    program = "from etl.services import up; from etl.common.settings import Settings; print(up(Settings()).postgres)"
    environment = os.environ | {"SLUICE_HOME": str(own.home), "SLUICE_JARS": str(own.jars)}
    both = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0] == outputs[1] != ""
    assert len([line for line in processes_of(own) if "org.gaul.s3proxy.Main" in line]) == 1


def test_killed_services_are_started_again_despite_their_stale_notes(own: Settings) -> None:
    first = embedded.up(own)
    pid = int((cluster(own.home, 0).data / "postmaster.pid").read_text().splitlines()[0])
    postmaster = psutil.Process(pid)
    family = [postmaster, *postmaster.children(recursive=True)]
    commands = ((process, process.info["cmdline"]) for process in psutil.process_iter(["cmdline"]))
    family += [process for process, words in commands if str(own.home / "s3") in " ".join(words or ())]
    answers(family, psutil.Process.kill)  # a background worker may have ended by itself
    psutil.wait_procs(family, timeout=30)
    assert all(state.port is None for state in embedded.status(own))
    assert embedded.up(own) == first


@pytest.mark.parametrize("service", ["postgres", "s3"])
def test_a_port_in_use_is_one_clear_error(own: Settings, service: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        wanting = Settings.model_validate(own.model_dump() | {f"{service}_port": port})
        with pytest.raises(SetupError, match=f"port {port} on 127.0.0.1, wanted for {service}, is in use"):
            embedded.up(wanting)
        assert processes_of(own) == [], "what it had started before"


def test_a_failed_up_leaves_running_what_ran_before(own: Settings) -> None:
    store = embedded.up(own).s3_endpoint
    assert postgres.stop(cluster(own.home, 0))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanting = Settings.model_validate(own.model_dump() | {"postgres_port": taken.getsockname()[1]})
        with pytest.raises(SetupError, match="is in use"):
            embedded.up(wanting)
    running = {state.service: state.port for state in embedded.status(own)}
    assert running["postgres"] is None
    assert str(store).endswith(f":{running['s3']}")


def test_a_port_that_the_user_may_not_open_is_not_called_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(socket.socket):
        def bind(self, _address: object, /) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(SetupError, match=r"port 80 on .* may not be opened by this user: Perm") as caught:
        choose_port("airflow", 80, tmp_path / "port")
    assert "SLUICE_AIRFLOW_PORT to one from 1024 on" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"5\n4", b"\xff", b"-1", b"70000"])
def test_a_remembered_port_that_is_none_is_forgotten(tmp_path: Path, content: bytes) -> None:
    memory = tmp_path / "s3.port"
    memory.write_bytes(content)
    port = choose_port("s3", 0, memory)
    assert int(memory.read_text()) == port
    assert choose_port("s3", 0, memory) == port


@pytest.mark.parametrize("content", [b"", b"[default]\naws_access_key_id = SLU", b"[defa", b"\xff"])
def test_credentials_that_were_cut_short_are_one_clear_error(own: Settings, content: bytes) -> None:
    file = own.home / "credentials" / "aws"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    with pytest.raises(SetupError, match=f"{file} does not have the credentials") as caught:
        embedded.up(own)
    assert "remove that file" in str(caught.value)


def test_what_the_s3_server_logged_is_told_where_java_itself_said_nothing(own: Settings) -> None:
    (own.home / "s3").mkdir(parents=True)
    server = s3.S3(home=own.home, jars=own.jars, port=0, region="x")
    (server.folder / "java.log").touch()
    server.log.write_text("a\nWARN what it logged\n")
    assert s3._last_words(server) == "a | WARN what it logged"
    (server.folder / "java.log").write_text("Error: what Java said\n")
    assert s3._last_words(server) == "Error: what Java said"


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="can't be made: Not a directory"):
        embedded.up(Settings(home=tmp_path / "file" / "home", jars=settings.jars))


def test_keys_in_the_environment_are_not_used_by_mistake(
    own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAFOREIGN")
    with pytest.raises(SetupError, match="AWS_ACCESS_KEY_ID is set"):
        embedded.up(own)


def test_a_proxy_of_the_environment_is_not_asked_for_the_embedded_s3(
    own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "example.org")
    monkeypatch.delenv("NO_PROXY", raising=False)
    for name, value in embedded.up(own).environment.items():
        monkeypatch.setenv(name, value)
    client = boto3.Session().client("s3")  # the default session may remember another server's keys
    assert [bucket["Name"] for bucket in client.list_buckets()["Buckets"]] == ["sluice"]
    assert os.environ["no_proxy"] == "example.org,127.0.0.1,localhost"


def test_what_is_made_below_the_home_is_the_users_alone(own: Settings) -> None:
    umask = os.umask(0o022)
    try:
        embedded.up(own)
        with jvm_log.opened(make_folder(own.home / "logs")) as log:
            assert stat.S_IMODE(os.fstat(log.fileno()).st_mode) == 0o600
    finally:
        os.umask(umask)
    # under root the group is that of the server's system user, who passes through
    assert stat.S_IMODE(own.home.stat().st_mode) == (0o710 if cluster(own.home, 1).user else 0o700)
    assert not (own.home / "postgres").is_symlink()
    for name in ("logs", "postgres", "s3"):
        assert stat.S_IMODE((own.home / name).stat().st_mode) == 0o700


def test_a_missing_or_old_java_is_one_clear_error(
    own: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="no java in JAVA_HOME"):
        embedded.up(own)
    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(SetupError, match="is Java 8, too old"):
        embedded.up(own)


def test_a_home_closed_to_the_system_user_is_remembered_elsewhere(settings: Settings) -> None:
    # under root the server can't enter such a folder; for an ordinary user nothing is special about it
    folder = Path(tempfile.mkdtemp(prefix="sluice-"))
    found = Settings(home=folder / "home", jars=settings.jars)
    try:
        assert embedded.up(found) == embedded.up(found)
        assert (found.home / "postgres" / "data" / "PG_VERSION").is_file()
    finally:
        embedded.down(found)
        shutil.rmtree(cluster(found.home, 0).folder)
        shutil.rmtree(folder)


def test_programs_that_the_system_user_can_not_enter_are_copied_with_their_libraries(
    own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, shared = cluster(own.home, 1), own.home.parent / "shared"
    server.folder.mkdir(parents=True)
    with monkeypatch.context() as closed:
        closed.setattr(postgres, "SHARED", shared)
        closed.setattr(postgres, "_may_use", lambda _, path: False)
        programs = postgres._binaries(server)
    assert programs.is_relative_to(shared)
    for program in ("initdb", "pg_ctl", "postgres"):
        told = postgres._as_user(server, [programs / program, "--version"])
        assert (told.returncode, told.stdout.split()[-1].split(".")[0]) == (0, "18"), told.stdout


@pytest.mark.parametrize(
    "name",
    ["long" * 25, "Ann's \\n données 数据 𝒳", '"own", $HOME `it` \\n &'],
    ids=["long", "letters", "signs"],
)
def test_a_path_that_a_server_can_not_take_as_it_is(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    folder = Path(tempfile.mkdtemp(prefix="sluice-"))
    folder.chmod(0o711)
    found = Settings(home=folder / name / "home", jars=settings.jars)
    try:
        embedded.up(found)
        server = s3.S3(home=found.home, jars=found.jars, port=0, region=found.s3_region)
        store = s3.client(server, s3.running(server) or 0)
        store.put_object(Bucket="sluice", Key="données", Body=b"here")
        assert (found.home / "s3" / "data" / "sluice" / "données").read_bytes() == b"here"
        assert all(state.port for state in embedded.status(found))
        with closing(psycopg2.connect(embedded.find_postgres(found))) as connection:
            assert connection.info.dbname == "sluice"
    finally:
        embedded.down(found)
        shutil.rmtree(folder)


def test_a_server_that_takes_no_connections_yet_is_waited_for_but_not_for_ever(
    own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.up(own)
    server = cluster(own.home, 0)
    port = postgres.running(server)
    assert port is not None
    embedded.down(own)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(postgres._wait_until_open, server, port)
        embedded.up(own)
        with closing(waiting.result()) as connection:
            assert connection.info.user == "postgres"
    embedded.down(own)
    monkeypatch.setattr(postgres, "RECOVERY_SECONDS", 0)
    with pytest.raises(ServiceAway, match="took no connection for 0 s") as away:
        postgres._wait_until_open(server, port)
    assert "remove" not in away.value.remedy


def test_postgres_wants_the_password_and_secrets_are_closed_to_others(
    settings: Settings, services: Services
) -> None:
    port = embedded.status(settings)[0].port
    for password in ("", "wrong"):
        with pytest.raises(psycopg2.OperationalError, match="password"):
            psycopg2.connect(
                host="127.0.0.1",
                port=port,
                user="sluice",
                dbname="sluice",
                password=password,
                passfile=os.devnull,
            )
    kept = list((settings.home / "credentials").iterdir())
    assert len(kept) == 2
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in kept)
    secrets = [word for file in kept for word in file.read_text().replace("=", ":").split() if len(word) > 28]
    lines = processes_of(settings)
    assert secrets
    assert not [word for word in secrets if any(word.rsplit(":", 1)[-1] in line for line in lines)]


def test_the_role_is_no_superuser_and_the_server_is_18(services: Services) -> None:
    with psycopg2.connect(services.postgres) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT rolsuper, current_setting('server_version_num')::int FROM pg_roles WHERE rolname = user"
        )
        superuser, version = cursor.fetchone() or (None, 0)
    connection.close()
    assert superuser is False
    assert version >= 180000


def test_s3_refuses_the_unsigned_and_the_wrongly_signed(services: Services) -> None:
    from botocore import UNSIGNED
    from botocore.config import Config

    for client in (
        boto3.Session().client("s3", aws_access_key_id="x", aws_secret_access_key="y"),
        boto3.Session().client("s3", config=Config(signature_version=UNSIGNED)),
    ):
        with pytest.raises(ClientError) as caught:
            client.list_buckets()
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_pyarrow_writes_20_mb_in_parts_and_reads_them_back(services: Services, lake_uri: str) -> None:
    store = pyarrow.fs.S3FileSystem(
        endpoint_override=services.s3_endpoint, region=services.s3_region, force_virtual_addressing=False
    )
    content = os.urandom(1 << 20) * 20
    path = f"{lake_uri.removeprefix('s3://')}/large"
    with store.open_output_stream(path) as stream:
        for start in range(0, len(content), 1 << 20):
            stream.write(content[start : start + (1 << 20)])
    with store.open_input_stream(path) as stream:
        assert stream.read() == content


def test_the_first_conditional_put_wins(services: Services, lake_uri: str) -> None:
    client = boto3.Session().client("s3")
    bucket, _, prefix = lake_uri.removeprefix("s3://").partition("/")
    client.put_object(Bucket=bucket, Key=f"{prefix}/once", Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError) as caught:
        client.put_object(Bucket=bucket, Key=f"{prefix}/once", Body=b"second", IfNoneMatch="*")
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
    assert client.get_object(Bucket=bucket, Key=f"{prefix}/once")["Body"].read() == b"first"


def test_an_unfinished_upload_is_listed_and_can_be_aborted(services: Services, lake_uri: str) -> None:
    client = boto3.Session().client("s3")
    bucket, _, prefix = lake_uri.removeprefix("s3://").partition("/")
    upload = client.create_multipart_upload(Bucket=bucket, Key=f"{prefix}/never")["UploadId"]
    client.upload_part(
        Bucket=bucket, Key=f"{prefix}/never", UploadId=upload, PartNumber=1, Body=b"x" * (5 << 20)
    )
    listed = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    assert [item["UploadId"] for item in listed if item["Key"] == f"{prefix}/never"] == [upload]
    client.abort_multipart_upload(Bucket=bucket, Key=f"{prefix}/never", UploadId=upload)
    assert f"{prefix}/never" not in [
        i["Key"] for i in client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    ]


def test_jars_that_cannot_be_had_are_one_clear_error_and_leave_no_half_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "http://127.0.0.1:1/")
    with pytest.raises(SetupError, match="40 of the 40 jars of spark are missing"):
        embedded.jars(embedded.JarSet.SPARK, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"spark-resolve.log", "services.lock"}


def test_jars_of_another_spark_are_not_taken(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what an update leaves; those of this one take their place once they are there."""
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "http://127.0.0.1:1/")
    mine = embedded.jars(embedded.JarSet.SPARK, settings.jars)
    before = Path(shutil.copytree(mine.absolute(), tmp_path / "spark", copy_function=os.symlink))
    assert embedded.jars(embedded.JarSet.SPARK, tmp_path) == before
    first = min(before.iterdir())
    first.rename(first.with_name("org.apache.hadoop_hadoop-aws-3.3.4.jar"))
    with pytest.raises(SetupError, match="40 of the 40 jars of spark are missing"):
        embedded.jars(embedded.JarSet.SPARK, tmp_path)
    assert len([*before.iterdir()]) == 40
