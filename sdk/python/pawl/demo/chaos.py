"""Killing with -9 under load, and proving that it hit what it was meant to hit."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from pawl.demo.marks import Mark, MarkReader, now_ns
from pawl.demo.processes import DemoError, Server, Worker
from pawl.demo.workflows import STEPS
from pawl.errors import ServerError

HUNT_SECONDS = 20.0
"""Longest time to wait for the moment in which the worker is inside a step that others precede."""

RECOVERY_SECONDS = 60.0
"""Longest time that anything may need to recover."""


@dataclass(slots=True)
class Kill:
    """One process killed with -9."""

    target: str
    """`worker`, `server` or `store`."""
    at_ns: int
    """When, on the clock of the marks."""
    inside: tuple[Mark, ...] = ()
    """Steps that the worker was running: their bodies had begun and their effects had not happened."""
    held: frozenset[str] = field(default=frozenset())
    """Instances whose turn the worker held."""
    recovered_ns: int = 0
    """When everything that the kill had stopped was under way again."""

    @property
    def recovery_seconds(self) -> float:
        """Time from the kill to the recovery."""
        return max(0.0, (self.recovered_ns - self.at_ns) / 1e9)


def running_steps(marks: Sequence[Mark], worker: str) -> list[Mark]:
    """Gives the marks of the steps that a worker is inside of: begun, neither happened nor failed."""
    open_steps: dict[tuple[str, int], Mark] = {}
    for mark in marks:
        if mark.worker != worker or mark.kind == "R":
            continue
        if mark.kind == "S":
            open_steps[mark.effect_id, mark.fence] = mark
        else:
            open_steps.pop((mark.effect_id, mark.fence), None)
    return list(open_steps.values())


def held_turns(marks: Sequence[Mark], worker: str) -> frozenset[str]:
    """Gives the instances on which the worker was the last to work, and which are not done."""
    last: dict[str, Mark] = {}
    for mark in marks:
        known = last.get(mark.instance_id)
        if known is None or mark.at_ns >= known.at_ns:
            last[mark.instance_id] = mark
    return frozenset(
        instance
        for instance, mark in last.items()
        if mark.worker == worker and mark.kind != "F" and (mark.kind, mark.step) != ("E", STEPS[-1])
    )


async def kill_worker(workers: Sequence[Worker], reader: MarkReader) -> tuple[Worker, Kill]:
    """Kills the first of some workers that is found inside a step that follows a saved one.

    A worker is frozen, its marks are read, and it is killed only if they show that it is inside such a step;
    otherwise it goes on, and the next one is looked at. A frozen process does nothing more before it dies,
    and the marks are read once more to prove it. Raises DemoError if the moment never comes or the proof
    fails.
    """
    end = time.monotonic() + HUNT_SECONDS
    for victim in itertools.cycle(workers):
        victim.freeze()
        reader.poll()
        inside = [mark for mark in running_steps(reader.marks, victim.mark) if mark.step != STEPS[0]]
        if inside:
            kill = Kill("worker", now_ns(), tuple(inside), held_turns(reader.marks, victim.mark))
            victim.kill()
            reader.poll()
            still = {(mark.effect_id, mark.fence) for mark in running_steps(reader.marks, victim.mark)}
            if not all((mark.effect_id, mark.fence) in still for mark in inside):
                raise DemoError(f"{victim.name} was not killed inside a step: the step has ended")
            return victim, kill
        victim.thaw()
        await asyncio.sleep(0.01)
        if time.monotonic() > end:
            break
    raise DemoError("no worker was ever found inside a step, so none was killed")


async def until_taken_over(kill: Kill, reader: MarkReader) -> None:
    """Waits until another worker goes on with every turn that the killed one held. Raises DemoError."""
    waiting = set(kill.held)
    seen = 0

    def taken_over() -> bool:
        nonlocal seen
        reader.poll()
        for mark in reader.marks[seen:]:
            if mark.at_ns > kill.at_ns and mark.instance_id in waiting:
                waiting.discard(mark.instance_id)
                kill.recovered_ns = max(kill.recovered_ns, mark.at_ns)
        seen = len(reader.marks)
        return not waiting

    kill.recovered_ns = kill.at_ns
    await _until(taken_over, "turns of the killed worker were not taken over")


async def kill_server(server: Server) -> Kill:
    """Kills the server with -9 and starts it again."""
    kill = Kill("server", now_ns())
    await asyncio.to_thread(server.process.kill)
    await server.start()
    return kill


async def kill_store(server: Server, answers: Callable[[], Awaitable[object]]) -> Kill:
    """Kills the embedded store with -9, and waits until `answers`, which reads from it, works again."""
    kill = Kill("store", now_ns())
    os.kill(server.store_pid, signal.SIGKILL)
    end = time.monotonic() + RECOVERY_SECONDS
    while True:
        try:
            await answers()
            return kill
        except ServerError as error:
            if time.monotonic() > end:
                raise DemoError(f"the store did not come back: {error}") from error


async def until_steps_begin(kill: Kill, reader: MarkReader) -> None:
    """Waits for a step that begins from now on, which takes a server with a working store."""
    now = now_ns()
    seen = 0

    def begun() -> bool:
        nonlocal seen
        reader.poll()
        for mark in reader.marks[seen:]:
            if mark.kind in "SR" and mark.at_ns > now:
                kill.recovered_ns = mark.at_ns
                return True
        seen = len(reader.marks)
        return False

    await _until(begun, f"no step began after the {kill.target} had been killed")


async def _until(reached: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + RECOVERY_SECONDS
    while not reached():
        if time.monotonic() > end:
            raise DemoError(otherwise)
        await asyncio.sleep(0.02)
