"""Rate and socket: each batch once in both sinks within a run, and after a crash a stream of its own, said so."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa
import pytest

from etl.audit import audit
from etl.run import Summary, run
from etl.stay import Stay
from tests import oracle
from tests.spark.runs import NAME, SHOPS, Home, Landed, orders

PATIENCE = 60  # seconds; nothing is decided by it, a test that waits so long has failed
ME = "tests"
pytestmark = pytest.mark.timeout(600)

TICKS = pa.schema([("value", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
RATE = """
from etl.pipeline import Append, Pipeline, Rate

def ticks(df):
    return df.selectExpr("value", "timestamp AS at")

PIPELINE = Pipeline(
    name="ticks", sources=(Rate(rows_per_second=40),), schema="timestamp timestamp, value bigint",
    transform=ticks, sink=Append(), follow={follow},
)
"""
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

    @property
    def port(self) -> int:
        return int(self.server.getsockname()[1])

    @property
    def uri(self) -> str:
        return f"socket://127.0.0.1:{self.port}"

    def accept(self) -> None:
        self.connected.append(self.server.accept()[0])

    def send(self, lines: Sequence[str]) -> None:
        self.connected[-1].sendall("".join(f"{line}\n" for line in lines).encode())


@pytest.fixture
def sender() -> Iterator[Sender]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        found = Sender(server=server)
        yield found
        for one in found.connected:
            one.close()


@dataclass(kw_only=True)
class Followed:
    """A run that stays up in a thread, over the tests' own Spark."""

    home: Home
    name: str
    stay: Stay = field(default_factory=lambda: Stay(every=timedelta(seconds=1)))
    results: list[Summary | Exception] = field(default_factory=list)
    thread: threading.Thread | None = None

    def start(self) -> None:
        def follow() -> None:
            home = self.home
            try:
                self.results.append(
                    run(home.place, home.pipeline(self.name), spark=home.spark, stay=self.stay)
                )
            except Exception as error:  # noqa: BLE001 - is what the test looks at
                self.results.append(error)

        self.thread = threading.Thread(target=follow, daemon=True)
        self.thread.start()

    def wait(self, met: Callable[[], bool], what: str) -> None:
        wait(lambda: bool(self.results) or met(), what)
        assert self.results == [], f"ended before {what}"

    def wait_for_rows(self, count: int) -> None:
        self.wait(lambda: rows_read(self.home, self.name) >= count, f"{count} rows")

    def stop(self) -> Summary:
        self.stay.asked_by = ME
        assert self.thread is not None
        self.thread.join(PATIENCE)
        [found] = self.results
        assert isinstance(found, Summary), found
        return found


def wait(met: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < deadline, f"no {what}"
        time.sleep(0.1)


def rows_read(home: Home, name: str) -> int:
    if home.ask("SELECT to_regclass('sluice.delivery')") == [(None,)]:
        return 0
    [(rows,)] = home.ask(
        "SELECT coalesce(sum(rows_in), 0)::bigint FROM sluice.delivery WHERE pipeline = %s", name
    )
    return int(rows)


@pytest.fixture
def followed(home: Home) -> Iterator[Callable[[str], Followed]]:
    started: list[Followed] = []

    def start(name: str) -> Followed:
        started.append(Followed(home=home, name=name))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.stay.asked_by = ME
        assert one.thread is not None
        one.thread.join(PATIENCE)


def declare(home: Home, port: int, *, kind: str = "json", transform: str = "with_city") -> None:
    home.declare(NAME, text=SOCKET.format(port=port, format=kind, transform=transform))


def assert_audited(home: Home, name: str = NAME) -> None:
    home.assert_one_history(name)
    report = audit(home.place, home.pipeline(name))
    assert report.clean, list(report.lines())


def streams(home: Home, name: str) -> list[tuple[str, int]]:
    """Each with its deliveries, in order."""
    return home.ask(
        "SELECT stream_id::text, count(*) FROM sluice.delivery WHERE pipeline = %s GROUP BY 1 ORDER BY min(commit_seq)",
        name,
    )


def test_a_rate_is_followed_and_each_run_counts_from_0_in_a_stream_of_its_own(
    home: Home, followed: Callable[[str], Followed], caplog: pytest.LogCaptureFixture
) -> None:
    home.declare("ticks", text=RATE.format(follow=True))
    home.columns = TICKS
    counted: oracle.Rows = Counter()
    runs: list[Summary] = []
    for _ in range(2):
        up = followed("ticks")
        up.wait(lambda: len(streams(home, "ticks")) > len(runs), "deliveries")
        up.wait_for_rows(rows_read(home, "ticks") + 41)  # in another batch
        runs.append(up.stop())
        counted += Counter((value,) for value in range(runs[-1].delivered))
        said = [one for one in caplog.messages if "not replayable" in one]
        assert len(said) == len(runs) and runs[-1].stream in said[-1], said
    eyes = home.reader("ticks")
    in_postgres, on_lake = eyes.in_postgres(system=()), eyes.on_lake(system=())
    assert in_postgres == on_lake
    assert Counter((value,) for value, _ in in_postgres.elements()) == counted, (
        "every value once, in each run"
    )
    assert [(one.stream, one.batches) for one in runs] == streams(home, "ticks")
    assert_audited(home, "ticks")


def test_a_sockets_lines_are_delivered_or_held_each_once(
    home: Home, sender: Sender, followed: Callable[[str], Followed]
) -> None:
    declare(home, sender.port)
    up = followed(NAME)
    sender.accept()
    made, broken = orders(0, 40, negative=[3, 17]), ["{broken", '{"id": "four"}', '{"id": 1} {"id": 2}']
    landed = Landed(orders=made, malformed=[(raw, sender.uri) for raw in broken])
    sender.send([*(order.json for order in made[:20]), "", *broken, *(order.json for order in made[20:])])
    up.wait_for_rows(43)

    # a lookup that changes takes effect with the next batch, and the connection stays
    home.write("reference/shops.csv", SHOPS + "Y,Ystad\n")
    late = orders(100, 8, negative=[104])
    sender.send([order.json for order in late])
    up.wait_for_rows(51)
    summary = up.stop()
    landed.orders += late
    assert (summary.delivered, summary.quarantined, summary.malformed) == (45, 6, 3)
    home.assert_holds(landed)
    assert_audited(home)
