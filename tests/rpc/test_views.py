"""What waits, and for what: inbox, backlog, blocked, paused, parked, tagged, starved."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from pawl.v1 import admin_service_pb2 as admin
from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import message_service_pb2 as messages
from pawl.v1 import turn_service_pb2 as turns
from pawl.v1.instance_pb2 import InstanceStatus
from pawl.v1.turn_pb2 import TurnState
from pawl_server.app import Handle
from tests.support.api import Api, refusal_of
from tests.support.hand import Hand
from tests.support.raw_worker import ByPolls
from tests.support.stream import defer, finish

PAUSED, BLOCKED = InstanceStatus.INSTANCE_STATUS_PAUSED, InstanceStatus.INSTANCE_STATUS_BLOCKED


async def _inbox(api: Api, **fields: Any) -> messages.ListInboxResponse:
    return await api.messages.ListInbox(messages.ListInboxRequest(instance_id="a", **fields))


@pytest.mark.spec("R-READ-6")
async def test_inbox(server: Handle, api: Api) -> None:
    await api.create("a")
    for at in range(5):
        await api.send("a", f"m{at}", b"x" * (at + 1), ttl=Duration(seconds=60))
    for at, seconds in enumerate((300, 100, 200)):
        await api.send("a", f"later{at}", b"l", delay=Duration(seconds=seconds))
    await api.turns.CancelTurn(turns.CancelTurnRequest(instance_id="a", turn=4))
    page = await _inbox(api)
    assert [entry.turn.message_id for entry in page.entries] == [
        *("m0", "m1", "m2", "m4"),
        *("later1", "later2", "later0"),
    ]
    assert [entry.message_bytes for entry in page.entries] == [1, 2, 3, 5, 1, 1, 1]
    assert (page.pending_turns, page.delayed_messages, page.next_page_token) == (4, 3, "")
    assert page.oldest_admit_time.ToMilliseconds() <= page.newest_admit_time.ToMilliseconds()
    first, later = page.entries[0].turn, page.entries[4].turn
    assert (first.HasField("message"), first.expire_time.seconds > 0, first.turn) == (False, True, 1)
    assert (later.turn, later.state, later.due_time.seconds > 0) == (0, TurnState.TURN_STATE_QUEUED, True)
    shown = await _inbox(api, include_payloads=True, page_size=2)
    assert [entry.turn.message.data for entry in shown.entries] == [b"x", b"xx"]


@pytest.mark.spec("R-DEFER-3", "R-READ-2", "R-READ-6", "R-READ-7")
async def test_why_a_turn_is_put_off(api: Api) -> None:
    await api.create("a")
    await api.send("a", "m")
    worker = ByPolls(api)

    async def everywhere() -> set[tuple[int, str]]:
        backlog = messages.ListBacklogRequest(workflow_type="t")
        shown = [
            (await api.turns.GetTurn(turns.GetTurnRequest(instance_id="a", turn=1))).turn,
            (await api.turns.ListTurns(turns.ListTurnsRequest(instance_id="a"))).turns[0],
            (await _inbox(api)).entries[0].turn,
            (await api.messages.ListBacklog(backlog)).entries[0].head,
        ]
        return {(turn.state, turn.defer_reason) for turn in shown}

    for reason in ("capacity", "my.own_words-1", ""):
        assert (await worker.do(await worker.turn(), defer(3_600_000, reason))).ok
        assert await everywhere() == {(TurnState.TURN_STATE_DEFERRED, reason)}
        await api.instances.WakeInstance(instances.WakeInstanceRequest(instance_id="a"))
        assert await everywhere() == {(TurnState.TURN_STATE_QUEUED, "")}
    turn = await worker.turn()
    assert await everywhere() == {(TurnState.TURN_STATE_RUNNING, "")}
    assert (await worker.do(turn, finish())).ok


@pytest.mark.spec("R-READ-6")
@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_pages_of_an_inbox_while_turns_complete(server: Handle, api: Api, size: int) -> None:
    await api.create("a")
    for at in range(7):
        await api.send("a", f"m{at}")
    for at in range(3):
        await api.send("a", f"later{at}", delay=Duration(seconds=60))
    hand = Hand(server.engine)
    found: list[str] = []
    token, done = "", 0
    while True:
        page = await _inbox(api, page_size=size, page_token=token)
        assert len(page.entries) <= size
        found += [entry.turn.message_id for entry in page.entries]
        token = page.next_page_token
        if not token:
            break
        if done < 2:
            await hand.finish("a")
            done += 1
    kept = [f"m{at}" for at in range(7)] + [f"later{at}" for at in range(3)]
    assert len(found) == len(set(found))
    assert [name for name in found if name in kept[2:]] == kept[2:], "none that stayed is skipped"


@pytest.mark.spec("R-READ-7")
async def test_backlog(server: Handle, api: Api) -> None:
    for at in range(9):
        await api.create(f"i{at}", version="v2" if at % 3 == 0 else "v1")
        await api.send(f"i{at}", "m", b"secret")
    await api.create("idle")
    request = messages.ListBacklogRequest(workflow_type="t", version="v1", page_size=2)
    found: list[str] = []
    while True:
        page = await api.messages.ListBacklog(request)
        found += [entry.instance.id for entry in page.entries]
        assert all(entry.head.message_id == "m" and not entry.head.message.data for entry in page.entries)
        request.page_token = page.next_page_token
        if not page.next_page_token:
            break
    assert found == ["i1", "i2", "i4", "i5", "i7", "i8"]
    every = await api.messages.ListBacklog(messages.ListBacklogRequest(workflow_type="t"))
    assert [entry.instance.id for entry in every.entries] == [*found, "i0", "i3", "i6"]
    other = messages.ListBacklogRequest(workflow_type="t", version="v2", page_token=request.page_token or "x")
    assert (await refusal_of(api.messages.ListBacklog(other))).reason == "CURSOR_STALE"


@pytest.mark.spec("R-READ-7")
async def test_a_backlog_that_shrinks_and_grows_between_pages(server: Handle, api: Api) -> None:
    for at in range(20):
        await api.create(f"i{at:02d}")
        await api.send(f"i{at:02d}", "m")
    hand = Hand(server.engine)
    request = messages.ListBacklogRequest(workflow_type="t", page_size=3)
    found: list[str] = []
    gone = "i13"
    while True:
        page = await api.messages.ListBacklog(request)
        found += [entry.instance.id for entry in page.entries]
        request.page_token = page.next_page_token
        if not page.next_page_token:
            break
        # Those on this page leave, so does one of a later page, and one comes before the next page's begin.
        for name in found[-3:]:
            await hand.finish(name)
        if gone not in found and len(found) == 3:
            await api.turns.CancelTurn(turns.CancelTurnRequest(instance_id=gone, turn=1))
        await api.create(f"h{len(found)}")
        await api.send(f"h{len(found)}", "m")
    assert found == [f"i{at:02d}" for at in range(20) if f"i{at:02d}" != gone]


@pytest.mark.spec("R-READ-5")
async def test_instances_by_tag_key_and_creation(api: Api) -> None:
    for at in range(6):
        tags = ["even"] if at % 2 == 0 else ["odd", "odd"]
        await api.create(f"i{at}", tags=[*tags, f"n{at}"], correlation_key=f"order-{at // 3}")
    first = (await api.instances.GetInstance(instances.GetInstanceRequest(instance_id="i1"))).instance
    assert (list(first.tags), first.correlation_key) == (["n1", "odd"], "order-0")

    async def listed(**fields: Any) -> list[str]:
        request = instances.ListInstancesRequest(workflow_type="t", page_size=2, **fields)
        names: list[str] = []
        while True:
            page = await api.instances.ListInstances(request)
            names += [one.id for one in page.instances]
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return names

    assert await listed(tag="even") == ["i0", "i2", "i4"]
    assert await listed(tag="n3") == ["i3"]
    assert await listed(correlation_key="order-1") == ["i3", "i4", "i5"]
    assert await listed(tag="none") == []
    born = first.create_time
    assert "i1" in await listed(created_from=born)
    assert "i1" not in await listed(created_before=born)
    assert await listed(created_from=Timestamp(seconds=253_402_300_799)) == []
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tag": "a", "correlation_key": "b"}, "correlation_key"),
        ({"status": InstanceStatus.INSTANCE_STATUS_IDLE}, "status"),
        ({"status": PAUSED, "created_from": born}, "created_from"),
        ({"tag": "a b"}, "tag"),
        ({"created_from": Timestamp(seconds=-1)}, "created_from"),
    ]
    for bad, field in cases:
        request = instances.ListInstancesRequest(workflow_type="t", **bad)
        problem = await refusal_of(api.instances.ListInstances(request))
        assert problem.metadata == {"field": field}, bad


@pytest.mark.spec("R-READ-5")
async def test_blocked_and_paused_instances(server: Handle, api: Api) -> None:
    hand = Hand(server.engine)
    for at in range(4):
        await api.create(f"i{at}", max_attempts=1)
        await api.send(f"i{at}", "m")
        await hand.fail(f"i{at}")
    for name in ("i1", "i3"):
        await api.instances.PauseInstance(instances.PauseInstanceRequest(instance_id=name))

    async def listed(status: InstanceStatus.ValueType) -> list[str]:
        request = instances.ListInstancesRequest(workflow_type="t", status=status)
        return [one.id for one in (await api.instances.ListInstances(request)).instances]

    assert await listed(BLOCKED) == ["i0", "i2"]
    assert await listed(PAUSED) == ["i1", "i3"]
    await api.instances.ResumeInstance(instances.ResumeInstanceRequest(instance_id="i1"))
    await api.turns.SkipTurn(turns.SkipTurnRequest(instance_id="i0", turn=1))
    assert (await listed(BLOCKED), await listed(PAUSED)) == (["i1", "i2"], ["i3"])


@pytest.mark.spec("R-READ-8")
async def test_parked_turns(server: Handle, api: Api) -> None:
    hand = Hand(server.engine)
    for at in range(3):
        await api.create(f"i{at}", max_attempts=1)
        for number in range(2):
            await api.send(f"i{at}", f"m{number}", f"body {number}")
            await hand.fail(f"i{at}")
            await api.turns.ParkTurn(turns.ParkTurnRequest(instance_id=f"i{at}", turn=number + 1))
    request = turns.ListParkedRequest(workflow_type="t", page_size=4)
    page = await api.turns.ListParked(request)
    request.page_token = page.next_page_token
    rest = await api.turns.ListParked(request)
    found = [(one.instance_id, one.turn) for one in (*page.turns, *rest.turns)]
    assert found == [(f"i{at}", number) for at in range(3) for number in (1, 2)]
    one = page.turns[0]
    assert (one.message.data, one.last_failure.reason, one.message_id) == (b"body 0", "BROKEN", "m0")
    assert one.state == TurnState.TURN_STATE_PARKED
    mine = await api.turns.ListParked(turns.ListParkedRequest(workflow_type="t", instance_id="i1"))
    assert [(one.instance_id, one.turn) for one in mine.turns] == [("i1", 1), ("i1", 2)]
    await api.turns.RedriveParked(turns.RedriveParkedRequest(instance_id="i1", turn=1, discard=True))
    mine = await api.turns.ListParked(turns.ListParkedRequest(workflow_type="t", instance_id="i1"))
    assert [one.turn for one in mine.turns] == [2]


@pytest.mark.spec("R-READ-9")
async def test_workload(server: Handle, api: Api) -> None:
    await api.create("a")
    await api.send("a", "m")
    await api.create("b", workflow_type="u")
    await api.send("b", "m")
    await api.instances.PauseInstance(instances.PauseInstanceRequest(instance_id="b"))
    load = await api.admin.GetWorkload(admin.GetWorkloadRequest())
    found = {one.workflow_type: one for one in load.types}
    assert (found["t"].ready_turns, found["t"].busy_instances, found["t"].starved) == (1, 1, False)
    assert (found["u"].ready_turns, found["u"].paused_instances) == (0, 1)
    assert not found["u"].HasField("oldest_ready_age")
    only = await api.admin.GetWorkload(admin.GetWorkloadRequest(workflow_type="u"))
    assert [one.workflow_type for one in only.types] == ["u"]
