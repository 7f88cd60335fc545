"""What GetInstance, GetTurn and the lists show."""

from __future__ import annotations

import pytest

from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import turn_service_pb2 as turns
from pawl.v1.instance_pb2 import Instance, InstanceStatus
from pawl.v1.payload_pb2 import Payload
from pawl.v1.turn_pb2 import Turn, TurnState
from pawl_server.app import Handle
from tests.support.api import Api, json, refusal_of
from tests.support.hand import Hand


async def get_instance(api: Api, instance_id: str) -> Instance:
    """Reads an instance."""
    request = instances.GetInstanceRequest(instance_id=instance_id)
    return (await api.instances.GetInstance(request)).instance


async def get_turn(api: Api, instance_id: str, turn: int, incarnation: int = 0) -> Turn:
    """Reads a turn."""
    request = turns.GetTurnRequest(instance_id=instance_id, turn=turn, incarnation=incarnation)
    return (await api.turns.GetTurn(request)).turn


@pytest.mark.spec("R-READ-1")
async def test_an_instance_from_birth_to_block(api: Api, server: Handle) -> None:
    hand = Hand(server.engine)
    created = await api.create("a", state=json("0"))
    assert not created.HasField("state")
    shown = await get_instance(api, "a")
    assert shown.status == InstanceStatus.INSTANCE_STATUS_IDLE
    assert (shown.head_turn, shown.last_turn, shown.pending_turns, shown.last_seq) == (1, 0, 0, 1)
    assert shown.state == json("0")
    await api.send("a", "m1")
    await api.send("a", "m2")
    shown = await get_instance(api, "a")
    assert shown.status == InstanceStatus.INSTANCE_STATUS_ACTIVE
    assert (shown.head_turn, shown.last_turn, shown.pending_turns) == (1, 2, 2)
    await hand.finish("a", state=b"1")
    shown = await get_instance(api, "a")
    assert (shown.head_turn, shown.pending_turns, shown.state) == (2, 1, json("1"))
    await hand.fail("a")
    shown = await get_instance(api, "a")
    assert shown.status == InstanceStatus.INSTANCE_STATUS_BLOCKED
    assert shown.pending_turns == 1
    assert shown.create_time == created.create_time
    assert shown.incarnation == created.incarnation


@pytest.mark.spec("R-READ-2", "R-FAIL-3")
async def test_a_turn_in_all_its_states(api: Api, server: Handle) -> None:
    hand = Hand(server.engine)
    await api.create("a")
    await api.send("a", "m1", "one", origin=b"somebody")
    await api.send("a", "m2", "two")

    turn = await get_turn(api, "a", 1)
    assert (turn.state, turn.attempt, turn.message_id) == (TurnState.TURN_STATE_QUEUED, 0, "m1")
    assert (turn.message, turn.origin.client) == (json("one"), b"somebody")
    assert not turn.HasField("finish_time")
    assert not turn.HasField("due_time")
    assert (await get_turn(api, "a", 2)).state == TurnState.TURN_STATE_QUEUED

    await hand.claim("a")
    turn = await get_turn(api, "a", 1)
    assert turn.state == TurnState.TURN_STATE_RUNNING
    assert turn.due_time.seconds > turn.admit_time.seconds


@pytest.mark.spec("R-READ-2", "R-DELETE-3")
async def test_a_turn_of_an_earlier_life(api: Api, server: Handle) -> None:
    first = await api.create("a")
    await api.send("a", "m1")
    await api.instances.DeleteInstance(instances.DeleteInstanceRequest(instance_id="a"))
    second = await api.create("a")
    assert (await refusal_of(get_turn(api, "a", 1))).reason == "PRUNED"
    assert (await refusal_of(get_turn(api, "a", 1, second.incarnation))).reason == "PRUNED"
    problem = await refusal_of(get_turn(api, "a", 1, first.incarnation))
    assert (problem.reason, problem.metadata["resource"]) == ("NOT_FOUND", "turn")


@pytest.mark.spec("R-READ-2", "R-FINISH-3")
async def test_a_completed_turn_and_its_continuation(api: Api, server: Handle) -> None:
    await api.create("a")
    await api.send("a", "m1", "one")
    await Hand(server.engine).finish("a", b"reply", again=b"two")
    turn = await get_turn(api, "a", 1)
    assert (turn.state, turn.attempt, turn.step_count) == (TurnState.TURN_STATE_COMPLETED, 1, 1)
    assert (turn.reply, turn.continuation_turn, turn.trimmed) == (json("reply"), 2, False)
    (step,) = turn.steps
    assert (step.position, step.key, step.kind, step.output, step.attempt) == (
        1,
        "only",
        "step",
        json("out"),
        1,
    )
    assert turn.finish_time.ToMilliseconds() >= turn.admit_time.ToMilliseconds()
    turn = await get_turn(api, "a", 2)
    assert (turn.message_id, turn.message) == ("continue-1", json("two"))
    assert (turn.origin.continuation.turn, turn.origin.continuation.message_id) == (1, "m1")


