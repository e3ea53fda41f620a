"""A TCP proxy before PostgreSQL that cuts a connection at its COMMIT: before the server has it, or after."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from psycopg2.extensions import make_dsn, parse_dsn

COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"


@dataclass(kw_only=True)
class Proxy:
    """Forwards bytes both ways; `cut` says what happens to the next COMMIT."""

    server: tuple[str, int]
    listener: socket.socket
    cut: str | None = None  # "before" the server has it, or "after" it was answered
    away: bool = False  # nobody is let in any more
    cuts: list[str] = field(default_factory=list)  # what was done
    clients: list[socket.socket] = field(default_factory=list)  # that were let in

    def dsn(self, of: str) -> str:
        """Return the connection string `of`, by way of this proxy."""
        host, port = self.listener.getsockname()
        return str(make_dsn(of, host=host, port=port))

    def serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:  # closed at the end of the test
                return
            if self.away:
                client.close()
                continue
            self.clients.append(client)
            server = socket.create_connection(self.server)
            threading.Thread(target=self._to_server, args=(client, server), daemon=True).start()
            threading.Thread(target=self._to_client, args=(server, client), daemon=True).start()

    def end_all(self) -> None:
        """End every connection without a word, as a proxy does with those that were idle for too long."""
        for client in self.clients:
            _close(client)

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        while data := _received(client):
            if self.cut is None or COMMIT not in data:
                server.sendall(data)
                continue
            cut, self.cut = self.cut, None
            self.cuts.append(cut)
            _close(client)  # the answer finds nobody
            if cut == "after":
                server.sendall(data)
                return
        _close(server)

    def _to_client(self, server: socket.socket, client: socket.socket) -> None:
        while data := _received(server):
            try:
                client.sendall(data)
            except OSError:  # cut
                break
        _close(client)
        _close(server)


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""


def _close(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:  # the other side was faster
        return
    finally:
        end.close()


@contextmanager
def before(dsn: str) -> Iterator[Proxy]:
    """Start a proxy before the server of `dsn`."""
    address = parse_dsn(dsn)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Proxy(server=(address["host"], int(address["port"])), listener=listener)
        thread = threading.Thread(target=proxy.serve, daemon=True)
        thread.start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
