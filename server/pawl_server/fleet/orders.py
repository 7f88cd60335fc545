"""What parent and child processes tell each other, one line each.

The first line to a child is its order, the others are news. A pipe keeps the settings, which may contain a
password, off the command line.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
from typing import Any, NamedTuple

from pawl_server.settings import Settings


class Order(NamedTuple):
    """What a child is to run."""

    settings: Settings
    number: int
    """Which of the processes it is, from 0 on."""

    def line(self) -> bytes:
        """The order as a line."""
        return base64.b64encode(pickle.dumps(self)) + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Order:
        """An order from its line, which the parent has written."""
        return cls(*pickle.loads(base64.b64decode(line)))


class Ready(NamedTuple):
    """A child serves: shared address, own address, run, where its metrics are, what its store risks."""

    address: str
    reached: str
    run: str
    metrics: str
    risk: str


class Refusal(NamedTuple):
    """Why a child can't serve: reason and exit code of the command line, a text that names what to change."""

    reason: str
    text: str
    code: int


def news(**fields: Any) -> bytes:
    """News for a child as a line."""
    return json.dumps(fields).encode() + b"\n"


def report(said: Ready | Refusal) -> bytes:
    """What a child says to its parent as a line."""
    return json.dumps({type(said).__name__: said._asdict()}).encode() + b"\n"


def read_report(line: bytes) -> Ready | Refusal | None:
    """What a child said; None for a line that says nothing, because the child is gone."""
    if not line.endswith(b"\n"):
        return None
    ((kind, fields),) = json.loads(line).items()
    return Ready(**fields) if kind == "Ready" else Refusal(**fields)


class Lines:
    """Lines from a descriptor, read when there is something to read."""

    def __init__(self, descriptor: int) -> None:
        self.ended = False
        self._descriptor = descriptor
        self._rest = b""

    def read(self) -> list[bytes]:
        """Waits for the next bytes; the lines that are complete by then. Sets `ended` at the end."""
        data = os.read(self._descriptor, 1 << 16)
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines
