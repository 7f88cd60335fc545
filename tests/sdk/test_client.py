"""Coalesced sends and repeated calls, with a fake server."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

import pawl
from pawl import Client, Message, NewInstance, workflow
from pawl._requests import spec_of
from pawl._transport import resolve_address
from pawl.payloads import Payload, decode, encode
from pawl.v1 import message_service_pb2 as messages
from tests.sdk.fake_server import FakeServer, refusal
from tests.support.wait import wait_until


@workflow("counter", version="v1", initial_state={"count": 0})
async def counter(ctx: Any, state: Any, message: Any) -> Any: ...


async def test_sends_of_one_tick_travel_together(server: FakeServer, client: Client) -> None:
    sent = await asyncio.gather(*(client.send(f"i-{n}", {"n": n}) for n in range(100)))
    assert [len(batch.messages) for batch in server.batches] == [100]
    assert [item.turn for item in sent] == list(range(1, 101))
    request = server.batches[0].messages[7]
    assert (request.instance_id, decode(request.message)) == ("i-7", {"n": 7})
    assert len({item.message_id for item in sent}) == 100
    assert not request.HasField("create_if_absent")
    assert not request.HasField("wait")


async def test_batches_are_cut_by_items_and_bytes(server: FakeServer, client: Client) -> None:
    await asyncio.gather(*(client.send(f"i-{n}", n) for n in range(600)))
    assert sorted(len(batch.messages) for batch in server.batches) == [88, 256, 256]
    server.batches.clear()
    await asyncio.gather(*(client.send(f"i-{n}", "x" * 30_000) for n in range(200)))
    assert len(server.batches) >= 3
    assert all(batch.ByteSize() <= 2 * 1024 * 1024 + 65_536 for batch in server.batches)


async def test_messages_to_one_instance_keep_their_order(server: FakeServer, client: Client) -> None:
    # The first call fails; those behind it must not overtake.
    server.fail_calls = [grpc.StatusCode.UNAVAILABLE]
    order: list[int] = []

    def admit(request: messages.SendMessageRequest) -> messages.SendResult:
        order.append(decode(request.message))
        return messages.SendResult(sent=messages.SendMessageResponse(turn=len(order)))

    server.admit = admit
    await asyncio.gather(*(client.send("i-1", n) for n in range(700)))
    assert order == list(range(700))


async def test_other_instances_do_not_wait(server: FakeServer, client: Client) -> None:
    server.hold_calls = asyncio.Event()
    slow = asyncio.ensure_future(client.send("i-1", 1))
    await wait_until(lambda: server.batches)
    behind = asyncio.ensure_future(client.send("i-1", 2))
    other = asyncio.ensure_future(client.send("i-2", 3))
    await wait_until(lambda: len(server.batches) == 2)
    assert [item.instance_id for item in server.batches[1].messages] == ["i-2"]
    server.hold_calls.set()
    assert [(await task).turn for task in (slow, other, behind)] == [1, 2, 3]


async def test_a_refusal_hits_one_message_only(server: FakeServer, client: Client) -> None:
    def admit(request: messages.SendMessageRequest) -> messages.SendResult:
        if request.instance_id == "i-1":
            return messages.SendResult(
                refusal=refusal("LIMIT_EXCEEDED", "full", limit="pending_messages", value="129", max="128")
            )
        return messages.SendResult(sent=messages.SendMessageResponse(turn=1))

    server.admit = admit
    outcomes = await client.send_many([Message(f"i-{n}", n) for n in range(3)])
    assert [type(outcome) for outcome in outcomes] == [pawl.Sent, pawl.LimitExceeded, pawl.Sent]
    error = outcomes[1]
    assert isinstance(error, pawl.LimitExceeded)
    assert (error.limit, error.value, error.max) == ("pending_messages", 129, 128)


async def test_values_that_can_not_be_encoded_hit_one_message_only(client: Client) -> None:
    outcomes = await client.send_many([Message("i-1", object()), Message("i-2", 1)])
    assert [type(outcome) for outcome in outcomes] == [pawl.PayloadError, pawl.Sent]
    with pytest.raises(pawl.PayloadError):
        await client.send("i-1", float("nan"))


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL]
)
async def test_broken_calls_are_repeated_exactly(
    server: FakeServer, client: Client, code: grpc.StatusCode
) -> None:
    server.fail_calls = [code] * 3
    assert (await client.send("i-1", 1)).turn == 1
    assert len(server.batches) == 4
    assert len({batch.SerializeToString(deterministic=True) for batch in server.batches}) == 1


async def test_items_refused_for_now_are_repeated_alone(server: FakeServer, client: Client) -> None:
    seen: dict[str, int] = {}

    def admit(request: messages.SendMessageRequest) -> messages.SendResult:
        seen[request.instance_id] = seen.get(request.instance_id, 0) + 1
        if request.instance_id == "busy" and seen["busy"] < 3:
            return messages.SendResult(refusal=refusal("OVERLOADED"))
        return messages.SendResult(sent=messages.SendMessageResponse(turn=1))

    server.admit = admit
    outcomes = await client.send_many([Message("busy", 1), Message("free", 2)])
    assert all(isinstance(outcome, pawl.Sent) for outcome in outcomes)
    assert seen == {"busy": 3, "free": 1}


async def test_time_runs_out_with_the_last_failure(server: FakeServer, client: Client) -> None:
    server.fail_calls = [grpc.StatusCode.UNAVAILABLE] * 1000
    with pytest.raises(pawl.Unavailable):
        await client.send("i-1", 1, timeout=0.5)


async def test_what_was_refused_before_the_time_ran_out_is_said(server: FakeServer, client: Client) -> None:
    def admit(request: messages.SendMessageRequest) -> messages.SendResult:
        server.fail_calls = [grpc.StatusCode.DEADLINE_EXCEEDED]
        return messages.SendResult(refusal=refusal("STORE_UNAVAILABLE"))

    server.admit = admit
    with pytest.raises(pawl.Unavailable) as caught:
        await client.send("i-1", 1)
    assert caught.value.reason == "STORE_UNAVAILABLE"


async def test_time_runs_out_without_any_answer(server: FakeServer, client: Client) -> None:
    server.hold_calls = asyncio.Event()
    with pytest.raises(pawl.DeadlineExceeded):
        await client.send("i-1", 1, timeout=0.2)
    # What waits behind it is not stuck.
    server.hold_calls.set()
    assert (await client.send("i-1", 2)).turn


async def test_what_waits_behind_a_slow_call_keeps_its_own_time(server: FakeServer, client: Client) -> None:
    server.hold_calls = asyncio.Event()
    slow = asyncio.ensure_future(client.send("i-1", 1))
    await wait_until(lambda: server.batches)
    with pytest.raises(pawl.DeadlineExceeded):
        await client.send("i-1", 2, timeout=0.1)
    server.hold_calls.set()
    await slow
    assert (await client.send("i-1", 3)).turn
    assert [decode(item.message) for batch in server.batches for item in batch.messages] == [1, 3]


async def test_a_cancelled_caller_disturbs_no_other(server: FakeServer, client: Client) -> None:
    server.hold_calls = asyncio.Event()
    first, second = (asyncio.ensure_future(client.send("i-1", n)) for n in range(2))
    await wait_until(lambda: server.batches)
    first.cancel()
    server.hold_calls.set()
    assert (await second).turn == 2
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_message_id_is_kept(server: FakeServer, client: Client) -> None:
    sent = await client.send("i-1", 1, id="mine", origin=b"me", create=counter)
    request = server.batches[0].messages[0]
    assert (sent.message_id, request.message_id, request.origin) == ("mine", "mine", b"me")
    assert (request.create_if_absent.workflow_type, request.create_if_absent.version) == ("counter", "v1")
    assert decode(request.create_if_absent.state) == {"count": 0}
    handle = client.instance("i-1")
    assert (await handle.send(2)).instance_id == "i-1"


async def test_closing_ends_what_waits(server: FakeServer) -> None:
    server.hold_calls = asyncio.Event()
    client = Client(server.address)
    pending = asyncio.ensure_future(client.send("i-1", 1))
    await wait_until(lambda: server.batches)
    behind = asyncio.ensure_future(client.send("i-1", 2))
    await asyncio.sleep(0)
    await client.close()
    for task in (pending, behind):
        with pytest.raises(pawl.Unavailable, match="closed"):
            await task
    with pytest.raises(pawl.Unavailable, match="closed"):
        await client.info()
    with pytest.raises(pawl.Unavailable, match="closed"):
        await client.send("i-1", 3)


def test_what_is_created() -> None:
    spec = spec_of(NewInstance(counter, state=None, lease_timeout=10, max_attempts=2))
    assert (spec.state, spec.lease_timeout.seconds, spec.max_attempts) == (encode(None), 10, 2)
    spec = spec_of(NewInstance("named", "v2"))
    assert (spec.workflow_type, spec.version, spec.state) == ("named", "v2", Payload())
    assert not spec.HasField("state")
    assert spec_of(NewInstance(counter, version="v9")).version == "v9"
    with pytest.raises(ValueError, match="needs a version"):
        spec_of(NewInstance("named"))


def test_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_address(None) == "127.0.0.1:7295"
    monkeypatch.setenv("PAWL_ADDRESS", "unix:/tmp/x")
    assert resolve_address(None) == "unix:/tmp/x"
    assert resolve_address("host:1") == "host:1"
