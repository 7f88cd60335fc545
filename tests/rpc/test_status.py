"""The one error table says what error.proto promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import grpc
import pytest

from pawl.v1 import instance_service_pb2 as instances
from pawl.v1.error_pb2 import Reason as Number
from pawl_server.app import Handle
from pawl_server.domain.errors import Reason, Refused
from pawl_server.engine.problems import refused
from pawl_server.rpc.status import TABLE, answer
from pawl_server.store.errors import ScriptFailed, StoreMemory, StoreMoving, StoreUnavailable
from tests.support.api import Api, refusal_of

PROTO = Path(__file__).parents[2] / "proto/pawl/v1/error.proto"


def documented() -> dict[str, str]:
    """Reason -> its comment in error.proto."""
    found = re.findall(r"((?:  // .*\n)+)  REASON_(\w+) = [1-9]\d*;", PROTO.read_text())
    return {name: " ".join(re.findall(r"// (.*)", comment)) for comment, name in found}


@pytest.mark.spec("R-API-1")
def test_every_reason_of_the_contract_has_its_code() -> None:
    assert set(documented()) == {str(reason) for reason in Reason} == {str(reason) for reason in TABLE}
    assert {name.removeprefix("REASON_") for name, _ in Number.items()} == {"UNSPECIFIED", *TABLE}
    for name, comment in documented().items():
        code = re.match(r"[A-Z_]+(?=[.,])", comment)
        if code is not None:
            assert TABLE[Reason(name)].code is getattr(grpc.StatusCode, code[0]), name


@pytest.mark.spec("R-API-1")
def test_whether_a_repeat_can_succeed_is_what_the_contract_says() -> None:
    for name, comment in documented().items():
        found = TABLE[Reason(name)]
        if re.search(r"^[A-Z_]+, (never succeeds)", comment):
            assert not found.retryable, name
        elif re.search(r"^[A-Z_]+, retry", comment):
            assert found.retryable, name
        assert not found.retry_after_ms or found.retryable, name


def test_room_may_come_where_a_limit_counts_things_in_use() -> None:
    full = Refused("LIMIT_EXCEEDED", "", {"limit": "pending_messages"})
    large = Refused("LIMIT_EXCEEDED", "", {"limit": "message_bytes"})
    assert answer(full).retry_after_ms
    assert not answer(large).retryable


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StoreUnavailable("no answer"), Reason.STORE_UNAVAILABLE),
        (StoreMoving("slot 7"), Reason.MOVING),
        (StoreMemory("OOM"), Reason.OVERLOADED),
        (ScriptFailed("send", "bug"), Reason.INTERNAL),
        (ZeroDivisionError(), Reason.INTERNAL),
    ],
)
def test_failures_of_the_store_have_reasons(error: Exception, reason: Reason) -> None:
    assert refused(error).reason is reason


@pytest.mark.spec("R-API-1")
async def test_a_bug_gets_an_incident_that_the_log_knows(
    api: Api, server: Handle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(instance_id: str) -> Any:
        raise ZeroDivisionError(f"secret of {instance_id}")

    monkeypatch.setattr(server.engine.instances, "get", broken)
    problem = await refusal_of(api.instances.GetInstance(instances.GetInstanceRequest(instance_id="a")))
    assert (problem.code, problem.reason) == ("INTERNAL", "INTERNAL")
    assert "secret" not in problem.message
    (record,) = [record for record in caplog.records if "incident" in vars(record)]
    assert vars(record)["incident"] == problem.metadata["incident"]
    assert "GetInstance" in record.getMessage()


@pytest.mark.spec("R-API-1")
async def test_calls_that_do_not_exist_and_requests_that_are_none(api: Api) -> None:
    for method in ("/pawl.v1.TurnService/NewCall", "/pawl.v9.NewService/Get"):
        problem = await refusal_of(api.channel.unary_unary(method)(b""))
        assert (problem.code, problem.reason) == ("UNIMPLEMENTED", "UNIMPLEMENTED")
    bad_utf8 = b"\x0a\x02\xc3\x28"
    for body in (b"\xff\xff\xff", bad_utf8):
        problem = await refusal_of(api.channel.unary_unary("/pawl.v1.TurnService/GetTurn")(body))
        assert (problem.code, problem.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
        assert problem.metadata == {"field": "request"}


async def test_answers_and_refusals_name_the_durability(api: Api) -> None:
    call = api.instances.GetInstance(instances.GetInstanceRequest(instance_id="none"))
    await refusal_of(call)
    assert ("pawl-durability", "memory") in tuple(await call.trailing_metadata())
    await api.create("a")
    call = api.instances.GetInstance(instances.GetInstanceRequest(instance_id="a"))
    await call
    assert ("pawl-durability", "memory") in tuple(await call.trailing_metadata())
