"""Receivers on loopback that take over HTTP what others are told, and keep it; each may refuse for a while."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(kw_only=True)
class Receiver:
    """An HTTP server, and what was posted to it."""

    address: str = ""
    answer: int = 200  # that it gives next
    taken: list[tuple[str, bytes]] = field(default_factory=list)  # path and body of each that it took
    refused: int = 0
    asked: int = 0  # by GET
    leads_to: str = ""  # where its answer says to go


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Yield a receiver that takes whatever is posted."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if receiver.answer == 200:
                receiver.taken.append((self.path, body))
            else:
                receiver.refused += 1
            self.send_response(receiver.answer)
            self.send_header("Content-Length", "0")
            if receiver.leads_to:
                self.send_header("Location", receiver.leads_to)
            self.end_headers()

        def do_GET(self) -> None:
            receiver.asked += 1
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            """Keep the test's output to itself."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
