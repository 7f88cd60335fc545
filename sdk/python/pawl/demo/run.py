"""Runs the demo: server, workers, documents, kills, report."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pawl.client import Client, Message, NewInstance
from pawl.demo.audit import Evidence, Report, judge, read_turns
from pawl.demo.chaos import Kill, kill_server, kill_store, kill_worker, until_steps_begin, until_taken_over
from pawl.demo.corpus import Document
from pawl.demo.marks import MarkReader
from pawl.demo.processes import DemoError, Server, Worker
from pawl.demo.progress import Display
from pawl.demo.workflows import COLLECTOR, COLLECTOR_ID, DOCUMENT, EMPTY, MESSAGE_ID, STEPS, VERSION
from pawl.effects import effect_id
from pawl.errors import PawlError
from pawl.models import Sent

CONCURRENCY = 32
"""Documents that a worker reads at a time."""

CHUNK = 16
"""Documents that are admitted together."""

KILL_AT = {"worker": 0.15, "server": 0.4, "store": 0.6}
"""Part of all steps that has run before each kill."""

SETTLE_SECONDS = 30.0
"""Longest time between the last effect and the last finished turn."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to run."""

    corpus: str
    """Where the documents come from, in words."""
    kills: tuple[str, ...] = ("worker",)
    """What to kill with -9: `worker`, `server`, `store`, in this order."""
    keep: Path | None = None
    """Folder for all that the demo writes; None means one that is removed at the end."""
    seconds: float = 180.0
    """Longest time that the documents may take."""


def run_demo(documents: Sequence[Document], options: Options) -> Report:
    """Runs the demo to its end. Raises DemoError if it breaks off, KeyboardInterrupt if told to stop."""
    from pawl.cli.options import run

    folder = _own_folder(options.keep)
    try:
        return run(_until_told_to_stop(_Demo(documents, options, folder)))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


async def _until_told_to_stop(demo: _Demo) -> Report:
    """SIGTERM ends the demo as SIGINT does: children and files are cleaned up."""
    running = asyncio.ensure_future(demo.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    return await running


def _own_folder(keep: Path | None) -> Path:
    """A folder that nothing else uses, least of all the `.pawl` of a server of yours."""
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="pawl-demo-"))
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise DemoError(f"{keep} is not empty; the demo wants a folder of its own")
    return keep.resolve()


