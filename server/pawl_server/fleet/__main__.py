"""`python -m pawl_server.fleet`: what `pawl dev` and `pawl server` become for several processes.

They hand over their settings by a descriptor, and what they would say is said by a program that they name.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from pawl_server.fleet.orders import Ready, Refusal
from pawl_server.fleet.parent import supervise
from pawl_server.settings import Settings


class Handover(NamedTuple):
    """What the command line leaves behind."""

    settings: Settings
    teller: Sequence[str]
    """Arguments of Python that run the program; one more, a JSON object, says what happened."""
    facts: dict[str, Any]
    """What it is to be told in any case."""
    until_input_ends: bool

    def descriptor(self) -> int:
        """A descriptor to be inherited, from which all this can be read once."""
        end, start = os.pipe()
        os.write(start, pickle.dumps(tuple(self)))
        os.close(start)
        os.set_inheritable(end, True)
        return end

    @classmethod
    def read(cls, descriptor: int) -> Handover:
        """What was handed over."""
        with os.fdopen(descriptor, "rb") as pipe:
            return cls(*pickle.load(pipe))

    def words(self, **more: Any) -> list[str]:
        """The command that tells what happened."""
        return [sys.executable, *self.teller, json.dumps({**self.facts, **more})]


class _Teller:
    """Runs the program that tells people what happens here."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._tasks: set[asyncio.Task[None]] = set()

    def ready(self, ready: Ready) -> None:
        """All processes serve."""
        words = self._handover.words(pid=os.getpid(), ready=ready._asdict())
        task = asyncio.get_running_loop().create_task(self._run(words))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _run(words: list[str]) -> None:
        process = await asyncio.create_subprocess_exec(*words, stdin=subprocess.DEVNULL)
        await process.wait()

    def refused(self, refusal: Refusal) -> None:
        """They can't: this process ends as the program that says so, with its exit code."""
        os.execv(sys.executable, self._handover.words(refusal=refusal._asdict()))


def main() -> int:
    """Runs the parent; its exit code."""
    handover = Handover.read(int(sys.argv[1]))
    teller = _Teller(handover)
    return supervise(
        handover.settings,
        on_ready=teller.ready,
        on_refusal=teller.refused,
        until_input_ends=handover.until_input_ends,
    )


if __name__ == "__main__":
    sys.exit(main())
