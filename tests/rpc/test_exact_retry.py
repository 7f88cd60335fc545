"""Repeating a call gives the first answer; the same id with another body conflicts."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.duration_pb2 import Duration

from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import message_service_pb2 as messages
from pawl.v1.error_pb2 import Reason
from pawl.v1.payload_pb2 import Payload
from pawl_server.app import Handle, running
from tests.support.api import Api, json, refusal_of, spec
from tests.support.hand import Hand
from tests.support.server import settings_for


def _create(**fields: object) -> instances.CreateInstanceRequest:
    usual = {"state": json("0"), "lease_timeout": Duration(seconds=9), "max_attempts": 2}
    return instances.CreateInstanceRequest(instance_id="a", spec=spec(**{**usual, **fields}))


@pytest.mark.spec("R-CREATE-1", "R-CREATE-2")
async def test_create(api: Api) -> None:
    first = await api.instances.CreateInstance(_create())
    assert first.instance.incarnation > 0
    await api.send("a", "m")
    again = await api.instances.CreateInstance(_create())
    assert again == first
    for other in (
        _create(workflow_type="other"),
        _create(version="v2"),
        _create(state=json("1")),
        _create(state=Payload(data=b"0", encoding="binary")),
        _create(state=None),
        _create(lease_timeout=None),
        _create(max_attempts=3),
    ):
        problem = await refusal_of(api.instances.CreateInstance(other))
        assert (problem.code, problem.reason) == ("ALREADY_EXISTS", "BODY_CONFLICT"), other
        assert problem.metadata == {"resource": "instance", "name": "a"}
    stored = (await api.instances.GetInstance(instances.GetInstanceRequest(instance_id="a"))).instance
    assert (stored.state.data, stored.version, stored.max_attempts) == (b"0", "v1", 2)
    assert stored.lease_timeout.seconds == 9
    assert stored.pending_turns == 1


@pytest.mark.spec("R-SEND-1", "R-SEND-2")
async def test_send(api: Api) -> None:
    await api.create("a")
    first = await api.send("a", "m", "1", origin=b"first")
    assert (first.turn, (await api.send("a", "n")).turn) == (1, 2)
    assert await api.send("a", "m", "1", origin=b"second") == first, "the origin is no part of the body"
    for other in (json("2"), Payload(data=b"1", encoding="x"), Payload(data=b"1")):
        request = messages.SendMessageRequest(instance_id="a", message_id="m", message=other)
        problem = await refusal_of(api.messages.SendMessage(request))
        assert (problem.code, problem.reason) == ("ALREADY_EXISTS", "BODY_CONFLICT")
        assert problem.metadata == {"resource": "message", "name": "m"}
    assert (await api.send("a", "o")).turn == 3, "no refused message took a number"


@pytest.mark.spec("R-SEND-2")
async def test_send_again_after_the_turn_is_finished(api: Api, server: Handle) -> None:
    await api.create("a")
    first = await api.send("a", "m")
    await Hand(server.engine).finish("a")
    assert await api.send("a", "m") == first
    problem = await refusal_of(api.send("a", "m", "other"))
    assert problem.reason == "BODY_CONFLICT"
    later = await api.send("a", "m", wait=Duration(seconds=5))
    assert later.turn == 1
    assert later.outcome.reply.data == b"done"


@pytest.mark.spec("R-SEND-2")
async def test_a_digest_of_the_sender_is_compared_instead_of_the_data(api: Api) -> None:
    def sealed(nonce: bytes, digest: bytes) -> messages.SendMessageRequest:
        payload = Payload(data=nonce + b"secret", encoding="aes", digest=digest)
        return messages.SendMessageRequest(instance_id="a", message_id="m", message=payload)

    await api.create("a")
    first = await api.messages.SendMessage(sealed(b"1", b"same"))
    assert await api.messages.SendMessage(sealed(b"2", b"same")) == first
    problem = await refusal_of(api.messages.SendMessage(sealed(b"1", b"else")))
    assert problem.reason == "BODY_CONFLICT"
    problem = await refusal_of(api.messages.SendMessage(sealed(b"1", b"")))
    assert problem.reason == "BODY_CONFLICT", "a digest is not a payload that looks like it"


@pytest.mark.spec("R-SEND-3")
async def test_create_if_absent(api: Api) -> None:
    problem = await refusal_of(api.send("a", "m"))
    assert (problem.code, problem.reason) == ("NOT_FOUND", "NOT_FOUND")
    assert problem.metadata == {"resource": "instance", "name": "a"}
    first = await api.send("a", "m", create_if_absent=spec(state=json("7"), max_attempts=5))
    assert first.turn == 1
    assert (await api.send("a", "n", create_if_absent=spec(state=json("8")))).turn == 2
    stored = (await api.instances.GetInstance(instances.GetInstanceRequest(instance_id="a"))).instance
    assert (stored.state.data, stored.max_attempts) == (b"7", 5), "an existing instance stays as it is"
    for other in (spec(version="v2"), spec(workflow_type="u")):
        problem = await refusal_of(api.send("a", "o", create_if_absent=other))
        assert (problem.code, problem.reason) == ("ALREADY_EXISTS", "BODY_CONFLICT")
        assert problem.metadata == {"resource": "instance", "name": "a"}


@pytest.mark.spec("R-SEND-2", "R-SEND-5")
async def test_the_same_message_many_times_at_once_is_one_turn(api: Api) -> None:
    await api.create("a")
    answers = await asyncio.gather(*(api.send("a", "m") for _ in range(40)))
    assert {answer.turn for answer in answers} == {1}
    assert all(answer == answers[0] for answer in answers)
    created = await asyncio.gather(*(api.create("b") for _ in range(20)))
    assert all(instance == created[0] for instance in created)
    both = await asyncio.gather(api.send("a", "n", "1"), api.send("a", "n", "2"), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in both) == ["AioRpcError", "SendMessageResponse"]


@pytest.mark.spec("R-SEND-5")
async def test_a_batch_keeps_the_order_and_judges_one_by_one(api: Api) -> None:
    await api.create("a")
    await api.create("b")

    def to(instance_id: str, message_id: str, data: str = "1") -> messages.SendMessageRequest:
        return messages.SendMessageRequest(instance_id=instance_id, message_id=message_id, message=json(data))

    batch = [to("a", "m1"), to("none", "m"), to("b", "m1"), to("a", "m2"), to("a", "m1"), to("a", "m1", "2")]
    batch += [to(instance_id, f"x{at}") for at in range(40) for instance_id in ("a", "b")]
    answer = await api.messages.SendMessages(messages.SendMessagesRequest(messages=batch))
    results = answer.results
    assert [result.sent.turn for result in results[:5]] == [1, 0, 1, 2, 1]
    assert results[1].refusal.reason == Reason.REASON_NOT_FOUND
    assert results[1].refusal.metadata == {"resource": "instance", "name": "none"}
    assert results[4].sent == results[0].sent, "the same message twice is one turn"
    assert results[5].refusal.reason == Reason.REASON_BODY_CONFLICT
    assert [result.sent.turn for result in results[6::2]] == list(range(3, 43))
    assert [result.sent.turn for result in results[7::2]] == list(range(2, 42))
    again = await api.messages.SendMessages(messages.SendMessagesRequest(messages=batch))
    assert again == answer


@pytest.mark.spec("R-SEND-2", "R-CREATE-2")
async def test_a_repeat_on_another_server(api: Api, server: Handle) -> None:
    first = await api.create("a"), await api.send("a", "m")
    async with running(settings_for(str(server.settings.redis_url))) as other, Api(other.address) as second:
        assert (await second.create("a"), await second.send("a", "m")) == first
        ours, theirs = (
            [api.send("a", f"n{at}") for at in range(9)],
            [second.send("a", f"n{at}") for at in range(9)],
        )
        answers = await asyncio.gather(*ours, *theirs)
    assert answers[:9] == answers[9:]
    assert sorted(answer.turn for answer in answers[:9]) == list(range(2, 11))
