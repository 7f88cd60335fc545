"""The transitions against the reference model, in random order, with faults (ring 4).

After every rule everything stored equals the model and every rule of invariants.py holds. Faults:
- the reply is lost: the call is made once more at once and must answer the same and change nothing;
- a command never arrives: the worker goes on with the next number;
- a duplicate comes late: any earlier call once more, whatever has happened since;
- failover: Redis falls back to an earlier state under a new run id, while workers keep what they hold;
- the clock steps, forwards and backwards.

HYPOTHESIS_PROFILE=long runs it for long. A failure prints its steps and a @reproduce_failure line.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pawl_server.store import records
from pawl_server.store.errors import StoreDeleting
from tests.model.parts import HELD, PARK, TIMED, Instance, Settings, Turn
from tests.model.reference import RECEIPT_MS, Reference
from tests.support.driver import DETACHED_MS, Driver, digest_of, state_name
from tests.support.invariants import constants
from tests.support.lua_harness import START_MS, State
from tests.support.redis_server import RedisServer

LEDGER_MS = constants("ledger")["LEDGER_MS"]
EVENTS = {number: name for name, number in constants("ledger").items() if number < LEDGER_MS}
LONG = settings.get_current_profile_name() == "long"
TYPES = {
    "t": Settings(attempt_timeout_ms=200_000, min_turns=1, max_age_ms=20_000, max_turns=4),
    "u": Settings(lease_ms=5_000, max_attempts=2, min_turns=0, max_age_ms=0, on_exhausted=PARK),
}
NAMES = {"a": "t", "b": "t", "c": "u", "d": "t", "e": "t"}
LIMITS = {
    "checkpoint": {"max_steps": 3, "max_step": 20},
    "finish": {"max_steps": 3, "max_step": 20},
    "sleep": {"max_steps": 3},
    "defer": {"max_defers": 3},
    "wait_signal": {"max_steps": 3},
}
MAX_PENDING = 4
NO_LEASE = {"id": "a", "inc": 1, "turn": 1, "fence": 0}

names = st.sampled_from(sorted(NAMES))
tvs = st.sampled_from(["t:v1", "t:v1", "u:v1"])
streams = st.sampled_from(["s1.1.1", "s2.2.1", "s1.3.1"])
leases = st.sampled_from([0, 0, 1, 1, 2, -1, -2, -4])
"""Which lease, see Machine.pick."""
steps = st.sampled_from("wxyz")
skews = st.sampled_from([0, 0, 0, 0, 1, -1])
requests = st.sampled_from([0, 0, 0, 1, 2])
"""Which request id, see Machine.control."""
rarely = st.sampled_from([False, False, False, True])
guards = st.sampled_from([0, 0, 0, 1, 2])
"""The attempt or incarnation that a control call names; 0 for none."""
faults = st.sampled_from(["none", "none", "reply lost"])


signal_names = st.sampled_from(["go", "go", "stop", "callback"])


def named(what: str) -> dict[str, str]:
    """Name and callback key of something to wait for."""
    return {"name": "", "callback": "call"} if what == "callback" else {"name": what, "callback": ""}


@dataclass
class Held:
    """A lease as a worker remembers it; `n` is the number of the last command it sent."""

    lease: dict[str, Any]
    n: int = 0


@dataclass(frozen=True)
class Call:
    """One call with one item, for repeats."""

    script: str
    item: Mapping[str, Any]
    args: Mapping[str, Any]


STATES = {"FailOk": (0,), "RetryOk": (0,), "CancelOk": (1, 2), "ResolveStepOk": (0,)}
"""Replies with numbers of states, and where they stand; WRONG_STATE has one first."""


def plain(reply: Any) -> tuple[Any, ...]:
    """A reply as the model says it: states by name, claimed turns as (instance, turn, fence)."""
    values, name = list(reply), type(reply).__name__
    for at in STATES.get(name, (0,) if name.endswith("WrongState") else ()):
        if isinstance(values[at], int):
            values[at] = state_name(values[at])
    if name == "FinishOk":
        values[2] = [(view[0].decode(), view[2], view[3]) for view in values[2]]
    return (reply.word, *values)


class Machine(RuleBasedStateMachine):
    """Senders, workers, servers and faults."""

    redis: RedisServer

    @initialize()
    def begin(self) -> None:
        self.redis.call("FLUSHALL")
        self.driver = Driver(self.redis)
        self.model = Reference(START_MS, TYPES)
        self.held: list[Held] = []
        self.calls: list[Call] = []
        self.fences: set[int] = set()
        self.snapshot: tuple[dict[str, bytes], Reference] | None = None
        self.generation = 1
        self.bodies = self.requests = 0
        self.latest = START_MS
        self.driver.one("watch", keep_ms=1)
        for name, one in TYPES.items():
            self.driver.put_type(name, **vars(one))

    # Calls.

    def make(self, call: Call) -> Any:
        """Makes a call on both sides and compares the answers."""
        self.forget(call.item.get("id") or call.args.get("id", ""))
        expected = getattr(self.model, call.script)(**call.item, **call.args)
        items = [call.item] if call.item else ()
        try:
            reply = self.driver.call(call.script, items=items, **call.args).replies[0]
        except StoreDeleting:
            assert expected == ("DELETING",), call
            return None
        if reply.word == "ALREADY" and expected[0] == "OK" and call.script == "wait_signal":
            # The step that has the value was trimmed.
            assert f"{call.item['turn']}.m" not in self.driver.fields(call.item["id"])
            return reply
        assert plain(reply) == expected, call
        for view in reply.turns if call.script == "finish" and reply.word == "OK" else ():
            self.receive(view)
        return reply

    def forget(self, name: str) -> None:
        """Lets an old turn be forgotten before a call: settling may do so, which the model can't foresee."""
        one = self.model.instances.get(name)
        old = one and one.oldest < one.head and self.model.now - one.at(one.oldest).finished >= RECEIPT_MS
        if one and old and not one.deleting and not self.settled():
            self.model.touch(name)
            self.driver.one("settle", id=name)
            self.compare()

    def call(self, script: str, item: Mapping[str, Any], fault: str = "none", **args: Any) -> Any:
        """Makes a call, twice if its reply is lost, and keeps it for late repeats."""
        call = Call(script, item, args)
        self.calls.append(call)
        reply = self.make(call)
        # A sign of life after the clock went back sets the deadline of a detached lease back by as much.
        detached_before = bool(args.get("detach_ms")) and self.driver.now < self.latest
        if fault == "reply lost" and reply is not None and self.settled() and not detached_before:
            with self.driver.unchanged():
                again = self.make(call)
            assert plain(again) == plain(reply), "the repeat has another answer"
        return reply

    def settled(self) -> bool:
        """Whether the next call finds everything as it was left: not a head that has more turns to pass, or
        one that came back when its time to live was over."""
        then = copy.deepcopy(self.model)
        for name in then.instances:
            then.touch(name)
        return then.instances == self.model.instances

    def receive(self, view: list[Any]) -> None:
        """A worker gets a claimed turn: what it carries must be what the model knows."""
        got = records.claimed_turn(view)
        one = self.model.instances[got.instance_id]
        turn = one.at(got.turn)
        assert (got.message.blob, got.message.message_id) == (turn.body, turn.message_id)
        assert (got.incarnation, got.state, [step.key for step in got.steps]) == (
            one.inc,
            one.state,
            turn.steps,
        )
        assert got.attempt == turn.failures + turn.lost + 1
        for step in got.steps:
            assert (step.outcome, step.blob) == turn.outcomes.get(step.key, (0, step.blob)), step
        left = got.operation
        assert (
            (left.key, left.sequence, left.resume)
            == (
                turn.operation.key,
                turn.operation.sequence,
                turn.operation.resume,
            )
            if left and turn.operation
            else left == turn.operation
        )
        assert (got.failure is not None) == (turn.failures + turn.lost > 0)
        lease = {"id": got.instance_id, "inc": got.incarnation, "turn": got.turn, "fence": got.fence}
        if got.fence not in self.fences:
            assert got.fence > max(self.fences, default=0), "fences rise"
            self.fences.add(got.fence)
            self.held.append(Held(lease))

    def pick(self, which: int) -> Held:
        """A lease that lives, for `which` above 0; else any that a worker ever had, the newest for -1.

        Where no lease lives, there is a message and a claim first.
        """
        fences = {
            turn.lease.fence
            for one in self.model.instances.values()
            if not one.deleting and (turn := one.current) and turn.lease and turn.state in HELD
        }
        live = [held for held in self.held if held.lease["fence"] in fences]
        if not live:
            self.bodies += 1
            self.send(self.unblocked(), 100 + self.bodies, 0, 0, 0, "none")
            self.claim("t:v1", 2, "s1.1.1")
            live = self.held[-1:]
        candidates = live if live and which >= 0 else self.held
        return candidates[which % len(candidates)] if candidates else Held(NO_LEASE)

    def unblocked(self) -> str:
        """An instance that hands out turns."""
        blocked = {
            one.id
            for one in self.model.instances.values()
            if one.status > 2 or one.deleting or (one.current and one.current.state == "WAITING")
        }
        return next((name for name in "abde" if name not in blocked), "a")

    def command(self, script: str, which: int, skew: int, fault: str, **given: Any) -> Any:
        """The next command of a worker; with a skew of 1 the one before never arrived."""
        held = self.pick(which)
        n = max(1, held.n + 1 + skew)
        item = {**held.lease, "n": n, "digest": digest_of(script, sorted(given.items())), **given}
        reply = self.call(script, item, fault, **LIMITS.get(script, {}))
        if reply and reply.word in ("OK", "ALREADY"):
            held.n = max(held.n, n)
        return reply

    # Rules: senders.

    @rule(
        name=names, own=st.sampled_from([0, 0, 1]), request_id=st.sampled_from(["", "b1", "b2"]), fault=faults
    )
    def create(self, name: str, own: int, request_id: str, fault: str) -> None:
        item = {
            "id": name,
            "type": NAMES[name],
            "version": "v1",
            "digest": digest_of(name, own),
            "state": b"",
            "request_id": request_id,
        }
        self.call("create", {**item, "lease_ms": own * 9_000, "max_attempts": own}, fault)

    @rule(
        name=names, body=st.integers(0, 7), changed=st.sampled_from([0, 0, 0, 1]),
        delay_ms=st.sampled_from([0, 0, 0, 0, 300, 20_000]), ttl_ms=st.sampled_from([0, 0, 0, 1_000, 20_000]),
        fault=faults,
    )  # fmt: skip
    def send(self, name: str, body: int, changed: int, delay_ms: int, ttl_ms: int, fault: str) -> None:
        message = b"\0%d" % (body + 1_000 * changed)
        item = {"id": name, "message_id": f"m{body}", "digest": digest_of(message), "message": message}
        item |= {"delay_ms": delay_ms, "ttl_ms": ttl_ms}
        birth = {
            "create": body != 7,
            "type": NAMES[name],
            "version": "v1",
            "create_digest": digest_of(name, 0),
        }
        self.call("send", {**item, **birth}, fault, max_pending=MAX_PENDING)

    # Rules: workers.

    @rule(tv=tvs, limit=st.integers(1, 3), conn=streams)
    def claim(self, tv: str, limit: int, conn: str) -> None:
        [reply] = self.driver.call("claim", items=[{"tv": tv, "limit": limit, "conn": conn}]).replies
        expected = self.model.claim(tv, limit, conn)
        assert [(view[0].decode(), view[2], view[3]) for view in reply.turns] == expected
        for view in reply.turns:
            self.receive(view)

    @rule(which=leases, sign=st.sampled_from(["renew", "detach", "adopt"]), conn=streams, fault=faults)
    def show_life(self, which: int, sign: str, conn: str, fault: str) -> None:
        lease = self.pick(which).lease
        if sign == "adopt":
            self.call("adopt", {**lease, "conn": conn}, fault)
        else:
            self.call(
                "renew", {**lease, "ordinal": 0}, fault, detach_ms=DETACHED_MS if sign == "detach" else 0
            )

    @rule(which=leases, ordinal=st.integers(1, 3), fault=faults)
    def detach_up_to(self, which: int, ordinal: int, fault: str) -> None:
        item = {**self.pick(which).lease, "ordinal": ordinal}
        self.call("renew", item, fault, detach_ms=DETACHED_MS)

    @rule(which=leases, step=steps, skew=skews, size=st.sampled_from([1, 20, 21]), fault=faults)
    def checkpoint(self, which: int, step: str, skew: int, size: int, fault: str) -> None:
        output = b"\0" + b"x" * size
        self.command("checkpoint", which, skew, fault, key=step, kind="step", output=output)

    @rule(
        which=leases, step=st.sampled_from(["", "", "v", "w"]), skew=skews, state=st.integers(0, 2),
        onward=st.booleans(), tv=st.sampled_from(["", "t:v1", "u:v1"]), conn=streams, fault=faults,
    )  # fmt: skip
    def finish(
        self, which: int, step: str, skew: int, state: int, onward: bool, tv: str, conn: str, fault: str
    ) -> None:
        given = {"has_step": bool(step), "key": step, "kind": "step", "output": b"\0x", "step_digest": b"s"}
        given |= {"has_state": state > 0, "state": b"\0%d" % state, "has_reply": True, "result": b"\0r"}
        given |= {"has_next": onward, "next_digest": b"n", "next_message": b"\0more", "tv": tv, "conn": conn}
        self.command("finish", which, skew, fault, **given)

    @rule(count=st.integers(2, 6), onward=st.booleans())
    def complete_some(self, count: int, onward: bool) -> None:
        """A worker completes what it holds and what it gets for that, one after the other."""
        for _ in range(count):
            self.finish(0, "", 0, 1, onward, "t:v1", "s1.1.1", "none")

    @rule(
        which=leases, skew=skews, delay_ms=st.sampled_from([-1, 0, 5_000]), final=rarely,
        report=st.sampled_from([0, 0, 0, 1, 2]), step=steps, fault=faults,
    )  # fmt: skip
    def fail(
        self, which: int, skew: int, delay_ms: int, final: bool, report: int, step: str, fault: str
    ) -> None:
        given: dict[str, Any] = {}
        if report:
            given = {"op_position": self.place(which), "op_key": self.running(which, step)}
            given |= {"op_sequence": report, "op_digest": b"last", "op_resume": b"\0last"}
        self.command("fail", which, skew, fault, reason="ERROR", delay_ms=delay_ms, final=final, **given)

    def at_work(self, which: int) -> Turn | None:
        """The turn of a lease, while it is at the head."""
        one = self.model.instances.get(self.pick(which).lease["id"])
        return one.current if one else None

    def place(self, which: int) -> int:
        """The next place in the turn of a lease."""
        turn = self.at_work(which)
        return len(turn.steps) + 1 if turn else 1

    def running(self, which: int, step: str) -> str:
        """The step that is registered; `step` if none is, or for z."""
        turn = self.at_work(which)
        return turn.operation.key if turn and turn.operation and step != "z" else step

    @rule(
        which=leases, step=steps, offset=st.sampled_from([0, 0, 0, 0, -1, 1]),
        timeout_ms=st.sampled_from([1_000, 30_000, 600_000]), heartbeat_ms=st.sampled_from([0, 0, 1_000]),
        on_restart=st.sampled_from([1, 2]), fault=faults,
    )  # fmt: skip
    def start_operation(
        self,
        which: int,
        step: str,
        offset: int,
        timeout_ms: int,
        heartbeat_ms: int,
        on_restart: int,
        fault: str,
    ) -> None:
        item = {**self.pick(which).lease, "position": self.place(which) + offset, "key": step}
        item |= {"timeout_ms": timeout_ms, "heartbeat_ms": heartbeat_ms, "on_restart": on_restart}
        self.call("start_operation", item, fault)

    @rule(
        which=leases, step=steps, offset=st.sampled_from([0, 0, 0, 0, -1]), sequence=st.integers(1, 4),
        body=st.sampled_from([b"", b"\0r"]), fault=faults,
    )  # fmt: skip
    def report_progress(
        self, which: int, step: str, offset: int, sequence: int, body: bytes, fault: str
    ) -> None:
        item = {**self.pick(which).lease, "position": self.place(which) + offset}
        item |= {"key": self.running(which, step), "sequence": sequence, "digest": body, "resume": body}
        self.call("report_progress", item, fault)

    @rule(which=leases, skew=skews, count=st.sampled_from([1, 1, 1, 6]), fault=faults)
    def release(self, which: int, skew: int, count: int, fault: str) -> None:
        for _ in range(count):
            self.command("release", which, skew, fault)
            self.claim("t:v1", 3, "s1.1.1")

    @rule(which=leases, step=steps, skew=skews, ms=st.sampled_from([1, 1_000, 30_000]), fault=faults)
    def sleep(self, which: int, step: str, skew: int, ms: int, fault: str) -> None:
        self.command("sleep", which, skew, fault, key=step, ms=ms)

    @rule(which=leases, skew=skews, ms=st.sampled_from([1, 1_000, 30_000]), fault=faults)
    def defer(self, which: int, skew: int, ms: int, fault: str) -> None:
        self.command("defer", which, skew, fault, ms=ms, reason="budget")

    @rule(
        which=leases, step=steps, skew=skews, name=signal_names, ms=st.sampled_from([0, 1, 1_000, 30_000]),
        fault=faults,
    )  # fmt: skip
    def wait_signal(self, which: int, step: str, skew: int, name: str, ms: int, fault: str) -> None:
        self.command("wait_signal", which, skew, fault, key=step, ms=ms, **named(name))

    # Rules: who sends something to a turn.

    @rule(
        name=names, offset=st.sampled_from([0, 0, 0, 0, 1, -1, -2, 9]),
        signal_id=st.sampled_from(["s1", "s2", "s3", "s4"]),
        what=signal_names, changed=rarely, inc=guards, fault=faults,
    )  # fmt: skip
    def signal(
        self, name: str, offset: int, signal_id: str, what: str, changed: bool, inc: int, fault: str
    ) -> None:
        turn = 0 if offset == 9 else max(1, self.turn_near_the_head(name, offset))
        self.send_signal(name, turn, signal_id, what, changed, inc, fault)

    @rule(name=names, signal_id=st.sampled_from(["s1", "s2", "s3"]), changed=rarely, fault=faults)
    def signal_instance(self, name: str, signal_id: str, changed: bool, fault: str) -> None:
        self.send_signal(name, 0, signal_id, "go", changed, 0, fault)

    @precondition(lambda self: any(self.waiting()))
    @rule(at=st.integers(0, 3), left=st.sampled_from([1, 0, -1]), fault=faults)
    def signal_at_the_deadline(self, at: int, left: int, fault: str) -> None:
        """What a turn waits for comes shortly before, at, or after the end of its wait."""
        waiting = self.waiting()
        one, turn = waiting[at % len(waiting)]
        if turn.deadline:
            self.time_passes_or_the_clock_steps(turn.deadline - left - self.driver.now)
        self.bodies += 1
        what = turn.wait[1] or "callback"
        self.send_signal(one.id, turn.number, f"s{100 + self.bodies}", what, False, 0, fault)

    def waiting(self) -> list[tuple[Instance, Turn]]:
        """Turns that wait for something."""
        heads = [(one, one.current) for one in self.model.instances.values() if not one.deleting]
        return [(one, turn) for one, turn in heads if turn and turn.state == "WAITING"]

    def send_signal(
        self, name: str, turn: int, signal_id: str, what: str, changed: bool, inc: int, fault: str
    ) -> None:
        value = b"\0changed" if changed else b"\0%b" % what.encode()
        given = {**named(what), "value": value, "digest": digest_of(what, value)}
        if given["callback"]:
            signal_id, turn = "", turn or 1
        item = {"id": name, "inc": inc, "turn": turn, "signal_id": signal_id, **given}
        self.call("signal", item, fault, max_signals=3)

    # Rules: operators.

    def control(self, script: str, name: str, request: int, fault: str, **given: Any) -> Any:
        """A control call with a request id of its own, or with one that others have as well, or with none."""
        self.requests += 1
        request_id = {0: f"r{self.requests}", 1: "shared", 2: ""}[request]
        digest = {} if script == "delete" else {"digest": digest_of(script, name, sorted(given.items()))}
        comment = {} if script == "delete" else {"comment": ""}
        fault = fault if request_id else "none"
        return self.call(script, {}, fault, id=name, request_id=request_id, **digest, **comment, **given)

    @rule(
        name=names,
        script=st.sampled_from(["pause", "resume", "resume", "wake"]),
        inc=guards,
        request=requests,
        fault=faults,
    )
    def pause_resume_wake(self, name: str, script: str, inc: int, request: int, fault: str) -> None:
        self.control(script, name, request, fault, inc=inc)

    def turn_near_the_head(self, name: str, offset: int) -> int:
        """The number of a turn, counted from the head."""
        one = self.model.instances.get(name)
        return max(0, one.head + offset) if one else 1

    def failed_one(self, name: str) -> str:
        """An instance that is blocked, if there is one."""
        blocked = [
            one.id for one in self.model.instances.values() if one.current and one.current.state == "FAILED"
        ]
        return name if name in blocked or not blocked else blocked[0]

    @rule(
        name=names, offset=st.sampled_from([0, 0, 0, 0, -1, 1]), attempt=guards, inc=guards,
        script=st.sampled_from(["retry", "retry", "skip", "park"]), request=requests, fault=faults,
    )  # fmt: skip
    def decide_about_a_failure(
        self, name: str, offset: int, attempt: int, inc: int, script: str, request: int, fault: str
    ) -> None:
        name = self.failed_one(name)
        turn = self.turn_near_the_head(name, offset)
        self.control(script, name, request, fault, turn=turn, attempt=attempt, inc=inc)

    @rule(
        name=names, step=steps, decision=st.sampled_from([1, 2, 3]), attempt=guards, inc=guards,
        size=st.sampled_from([1, 21]), request=requests, fault=faults,
    )  # fmt: skip
    def resolve_step(
        self, name: str, step: str, decision: int, attempt: int, inc: int, size: int, request: int, fault: str
    ) -> None:
        heads = {one.id: one.current for one in self.model.instances.values() if one.current}
        uncertain = [head for head, turn in heads.items() if turn.state == "UNCERTAIN"]
        name = uncertain[0] if uncertain else name
        turn = heads.get(name)
        key = turn.operation.key if turn and turn.operation and step != "z" else step
        given = {"turn": self.turn_near_the_head(name, 0), "key": key, "decision": decision}
        given |= {"output": b"\0" + b"x" * size, **LIMITS["checkpoint"], "attempt": attempt, "inc": inc}
        self.control("resolve_step", name, request, fault, **given)

    @rule(
        name=names, offset=st.integers(-3, 0), discard=rarely, limit=st.sampled_from([32, 1]),
        request=requests, fault=faults,
    )  # fmt: skip
    def redrive(self, name: str, offset: int, discard: bool, limit: int, request: int, fault: str) -> None:
        parked = [
            (one.id, turn) for one in self.model.instances.values() if not one.deleting for turn in one.parked
        ]
        turn = self.turn_near_the_head(name, offset)
        if parked and offset:
            name, turn = parked[offset % len(parked)]
        given = {"turn": turn, "discard": discard, "max_pending": limit, "inc": 0}
        self.control("redrive", name, request, fault, **given)

    @rule(
        name=names,
        offset=st.integers(-1, 4),
        count=st.sampled_from([1, 1, 3]),
        force=rarely,
        request=requests,
        fault=faults,
    )
    def cancel(self, name: str, offset: int, count: int, force: bool, request: int, fault: str) -> None:
        turn = self.turn_near_the_head(name, offset)
        for number in range(turn, turn + count):
            self.cancel_turn(name, number, request, fault, force=force)

    def cancel_turn(self, name: str, turn: int, request: int, fault: str, *, force: bool = False) -> None:
        given = {"turn": turn, "inc": 0, "force": force, "grace_ms": 2_000}
        self.control("cancel", name, request, fault, **given)

    @rule(which=leases, force=rarely, fault=faults)
    def cancel_what_runs(self, which: int, force: bool, fault: str) -> None:
        lease = self.pick(which).lease
        self.cancel_turn(lease["id"], lease["turn"], 0, fault, force=force)

    @rule(name=names, count=st.sampled_from([5, 20]))
    def cancel_many(self, name: str, count: int) -> None:
        """Turns come and end behind the head."""
        for _ in range(count):
            self.bodies += 1
            self.send(name, 100 + self.bodies, 0, 0, 0, "none")
            one = self.model.instances.get(name)
            if one and one.tail > one.head:
                self.cancel_turn(name, one.tail, 0, "none")

    @rule(name=names, body=st.integers(0, 7), inc=guards, request=requests, fault=faults)
    def cancel_message(self, name: str, body: int, inc: int, request: int, fault: str) -> None:
        self.control("cancel_message", name, request, fault, message_id=f"m{body}", inc=inc)

    @rule(
        name=names,
        max_turns=st.sampled_from([1_000, 1_000, 3, -1]),
        inc=guards,
        request=requests,
        fault=faults,
    )
    def delete(self, name: str, max_turns: int, inc: int, request: int, fault: str) -> None:
        self.control("delete", name, request, fault, max_turns=max_turns, inc=inc)

    # Rules: whoever repeats a call.

    @precondition(lambda self: self.calls)
    @rule(which=st.integers(0, 30))
    def a_duplicate_comes_late(self, which: int) -> None:
        self.make(self.calls[-1 - which % len(self.calls)])

    # Rules: servers and time.

    @rule(which=leases, conn=st.one_of(st.just(""), streams), accepted=st.booleans(), fault=faults)
    def a_stream_closes(self, which: int, conn: str, accepted: bool, fault: str) -> None:
        lease = self.pick(which).lease
        one = self.model.instances.get(lease["id"])
        turn = one.current if one else None
        conn = conn or (turn.lease.conn if turn and turn.lease else "") or "s1.1.1"
        # The repeat of an orphaning that received the turn would find a sign of life in it.
        fault = "none" if accepted else fault
        self.call("orphan", {**lease, "conn": conn, "accepted": accepted}, fault, grace_ms=300)

    @rule(ms=st.sampled_from([1, 300, 1_000, 5_000, 20_000, 60_000, 1_000_000, -1, -5_000, -3_600_000]))
    def time_passes_or_the_clock_steps(self, ms: int) -> None:
        self.model.now = self.driver.now = self.driver.now + ms
        self.latest = max(self.latest, self.driver.now)

    @rule(until=st.sampled_from(["now", "next", "next", "all", "week"]))
    def expire(self, until: str) -> None:
        """The timers fire: what is due now, or the next one when its time has come, or all there are."""
        if until == "week":
            self.time_passes_or_the_clock_steps(LEDGER_MS)
        due = [at for at in self.driver.due().values() if at > self.driver.now]
        if due and until in ("next", "all"):
            self.time_passes_or_the_clock_steps((min(due) if until == "next" else max(due)) - self.driver.now)
        self.fire()

    def fire(self) -> bool:
        """All that is due fires; whether anything was."""
        touched = {name.partition(":")[2] for name, at in self.driver.due().items() if at <= self.driver.now}
        expected = self.model.expire(sorted(touched))
        replies = self.driver.expire()
        timers = {"lease", "delete", "operation", *TIMED.values()}
        assert [plain(reply) for reply in replies if reply.kind in timers] == expected
        assert {reply.word for reply in replies} <= {"FIRED", "STALE"}
        return bool(replies)

    @rule(name=names, limit=st.sampled_from([1, 100]))
    def trim(self, name: str, limit: int) -> None:
        """The sweep settles everything first, so that the model need not know that trimming does."""
        self.sweep("")
        one, why = self.model.touch(name)
        if why == ("DELETING",):
            return
        assert (self.driver.trim(name, limit).word == "NOT_FOUND") == (one is None)
        for _ in range(100):
            if not self.fire():
                break
        else:
            raise AssertionError(f"timers that never end: {self.driver.due()}")
        self.compare(fully=name)

    @rule(name=names)
    def read(self, name: str) -> None:
        """Shows what the next transition would find, and writes nothing."""
        model = copy.deepcopy(self.model)
        one, why = model.touch(name)
        with self.driver.unchanged():
            reply = self.driver.get(name)
        if one:
            record = records.instance_record(reply.record)
            seen = (record.head, record.tail, record.pending, record.delayed, record.seq)
            recorded = self.model.instances[name].seq
            assert seen == (one.head, one.tail, one.pending, len(one.delayed), recorded)
        assert reply.word == "OK" if one or why == ("DELETING",) else "NOT_FOUND"

    @rule(dead=st.sampled_from(["s1", "s2"]))
    def sweep(self, dead: str) -> None:
        repaired, orphaned = self.driver.sweep(dead=dead, grace_ms=5_000)
        assert (repaired, orphaned) == (0, self.model.sweep(dead, 5_000))

    @rule()
    def remember(self) -> None:
        """The last state that has reached the replica."""
        self.snapshot = (self.driver.dump(), copy.deepcopy(self.model))

    @precondition(lambda self: self.snapshot)
    @rule()
    def failover(self) -> None:
        """The replica takes over; it never saw what came after."""
        assert self.snapshot
        dump, model = self.snapshot
        self.snapshot = None
        self.generation += 1
        self.driver.restore(dump)
        model.now = self.driver.now
        self.model = model
        reply = self.driver.hello(f"run-{self.generation}")
        assert reply.changed
        model.failover()

    # What must hold.

    @invariant()
    def model_and_invariants_hold(self) -> None:
        self.compare()
        assert self.driver.violations() == []

    def compare(self, *, fully: str = "") -> None:
        """Everything that is stored equals the model; of `fully` all was trimmed that may go."""
        state, model = self.driver.state(), self.model
        meta = state["meta"]
        assert int(meta.get("fence", 0)) == model.fence
        assert int(meta.get("incarnation", 0)) == model.incarnation
        assert {key[2:] for key in state if key.startswith("i:")} == set(model.instances)
        assert set(state.get("dead", ())) == set(model.dead)
        for tv in ("t:v1", "u:v1"):
            stored = state.get(f"ready:{tv}:0", {})
            assert sorted(stored, key=lambda name: (stored[name], name)) == model.order(tv)
        for name, one in model.instances.items():
            if one.deleting:
                continue
            compare_instance(state, one)
            compare_ledger(state, one, model.now, self.latest, fully=name == fully)
            record = records.instance_record(state[f"i:{name}"]["r"])
            model.trimmed(name, record.kept, record.oldest, fully=name == fully)


