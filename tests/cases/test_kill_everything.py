"""Everything that can be killed is killed.

Given  a server with its embedded store in one folder, two worker processes, and senders that wait for each
       message before they send the next.
Do     kill with -9 a worker inside a step, the server, the store, and all of them at once, each twice and in
       random order, while messages flow.
Expect every message that was acknowledged to have completed exactly once and in order, no step to have run
       again after it was saved, and sound data in the folder.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from pawl import Client, NewInstance, Sent, Turn
from pawl.demo.chaos import running_steps
from pawl.demo.marks import Mark, MarkReader
from tests.cases.flows import STEPS
from tests.support.fault_proxy import Balancer
from tests.support.invariants import violations_everywhere
from tests.support.processes import DevServer, WorkerProcess
from tests.support.redis_server import Control
from tests.support.wait import wait_until

NAMES = tuple(f"book-{number}" for number in range(6))
NEW = NewInstance("book", "v1", [], lease_timeout=5.0, max_attempts=20)
"""A worker that dies while it has no stream leaves its turns to their leases, which costs attempts."""
PROGRESS = 30
"""Steps whose effect happens between two blows."""
WAIT_S = 60.0


class Scene:
    """The processes. `address` is that of a proxy, which leads to the server wherever it listens."""

    def __init__(self, folder: Path, proxy: Balancer, server: DevServer) -> None:
        self.folder = folder
        self.proxy = proxy
        self.server = server
        self.workers: list[WorkerProcess] = []
        self._started: list[WorkerProcess] = []
        self.reader = MarkReader(folder)

    def start_worker(self) -> None:
        """Starts one more worker."""
        worker = WorkerProcess(self.proxy.url, "tests.cases.flows:book", folder=self.folder)
        self.workers.append(worker)
        self._started.append(worker)

    async def worker(self, chance: random.Random) -> None:
        """Kills a worker that is inside a step, and starts another one."""
        await wait_until(lambda: self._inside(chance.choice(self.workers)), WAIT_S)
        victim = self.workers.pop(0)
        await victim.kill()
        self.start_worker()

    def _inside(self, worker: WorkerProcess) -> bool:
        """Freezes a worker; if it is inside a step it stays frozen and is the first of `workers`."""
        worker.freeze()
        self.reader.poll()
        if running_steps(self.reader.marks, str(worker.pid)):
            self.workers.sort(key=lambda one: one is not worker)
            return True
        worker.thaw()
        return False

    async def everything(self, chance: random.Random) -> None:
        """Kills all processes, and starts as many."""
        os.kill(self.server.store["pid"], signal.SIGKILL)
        victims, self.workers = self.workers, []
        for victim in victims:
            await victim.kill()
        await self.serving(chance)
        for _ in victims:
            self.start_worker()

    async def serving(self, _: random.Random) -> None:
        """Kills the server and starts it again on its folder."""
        await self.server.kill()
        self.proxy.targets = [await self.server.start()]

    async def store(self, _: random.Random) -> None:
        """Kills the store, which the server starts again."""
        pid = self.server.store["pid"]
        os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: self.server.store["pid"] != pid, WAIT_S)

    def effects(self) -> int:
        """How many effects have happened."""
        self.reader.poll()
        return sum(mark.kind == "E" for mark in self.reader.marks)

    async def stop(self) -> None:
        """Ends all processes; workers at once, as their server may be gone."""
        for worker in self._started:
            await worker.kill()
        await self.server.stop()


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Scene]:
    """A server and two workers."""
    server = DevServer(folder)
    async with Balancer(await server.start()) as proxy:
        scene = Scene(folder, proxy, server)
        try:
            scene.start_worker()
            scene.start_worker()
            yield scene
        finally:
            await scene.stop()


async def keep_sending(client: Client, name: str, over: asyncio.Event) -> list[Sent]:
    """Sends 0, 1, 2, … one after the other; what was acknowledged, in order."""
    acknowledged: list[Sent] = []
    while not over.is_set():
        number = len(acknowledged)
        acknowledged.append(await client.send(name, number, create=NEW, timeout=WAIT_S))
        if number % 4 == 3:  # a few at a time lie in the inbox
            await client.await_turn(name, acknowledged[-1].turn, wait=WAIT_S)
    return acknowledged


async def read_turns(client: Client, sent: Sequence[Sent]) -> list[Turn]:
    """The turns of messages, once they are finished."""
    gate = asyncio.Semaphore(32)

    async def read(one: Sent) -> Turn:
        async with gate:
            return await client.get_turn(one.instance_id, one.turn)

    for name in NAMES:
        last = max(one.turn for one in sent if one.instance_id == name)
        await client.await_turn(name, last, wait=WAIT_S)
    return await asyncio.gather(*(read(one) for one in sent))


def repeated_after_saving(marks: Sequence[Mark], turns: Sequence[Turn]) -> list[Mark]:
    """Steps that began although they were saved: in a later attempt than the one that saved them, or after a
    later step of the turn, which begins only when the one before is saved."""
    saved_in = {
        (f"{turn.instance_id}/{turn.turn}", step.key): step.attempt for turn in turns for step in turn.steps
    }
    furthest: dict[str, int] = {}
    found = []
    for mark in sorted(marks, key=lambda mark: mark.at_ns):
        if mark.kind == "S":
            place, at = mark.instance_id, STEPS.index(mark.step)
            if at < furthest.get(place, 0) or mark.attempt > saved_in[place, mark.step]:
                found.append(mark)
            furthest[place] = max(at, furthest.get(place, 0))
    return found


@pytest.mark.slow
@pytest.mark.spec("R-EMBED-2", "R-EMBED-4", "R-SDK-1", "R-SDK-8", "R-SEND-1")
async def test_what_was_acknowledged_completes_once_and_in_order(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with scene(tmp_path) as stage, Client(stage.proxy.url) as client:
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            senders = [group.create_task(keep_sending(client, name, over)) for name in NAMES]
            blows = [stage.worker, stage.serving, stage.store, stage.everything] * 2
            chance.shuffle(blows)
            for blow in blows:
                enough = stage.effects() + PROGRESS + chance.randrange(PROGRESS)
                await wait_until(lambda enough=enough: stage.effects() >= enough, WAIT_S, "work goes on")
                await blow(chance)
            over.set()
        sent = [one for sender in senders for one in sender.result()]
        turns = await read_turns(client, sent)
        for worker in stage.workers:
            assert await worker.stop() == 0

        check_turns(sent, turns)
        for name in NAMES:
            instance = await client.get(name)
            count = sum(one.instance_id == name for one in sent)
            assert (instance.pending_turns, instance.status, instance.last_turn) == (0, "IDLE", count)
            assert instance.state == list(range(count))
        stage.reader.poll()
        assert repeated_after_saving(stage.reader.marks, turns) == []
        happened = {mark.effect_id for mark in stage.reader.marks if mark.kind == "E"}
        assert len(happened) == len(sent) * len(STEPS)
        os.kill(stage.server.process.pid, signal.SIGSTOP)  # nothing moves while the data are looked at
        with closing(Control(Path(stage.server.store["socket"]))) as store:
            assert violations_everywhere(store) == []
        os.kill(stage.server.process.pid, signal.SIGCONT)


def check_turns(sent: Sequence[Sent], turns: Sequence[Turn]) -> None:
    """Each message is the turn it was acknowledged as, and completed with nothing lost."""
    for one, turn in zip(sent, turns, strict=True):
        assert (turn.state, turn.message_id) == ("COMPLETED", one.message_id), turn
        assert turn.message == turn.reply == one.turn - 1
        assert tuple(step.key for step in turn.steps) == STEPS
