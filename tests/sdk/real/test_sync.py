"""The synchronous client on the real server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pawl
from pawl import Context, Message, NewInstance, workflow
from pawl.sync import Client
from pawl_server.app import Handle
from tests.support.fault_proxy import FaultProxy
from tests.support.processes import ROOT
from tests.support.wait import wait_until
from tests.support.workers import StartWorker


@workflow("counter", version="v1", initial_state={"count": 0})
async def counter(ctx: Context, state: dict, message: dict) -> Any:
    amount = await ctx.step("add", lambda: message["add"])
    return ctx.done({"count": state["count"] + amount}, result=state["count"] + amount)


async def test_a_story(server: Handle, start_worker: StartWorker) -> None:
    start_worker(counter)

    def story() -> None:
        with Client(server.address) as client:
            assert client.info().namespace == "default"
            client.put_workflow_type(pawl.WorkflowType("counter", max_attempts=7))
            assert client.get_workflow_type("counter").max_attempts == 7
            assert [each.name for each in client.list_workflow_types()] == ["counter"]
            assert client.create("c-1", counter).status == "IDLE"
            assert client.send("c-1", {"add": 2}, wait=30).result() == 2
            assert client.send("c-2", {"add": 3}, create=counter, wait=30).result() == 3
            handle = client.instance("c-1")
            sent = handle.send({"add": 5})
            assert handle.wait(sent.turn, wait=30).result() == 7
            assert handle.turn(sent.turn).steps[0].key == "add"
            assert handle.get().state == {"count": 7}
            assert [turn.turn for turn in handle.turns()] == [2, 1]
            assert [each.id for each in client.list(counter, page_size=1)] == ["c-1", "c-2"]
            with pytest.raises(pawl.NotFound):
                client.get("c-3")
            with pytest.raises(pawl.BodyConflict):
                client.create("c-1", counter, version="v2")

    await asyncio.to_thread(story)


async def test_many_messages(server: Handle) -> None:
    batch = [Message(f"c-{n % 3}", {"add": n}, create=counter) for n in range(600)]

    def send() -> list[Any]:
        with Client(server.address) as client:
            return client.send_many([*batch, Message("bad id", 1), Message("c-9", 1)])

    outcomes = await asyncio.to_thread(send)
    sent = [each for each in outcomes if isinstance(each, pawl.Sent)]
    # Each instance takes 128 messages and no more.
    assert len(sent) == 3 * 128
    assert [each.turn for each in sent] == [n // 3 + 1 for n in range(3 * 128)]
    assert {type(each) for each in outcomes[384:600]} == {pawl.LimitExceeded}
    assert [type(each) for each in outcomes[600:]] == [pawl.InvalidField, pawl.NotFound]
    assert outcomes[600].field == "instance_id"


@pytest.mark.spec("R-SDK-15")
async def test_one_client_serves_many_threads(server: Handle, start_worker: StartWorker) -> None:
    start_worker(counter)

    def use(client: Client, name: str) -> list[int]:
        answers = [client.send(name, {"add": 1}, create=counter, wait=30).result() for _ in range(10)]
        assert client.get(name).state == {"count": 10}
        return answers

    def all_threads() -> list[list[int]]:
        with Client(server.address) as client, ThreadPoolExecutor(8) as threads:
            return list(threads.map(lambda n: use(client, f"c-{n}"), range(8)))

    assert await asyncio.to_thread(all_threads) == [list(range(1, 11))] * 8


async def test_closing_ends_calls_of_other_threads(server: Handle) -> None:
    client = Client(server.address)
    sent = await asyncio.to_thread(client.send, "i-1", None, create=NewInstance("nobody", "v1"))
    waiting = asyncio.create_task(asyncio.to_thread(client.await_turn, "i-1", sent.turn, wait=600))
    await wait_until(lambda: server.engine.awaits.count == 1)
    client.close()
    with pytest.raises(pawl.Unavailable, match="closed"):
        await waiting


async def test_a_call_outlives_a_broken_connection(server: Handle, proxy: FaultProxy) -> None:
    client = Client(proxy.url)
    create = NewInstance("nobody", "v1")
    sent = await asyncio.to_thread(client.send, "i-1", 1, id="m-1", create=create)
    proxy.cut()
    again = await asyncio.to_thread(client.send, "i-1", 1, id="m-1", create=create)
    assert again == sent
    client.close()


async def test_ctrl_c_ends_a_wait(server: Handle) -> None:
    program = run_program("wait", server.address)
    assert program.stdout is not None
    assert await asyncio.to_thread(program.stdout.readline) == "waiting\n"
    await wait_until(lambda: server.engine.awaits.count == 1)
    program.send_signal(signal.SIGINT)
    out, _ = await asyncio.to_thread(program.communicate, timeout=20)
    assert (out, program.returncode) == ("interrupted ACTIVE\n", 0)


@pytest.mark.spec("R-SDK-16")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes can't be forked here")
@pytest.mark.parametrize(
    ("name", "support", "said"),
    [
        ("fork_first", "0", ["child default"]),
        ("fork", "1", ["parent default", "child default", "parent default"]),
        ("fork", "0", ["parent default", "child this process was forked", "parent default"]),
        ("fork_after_asyncio", "1", ["parent default", "child this process was forked"]),
    ],
)
async def test_forked_processes(server: Handle, name: str, support: str, said: list[str]) -> None:
    program = run_program(name, server.address, GRPC_ENABLE_FORK_SUPPORT=support)
    out, _ = await asyncio.to_thread(program.communicate, timeout=40)
    lines = out.splitlines()
    assert [line[: len(word)] for line, word in zip(lines, said, strict=True)] == said


def run_program(name: str, address: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.sdk.sync_program", name, address],
        cwd=ROOT,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
    )
