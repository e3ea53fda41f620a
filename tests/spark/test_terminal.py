"""`sluice run` on a terminal shows what goes on while it goes on."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys

from tests.spark.runs import NEGATIVE, Home, Landed, orders

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_a_terminal(home: Home, *words: str, ended_at: str | None = None) -> str:
    """All that the command shows on a terminal of 150 columns, one frame after another.

    Once it has shown `ended_at` it is asked to end, as by Ctrl-C.
    """
    ours, its = pty.openpty()
    environment = home.environment | {"TERM": "xterm-256color", "COLUMNS": "150", "LINES": "40"}
    with subprocess.Popen(
        [sys.executable, "-m", "etl.cli", *words],
        env=environment,
        cwd=home.root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=its,
    ) as process:
        os.close(its)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
            if ended_at is not None and ended_at.encode() in shown:
                process.send_signal(signal.SIGINT)
                ended_at = None
    os.close(ours)
    text = CONTROL.sub("", shown.decode())
    assert process.returncode == 0, text[-2000:]
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


def test_a_run_that_stays_up_shows_that_it_waits(home: Home) -> None:
    landed = home.land("orders/0.jsonl", orders(0, 9, negative=[4]), ["{broken"])
    waits = "waiting, looks for more every 1 s · 8 delivered · 2 quarantined"
    shown = on_a_terminal(home, "run", "orders", "--follow", "--every", "1s", ended_at=waits)
    assert "batch 1: reading, judging, writing" in shown
    assert waits in shown
    assert "orders has stopped, asked by SIGINT" in shown
    home.assert_holds(landed)