@pytest.mark.spec("R-READ-2", "R-FAIL-3", "R-FAIL-1")
async def test_a_turn_that_fails(api: Api, server: Handle) -> None:
    hand = Hand(server.engine)
    await api.create("a")
    await api.send("a", "m")
    await hand.fail("a", "FLAKY", final=False)
    turn = await get_turn(api, "a", 1)
    assert (turn.state, turn.attempt) == (TurnState.TURN_STATE_BACKOFF, 1)
    assert turn.due_time.ToMilliseconds() > turn.admit_time.ToMilliseconds()
    failure = turn.last_failure
    assert (failure.reason, failure.message, failure.attempt) == ("FLAKY", "it broke", 1)
    assert (failure.details, failure.non_retryable) == (Payload(data=b"{}", encoding="json"), False)
    await api.create("b")
    await api.send("b", "m")
    await hand.fail("b", "WRONG")
    turn = await get_turn(api, "b", 1)
    assert turn.state == TurnState.TURN_STATE_FAILED
    assert turn.last_failure.non_retryable


@pytest.mark.spec("R-ID-3")
async def test_payloads_come_back_byte_for_byte(api: Api) -> None:
    await api.create("a", state=Payload(data=bytes(range(256)), encoding="binary"))
    assert (await get_instance(api, "a")).state == Payload(data=bytes(range(256)), encoding="binary")
    odd = (b"", b"\0", b"\0\0json\0", b"\xff\xfe{", "größe".encode(), b"\r\n$5\r\n")
    for at, data in enumerate(odd, 1):
        await api.send("a", f"m{at}", data)
        assert (await get_turn(api, "a", at)).message == json(data)
    await api.create("empty", state=Payload())
    assert (await get_instance(api, "empty")).HasField("state")


async def test_what_is_not_there(api: Api) -> None:
    created = await api.create("a")
    await api.send("a", "m")
    assert (await get_turn(api, "a", 1, created.incarnation)).turn == 1
    for call, metadata in (
        (get_instance(api, "none"), {"resource": "instance", "name": "none"}),
        (get_turn(api, "none", 1), {"resource": "turn", "name": "none/1"}),
        (get_turn(api, "a", 2), {"resource": "turn", "name": "a/2"}),
        (
            api.turns.ListTurns(turns.ListTurnsRequest(instance_id="none")),
            {"resource": "instance", "name": "none"},
        ),
    ):
        problem = await refusal_of(call)
        assert (problem.code, problem.reason, problem.metadata) == ("NOT_FOUND", "NOT_FOUND", metadata)
    problem = await refusal_of(get_turn(api, "a", 1, created.incarnation + 1))
    assert problem.reason == "NOT_FOUND"


@pytest.mark.spec("R-READ-3")
async def test_a_list_of_turns_leaves_payloads_out_unless_asked(api: Api, server: Handle) -> None:
    await api.create("a")
    for at in range(3):
        await api.send("a", f"m{at}")
    await Hand(server.engine).finish("a")
    listed = await api.turns.ListTurns(turns.ListTurnsRequest(instance_id="a"))
    assert [turn.turn for turn in listed.turns] == [3, 2, 1]
    assert not listed.next_page_token
    for turn in listed.turns:
        assert not turn.HasField("message")
        assert not turn.HasField("reply")
        assert not turn.steps
    assert listed.turns[2].step_count == 1
    full = await api.turns.ListTurns(turns.ListTurnsRequest(instance_id="a", include_payloads=True))
    assert (full.turns[2].reply, full.turns[0].message) == (json("done"), json("1"))
    assert full.turns[2].steps[0].key == "only"


async def test_a_list_of_instances_leaves_states_out(api: Api) -> None:
    await api.create("a", state=json("1"))
    listed = await api.instances.ListInstances(instances.ListInstancesRequest(workflow_type="t"))
    assert [instance.id for instance in listed.instances] == ["a"]
    assert not listed.instances[0].HasField("state")
    assert listed.instances[0].status == InstanceStatus.INSTANCE_STATUS_IDLE


async def test_page_tokens_of_other_requests_are_refused(api: Api) -> None:
    for at in range(3):
        await api.create(f"i{at}")
        await api.send("i0", f"m{at}")
    by_type = await api.instances.ListInstances(
        instances.ListInstancesRequest(workflow_type="t", page_size=1)
    )
    by_turn = await api.turns.ListTurns(turns.ListTurnsRequest(instance_id="i0", page_size=1))
    assert by_type.next_page_token
    assert by_turn.next_page_token
    token = by_type.next_page_token
    for bad in ("x", "!", "ä", token[:-1], token[1:], token + "AAAA", by_turn.next_page_token):
        request = instances.ListInstancesRequest(workflow_type="t", page_token=bad)
        problem = await refusal_of(api.instances.ListInstances(request))
        assert (problem.code, problem.reason) == ("INVALID_ARGUMENT", "CURSOR_STALE"), bad
        assert problem.metadata == {"field": "page_token"}
    request = instances.ListInstancesRequest(workflow_type="other", page_token=token)
    assert (await refusal_of(api.instances.ListInstances(request))).reason == "CURSOR_STALE"
    request = turns.ListTurnsRequest(instance_id="i1", page_token=by_turn.next_page_token)
    assert (await refusal_of(api.turns.ListTurns(request))).reason == "CURSOR_STALE"
