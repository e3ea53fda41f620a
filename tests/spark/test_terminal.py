"""`sluice run` on a terminal shows what goes on while it goes on."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Sequence
from contextlib import closing

import psycopg2
import pytest

from tests.support.data.orders import NEGATIVE, Landed, orders
from tests.support.home import Home

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_a_terminal(home: Home, *words: str, ended_at: Sequence[str] = (), code: int = 0) -> str:
    """Return all that the command shows on a terminal of 150 columns, frame after frame, until it ends with `code`.

    Once it has shown each of `ended_at`, in turn, Ctrl-C is typed.
    """
    waited_for = [text.encode() for text in ended_at]
    ours, its = pty.openpty()
    environment = home.environment | {"TERM": "xterm-256color", "COLUMNS": "150", "LINES": "40"}
    with subprocess.Popen(
        [sys.executable, "-m", "etl.cli", *words],
        env=environment,
        cwd=home.root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=its,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(2, termios.TIOCSCTTY, 0),
    ) as process:
        os.close(its)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
            if waited_for and waited_for[0] in shown:
                os.write(ours, b"\x03")  # which the terminal sends to all processes in its foreground
                del waited_for[0]
    os.close(ours)
    text = CONTROL.sub("", shown.decode())
    assert process.returncode == code, text[-2000:]
    return text


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux's word for: the other end is closed
        return b""


def test_a_run_shows_its_phases_its_rate_and_what_is_held_by_which_rule(home: Home) -> None:
    home.declare(max_files=1)
    landed = Landed()
    for number in range(3):
        start = number * 100
        landed += home.land(f"orders/{number}.jsonl", orders(start, 9, negative=[start + 4]), ["{broken"])
    shown = on_a_terminal(home, "run", "orders")
    assert re.search(r"0/3 files [0:]+\s+starting Spark", shown)
    assert re.search(
        r"1/3 files [0-9:]+\s+batch 2: reading, judging, writing · 8 delivered · 2 quarantined", shown
    )
    assert re.search(r"16 delivered · 4 quarantined · [1-9][0-9,]* rows/s", shown)
    assert f"        2  {NEGATIVE}" in shown
    assert "        2  malformed" in shown
    home.assert_holds(landed)


@pytest.mark.slow
def test_a_run_that_stays_up_shows_that_it_waits(home: Home) -> None:
    landed = home.land("orders/0.jsonl", orders(0, 9, negative=[4]), ["{broken"])
    waits = "waiting, looks for more every 1 s · 8 delivered · 2 quarantined"
    shown = on_a_terminal(home, "run", "orders", "--follow", "--every", "1s", ended_at=[waits])
    assert "batch 1: reading, judging, writing" in shown
    assert waits in shown
    assert "orders has stopped, asked by SIGINT" in shown
    home.assert_holds(landed)


HEARD = "stopping after this batch; Ctrl-C again to stop now"


@pytest.mark.slow
def test_ctrl_c_ends_a_run_of_many_batches_after_its_batch_and_a_second_one_within_seconds(
    home: Home,
) -> None:
    home.declare(max_files=1)
    landed = Landed()
    for number in range(6):
        landed += home.land(f"orders/{number}.jsonl", orders(number * 100, 9))
    once = ["batch 1: reading, judging, writing"]
    shown = on_a_terminal(home, "run", "orders", ended_at=once, code=128 + signal.SIGINT)
    assert HEARD in shown
    assert "sluice: stopped by SIGINT; the next run goes on from the ledger" in shown
    assert home.ask("SELECT outcome FROM sluice.run") == [("stopped",)]
    assert home.ask("SELECT count(*) FROM sluice.delivery") == [(1,)]
    twice = [*once, HEARD]
    with closing(psycopg2.connect(home.dsn)) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLE warehouse.orders IN SHARE MODE")  # its commit waits for ever
        on_a_terminal(home, "run", "orders", ended_at=twice, code=128 + signal.SIGINT)
    assert home.ask("SELECT count(*) FROM sluice.delivery") == [(1,)]
    assert home.run().batches == 5
    home.assert_holds(landed)


def test_the_name_of_a_landed_file_commands_no_terminal(home: Home) -> None:
    """Escape what a name has of control characters, whether a run reads the file, has to name it or holds rows of it."""
    hostile, dangling = "orders/a\x1b]0;pwned\x07.jsonl", "orders/b\x1b[2J.jsonl"
    home.land(hostile, orders(0, 3), ["{broken"])
    (home.landing / dangling).symlink_to("gone")
    said = {
        words: home.sluice(*words.split())
        for words in (
            "run orders",
            "status orders",
            "quarantine list orders",
            "quarantine show orders 1",
            "audit orders",
        )
    }
    for words, done in said.items():
        text = done.stdout + done.stderr
        assert not {"\x1b", "\x07"} & set(text), f"{words}: {text!r}"
    assert said["audit orders"].returncode == 0, said["audit orders"].stderr
    assert r"orders/b\x1b[2J.jsonl" in said["audit orders"].stdout
    assert re.search(r"orders/a\S*pwned\S*\.jsonl", said["quarantine show orders 1"].stdout)
