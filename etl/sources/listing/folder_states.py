"""Tells by the state of a local folder that no name in it has come or gone since a look, where that is sure.

A folder's time of change moves with each name that is made, removed or renamed in it, and no program can set it. That is
sure of TRUSTED file systems, within one boot of their kernel, while nobody sets the clock, and of a folder that had been
at rest for a while and whose time is no whole second, as all are where inodes have no room for more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

from etl.sources.listing.closing import Closing

State = tuple[int, ...]  # device, inode, and time of change in ns
Known = Mapping[str, State | None]  # by folder; None: it is to be listed
Folders = Mapping[str, Known]  # by pattern

# HAZARD: a mount that others write to, or that keeps times for a while, tells of a change too late.
TRUSTED = frozenset({"ext4", "xfs", "tmpfs"})
REST_NS = 2_000_000_000  # more than CLOCK_NS
_SECOND_NS = 1_000_000_000
CLOCK_NS = 1_000_000_000  # by which the clock may have been set: less than REST_NS
MOST_FOLDERS = 100_000  # that are kept, some 10 MB

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A boot of a kernel, and what its clock of the day was ahead of the time since that boot."""

    boot: str  # empty: not known, as on other systems than Linux
    ahead_ns: int

    @classmethod
    def now(cls) -> Self:
        boot, ahead = "", 0
        with suppress(OSError, AttributeError):  # other systems have neither
            boot = _BOOT.read_text().strip()
            ahead = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return cls(boot=boot, ahead_ns=ahead)

    def went_on(self, now: Clock) -> bool:
        """Tell whether it is the same boot `now`, and the clock was not set since."""
        return bool(self.boot) and self.boot == now.boot and abs(self.ahead_ns - now.ahead_ns) <= CLOCK_NS


@dataclass(frozen=True, kw_only=True)
class PatternLook:
    """A look at the folders of one pattern, which need not list those that are as `known`."""

    known: Known
    closing: Closing | None = None  # which of them it need not look at
    found: dict[str, State | None] = field(default_factory=dict)
    began_ns: int = field(default_factory=time.time_ns)

    def unchanged(self, folder: str, seen: os.stat_result | None) -> Sequence[str] | None:
        """Return the folders below one that is as it was known, all that its pattern leads to; None: list it.

        `seen` is the folder's state from before it is listed; None where it is not there.
        """
        state = None if seen is None or seen.st_dev not in self._trusted else _state(seen)
        if state is not None and state == self.known.get(folder):
            self.found[folder] = state
            return self._below.get(folder, ())
        at_rest = state is not None and state[2] < self.began_ns - REST_NS and bool(state[2] % _SECOND_NS)
        self.found[folder] = state if at_rest else None
        return None

    def is_closed(self, folder: str) -> bool:
        """Tell whether a folder is closed; once it is open again, as where the clock went back, it is to be listed."""
        if self.closing is None or not self.closing.has(folder):
            return False
        self.found[folder] = None
        return True

    def note_link(self, folder: str) -> None:
        """Note that a folder has a link: what that leads to may change while the folder does not."""
        self.found[folder] = None

    @cached_property
    def _below(self) -> Mapping[str, Sequence[str]]:
        below: dict[str, list[str]] = {}
        for folder in self.known:
            if folder:
                below.setdefault(folder.rpartition("/")[0], []).append(folder)
        return below

    @cached_property
    def _trusted(self) -> frozenset[int]:
        return _trusted_devices()


@dataclass(frozen=True, kw_only=True)
class LandingLook:
    """A look at the folders of all patterns of a pipeline, beside what a look before it had found."""

    known: Folders = field(default_factory=dict)
    closings: Mapping[str, Closing] = field(default_factory=dict)  # by pattern
    looks: dict[str, PatternLook] = field(default_factory=dict)

    def at(self, pattern: str) -> PatternLook:
        look = PatternLook(known=self.known.get(pattern, {}), closing=self.closings.get(pattern))
        return self.looks.setdefault(pattern, look)

    @property
    def found(self) -> Folders:
        """Return the folders that the next look may pass over, with those beside them that it has to list."""
        found = {pattern: look.found for pattern, look in self.looks.items() if any(look.found.values())}
        return found if sum(map(len, found.values())) <= MOST_FOLDERS else {}


def _state(seen: os.stat_result) -> State:
    return (seen.st_dev, seen.st_ino, seen.st_ctime_ns)


def _trusted_devices() -> frozenset[int]:
    """Return the devices of mounted file systems whose folders tell of each change at once."""
    devices = set()
    with suppress(OSError):  # other systems than Linux have no such file
        for line in _MOUNTS.read_text(errors="surrogateescape").splitlines():
            mount, _, source = line.partition(" - ")
            if source.split(" ")[0] in TRUSTED:
                major, _, minor = mount.split(" ")[2].partition(":")
                devices.add(os.makedev(int(major), int(minor)))
    return frozenset(devices)
