"""How messages share SendMessages calls: where a batch ends, and what its answer means for each message."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

from pawl._reasons import refusal_error
from pawl._transport import Tries, is_retryable
from pawl.errors import DeadlineExceeded, ServerError
from pawl.v1.message_service_pb2 import SendMessageRequest, SendMessageResponse, SendResult

MAX_ITEMS = 256
MAX_BYTES = 2 * 1024 * 1024

Answer = SendMessageResponse | ServerError
SendBatch = Callable[[Sequence[SendMessageRequest], float], Sequence[SendResult]]
"""Makes one call within so many seconds, without repeating it. Raises ServerError."""


def answer_of(result: SendResult, position: int) -> Answer:
    """Gives what became of the message at a position of its batch."""
    if result.WhichOneof("result") == "sent":
        return result.sent
    return _of_one(refusal_error(result.refusal), f"messages[{position}].")


def send_in_batches(
    requests: Sequence[SendMessageRequest],
    send_batch: SendBatch,
    sleep: Callable[[float], None],
    timeout: float,
) -> list[Answer]:
    """Sends messages in batches, one after the other; gives what became of each, in order.

    What can still succeed is repeated, before the next batch, within `timeout` seconds for all together.
    """
    answers: dict[int, Answer] = {}
    tries = Tries(timeout)
    for batch in _batches(requests):
        try:
            while batch:
                left = tries.left()
                try:
                    results = send_batch([requests[at] for at in batch], left)
                except ServerError as error:
                    problem = error
                else:
                    batch, problem = _settle(batch, results, answers)
                if problem is not None:
                    sleep(tries.pause_after(problem))
            tries.succeeded()
        except ServerError as final:
            # Its own refusal says more about a message than that the time is up.
            late = is_retryable(final) or isinstance(final, DeadlineExceeded)
            for at in batch:
                answers[at] = answers[at] if late and at in answers else copy.copy(final)
    return [answers[at] for at in range(len(requests))]


def _batches(requests: Sequence[SendMessageRequest]) -> Iterator[list[int]]:
    batch: list[int] = []
    size = 0
    for at, request in enumerate(requests):
        bytes_ = request.ByteSize()
        if batch and (len(batch) == MAX_ITEMS or size + bytes_ > MAX_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(at)
        size += bytes_
    if batch:
        yield batch


def _settle(
    batch: list[int], results: Sequence[SendResult], answers: dict[int, Answer]
) -> tuple[list[int], ServerError | None]:
    """Takes the answers of a batch; gives what is worth another try, and why."""
    again: list[int] = []
    problem: ServerError | None = None
    for position, (at, result) in enumerate(zip(batch, results, strict=True)):
        answer = answers[at] = answer_of(result, position)
        if isinstance(answer, ServerError) and is_retryable(answer):
            again.append(at)
            problem = answer
    return again, problem


def _of_one(error: ServerError, place: str) -> ServerError:
    """A refusal as the sender of one message knows it: that there was a batch is no concern of theirs."""
    field = error.metadata.get("field", "")
    if field.startswith(place):
        error.metadata["field"] = field.removeprefix(place)
        error.message = error.message.removeprefix(place)
        error.args = (error.message,)
    return error
