"""`pawl.testing` with its own server."""

from __future__ import annotations

from typing import Any

from pawl import Context, testing, workflow


@workflow("counter", version="v1", initial_state={"count": 0})
async def counter(ctx: Context, state: dict, message: dict) -> Any:
    amount = await ctx.step("add", lambda: message["add"])
    return ctx.done({"count": state["count"] + amount}, result=state["count"] + amount)


async def test_a_private_server_and_a_worker() -> None:
    async with testing.server(namespace="mine") as server, server.worker(counter, concurrency=2):
        info = await server.client.info()
        assert (info.namespace, info.durability) == ("mine", "FSYNC")
        for number in (1, 2, 3):
            sent = await server.client.send("c-1", {"add": 1}, create=counter, wait=10)
            assert sent.result() == number
