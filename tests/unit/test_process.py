"""Whether a process has ended, for whoever waits for that."""

from __future__ import annotations

import subprocess
import sys

import psutil

from etl.services.process import have_ended


def test_what_has_ended_has_so_before_its_parent_asks_for_its_exit_code() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(child.pid)
    assert have_ended([process], within=60)
    assert process.status() == psutil.STATUS_ZOMBIE
    assert child.wait() == 0
    assert have_ended([process], within=0), "and after"


def test_what_goes_on_has_not() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not have_ended([psutil.Process(child.pid)], within=0)