def compare_instance(state: State, one: Instance) -> None:
    """One instance equals the model's."""
    fields = state[f"i:{one.id}"]
    record = records.instance_record(fields["r"])
    assert (record.incarnation, record.head, record.tail) == (one.inc, one.head, one.tail)
    assert (record.paused, record.pending, record.delayed) == (one.paused, one.pending, len(one.delayed))
    assert fields.get("s", b"") == one.state
    assert record.seq == one.seq
    assert {int(name[:-2]) for name in fields if name.endswith(".p") and name[:-2].isdigit()} == set(
        one.parked
    )
    assert sorted(state.get(f"l:{one.id}", {}).values()) == sorted(message.due for message in one.delayed)
    stored = {
        int(name[:-2]): [entry[5] for entry in records.unpack(raw)[1:]]
        for name, raw in fields.items()
        if name.endswith(".g")
    }
    known = {turn.number: turn.signals for turn in one.turns if turn.number >= record.oldest}
    known[one.tail + 1] = one.early
    wanted = {number: [signal.position for signal in signals] for number, signals in known.items() if signals}
    assert stored == wanted
    turn = one.current
    assert state_name(record.state) == (turn.state if turn else "CANCELLED" if one.behind else "")
    if turn:
        compare_head(state, one, turn)


def compare_head(state: State, one: Instance, turn: Turn) -> None:
    """The turn at the head equals the model's."""
    record = records.instance_record(state[f"i:{one.id}"]["r"])
    counters = (turn.attempt, turn.failures, turn.lost, turn.deliveries, len(turn.steps), turn.defers)
    assert (
        record.attempt,
        record.failures,
        record.lost,
        record.deliveries,
        record.steps,
        record.defers,
    ) == counters
    step = turn.operation
    op = 0 if not step else 1 if not step.active else 3 if step.unseen else 2
    assert (record.operation, record.operation_at_ms) == (op, step.due if step else 0)
    lease, previous = turn.lease, turn.previous
    assert (record.fence, record.previous_fence) == (
        lease.fence if lease else 0,
        previous.fence if previous else 0,
    )
    running = turn.state in HELD
    deadline = lease.deadline if lease and running else turn.deadline
    assert record.deadline_ms == deadline
    assert record.cancel_at_ms == state.get("due", {}).get(f"cancel:{one.id}", 0) == turn.cancel_at
    if lease:
        assert (record.n, record.accepted, record.orphaned) == (lease.n, lease.accepted, lease.orphaned)
        assert (record.conn or b"") == lease.conn.encode()
    if running or (turn.state in TIMED and turn.deadline and not one.paused):
        kind = "lease" if running else TIMED[turn.state]
        assert state["due"][f"{kind}:{one.id}"] == deadline


