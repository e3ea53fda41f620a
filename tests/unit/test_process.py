"""Whether a process has ended, for whoever waits for that."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest

from etl.services.process import KERNELS_OWN, free_ports, have_ended, tell
from tests.support.processes import answers
from tests.support.waiting import until


def test_what_has_ended_has_so_before_its_parent_asks_for_its_exit_code() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(child.pid)
    assert have_ended([process], within=60)
    assert process.status() == psutil.STATUS_ZOMBIE
    assert child.wait() == 0
    assert have_ended([process], within=0), "and after"


def test_what_has_lost_its_first_thread_alone_has_not_ended() -> None:
    """A JVM that was killed is like this for a while, and may still hold its port."""
    program = "import ctypes, sys, threading\nthreading.Thread(target=sys.stdin.read).start()\n"
    words = [sys.executable, "-c", program + "ctypes.CDLL(None).pthread_exit(None)"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as child:
        process = psutil.Process(child.pid)
        until(lambda: process.status() == psutil.STATUS_ZOMBIE, "its first thread to end", patience=60)
        assert not have_ended([process], within=0)
        assert child.stdin is not None
        child.stdin.close()
        assert have_ended([process], within=60)


def test_what_goes_on_has_not() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not have_ended([psutil.Process(child.pid)], within=0)


def test_of_processes_that_are_asked_those_that_have_ended_are_left_out() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    gone = psutil.Process(ended.pid)
    assert ended.wait() == 0
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        both = [gone, psutil.Process(child.pid)]
        assert len(answers(both, lambda one: one.net_connections("inet"))) == 1


def test_what_a_living_process_refuses_to_answer_is_an_error() -> None:
    def refuse(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    with pytest.raises(psutil.AccessDenied):
        answers([psutil.Process()], refuse)


def test_a_signal_to_what_has_ended_meanwhile_is_no_error() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = psutil.Process(child.pid)
    tell(process, signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM
    tell(process, signal.SIGTERM)


def test_a_port_that_is_chosen_is_given_to_no_other_before_it_is_listened_on() -> None:
    """Neither by the kernel to a connection, nor by another process that chooses."""
    low, high = map(int, KERNELS_OWN.read_text().split())
    chosen = free_ports(5)
    assert len(set(chosen)) == 5
    assert not [port for port in chosen if low <= port <= high]
    program = (
        "import sys; from etl.services.process import _claim; print(*map(_claim, map(int, sys.argv[1:])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, chosen)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False"] * 5
