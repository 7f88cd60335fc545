"""A blocked event loop loses no lease."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

import pawl
from pawl import Context, workflow
from pawl._runtime import watchdog as watchdog_module
from pawl._runtime.watchdog import Watchdog, patience
from pawl._transport import SyncRenewer
from pawl.errors import ServerError
from pawl.v1 import worker_service_pb2 as work
from pawl.v1.worker_service_pb2 import RenewResult
from tests.sdk.blocking_server import blocking_server
from tests.sdk.fake_server import FakeServer, leased_turn, refusal
from tests.support.wait import wait_until, wait_until_sync


class Renewer:
    """Records what the watchdog renews."""

    def __init__(self) -> None:
        self.calls: list[list[bytes]] = []
        self.answer: Callable[[bytes], RenewResult] = lambda lease: RenewResult(lease=lease)
        self.fail = 0
        self.warmed = 0
        self.closed = threading.Event()

    def renew(self, leases: Sequence[bytes], timeout: float) -> Sequence[RenewResult]:
        if self.fail:
            self.fail -= 1
            raise pawl.Unavailable("away")
        self.calls.append(list(leases))
        return [self.answer(lease) for lease in leases]

    def step(self, command: work.Command, timeout: float) -> None:
        raise AssertionError("no step has anything to say")

    def warm(self, timeout: float) -> None:
        self.warmed += 1

    def close(self) -> None:
        self.closed.set()


@pytest.mark.parametrize(("lease", "seconds"), [(60, 2), (6, 2), (3, 1), (1, 1 / 3)])
def test_patience_is_a_third_of_the_lease(lease: float, seconds: float) -> None:
    assert patience(lease) == pytest.approx(seconds)


class Clock:
    """Time for a watchdog, moved by the test. `looks` counts how often its thread has asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0

    def monotonic(self) -> float:
        """Seconds."""
        if threading.current_thread().name == "pawl-watchdog":
            self.looks += 1
        return self.now


Watch = Callable[..., Watchdog]


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Starts watchdogs; they are stopped after the test."""
    started: list[Watchdog] = []

    def start(renewer: Renewer, leases: list[bytes], over: Any = None) -> Watchdog:
        watchdog = Watchdog(renewer, lambda: leases, over or (lambda lease, error: None))
        watchdog.expect(0.15)
        started.append(watchdog)
        watchdog.start()
        return watchdog

    yield start
    for watchdog in started:
        watchdog.stop()


def test_it_renews_while_the_loop_does_not_tick(watch: Watch) -> None:
    renewer = Renewer()
    watchdog = watch(renewer, [b"a", b"b"])
    wait_until_sync(lambda: len(renewer.calls) >= 3)
    assert renewer.calls[0] == [b"a", b"b"]
    assert renewer.warmed == 1
    watchdog.stop()
    assert renewer.closed.wait(10)


def test_it_leaves_a_running_loop_alone(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, renewer = Clock(), Renewer()
    monkeypatch.setattr(watchdog_module, "time", clock)
    watchdog = watch(renewer, [b"a"])
    for _ in range(10):
        clock.now += 0.04
        looks = clock.looks
        wait_until_sync(lambda n=looks: clock.looks > n)
        watchdog.tick()
    assert renewer.calls == []
    clock.now += 0.06
    wait_until_sync(lambda: renewer.calls)


def test_it_cuts_long_lists(watch: Watch) -> None:
    renewer = Renewer()
    watch(renewer, [b"%d" % number for number in range(300)])
    wait_until_sync(lambda: len(renewer.calls) >= 2)
    assert [len(call) for call in renewer.calls[:2]] == [256, 44]


def test_it_survives_failures_and_reports_what_is_over(watch: Watch) -> None:
    renewer = Renewer()
    renewer.fail = 2
    renewer.answer = lambda lease: RenewResult(lease=lease, refusal=refusal("LEASE_ENDED", how="expired"))
    over: list[tuple[bytes, ServerError]] = []
    watch(renewer, [b"a"], lambda lease, error: over.append((lease, error)))
    wait_until_sync(lambda: over)
    assert over[0][0] == b"a"
    assert isinstance(over[0][1], pawl.LeaseEnded)


@asynccontextmanager
async def worker_of(address: str, made: pawl.Workflow) -> AsyncIterator[None]:
    worker = pawl.Worker(address, workflows=[made])
    task = asyncio.get_running_loop().create_task(worker.run())
    yield
    await worker.stop(0)
    await asyncio.wait_for(task, 10)


@pytest.mark.spec("R-SDK-9")
@pytest.mark.spec("R-SDK-9")
async def test_a_handler_that_blocks_the_loop_keeps_its_lease() -> None:
    with blocking_server(leased_turn(lease_timeout=0.6)) as server:

        @workflow("test", version="v1")
        async def blocking(ctx: Context, state: Any, message: Any) -> Any:
            wait_until_sync(lambda: len(server.renewals) >= 2)
            return ctx.done({})

        async with worker_of(server.address, blocking):
            await wait_until(lambda: server.commands)
            assert server.renewals[0] == work.RenewLeasesRequest(leases=[b"i-1/1/1"])
            assert server.commands[0].HasField("finish")


async def test_a_lease_lost_meanwhile_ends_the_attempt_at_its_next_step() -> None:
    seen: list[Any] = []
    with blocking_server(leased_turn(lease_timeout=0.6)) as server:
        server.renewed = lambda lease: RenewResult(lease=lease, refusal=refusal("STALE_FENCE"))

        @workflow("test", version="v1")
        async def blocking(ctx: Context, state: Any, message: Any) -> Any:
            def body(step: pawl.Step) -> None:
                wait_until_sync(lambda: step.cancelled)
                seen.append("cancelled")

            try:
                await ctx.step("a", body)
            except BaseException as error:
                seen.append(type(error))
                raise

        async with worker_of(server.address, blocking):
            await wait_until(lambda: len(seen) == 2)
            assert seen == ["cancelled", pawl.AttemptEnded]
            assert server.commands == []


async def test_the_blocking_connection_speaks_to_the_server(server: FakeServer) -> None:
    server.renewed = lambda lease: RenewResult(lease=lease, refusal=refusal("NOT_FOUND"))
    renewer = SyncRenewer(server.address)
    results = await asyncio.to_thread(renewer.renew, [b"x"], 5.0)
    assert results[0].HasField("refusal")
    assert server.rescues == [work.RenewLeasesRequest(leases=[b"x"])]
    server.fail_calls = [grpc.StatusCode.UNAVAILABLE]
    with pytest.raises(pawl.Unavailable):
        await asyncio.to_thread(renewer.renew, [b"x"], 5.0)
    renewer.close()
