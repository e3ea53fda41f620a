"""TCP proxies before PostgreSQL and S3 that count what they are asked: connections, statements and requests."""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, urlsplit

from psycopg2.extensions import make_dsn, parse_dsn

from etl.services import Services

REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP/1\.1\r\n")
STARTUP = 196_608  # the protocol's version 3.0, https://www.postgresql.org/docs/current/protocol-message-formats.html


@dataclass(kw_only=True)
class Asked:
    """What came by until now: `connections`, of PostgreSQL `statements`, of S3 the requests by their method."""

    counts: Counter[str] = field(default_factory=Counter)
    listed: list[tuple[str, str]] = field(default_factory=list)  # of S3: the bucket and prefix of each LIST
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def add_request(self, method: str, target: str) -> None:
        path, _, query = target.partition("?")
        asked = parse_qs(query)
        if "list-type" in asked:
            self.listed.append((path.strip("/"), asked.get("prefix", [""])[0]))
        self.add(method)


@dataclass(kw_only=True)
class _S3:
    """What a client of S3 sends: a request's first line is never cut, for it comes in a packet of its own."""

    asked: Asked

    def sent(self, data: bytes) -> None:
        for method, target in REQUEST.findall(data):
            self.asked.add_request(method.decode(), target.decode())


@dataclass(kw_only=True)
class _Postgres:
    """What a client of PostgreSQL sends, message by message; all of ours are simple queries."""

    asked: Asked
    rest: bytes = b""
    started: bool = False

    def sent(self, data: bytes) -> None:
        self.rest += data
        while (size := self._whole()) is not None:
            message, self.rest = self.rest[:size], self.rest[size:]
            if not self.started:
                self.started = int.from_bytes(message[4:8]) == STARTUP
                if self.started:
                    self.asked.add("connections")
            elif message[:1] == b"Q":
                self.asked.add("statements")

    def _whole(self) -> int | None:
        """Return the size of the first message; None where it has not come whole."""
        head = 1 if self.started else 0
        if len(self.rest) < head + 4:
            return None
        size = head + int.from_bytes(self.rest[head : head + 4])
        return size if len(self.rest) >= size else None


@contextmanager
def counted(services: Services) -> Iterator[tuple[Services, Asked, Asked]]:
    """Yield the services by way of proxies, and what PostgreSQL and what S3 are asked through them."""
    address, endpoint = parse_dsn(services.postgres), urlsplit(services.s3_endpoint or "")
    assert endpoint.hostname is not None
    assert endpoint.port is not None
    postgres, s3 = Asked(), Asked()
    with (
        _proxy((address["host"], int(address["port"])), postgres, _Postgres) as (host, port),
        _proxy((endpoint.hostname, endpoint.port), s3, _S3) as (s3_host, s3_port),
    ):
        dsn = str(make_dsn(services.postgres, host=host, port=port))
        yield replace(services, postgres=dsn, s3_endpoint=f"http://{s3_host}:{s3_port}"), postgres, s3


@contextmanager
def _proxy(server: tuple[str, int], asked: Asked, reader: type[_S3 | _Postgres]) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, server, asked, reader), daemon=True)
        thread.start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def _serve(
    listener: socket.socket, server: tuple[str, int], asked: Asked, reader: type[_S3 | _Postgres]
) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:  # closed at the end of the test
            return
        behind = socket.create_connection(server)
        sent = reader(asked=asked)
        threading.Thread(target=_pass, args=(client, behind, sent), daemon=True).start()
        threading.Thread(target=_pass, args=(behind, client, None), daemon=True).start()


def _pass(source: socket.socket, target: socket.socket, sent: _S3 | _Postgres | None) -> None:
    """Pass on what comes until one end closes."""
    try:
        while data := source.recv(65536):
            if sent is not None:
                sent.sent(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # the other end was closed first
        source.close()
