"""Two servers on 127.0.0.1 that alerts are sent to: they take what comes and keep it."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(kw_only=True)
class Inbox:
    """What has come, in its order."""

    port: int = 0
    found: list[Any] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)  # of each POST
    changed: threading.Condition = field(default_factory=threading.Condition)
    held: threading.Lock = field(default_factory=threading.Lock)  # while it is, no POST is answered

    def put(self, message: Any) -> None:
        with self.changed:
            self.found.append(message)
            self.changed.notify_all()

    def wait_for(self, wanted: Any, within: float) -> Any:
        """Wait for the first message for which `wanted` holds."""
        with self.changed:
            came = self.changed.wait_for(lambda: any(map(wanted, self.found)), within)
            assert came, f"it did not come; these did: {self.found}"
            return next(message for message in self.found if wanted(message))


@contextmanager
def webhook(*refused: int) -> Iterator[Inbox]:
    """Keeps the JSON of each POST; the first ones it answers with these codes and keeps nothing."""
    inbox, codes = Inbox(), list(refused)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if codes:
                self.send_response(codes.pop(0))
                self.end_headers()
                return
            inbox.paths.append(self.path)
            inbox.put(sent)
            with inbox.held:
                self.send_response(204)
                self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing: the inbox says what came."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler), inbox) as found:
        yield found


@contextmanager
def mail(refused: str = "") -> Iterator[Inbox]:
    """Keeps the text of each mail, and refuses an address; as much of RFC 5321 as a client needs."""
    inbox = Inbox()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 ready")
            for line in self.rfile:
                word = line[:4].strip().upper()
                if word == b"DATA":
                    self.say("354 go on")
                    inbox.put(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
                unknown = word == b"RCPT" and refused and refused.encode() in line
                self.say("221 bye" if word == b"QUIT" else "550 nobody" if unknown else "250 ok")
                if word == b"QUIT":
                    return

        def say(self, words: str) -> None:
            self.wfile.write(f"{words}\r\n".encode())

    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler), inbox) as found:
        yield found


@contextmanager
def serving(server: socketserver.TCPServer, inbox: Inbox) -> Iterator[Inbox]:
    inbox.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield inbox
    finally:
        server.shutdown()
        server.server_close()
