"""C-25: a turn begins to wait for what has come already.

Given  a turn that receives a signal, or the result of a callback: before there is a message for it, in the
       queue, paused, while it runs, sleeps, is put off or backs off, or while it waits for something else.
Do     let the turn wait for it then.
Expect the wait is over at once, with what came: the lease goes on, and nothing is registered that could be
       left waiting. The same wait in a later lease finds the saved step. What comes when the receipt of the
       turn is gone is refused at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pawl.v1 import instance_service_pb2 as instances
from pawl.v1 import turn_service_pb2 as turns
from pawl.v1.step_pb2 import WaitOutcome
from pawl_server.domain.callback import callback_base
from pawl_server.domain.states import TurnState
from tests.support.api import CALL_S, Api, json
from tests.support.driver import Driver, driver
from tests.support.raw_worker import ByPolls
from tests.support.stored import Stored
from tests.support.stream import defer, fail, finish, release, sleep, wait_signal

__all__ = ["driver"]

Send = Callable[[Api, ByPolls], Awaitable[None]]


async def give(api: Api) -> None:
    """Sends both, to the turn."""
    await api.signal("a", "s1", "go", "sent")
    await give_result(api)


async def give_result(api: Api) -> None:
    """The result of the callback, by a token made from what is known of the turn."""
    described = await api.instances.GetInstance(instances.GetInstanceRequest(instance_id="a"), timeout=CALL_S)
    token = callback_base("default", "a", described.instance.incarnation, 1) + "call"
    await api.turns.ResolveCallback(turns.ResolveCallbackRequest(token=token, value=json("called")))


async def before_its_message(api: Api, _: ByPolls) -> None:
    """Nobody has sent a message yet: only a signal to the instance may come."""
    request = turns.SignalInstanceRequest(instance_id="a", signal_id="s1", name="go", value=json("sent"))
    await api.turns.SignalInstance(request, timeout=CALL_S)
    await api.send("a", "m1")
    await give_result(api)


async def queued(api: Api, _: ByPolls) -> None:
    await api.send("a", "m1")
    await give(api)


async def paused(api: Api, _: ByPolls) -> None:
    await api.send("a", "m1")
    await api.instances.PauseInstance(instances.PauseInstanceRequest(instance_id="a"), timeout=CALL_S)
    await give(api)
    await api.instances.ResumeInstance(instances.ResumeInstanceRequest(instance_id="a"), timeout=CALL_S)


def after(command: dict[str, Any]) -> Send:
    """Both come once the first lease has ended so."""

    async def send(api: Api, worker: ByPolls) -> None:
        await api.send("a", "m1")
        assert (await worker.do(await worker.turn(), command)).ok
        await give(api)
        wake = instances.WakeInstanceRequest(instance_id="a")
        if "sleep" not in command and "wait_signal" not in command:
            await api.instances.WakeInstance(wake, timeout=CALL_S)

    return send


async def while_it_waits_for_another(api: Api, worker: ByPolls) -> None:
    await api.send("a", "m1")
    await worker.do(await worker.turn(), wait_signal("other", "stop"))
    await give(api)
    await api.signal("a", "s2", "stop")


WHEN: dict[str, Send] = {
    "before its message": before_its_message,
    "queued": queued,
    "paused": paused,
    "asleep": after(sleep("nap", ms=50)),
    "put off": after(defer()),
    "backing off": after(fail(delay_ms=60_000)),
    "given back": after(release()),
    "waiting for another": while_it_waits_for_another,
}


@pytest.mark.spec("R-SIGNAL-1", "R-SIGNAL-2", "R-SIGNAL-7", "R-CALLBACK-1")
@pytest.mark.parametrize("when", WHEN)
async def test_the_wait_is_over_at_once(api: Api, stored: Stored, when: str) -> None:
    await api.create("a")
    async with ByPolls(api) as worker:
        await WHEN[when](api, worker)
        turn = await worker.turn()
        saved = len(turn.steps)
        waits = [wait_signal("one", "go"), wait_signal("two", callback="call", ms=60_000)]
        for place, (wait, value) in enumerate(zip(waits, (b"sent", b"called"), strict=True), saved + 1):
            detail = dict((await worker.do(turn, wait)).detail)
            assert (detail["position"], detail["outcome"]) == (place, "WAIT_OUTCOME_RECEIVED")
            request = turns.GetTurnRequest(instance_id="a", turn=1)
            shown = (await api.turns.GetTurn(request, timeout=CALL_S)).turn
            assert shown.steps[-1].output.data == value
            assert not shown.HasField("wait")
        assert (stored.record("a").state, stored.due("wait", "a")) == (TurnState.RUNNING, 0)
        assert stored.events("a").count("TURN_WAITING") == (when == "waiting for another")

        assert (await worker.do(turn, release())).ok
        again = await worker.turn()
        assert [(step.output.data, step.wait_outcome) for step in again.steps[saved:]] == [
            (b"sent", WaitOutcome.WAIT_OUTCOME_RECEIVED),
            (b"called", WaitOutcome.WAIT_OUTCOME_RECEIVED),
        ]
        refused = await worker.do(again, wait_signal("one", "go"))
        assert (refused.reason, dict(refused.metadata)) == ("WRONG_STATE", {"state": "step_saved"})
        assert (await worker.do(again, finish(), n=1)).ok


@pytest.mark.spec("R-SIGNAL-5", "R-CALLBACK-3")
def test_what_comes_for_a_turn_that_was_trimmed_is_refused_at_once(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=1_000)
    driver.send()
    driver.signal()
    driver.answer()
    driver.take().finish()
    driver.elapse(2_000_000)
    assert driver.signal().word == driver.answer().word == "PRUNED"
    assert driver.signal("s2").word == driver.answer("other").word == "PRUNED"
    assert "g:s1" not in driver.fields()