@dataclass(slots=True)
class _Demo:
    documents: Sequence[Document]
    options: Options
    folder: Path
    server: Server = field(init=False)
    reader: MarkReader = field(init=False)
    workers: list[Worker] = field(init=False, default_factory=list)
    kills: list[Kill] = field(init=False, default_factory=list)
    sent: dict[str, Sent] = field(init=False, default_factory=dict)
    effects: set[str] = field(init=False, default_factory=set)
    """Effects that have happened."""
    done: int = field(init=False, default=0)
    """Documents whose last effect has happened."""
    moved: asyncio.Condition = field(init=False, default_factory=asyncio.Condition)
    """Notified when there is more of them."""
    killed: Worker | None = field(init=False, default=None)
    strikes: asyncio.Semaphore = field(init=False, default_factory=lambda: asyncio.Semaphore(0))
    """Released by each kill."""

    def __post_init__(self) -> None:
        self.server = Server(self.folder)
        self.reader = MarkReader(self.folder)

    async def run(self) -> Report:
        """Starts everything, ends everything, and reports what happened between."""
        try:
            with Display(len(self.documents)) as display:
                display.say(f"{len(self.documents)} documents: {self.options.corpus}")
                await self.server.start()
                facts = self.server.facts
                display.say(f"{facts['store']} at {facts['durability']}, server at {facts['address']}")
                async with Client(self.server.address, timeout=60.0) as client:
                    report = await self._run(client, display)
        except* PawlError as errors:
            raise DemoError(f"{_first(errors)}") from errors
        except* DemoError as errors:
            raise _first(errors) from None
        finally:
            await asyncio.gather(*(worker.stop() for worker in self.workers if not worker.ended))
            await self.server.stop()
        report.store, report.durability = facts["store"], facts["durability"]
        report.corpus = self.options.corpus
        return report

    async def _run(self, client: Client, display: Display) -> Report:
        await client.create(COLLECTOR_ID, COLLECTOR, version=VERSION, state=EMPTY)
        for name in ("a", "b"):
            self._start_worker(name)
        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch(display))
            tasks.create_task(self._admit(client))
            tasks.create_task(self._kill(client, display))
            await watching
        seconds = time.monotonic() - started
        display.say("all effects have happened; comparing them with the plan")
        report = judge(await self._evidence(client))
        report.seconds = round(seconds, 3)
        report.steps_per_second = round(report.steps_run / seconds, 1)
        return report

    def _start_worker(self, name: str) -> None:
        self.workers.append(Worker(name, self.server.address, self.folder, CONCURRENCY))

    async def _admit(self, client: Client) -> None:
        """Sends every document its message, creating its instance in the same transition.

        Never more than the workers can have under way and as many again: what a kill stops is to be taken
        over soon and not behind a long queue. The last third waits for the kills, so that there is load
        behind each one, however few the documents.
        """
        new = NewInstance(DOCUMENT, VERSION, state={})
        messages = [
            Message(
                one.id, {"path": str(one.path), "fail": one.id == self._failing}, id=MESSAGE_ID, create=new
            )
            for one in self.documents
        ]
        kills = len(self._targets)
        last_third = messages[len(messages) * 2 // 3 :] if kills else []
        await self._send(client, messages[: len(messages) - len(last_third)])
        for kill in range(kills):
            await self.strikes.acquire()
            await self._send(client, last_third[kill::kills])

    async def _send(self, client: Client, messages: Sequence[Message]) -> None:
        for start in range(0, len(messages), CHUNK):
            async with self.moved:
                await self.moved.wait_for(lambda: len(self.sent) - self.done <= 4 * CONCURRENCY - CHUNK)
            for answer in await client.send_many(messages[start : start + CHUNK], timeout=60.0):
                if isinstance(answer, PawlError):
                    raise answer
                self.sent[answer.instance_id] = answer

    @property
    def _targets(self) -> list[str]:
        return [target for target in KILL_AT if target in self.options.kills]

    @property
    def _failing(self) -> str:
        return self.documents[len(self.documents) // 2].id

    async def _watch(self, display: Display) -> None:
        """Returns when the last effect of every document has happened."""
        end = time.monotonic() + self.options.seconds
        seen = 0
        while self.done < len(self.documents):
            self.reader.poll()
            for mark in self.reader.marks[seen:]:
                if mark.kind == "E" and mark.effect_id not in self.effects:
                    self.effects.add(mark.effect_id)
                    self.done += mark.step == STEPS[-1]
            seen = len(self.reader.marks)
            display.show(self.done, len(self.effects))
            async with self.moved:
                self.moved.notify_all()
            for worker in self.workers:
                if worker is not self.killed and worker.ended:
                    raise DemoError(f"{worker.name} ended by itself: {worker.last_words()}")
            if time.monotonic() > end:
                raise DemoError(f"only {self.done} of {len(self.documents)} documents are done in time")
            await asyncio.sleep(0.02)

    async def _kill(self, client: Client, display: Display) -> None:
        """Kills what is to be killed, each when enough has been done."""
        planned = len(self.documents) * len(STEPS)
        for target in self._targets:
            await self._until_effects(planned * KILL_AT[target])
            display.show(self.done, len(self.effects), now=True)
            if target == "worker":
                await self._kill_worker(display)
                continue
            display.say(f"kill -9 of the {target}")
            if target == "server":
                kill = await kill_server(self.server)
            else:
                kill = await kill_store(self.server, lambda: client.get(COLLECTOR_ID, timeout=1.0))
            self.kills.append(kill)
            self.strikes.release()
            await until_steps_begin(kill, self.reader)
            display.say(f"work goes on after {kill.recovery_seconds:.2f} s")

    async def _until_effects(self, enough: float) -> None:
        async with self.moved:
            await self.moved.wait_for(lambda: len(self.effects) >= enough)

    async def _kill_worker(self, display: Display) -> None:
        self.killed, kill = await kill_worker(self.workers, self.reader)
        self.kills.append(kill)
        self.strikes.release()
        mark = kill.inside[0]
        display.say(
            f"kill -9 of {self.killed.name} inside step {mark.step} of {mark.instance_id}"
            f" ({len(kill.inside)} steps running, {len(kill.held)} turns held)"
        )
        await until_taken_over(kill, self.reader)
        display.say(f"the other worker has taken over all of its turns after {kill.recovery_seconds:.2f} s")
        self._start_worker("c")
        display.say(f"worker c replaces {self.killed.name}")

    async def _evidence(self, client: Client) -> Evidence:
        closed = await client.send(
            COLLECTOR_ID, {"close_batch": True}, id="close-last-batch", wait=SETTLE_SECONDS
        )
        turns = await read_turns(client, self.sent.values(), SETTLE_SECONDS)
        self.reader.poll()
        info = await client.info()
        plan = {
            effect_id(info.namespace, one.incarnation, one.instance_id, one.message_id, key): (
                one.instance_id,
                key,
            )
            for one in self.sent.values()
            for key in STEPS
        }
        collected = closed.result()
        return Evidence(plan, self.reader.marks, turns, self.kills, collected, closed.turn, self._failing)


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
