"""How the synchronous client repeats calls and ends them, on the test channel of grpcio-testing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import grpc
import grpc_testing
import pytest
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

import pawl
from pawl import Message
from pawl._transport.stubs import SyncStubs
from pawl._transport.sync import SyncTransport
from pawl.payloads import decode
from pawl.sync import Client
from pawl.v1 import admin_service_pb2 as admin
from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import message_service_pb2 as messages
from tests.sdk.fake_server import refusal

GET = instances.DESCRIPTOR.services_by_name["InstanceService"].methods_by_name["GetInstance"]
INFO = admin.DESCRIPTOR.services_by_name["AdminService"].methods_by_name["GetServerInfo"]
SEND = messages.DESCRIPTOR.services_by_name["MessageService"].methods_by_name["SendMessages"]
OK = grpc.StatusCode.OK
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class Peer:
    """The server's side: takes calls one by one and ends each as the test says."""

    def __init__(self) -> None:
        services = [
            *admin.DESCRIPTOR.services_by_name.values(),
            *instances.DESCRIPTOR.services_by_name.values(),
            *messages.DESCRIPTOR.services_by_name.values(),
        ]
        self.channel = grpc_testing.channel(services, grpc_testing.strict_real_time())
        self.client = Client("nowhere", timeout=20)
        self.client._transport = transport = SyncTransport("nowhere")
        transport._channel = self.channel
        transport._stubs = SyncStubs(self.channel)

    def call(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
        """Has a thread make a call."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **options))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future

    def take(self, method: Any, answer: Any, code: grpc.StatusCode = OK, details: Any = ()) -> Any:
        """Waits for the next call of a method and ends it; its request."""
        _, request, rpc = self.channel.take_unary_unary(method)
        rpc.send_initial_metadata(())
        rpc.terminate(answer, details, code, "said by the test")
        return request


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.client.close()


def details(reason: str, *, retry_after: float = 0.0, **metadata: str) -> Any:
    """Trailing metadata as the server sends it."""
    retry = RetryInfo()
    retry.retry_delay.FromMilliseconds(round(retry_after * 1000))
    status = Status(code=1, message="text")
    for part in (ErrorInfo(reason=reason, domain="pawl", metadata=metadata), retry):
        status.details.add().Pack(part)
    return (("grpc-status-details-bin", status.SerializeToString()),)


def test_broken_calls_are_repeated_exactly(peer: Peer) -> None:
    call = peer.call(peer.client.get, "i-1")
    broken = (UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
    requests = [peer.take(GET, None, code) for code in broken]
    answer = instances.GetInstanceResponse()
    answer.instance.id = "i-1"
    requests.append(peer.take(GET, answer))
    assert call.result(10).id == "i-1"
    assert [request.instance_id for request in requests] == ["i-1"] * 5


def test_a_refusal_ends_the_call(peer: Peer) -> None:
    call = peer.call(peer.client.get, "i-1")
    peer.take(GET, None, grpc.StatusCode.INVALID_ARGUMENT, details("INVALID_FIELD", field="instance_id"))
    with pytest.raises(pawl.InvalidField) as caught:
        call.result(10)
    assert (caught.value.field, caught.value.message) == ("instance_id", "text")


def test_the_server_may_ask_for_time(peer: Peer) -> None:
    call = peer.call(peer.client.get, "i-1", timeout=0.1)
    peer.take(GET, None, UNAVAILABLE, details("OVERLOADED", retry_after=30.0))
    # No other try fits in: the last failure is what is said.
    with pytest.raises(pawl.Overloaded):
        call.result(10)


def test_time_runs_out_with_the_last_failure(peer: Peer) -> None:
    call = peer.call(peer.client.info, timeout=5)
    peer.take(INFO, None, UNAVAILABLE, details("STORE_UNAVAILABLE"))
    peer.take(INFO, None, grpc.StatusCode.DEADLINE_EXCEEDED)
    with pytest.raises(pawl.Unavailable) as caught:
        call.result(10)
    assert caught.value.reason == "STORE_UNAVAILABLE"


def test_time_runs_out_without_any_answer(peer: Peer) -> None:
    call = peer.call(peer.client.info)
    peer.take(INFO, None, grpc.StatusCode.DEADLINE_EXCEEDED)
    with pytest.raises(pawl.DeadlineExceeded):
        call.result(10)


def test_batches_are_cut_and_sent_one_after_the_other(peer: Peer) -> None:
    call = peer.call(peer.client.send_many, [Message(f"i-{n}", n) for n in range(600)])
    taken: list[messages.SendMessagesRequest] = []
    while sum(len(request.messages) for request in taken) < 600:
        taken.append(_admit(peer, lambda item: _sent(decode(item.message))))
    assert [len(request.messages) for request in taken] == [256, 256, 88]
    assert [item.turn for item in call.result(10)] == list(range(600))


def test_batches_are_cut_by_bytes(peer: Peer) -> None:
    call = peer.call(peer.client.send_many, [Message(f"i-{n}", "x" * 30_000) for n in range(150)])
    taken: list[messages.SendMessagesRequest] = []
    while sum(len(request.messages) for request in taken) < 150:
        taken.append(_admit(peer, lambda _: _sent(1)))
    assert len(taken) >= 3
    assert all(request.ByteSize() <= 2 * 1024 * 1024 + 65_536 for request in taken)
    assert len(call.result(10)) == 150


def test_messages_refused_for_now_are_repeated_before_the_next_batch(peer: Peer) -> None:
    call = peer.call(peer.client.send_many, [Message(f"i-{n % 2}", n) for n in range(300)])
    late = {1, 7}

    def admit(item: messages.SendMessageRequest) -> messages.SendResult:
        number = decode(item.message)
        if number in late:
            late.discard(number)
            return messages.SendResult(refusal=refusal("OVERLOADED"))
        return _sent(number)

    numbers = [[decode(item.message) for item in _admit(peer, admit).messages] for _ in range(3)]
    assert numbers == [list(range(256)), [1, 7], list(range(256, 300))]
    assert [item.turn for item in call.result(10)] == list(range(300))


def test_what_fails_hits_the_messages_concerned(peer: Peer) -> None:
    batch = [Message("i-1", 1), Message("i-2", object()), Message("i-3", 3), Message("i-4", 4)]
    call = peer.call(peer.client.send_many, batch)

    def admit(item: messages.SendMessageRequest) -> messages.SendResult:
        if item.instance_id == "i-3":
            field = {"field": "messages[1].message_id"}
            return messages.SendResult(
                refusal=refusal("INVALID_FIELD", "messages[1].message_id: no", **field)
            )
        return _sent(1)

    _admit(peer, admit)
    outcomes = call.result(10)
    assert [type(each) for each in outcomes] == [pawl.Sent, pawl.PayloadError, pawl.InvalidField, pawl.Sent]
    assert (outcomes[2].field, outcomes[2].message) == ("message_id", "message_id: no")


def test_a_batch_whose_time_is_up_says_why(peer: Peer) -> None:
    call = peer.call(peer.client.send_many, [Message("i-1", 1), Message("i-2", 2)])
    _admit(
        peer,
        lambda item: (
            _sent(1)
            if item.instance_id == "i-1"
            else messages.SendResult(refusal=refusal("STORE_UNAVAILABLE"))
        ),
    )
    peer.take(SEND, None, grpc.StatusCode.DEADLINE_EXCEEDED)
    sent, failed = call.result(10)
    assert (sent.turn, failed.reason) == (1, "STORE_UNAVAILABLE")


def test_a_batch_that_is_refused_as_a_whole_says_why(peer: Peer) -> None:
    call = peer.call(peer.client.send_many, [Message("i-1", 1), Message("i-2", 2)])
    _admit(peer, lambda _: messages.SendResult(refusal=refusal("OVERLOADED")))
    peer.take(SEND, None, grpc.StatusCode.UNIMPLEMENTED, details("UNIMPLEMENTED"))
    assert [type(each) for each in call.result(10)] == [pawl.Unimplemented] * 2


def test_closing_ends_a_pause_between_tries(peer: Peer) -> None:
    call = peer.call(peer.client.get, "i-1")
    peer.take(GET, None, UNAVAILABLE, details("OVERLOADED", retry_after=15.0))
    threading.Timer(0.05, peer.client.close).start()
    with pytest.raises(pawl.Unavailable, match="closed"):
        call.result(10)
    with pytest.raises(pawl.Unavailable, match="closed"):
        peer.client.info()


def _sent(turn: int) -> messages.SendResult:
    return messages.SendResult(sent=messages.SendMessageResponse(turn=turn, incarnation=1))


def _admit(peer: Peer, admit: Callable[[Any], messages.SendResult]) -> messages.SendMessagesRequest:
    """Takes the next batch and answers each message."""
    _, request, rpc = peer.channel.take_unary_unary(SEND)
    rpc.send_initial_metadata(())
    rpc.terminate(
        messages.SendMessagesResponse(results=[admit(item) for item in request.messages]), (), OK, ""
    )
    return request
