"""MessageService."""

from __future__ import annotations

from pawl.v1 import message_service_pb2 as pb
from pawl_server.domain import limits as bounds
from pawl_server.domain.errors import InvalidField, LimitExceeded, Refused
from pawl_server.domain.ids import check_id, check_optional_id, check_own_id, check_type
from pawl_server.domain.times import timestamp
from pawl_server.engine import Engine
from pawl_server.engine.inbox import SendItem, SendOk
from pawl_server.engine.problems import refusal
from pawl_server.rpc import convert
from pawl_server.rpc.call import Context, Gate, time_left, unary


class MessageService:
    """Admits messages and waits for their outcome."""

    def __init__(self, engine: Engine, gate: Gate) -> None:
        self.gate = gate
        self._engine = engine

    @unary()
    async def SendMessage(self, request: pb.SendMessageRequest, context: Context) -> pb.SendMessageResponse:
        """Admits a message, and with `wait` returns its turn as well."""
        engine = self._engine
        item = convert.send_item("", request, engine.limits)
        wait_ms = convert.wait_ms("wait", request.wait) if request.HasField("wait") else -1
        sent = await engine.inbox.send(item)
        response = _sent(sent)
        if wait_ms >= 0:
            wait_ms = _within(context, wait_ms)
            with self.gate.wait():
                turn = await engine.turns.wait(
                    item.id, sent.turn, sent.incarnation, wait_ms, noted=sent.noted
                )
            response.outcome.CopyFrom(turn)
        return response

    @unary()
    async def SendMessages(
        self, request: pb.SendMessagesRequest, context: Context
    ) -> pb.SendMessagesResponse:
        """Admits messages, each on its own, in the order given."""
        messages = request.messages
        if not messages:
            raise InvalidField("messages", "is empty")
        if len(messages) > bounds.BATCH_MESSAGES:
            raise LimitExceeded("batch_messages", len(messages), bounds.BATCH_MESSAGES)
        size = request.ByteSize()
        if size > bounds.BATCH_BYTES:
            raise LimitExceeded("batch_bytes", size, bounds.BATCH_BYTES)
        items: list[SendItem] = []
        results: list[pb.SendResult | None] = []
        for at, message in enumerate(messages):
            try:
                items.append(self._batch_item(f"messages[{at}].", message))
                results.append(None)
            except Refused as error:
                results.append(pb.SendResult(refusal=refusal(error)))
        answers = iter(await self._engine.inbox.send_many(items) if items else ())
        return pb.SendMessagesResponse(
            results=[_result(next(answers)) if result is None else result for result in results]
        )

    def _batch_item(self, at: str, message: pb.SendMessageRequest) -> SendItem:
        if message.HasField("wait"):
            raise InvalidField(f"{at}wait", "is not allowed in SendMessages")
        return convert.send_item(at, message, self._engine.limits)

    @unary()
    async def AwaitTurn(self, request: pb.AwaitTurnRequest, context: Context) -> pb.AwaitTurnResponse:
        """Returns a turn once it is finished or failed for good, or at the end of the wait."""
        instance_id = check_own_id("instance_id", request.instance_id)
        life = convert.incarnation(request.incarnation)
        wait_ms = bounds.AWAIT_DEFAULT_MS
        if request.HasField("wait"):
            wait_ms = convert.wait_ms("wait", request.wait)
        if bool(request.message_id) == bool(request.turn):
            raise InvalidField("turn", "or message_id has to be set, and not both")
        if request.message_id:
            check_id("message_id", request.message_id)
            with self.gate.wait():
                found = await self._engine.turns.wait_for_message(
                    instance_id, request.message_id, life, _within(context, wait_ms)
                )
            return pb.AwaitTurnResponse(turn=found)
        turn = convert.turn_number(request.turn)
        if life:  # another life would never end the wait
            await self._engine.turns.get(instance_id, turn, life, steps=False)
        wait_ms = _within(context, wait_ms)
        with self.gate.wait():
            found = await self._engine.turns.wait(instance_id, turn, life, wait_ms)
        return pb.AwaitTurnResponse(turn=found)

    @unary(sheds=False)
    async def CancelMessage(
        self, request: pb.CancelMessageRequest, context: Context
    ) -> pb.CancelMessageResponse:
        """Takes back a message that has not started."""
        target = convert.target(request, turn=False)
        message_id = check_id("message_id", request.message_id)
        return pb.CancelMessageResponse(turn=await self._engine.control.cancel_message(target, message_id))

    @unary()
    async def ListInbox(self, request: pb.ListInboxRequest, context: Context) -> pb.ListInboxResponse:
        """Reads a page of what waits in an inbox."""
        instance_id = check_own_id("instance_id", request.instance_id)
        size = convert.page_size(request.page_size)
        return await self._engine.listing.inbox(
            instance_id, size, request.page_token, payloads=request.include_payloads
        )

    @unary()
    async def ListBacklog(self, request: pb.ListBacklogRequest, context: Context) -> pb.ListBacklogResponse:
        """Reads a page of the instances of a type that have unfinished turns."""
        workflow_type = check_type("workflow_type", request.workflow_type)
        version = check_optional_id("version", request.version)
        size = convert.page_size(request.page_size)
        entries, token = await self._engine.listing.backlog(workflow_type, version, size, request.page_token)
        return pb.ListBacklogResponse(entries=entries, next_page_token=token)


READ_S = 0.1
"""Kept back of a wait for reading the turn at its end."""


def _within(context: Context, wait_ms: int) -> int:
    """The wait, cut so that the caller gets the turn as it stands before its time is over."""
    left = time_left(context)
    return wait_ms if left is None else min(wait_ms, int((left - min(READ_S, left / 10)) * 1000))


def _sent(sent: SendOk) -> pb.SendMessageResponse:
    if not sent.turn:
        return pb.SendMessageResponse(incarnation=sent.incarnation, due_time=timestamp(sent.due_ms))
    return pb.SendMessageResponse(
        turn=sent.turn, incarnation=sent.incarnation, admit_time=timestamp(sent.admitted_ms)
    )


def _result(answer: SendOk | BaseException) -> pb.SendResult:
    if isinstance(answer, SendOk):
        return pb.SendResult(sent=_sent(answer))
    return pb.SendResult(refusal=refusal(answer, "SendMessages"))
