"""Workflow types over gRPC."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.duration_pb2 import Duration

from pawl.v1 import admin_service_pb2 as admin
from pawl.v1 import worker_service_pb2 as worker
from pawl.v1.instance_service_pb2 import InstanceSpec
from pawl.v1.workflow_type_pb2 import ExhaustionPolicy, Retention, RetryPolicy, WorkflowType
from tests.support.api import Api, refusal_of
from tests.support.stream import Stream
from tests.support.wait import wait_until

DEFAULTS = WorkflowType(
    name="t",
    lease_timeout=Duration(seconds=60),
    max_attempts=3,
    retry=RetryPolicy(initial_delay=Duration(seconds=1), max_delay=Duration(seconds=60), factor=2, jitter=0),
    attempt_timeout=Duration(seconds=3600),
    retention=Retention(min_turns=256, max_age=Duration(seconds=86_400), max_turns=2_000, max_bytes=4 << 20),
    on_exhausted=ExhaustionPolicy.EXHAUSTION_POLICY_BLOCK,
)


async def put(api: Api, expected: int | None = None, request_id: str = "", **fields: object) -> WorkflowType:
    """Stores settings of type t."""
    request = admin.PutWorkflowTypeRequest(
        workflow_type=WorkflowType(**{"name": "t", **fields}),
        expected_revision=expected,
        request_id=request_id,
    )
    return (await api.admin.PutWorkflowType(request)).workflow_type


async def get(api: Api, name: str = "t") -> WorkflowType:
    """Reads a type."""
    return (await api.admin.GetWorkflowType(admin.GetWorkflowTypeRequest(name=name))).workflow_type


@pytest.mark.spec("R-TYPE-1")
async def test_what_is_unset_is_the_default(api: Api) -> None:
    assert await get(api) == DEFAULTS
    stored = await put(api, lease_timeout=Duration(seconds=5), retry=RetryPolicy(factor=1.5))
    wanted = WorkflowType()
    wanted.CopyFrom(DEFAULTS)
    wanted.lease_timeout.seconds = 5
    wanted.retry.factor = 1.5
    wanted.revision = 1
    wanted.update_time.CopyFrom(stored.update_time)
    assert stored == wanted == await get(api)
    assert stored.update_time.seconds > 0
    assert (await put(api, max_attempts=7)).lease_timeout.seconds == 60, "a change replaces all settings"


@pytest.mark.spec("R-TYPE-1", "R-TTL-3", "R-TOTAL-1")
async def test_deadlines_are_unset_unless_they_are_stored(api: Api) -> None:
    stored = await put(api, queue_timeout=Duration(seconds=5), total_timeout=Duration(seconds=60))
    assert (stored.queue_timeout.seconds, stored.total_timeout.seconds) == (5, 60)
    assert await get(api) == stored
    cleared = await put(api)
    assert {"queue_timeout", "total_timeout"}.isdisjoint(field.name for field, _ in cleared.ListFields())


async def test_retention_of_nothing(api: Api) -> None:
    stored = await put(api, retention=Retention(keep_none=True))
    assert stored.retention == Retention(keep_none=True)


@pytest.mark.spec("R-TYPE-2")
async def test_compare_and_set(api: Api) -> None:
    assert (await put(api, 0)).revision == 1
    problem = await refusal_of(put(api, 0))
    assert (problem.code, problem.reason, problem.metadata) == (
        "ABORTED",
        "REVISION_CONFLICT",
        {"revision": "1"},
    )
    assert (await put(api, 1)).revision == 2
    assert (await put(api)).revision == 3
    assert (await refusal_of(put(api, 7))).metadata == {"revision": "3"}
    race = await asyncio.gather(*(put(api, 3, max_attempts=n) for n in range(1, 9)), return_exceptions=True)
    (winner,) = [result for result in race if isinstance(result, WorkflowType)]
    assert await get(api) == winner


@pytest.mark.spec("R-TYPE-2")
async def test_a_repeat_gives_the_first_answer(api: Api) -> None:
    first = await put(api, 0, "r1", max_attempts=5)
    assert await put(api, 0, "r1", max_attempts=5) == first
    problem = await refusal_of(put(api, 0, "r1", max_attempts=6))
    assert (problem.code, problem.reason) == ("ALREADY_EXISTS", "BODY_CONFLICT")
    assert (await get(api)).revision == 1


@pytest.mark.spec("R-TYPE-3")
async def test_a_list_has_each_type_once_by_name(api: Api) -> None:
    names = [f"t{at:02}" for at in range(25)]
    await asyncio.gather(*(put(api, name=name) for name in reversed(names)))
    await put(api, name="t03", max_attempts=9)
    listed: list[WorkflowType] = []
    token = ""
    while True:
        page = await api.admin.ListWorkflowTypes(
            admin.ListWorkflowTypesRequest(page_size=7, page_token=token)
        )
        listed += page.workflow_types
        token = page.next_page_token
        if not token:
            break
        assert len(page.workflow_types) == 7
    assert [each.name for each in listed] == names
    assert (listed[3].revision, listed[3].max_attempts) == (2, 9)
    assert (
        await refusal_of(api.admin.ListWorkflowTypes(admin.ListWorkflowTypesRequest(page_token="x")))
    ).reason == ("CURSOR_STALE")


async def listed_types(api: Api, size: int = 2) -> list[WorkflowType]:
    """All pages of a listing."""
    found: list[WorkflowType] = []
    token = ""
    while True:
        page = await api.admin.ListWorkflowTypes(
            admin.ListWorkflowTypesRequest(page_size=size, page_token=token)
        )
        found += page.workflow_types
        token = page.next_page_token
        if not token:
            return found


@pytest.mark.spec("R-TYPE-5")
async def test_types_of_instances_are_listed(api: Api) -> None:
    for at in range(12):  # of both partitions
        await api.create(f"a{at}", workflow_type="created")
        await api.send(f"b{at}", "m", create_if_absent=InstanceSpec(workflow_type="sent", version="v1"))
    await put(api, max_attempts=7)
    await api.create("c", workflow_type="t")
    found = await listed_types(api)
    assert [(one.name, one.revision, one.max_attempts) for one in found] == [
        ("created", 0, 3),
        ("sent", 0, 3),
        ("t", 1, 7),
    ]
    assert found[0] == await get(api, "created")
    await put(api, name="sent", max_attempts=9)
    assert [(one.name, one.revision, one.max_attempts) for one in await listed_types(api)][1] == (
        "sent",
        1,
        9,
    )


@pytest.mark.spec("R-TYPE-5")
async def test_types_of_workers_are_listed(api: Api) -> None:
    async def names() -> list[str]:
        return [one.name for one in await listed_types(api)]

    async def has(*wanted: str) -> None:
        async def there() -> bool:
            return await names() == sorted(wanted)

        await wait_until(there, 20, f"{wanted} are listed")

    poll = worker.PollTurnRequest(session="s", workflows=[worker.WorkflowRef(workflow_type="p", version="v")])
    await api.workers.PollTurn(poll)
    await has("p")
    async with Stream(api):
        await has("p", "t")
    assert [(one.name, one.revision) for one in await listed_types(api)] == [("p", 0), ("t", 0)]
