"""Compressed requests: limits hold for what they unpack to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from pawl.v1.message_service_pb2 import SendMessageRequest
from pawl.v1.message_service_pb2_grpc import MessageServiceStub
from pawl_server.app import Handle
from pawl_server.domain.limits import REQUEST_BYTES
from pawl_server.rpc.server import MAX_RECEIVE_BYTES
from tests.support.api import CALL_S, Api, json, refusal_of


@pytest.fixture
async def packed(server: Handle) -> AsyncIterator[Any]:
    """A client that packs its requests."""
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(
        server.address, options=options, compression=grpc.Compression.Gzip
    ) as channel:
        yield MessageServiceStub(channel)


def send(size: int) -> SendMessageRequest:
    """A message whose data have that many bytes."""
    return SendMessageRequest(instance_id="a", message_id="m", message=json(b"x" * size))


async def test_a_packed_request_is_taken(api: Api, packed: Any) -> None:
    await api.create("a")
    assert (await packed.SendMessage(send(30_000), timeout=CALL_S)).turn == 1


@pytest.mark.spec("R-LIMIT-1")
async def test_what_unpacks_to_too_much_is_refused(api: Api, packed: Any) -> None:
    problem = await refusal_of(packed.SendMessage(send(REQUEST_BYTES), timeout=CALL_S))
    assert (problem.code, problem.reason) == ("RESOURCE_EXHAUSTED", "LIMIT_EXCEEDED")
    assert problem.metadata["limit"] == "request_bytes"


async def test_what_unpacks_to_more_than_grpc_takes_in_has_no_reason(api: Api, packed: Any) -> None:
    """gRPC refuses it by itself: for clients, RESOURCE_EXHAUSTED without a reason is not to be repeated."""
    problem = await refusal_of(packed.SendMessage(send(MAX_RECEIVE_BYTES), timeout=CALL_S))
    assert (problem.code, problem.reason) == ("RESOURCE_EXHAUSTED", "")
