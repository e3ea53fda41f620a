"""Declarations of live sources, and a server that a socket's pipeline reads."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from tests.support.data.orders import NAME
from tests.support.environment import REPOSITORY
from tests.support.followed import PATIENCE
from tests.support.home import Home

TICKS = pa.schema([("value", pa.int64()), ("weekday", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
[RATE, _] = re.findall(
    r"```python\n(.*?)```", (REPOSITORY / "docs" / "cookbook" / "live.md").read_text(), re.DOTALL
)
SOCKET = """
from etl.pipeline import Append, Lookup, Pipeline, Socket

def with_city(df, *, shops):
    return df.join(shops, "shop", "left").select("id", "shop", "amount", "at", "city")

PIPELINE = Pipeline(
    name="orders",
    sources=(Socket(host="127.0.0.1", port={port}, format="{format}"),),
    schema="id bigint, shop string, amount double, at timestamp",
    lookups={{"shops": Lookup("reference/shops.csv", schema="shop string, city string", key=("shop",))}},
    transform={transform},
    suite="orders",
    sink=Append(),
    max_quarantine_share=1.0,
)
"""


@dataclass(kw_only=True)
class Sender:
    """A TCP server that sends lines to whoever is connected."""

    server: socket.socket
    connected: list[socket.socket] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        self.port = int(self.server.getsockname()[1])

    @property
    def uri(self) -> str:
        return f"socket://127.0.0.1:{self.port}"

    def accept(self) -> None:
        self.connected.append(self.server.accept()[0])

    def send(self, lines: Sequence[str]) -> None:
        self.connected[-1].sendall("".join(f"{line}\n" for line in lines).encode())


@contextmanager
def sending() -> Iterator[Sender]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        found = Sender(server=server)
        yield found
        for one in found.connected:
            one.close()


def declare(home: Home, port: int, *, kind: str = "json", transform: str = "with_city") -> None:
    home.declare(NAME, text=SOCKET.format(port=port, format=kind, transform=transform))
