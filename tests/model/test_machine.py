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
from tests.model.reference import Instance, Reference, Settings
from tests.support.driver import DETACHED_MS, Driver, digest_of, state_name
from tests.support.lua_harness import START_MS, State
from tests.support.redis_server import RedisServer

LONG = settings.get_current_profile_name() == "long"
TYPES = {
    "t": Settings(attempt_timeout_ms=200_000, min_turns=1, max_age_ms=20_000, max_turns=4),
    "u": Settings(lease_ms=5_000, max_attempts=2, min_turns=0, max_age_ms=0),
}
NAMES = {"a": "t", "b": "t", "c": "u", "d": "t", "e": "t"}
LIMITS = {"max_steps": 3, "max_step": 20}
NO_LEASE = {"id": "a", "inc": 1, "turn": 1, "fence": 0}

names = st.sampled_from(sorted(NAMES))
tvs = st.sampled_from(["t:v1", "t:v1", "u:v1"])
streams = st.sampled_from(["s1.1.1", "s2.2.1", "s1.3.1"])
leases = st.sampled_from([0, 0, 1, 1, 2, -1, -2, -4])
"""Which lease, see Machine.pick."""
steps = st.sampled_from("wxyz")
skews = st.sampled_from([0, 0, 0, 0, 1, -1])
rarely = st.sampled_from([False, False, False, True])
faults = st.sampled_from(["none", "none", "reply lost"])


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


def plain(reply: Any) -> tuple[Any, ...]:
    """A reply as the model says it: states by name, claimed turns as (instance, turn, fence)."""
    values = list(reply)
    if type(reply).__name__ == "FailOk":
        values[0] = state_name(values[0])
    if type(reply).__name__ == "FinishOk":
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
        self.bodies = 0
        for name, one in TYPES.items():
            self.driver.put_type(name, **vars(one))

    # Calls.

    def make(self, call: Call) -> Any:
        """Makes a call on both sides and compares the answers."""
        reply = self.driver.call(call.script, items=[call.item], **call.args).replies[0]
        expected = getattr(self.model, call.script)(**call.item, **call.args)
        assert plain(reply) == expected, call
        for view in reply.turns if call.script == "finish" and reply.word == "OK" else ():
            self.receive(view)
        return reply

    def call(self, script: str, item: Mapping[str, Any], fault: str = "none", **args: Any) -> Any:
        """Makes a call, twice if its reply is lost, and keeps it for late repeats."""
        call = Call(script, item, args)
        self.calls.append(call)
        reply = self.make(call)
        if fault == "reply lost":
            with self.driver.unchanged():
                again = self.make(call)
            assert plain(again) == plain(reply), "the repeat has another answer"
        return reply

    def receive(self, view: list[Any]) -> None:
        """A worker gets a claimed turn: what it carries must be what the model knows."""
        got = records.claimed_turn(view)
        one = self.model.instances[got.instance_id]
        turn = one.turns[got.turn - 1]
        assert (got.message.blob, got.message.message_id) == (turn.body, turn.message_id)
        assert (got.incarnation, got.state, [step.key for step in got.steps]) == (
            one.inc,
            one.state,
            turn.steps,
        )
        assert got.attempt == turn.failures + turn.lost + 1
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
            if (turn := one.current) and turn.lease and turn.state == "RUNNING"
        }
        live = [held for held in self.held if held.lease["fence"] in fences]
        if not live:
            self.bodies += 1
            self.send(self.unblocked(), 100 + self.bodies, 0, "none")
            self.claim("t:v1", 2, "s1.1.1")
            live = self.held[-1:]
        candidates = live if live and which >= 0 else self.held
        return candidates[which % len(candidates)] if candidates else Held(NO_LEASE)

    def unblocked(self) -> str:
        """An instance whose head has not failed for good."""
        blocked = {
            one.id for one in self.model.instances.values() if one.current and one.current.state == "FAILED"
        }
        return next((name for name in "abde" if name not in blocked), "a")

    def command(self, script: str, which: int, skew: int, fault: str, **given: Any) -> Any:
        """The next command of a worker; with a skew of 1 the one before never arrived."""
        held = self.pick(which)
        n = max(1, held.n + 1 + skew)
        item = {**held.lease, "n": n, "digest": digest_of(script, sorted(given.items())), **given}
        reply = self.call(script, item, fault, **(LIMITS if script in ("checkpoint", "finish") else {}))
        if reply.word in ("OK", "ALREADY"):
            held.n = max(held.n, n)
        return reply

    # Rules: senders.

    @rule(name=names, own=st.sampled_from([0, 0, 1]), fault=faults)
    def create(self, name: str, own: int, fault: str) -> None:
        item = {
            "id": name,
            "type": NAMES[name],
            "version": "v1",
            "digest": digest_of(name, own),
            "state": b"",
        }
        self.call("create", {**item, "lease_ms": own * 9_000, "max_attempts": own}, fault)

    @rule(name=names, body=st.integers(0, 7), changed=st.sampled_from([0, 0, 0, 1]), fault=faults)
    def send(self, name: str, body: int, changed: int, fault: str) -> None:
        message = b"\0%d" % (body + 1_000 * changed)
        item = {"id": name, "message_id": f"m{body}", "digest": digest_of(message), "message": message}
        birth = {
            "create": body != 7,
            "type": NAMES[name],
            "version": "v1",
            "create_digest": digest_of(name, 0),
        }
        self.call("send", {**item, **birth}, fault, max_pending=4)

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

    @rule(which=leases, skew=skews, delay_ms=st.sampled_from([-1, 0, 5_000]), final=rarely, fault=faults)
    def fail(self, which: int, skew: int, delay_ms: int, final: bool, fault: str) -> None:
        self.command("fail", which, skew, fault, reason="ERROR", delay_ms=delay_ms, final=final)

    @rule(which=leases, skew=skews, count=st.sampled_from([1, 1, 1, 6]), fault=faults)
    def release(self, which: int, skew: int, count: int, fault: str) -> None:
        for _ in range(count):
            self.command("release", which, skew, fault)
            self.claim("t:v1", 3, "s1.1.1")

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

    @rule(until=st.sampled_from(["now", "next", "next", "all"]))
    def expire(self, until: str) -> None:
        """The timers fire: what is due now, or the next one when its time has come, or all there are."""
        due = [at for at in self.driver.due().values() if at > self.driver.now]
        if due and until != "now":
            self.time_passes_or_the_clock_steps((min(due) if until == "next" else max(due)) - self.driver.now)
        expected = self.model.expire()
        replies = self.driver.expire()
        assert {reply.word for reply in replies} <= {"FIRED"}
        assert [plain(reply) for reply in replies if reply.kind != "gc"] == expected

    @rule(name=names, limit=st.sampled_from([1, 100]))
    def trim(self, name: str, limit: int) -> None:
        """The sweep settles everything first, so that the model need not know that trimming does."""
        self.sweep("")
        reply = self.driver.trim(name, limit)
        assert (reply.word == "NOT_FOUND") == (name not in self.model.instances)
        self.expire("now")
        while self.driver.expire():
            pass
        self.compare(fully=True)

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
        self.compare(fully=False)
        assert self.driver.violations() == []

    def compare(self, *, fully: bool) -> None:
        """Everything that is stored equals the model."""
        state, model = self.driver.state(), self.model
        meta = state["meta"]
        assert int(meta.get("fence", 0)) == model.fence
        assert int(meta.get("incarnation", 0)) == model.incarnation
        assert {key[2:] for key in state if key.startswith("i:")} == set(model.instances)
        for tv in ("t:v1", "u:v1"):
            stored = state.get(f"ready:{tv}:0", {})
            assert sorted(stored, key=lambda name: (stored[name], name)) == model.order(tv)
        for name, one in model.instances.items():
            compare_instance(state, one)
            record = records.instance_record(state[f"i:{name}"]["r"])
            model.trimmed(name, record.kept, record.oldest, fully=fully)


