"""Programs that use the synchronous client, run as `python -m tests.sdk.sync_program NAME ADDRESS`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

import pawl
from pawl.sync import Client


def wait(address: str) -> None:
    """Waits for a turn that never ends, until it is interrupted."""
    with Client(address) as client:
        sent = client.send("i-1", None, create=pawl.NewInstance("nobody", "v1"))
        print("waiting", flush=True)
        try:
            client.await_turn("i-1", sent.turn, wait=600)
        except KeyboardInterrupt:
            print("interrupted", client.get("i-1").status)


def fork(address: str) -> None:
    """Uses one client before a fork, in the child and after it."""
    with Client(address) as client:
        print("parent", client.info().namespace, flush=True)
        _in_child(lambda: client.info().namespace)
        print("parent", client.info().namespace)


def fork_first(address: str) -> None:
    """Makes a client before a fork and uses it in the child only."""
    with Client(address) as client:
        _in_child(lambda: client.info().namespace)


def fork_after_asyncio(address: str) -> None:
    """Forks after calls from an event loop."""

    async def use() -> None:
        async with pawl.Client(address) as client:
            print("parent", (await client.info()).namespace, flush=True)

    asyncio.run(use())
    _in_child(lambda: Client(address).info().namespace)


def _in_child(call: Callable[[], str]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            print("child", call(), flush=True)
        except RuntimeError as error:
            print("child", error, flush=True)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    {"wait": wait, "fork": fork, "fork_first": fork_first, "fork_after_asyncio": fork_after_asyncio}[
        sys.argv[1]
    ](sys.argv[2])
