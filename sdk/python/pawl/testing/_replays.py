"""Whether a handler does the same again wherever its turn is interrupted."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from pawl._runtime.suspend import KINDS, SLEEP_KIND
from pawl.payloads import Payload, decode
from pawl.testing._attempts import Played, play
from pawl.testing._entries import STEP_KIND, Entry
from pawl.v1.worker_service_pb2 import LeasedTurn
from pawl.workflow import Workflow

_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)


def _unheard(_: logging.LogRecord) -> bool:
    """What a replay fails with, the attempt itself has said."""
    return not _QUIET.get()


class NonDeterminism(AssertionError):
    """A replay went another way than the turn did: after a crash the turn would fail, or end differently.

    Attributes:
        saved: how many steps were saved when the turn was interrupted.
        what: what the handler did otherwise.
    """

    def __init__(self, workflow: str, saved: int, steps: int, what: str) -> None:
        self.saved = saved
        self.what = what
        super().__init__(
            f"the handler of {workflow!r} is not deterministic: replayed with {saved} of {steps} steps"
            f" saved, {what}"
        )


async def check_replays(workflow: Workflow, turn: LeasedTurn, played: Played) -> None:
    """Replays a turn from each place where it could be interrupted. Raises NonDeterminism.

    Steps that are not saved yet give what they gave before; none of their functions runs.
    """
    entries = list(played.entries)
    slept = {entry.key for entry in entries if entry.kind == SLEEP_KIND}
    waits = {entry.key: entry for entry in entries if entry.is_wait}
    fakes: dict[str, Any] = dict(played.raised)
    fakes |= {
        entry.key: decode(entry.output)
        for entry in entries
        if entry.kind == STEP_KIND and entry.output is not None
    }
    traces = [(error, error.__traceback__) for error in played.raised.values()]
    logging.getLogger("pawl.worker").addFilter(_unheard)
    quiet = _QUIET.set(True)
    try:
        for saved in range(len(entries) + 1):
            again = await play(
                workflow, turn, entries[:saved], fakes, waits, wakes=lambda key: key in slept, strict=True
            )
            for what in _differences(played, again):
                raise NonDeterminism(workflow.name, saved, len(entries), what)
    finally:
        _QUIET.reset(quiet)
        for error, trace in traces:
            error.__traceback__ = trace


def _differences(first: Played, again: Played) -> Iterator[str]:
    if again.stray:
        yield f"it asked for step {again.stray!r}, for which it had not asked before"
    for position, (one, two) in enumerate(zip(first.entries, again.entries, strict=False), 1):
        if _name(one) != _name(two):
            yield f"{_name(two)} came at position {position}, where {_name(one)} had been"
    if first.ending != again.ending or _reason(first) != _reason(again):
        yield f"it ended with {_ending(again)}, not with {_ending(first)}"
    for entry in first.entries[len(again.entries) :]:
        yield f"it did not ask for {_name(entry)}"
    for what, one, two in (
        ("state", first.state, again.state),
        ("result", first.reply, again.reply),
        ("continuation", first.continuation, again.continuation),
    ):
        if not _same(one, two):
            yield f"its {what} was {_shown(two)}, not {_shown(one)}"


def _name(entry: Entry) -> str:
    return f"{KINDS[entry.kind][2:] if entry.kind in KINDS else entry.kind} {entry.key!r}"


def _reason(played: Played) -> Any:
    if played.failure is not None:
        return played.failure.reason, played.failure.message
    return played.sleep or played.wait or played.deferral


def _ending(played: Played) -> str:
    if played.failure is not None:
        return f"the failure {played.failure.reason}: {played.failure.message}"
    if played.sleep is not None:
        return f"sleep {played.sleep.key!r} of {played.sleep.duration.ToTimedelta()}"
    if played.wait is not None:
        wait = played.wait
        what = "callback" if wait.callback_key else f"signal {wait.name!r}"
        until = f" for {wait.timeout.ToTimedelta()}" if wait.HasField("timeout") else ""
        return f"wait {wait.key!r} for {what}{until}"
    if played.deferral is not None:
        return f"being put off by {played.deferral.delay.ToTimedelta()}"
    return f"{played.ending!r}"


def _same(one: Payload | None, two: Payload | None) -> bool:
    if one is None or two is None:
        return one is two
    return one == two or decode(one) == decode(two)


def _shown(payload: Payload | None) -> str:
    return "absent" if payload is None else repr(decode(payload))