def compare_instance(state: State, one: Instance) -> None:
    """One instance equals the model's."""
    fields = state[f"i:{one.id}"]
    record = records.instance_record(fields["r"])
    turn = one.current
    assert (record.incarnation, record.head, record.tail) == (one.inc, one.head, len(one.turns))
    assert fields.get("s", b"") == one.state
    assert record.seq == len(one.events)
    assert state_name(record.state) == (turn.state if turn else "")
    if not turn:
        return
    counters = (turn.attempt, turn.failures, turn.lost, turn.deliveries, len(turn.steps))
    assert (record.attempt, record.failures, record.lost, record.deliveries, record.steps) == counters
    lease, previous = turn.lease, turn.previous
    assert (record.fence, record.previous_fence) == (
        lease.fence if lease else 0,
        previous.fence if previous else 0,
    )
    running = turn.state == "RUNNING"
    deadline = lease.deadline if lease and running else turn.deadline
    assert record.deadline_ms == deadline
    if lease:
        assert (record.n, record.accepted, record.orphaned) == (lease.n, lease.accepted, lease.orphaned)
        assert (record.conn or b"") == lease.conn.encode()
    if turn.state in ("RUNNING", "BACKOFF"):
        kind = "lease" if running else "backoff"
        assert state["due"][f"{kind}:{one.id}"] == deadline


@pytest.mark.timeout(3_600 if LONG else 120)
@pytest.mark.spec(
    *("R-SEND-1", "R-SEND-2", "R-FENCE-1", "R-FENCE-2", "R-FENCE-3", "R-LEASE-1", "R-LEASE-5", "R-CMD-1"),
    *("R-CMD-2", "R-CMD-3", "R-STEP-1", "R-FINISH-1", "R-FINISH-2", "R-FINISH-3", "R-FAIL-1", "R-FAIL-2"),
    *("R-FAIL-4", "R-EXPIRE-1", "R-EXPIRE-2", "R-EXPIRE-3", "R-TRIM-1", "R-TRIM-2", "R-TRIM-3", "R-LIMIT-3"),
    *("R-WAKE-1", "R-STORE-4"),
)
def test_the_transitions_do_what_the_model_says(redis_server: RedisServer, redis_url: str) -> None:
    machine = type("Machine", (Machine,), {"redis": redis_server})
    chosen = settings(stateful_step_count=100) if LONG else settings(max_examples=60, stateful_step_count=40)
    run_state_machine_as_test(machine, settings=chosen)
