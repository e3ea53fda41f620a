"""A run that stays up in a thread of the test, over the tests' own Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from etl.runs.follow import RunControl
from etl.runs.run import run
from etl.runs.summary import Summary
from tests.support.home import Home
from tests.support.waiting import until

PATIENCE = 120  # seconds; nothing is decided by it, a test that waits so long has failed
ME = "tests"


@dataclass(kw_only=True)
class Followed:
    """Keep a run of one pipeline up, and what became of it."""

    home: Home
    name: str
    control: RunControl = field(default_factory=lambda: RunControl(every=timedelta(seconds=1)))
    results: list[Summary | Exception] = field(default_factory=list)
    thread: threading.Thread | None = None

    def start(self) -> None:
        def follow() -> None:
            home = self.home
            try:
                self.results.append(
                    run(home.place, home.pipeline(self.name), spark=home.spark, control=self.control)
                )
            except Exception as error:  # noqa: BLE001 - is what the test looks at
                self.results.append(error)

        self.thread = threading.Thread(target=follow, daemon=True)
        self.thread.start()

    def wait(self, met: Callable[[], bool], what: str) -> None:
        def met_while_it_is_up() -> bool:
            self.require_up(what)
            return met()

        until(met_while_it_is_up, what, patience=PATIENCE)

    def require_up(self, what: str) -> None:
        assert self.results == [], f"ended before {what}"

    def wait_for_rows(self, count: int) -> None:
        self.wait(lambda: rows_read(self.home, self.name) >= count, f"{count} rows")

    def error(self) -> Exception:
        """Return the error that ended the run."""
        [found] = until(lambda: self.results, "end", patience=PATIENCE)
        assert isinstance(found, Exception), found
        return found

    def stop(self) -> Summary:
        self.control.request_stop(ME)
        return self.ended()

    def leave(self) -> None:
        """End it if it goes on, whatever comes of it."""
        self.control.request_stop(ME)
        if self.thread is not None:
            self.thread.join(PATIENCE)

    def ended(self) -> Summary:
        assert self.thread is not None
        self.thread.join(PATIENCE)
        [found] = self.results
        assert isinstance(found, Summary), found
        return found


def rows_read(home: Home, name: str) -> int:
    if home.ask("SELECT to_regclass('sluice.delivery')") == [(None,)]:
        return 0
    [(rows,)] = home.ask(
        "SELECT coalesce(sum(rows_in), 0)::bigint FROM sluice.delivery WHERE pipeline = %s", name
    )
    return int(rows)


@contextmanager
def following(home: Home) -> Iterator[Callable[[str], Followed]]:
    """Starts such runs; those that still go on are ended with the block."""
    started: list[Followed] = []

    def start(name: str) -> Followed:
        started.append(Followed(home=home, name=name))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.leave()