def compare_ledger(state: State, one: Instance, now: int, latest: int, *, fully: bool) -> None:
    """The ledger has the model's events, and its newest ones say how everything stands.

    Older ones may have gone, and none that is younger at the `latest` time there was; `fully` if none that is
    too old should be left.
    """
    events = [records.ledger_event(raw) for raw in state[f"e:{one.id}"]]
    names = [EVENTS[event.type] for event in events]
    assert names == one.events[-len(names) :]
    one.latest += [now] * (len(one.events) - len(one.latest))
    kept = constants("commit")["LEDGER_KEEP"]
    gone = one.latest[: len(one.events) - len(names)]
    assert len(names) >= kept or all(latest - at >= LEDGER_MS for at in gone), "younger events have gone"
    # Events go in their order: after a clock that went back, an old one may stand behind a younger one.
    assert not fully or len(events) == 1 or now - events[0].time_ms < LEDGER_MS, "old events are left"
    assert events[-1].status == one.status
    newest = {event.turn: state_name(event.state) for event in events if event.turn}
    for turn in one.turns:
        if turn.state != "RUNNING" and turn.number in newest:
            handed_out = turn.state == "QUEUED" and newest[turn.number] == "RUNNING"
            assert newest[turn.number] == turn.state or handed_out, (turn, newest)


