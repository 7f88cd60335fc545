"""A file of doubles shared by the driver and its workers: counters at the front, timestamps from TIMES on,
and counters of their own from RUNS on."""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable
from pathlib import Path

SLOTS = 1 << 17
STARTED, DONE, GO, MARK = 0, 1, 2, 3
"""Handler runs, handlers about to return, the starting gun, free use."""
WORKER = 16
"""Counters of worker k begin at WORKER * (k + 1): each slot has one writer."""
TIMES = 1024
RUNS = 1 << 16
"""Counters, one for each of the timestamps."""


class Slots:
    """One shared file. Only one process writes a slot; everybody may read it."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        if create:
            path.write_bytes(bytes(SLOTS * 8))
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), SLOTS * 8)

    def get(self, slot: int) -> float:
        """Value of a slot."""
        return struct.unpack_from("d", self._map, slot * 8)[0]

    def set(self, slot: int, value: float) -> None:
        """Writes a slot."""
        struct.pack_into("d", self._map, slot * 8, value)

    def add(self, slot: int, value: float = 1) -> None:
        """Adds to a slot of this process."""
        self.set(slot, self.get(slot) + value)

    def clear(self) -> None:
        """Zeroes everything."""
        self._map[:] = bytes(SLOTS * 8)

    def wait(self, ready: Callable[[], bool], seconds: float, alive: Callable[[], None]) -> None:
        """Polls every 2 ms. Raises TimeoutError; `alive` raises if a process has died."""
        end = time.monotonic() + seconds
        while not ready():
            alive()
            if time.monotonic() > end:
                raise TimeoutError(f"not reached in {seconds} s")
            time.sleep(0.002)
