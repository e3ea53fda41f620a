"""A bad network before a broker: what the broker says comes late, and connections break in the middle of it."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from etl.services.process import HOST
from tests.support.kafka.broker import Broker

LATE = 0.02  # seconds, each piece
PIECE = 4096  # bytes
CARRIES = (8_000, 60_000)  # bytes that a connection carries before it breaks


@dataclass(kw_only=True)
class Proxy:
    """Each connection carries so much of the broker's answers, as it is drawn, and breaks."""

    port: int
    listener: socket.socket
    draw: random.Random
    cuts: int = 0
    open: list[socket.socket] = field(default_factory=list)

    def serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:  # closed at the end of the test
                return
            broker = socket.create_connection((HOST, self.port))
            self.open += [client, broker]
            carries = self.draw.randint(*CARRIES)
            threading.Thread(target=self._ask, args=(client, broker), daemon=True).start()
            threading.Thread(target=self._answer, args=(broker, client, carries), daemon=True).start()

    def _ask(self, client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError):  # the other direction broke
            while data := client.recv(65536):
                broker.sendall(data)
        close(broker)

    def _answer(self, broker: socket.socket, client: socket.socket, carries: int) -> None:
        with suppress(OSError):
            while data := broker.recv(min(PIECE, carries)):
                time.sleep(LATE)  # the fault itself
                client.sendall(data)
                carries -= len(data)
                if not carries:
                    self.cuts += 1
                    break
        close(client)
        close(broker)


def close(end: socket.socket) -> None:
    with suppress(OSError):  # it is closed
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def before(broker: Broker, *, seed: int) -> Iterator[Proxy]:
    with socket.create_server((HOST, broker.proxy)) as listener:
        found = Proxy(port=broker.far, listener=listener, draw=random.Random(seed))
        thread = threading.Thread(target=found.serve, daemon=True)
        thread.start()
        yield found
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for end in found.open:
            close(end)