@pytest.mark.timeout(3_600 if LONG else 120)
@pytest.mark.spec(
    *("R-SEND-1", "R-SEND-2", "R-FENCE-1", "R-FENCE-2", "R-FENCE-3", "R-LEASE-1", "R-LEASE-5", "R-CMD-1"),
    *("R-CMD-2", "R-CMD-3", "R-STEP-1", "R-FINISH-1", "R-FINISH-2", "R-FINISH-3", "R-FAIL-1", "R-FAIL-2"),
    *("R-FAIL-4", "R-EXPIRE-1", "R-EXPIRE-2", "R-EXPIRE-3", "R-TRIM-1", "R-TRIM-2", "R-TRIM-3", "R-LIMIT-3"),
    *("R-WAKE-1", "R-WAKE-2", "R-STORE-4", "R-SLEEP-1", "R-DEFER-1", "R-DELAY-1", "R-DELAY-2", "R-TTL-1"),
    *(
        "R-POLICY-1",
        "R-CONTROL-1",
        "R-CONTROL-2",
        "R-PAUSE-1",
        "R-PAUSE-2",
        "R-RETRY-1",
        "R-SKIP-1",
        "R-PARK-1",
    ),
    *("R-CANCEL-5", "R-CANCEL-7", "R-CANCEL-8", "R-CANCEL-9"),
    *("R-PARK-2", "R-CANCEL-1", "R-CANCEL-2", "R-CANCEL-3", "R-DELETE-1", "R-DELETE-2", "R-DELETE-3"),
    *("R-EVENT-1", "R-EVENT-2", "R-SETTLE-1", "R-OP-1", "R-OP-2", "R-OP-3", "R-OP-4", "R-OP-6"),
    *("R-PROGRESS-1", "R-PROGRESS-2", "R-UNCERTAIN-1", "R-UNCERTAIN-2", "R-UNCERTAIN-3", "R-UNCERTAIN-4"),
    *("R-SIGNAL-1", "R-SIGNAL-2", "R-SIGNAL-3", "R-SIGNAL-4"),
    *("R-SIGNAL-5", "R-SIGNAL-7", "R-WAIT-1", "R-WAIT-4", "R-CALLBACK-1", "R-CALLBACK-2"),
)
def test_the_transitions_do_what_the_model_says(redis_server: RedisServer, redis_url: str) -> None:
    machine = type("Machine", (Machine,), {"redis": redis_server})
    chosen = settings(stateful_step_count=100) if LONG else settings(max_examples=60, stateful_step_count=40)
    run_state_machine_as_test(machine, settings=chosen)
