"""The embedded S3 server (S3Proxy on a local folder): answers only on 127.0.0.1 and only to signed requests.

Data stays between commands. It is safe against a killed process, not against lost power.
"""

from __future__ import annotations

import configparser
import os
import secrets
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from etl.common.errors import ServiceAway, SetupError
from etl.services.jarsets import SMALL_SERVER, JarSet, jars, java
from etl.services.java_properties import java_property
from etl.services.process import (
    HOST,
    by_no_proxy,
    choose_port,
    have_ended,
    listens,
    lives,
    make_folder,
    recall,
    remember,
    tail,
    tell,
    write_secret,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BUCKET = "sluice"
MAIN = "org.gaul.s3proxy.Main"
KEY_VARIABLE = "AWS_ACCESS_KEY_ID"
READY_WITHIN = 60  # seconds
PROPERTIES = """\
s3proxy.endpoint=http://{host}:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={key}
s3proxy.credential={secret}
s3proxy.ignore-unknown-headers=true
jclouds.provider=filesystem-nio2
jclouds.identity=local
jclouds.credential=local
jclouds.filesystem.basedir={data}
"""
LOGBACK = """\
<configuration>
  <appender name="LOG" class="ch.qos.logback.core.FileAppender">
    <file>{log}</file>
    <encoder><pattern>%d %-5level %logger{{20}} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="LOG"/></root>
</configuration>
"""


@dataclass(frozen=True, kw_only=True)
class S3:
    """Where one server keeps its data and how it is reached."""

    home: Path  # <home> of the settings
    jars: Path  # folder of the jar sets
    port: int  # as wanted by the settings; 0: choose and remember
    region: str

    @property
    def folder(self) -> Path:
        return self.home / "s3"

    @property
    def note(self) -> Path:
        return self.folder / "process.json"

    @property
    def log(self) -> Path:
        return self.folder / "s3proxy.log"

    @property
    def credentials(self) -> Path:
        """Return the path of the AWS shared-credentials file, whose mode is 0600."""
        return self.home / "credentials" / "aws"

    @property
    def lake(self) -> str:
        return f"s3://{BUCKET}"

    def environment(self, port: int) -> dict[str, str]:
        """Return the variables that let the standard AWS chain in; none of them holds a secret."""
        return {
            "AWS_SHARED_CREDENTIALS_FILE": str(self.credentials),
            "AWS_PROFILE": "default",
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,  # the name that boto3 reads
            "AWS_ENDPOINT_URL_S3": endpoint(port),
            **by_no_proxy(),
        }


def endpoint(port: int) -> str:
    return f"http://{HOST}:{port}"


def start(server: S3) -> int:
    """Start the server unless it runs, make its bucket, and return its port."""
    _check_chain(server)
    recalled = recall(server.note)
    if recalled is not None:
        process, port = recalled
        if server.port not in (0, port):
            raise SetupError(
                f"the embedded S3 server runs on port {port}, the settings want {server.port}",
                remedy="`sluice down`, then run the same command again",
            )
        # To ask it with a client takes a tenth of a second. Whoever started it may have been killed before it was ready.
        if not (listens(port) and (server.folder / "data" / BUCKET).is_dir()):
            _wait_until_ready(server, process, port)
        return port
    return _launch(server)


def stop(server: S3) -> bool:
    """Stop the server; return False when it did not run. Raises ServiceAway where it does not end."""
    recalled = recall(server.note)
    if recalled is None:
        return False
    process, _ = recalled
    tell(process, signal.SIGTERM)
    if not have_ended([process], within=20):
        # it keeps nothing in memory that a client was promised
        tell(process, signal.SIGKILL)
        if not have_ended([process], within=20):
            raise ServiceAway(
                f"the embedded S3 server (pid {process.pid}) does not end; its log is {server.log}",
                remedy="sluice down again",
            )
    server.note.unlink(missing_ok=True)
    return True


def running(server: S3) -> int | None:
    recalled = recall(server.note)
    return recalled[1] if recalled else None


def _check_chain(server: S3) -> None:
    """Raise SetupError for keys in the environment: the AWS chain prefers them to the credentials file."""
    make_folder(server.home)
    foreign = os.environ.get(KEY_VARIABLE)
    if foreign and foreign != _credentials(server)[0]:
        raise SetupError(
            f"{KEY_VARIABLE} is set, and would win over the credentials of the embedded S3 server",
            remedy=f"unset {KEY_VARIABLE} AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN, or name your own bucket in"
            " SLUICE_LAKE",
        )


def _launch(server: S3) -> int:
    from xml.sax.saxutils import escape  # with all of urllib

    binary = java()
    classes = jars(JarSet.S3PROXY, server.jars)
    make_folder(server.folder, 0o700)
    data = make_folder(server.folder / "data", 0o700)
    key, secret = _credentials(server)
    port = choose_port("s3", server.port, server.home / "s3.port")
    properties, logback = server.folder / "s3proxy.properties", server.folder / "logback.xml"
    text = PROPERTIES.format(host=HOST, port=port, key=key, secret=secret, data=java_property(data))
    write_secret(properties, text)
    logback.write_text(LOGBACK.format(log=escape(str(server.log))), encoding="utf-8")
    options = (*SMALL_SERVER, f"-Dlogback.configurationFile={logback}")
    with (server.folder / "java.log").open("w") as output:
        child = subprocess.Popen(
            [str(binary), *options, "-cp", f"{classes}/*", MAIN, "--properties", str(properties)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=server.folder,
            env=os.environ | {"LC_ALL": "C.UTF-8"},  # by which Java reads and writes the names of files
            start_new_session=True,
        )
    child.returncode = 0  # it outlives this command: no warning when the handle is dropped
    process = psutil.Process(child.pid)
    remember(server.note, process, port)
    try:
        _wait_until_ready(server, process, port)
    except BaseException:
        # not left behind half started; also when the wait was interrupted
        stop(server)
        raise
    return port


def _credentials(server: S3) -> tuple[str, str]:
    """Return the key and secret, which are made on the first start and kept."""
    if not server.credentials.is_file():
        key, secret = f"SLUICE{secrets.token_hex(7).upper()}", secrets.token_urlsafe(30)
        make_folder(server.credentials.parent, 0o700)
        text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
        write_secret(server.credentials, text)
        return key, secret
    return _read_credentials(server.credentials)


def _read_credentials(credentials: Path) -> tuple[str, str]:
    """Read the key and secret from the file. Raises SetupError where one of them is missing."""
    file = configparser.ConfigParser(interpolation=None)
    try:
        file.read(credentials, encoding="utf-8")
        key_and_secret = file["default"]["aws_access_key_id"], file["default"]["aws_secret_access_key"]
    except (configparser.Error, UnicodeDecodeError, KeyError):
        key_and_secret = ("", "")
    if not all(key_and_secret):
        raise SetupError(
            f"{credentials} does not have the credentials of the embedded S3 server, or not all of them",
            remedy="`sluice down`, remove that file, then run the same command again: it creates new ones",
        )
    return key_and_secret


def client(server: S3, port: int) -> S3Client:
    """Make a client of this very server, whatever the process's own AWS settings are."""
    import boto3
    from botocore.config import Config

    key, secret = _credentials(server)
    session = boto3.Session(aws_access_key_id=key, aws_secret_access_key=secret, region_name=server.region)
    config = Config(
        connect_timeout=2,
        read_timeout=30,
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path"},
        proxies={},
    )
    return session.client("s3", endpoint_url=endpoint(port), config=config)


def _last_words(server: S3) -> str:
    """Return the last lines that Java itself said; if there are none, those of the server's log."""
    java_log = server.folder / "java.log"
    return tail(java_log if java_log.stat().st_size else server.log)


def _wait_until_ready(server: S3, process: psutil.Process, port: int) -> None:
    """Wait until a signed request was answered, then make the bucket if it is not there.

    Raises SetupError where the server refuses our credentials or did not start, ServiceAway after
    READY_WITHIN seconds.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    s3 = client(server, port)
    deadline = time.monotonic() + READY_WITHIN
    while True:
        try:
            buckets = {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}
            break
        except ClientError as error:
            raise SetupError(
                f"the server on {endpoint(port)} refused the embedded S3's own credentials: {error}",
                remedy="`sluice down`, then run the same command again",
            ) from error
        except BotoCoreError as error:
            if not lives(process):
                raise SetupError(
                    f"the embedded S3 server on port {port} did not start: {_last_words(server)}",
                    remedy=f"look into {server.log}; if the port is in use, set another SLUICE_S3_PORT",
                ) from error
            if time.monotonic() > deadline:
                raise ServiceAway(
                    f"the embedded S3 server (pid {process.pid}) did not answer within {READY_WITHIN} s",
                    remedy=f"look into {server.log}, then `sluice down`, and run the same command again",
                ) from error
            time.sleep(0.05)
    if BUCKET not in buckets:
        s3.create_bucket(Bucket=BUCKET)
