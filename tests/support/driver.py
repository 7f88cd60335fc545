"""The vocabulary of the transition tests: what senders, workers and servers do, one script call each.

    driver.send("a", b"hello")                  a sender
    held = driver.take("a")                     a worker that claimed and received the head of `a`
    held.checkpoint("step-1", b"out")
    driver.later(70_000)                        time goes by
    assert held.finish().word == "OK"           a deadline is not an end
    assert driver.again() == ...                the last call once more, byte for byte

Every command of a `Held` lease takes the next command number unless `n` says otherwise, and a digest made of
what it carries; every control call has a request id of its own unless one is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import pytest

from pawl_server.domain.limits import CANCEL_GRACE_MS
from pawl_server.domain.states import TurnState
from pawl_server.store import records
from pawl_server.store.records import ClaimedTurn, InstanceRecord, Receipt, TurnView
from pawl_server.store.script_call import Result
from tests.support.invariants import Instance, constants, violations
from tests.support.lua_harness import Harness, State, changes
from tests.support.redis_server import RedisServer

TV = "t:v1"
DETACHED_MS = 10_000
COMMANDS = frozenset({"checkpoint", "finish", "fail", "release", "sleep", "defer", "wait_signal"})


class Event(NamedTuple):
    """One ledger event, by names."""

    name: str
    turn: int
    attempt: int
    state: str
    status: int
    detail: str


def digest_of(*parts: object) -> bytes:
    """The 8-byte digest of a body, as a server would make it."""
    return blake2b(repr(parts).encode(), digest_size=8).digest()


def detail_text(detail: Any) -> str:
    """The detail of an event as text; the parts of a list are joined by spaces."""
    parts = detail if isinstance(detail, list) else [detail]
    return " ".join(part.decode() if isinstance(part, bytes) else str(part) for part in parts)


def state_name(number: int) -> str:
    """QUEUED, RUNNING, …; "" while the inbox is empty."""
    return TurnState(number).name if number else ""


class Driver(Harness):
    """One partition, and everybody who acts on it."""

    _last: tuple[str, Sequence[Any], Mapping[str, Any]] = ("", (), {})
    _requests: int = 0

    def call(self, script: str, *, items: Sequence[Any] = (), **args: Any) -> Result[Any]:
        """Harness.call, remembered for `again`."""
        self._last = (script, items, args)
        return super().call(script, items=items, **args)

    def again(self) -> Any:
        """Makes the last call once more, now; returns its one reply, or the Result of a call with several."""
        script, items, args = self._last
        result = self.call(script, items=items, **args)
        return result.replies[0] if len(result.replies) == 1 else result

    # time

    def later(self, ms: int) -> None:
        """Lets time pass."""
        self.now += ms

    def elapse(self, ms: int) -> list[Any]:
        """Lets time pass, and then the timers fire; the replies of `expire`."""
        self.now += ms
        return self.expire()

    # senders

    def create(self, name: str = "a", *, kind: str = "t", version: str = "v1", **more: Any) -> Any:
        """Creates one instance."""
        digest = more.pop("digest", digest_of(kind, version, sorted(more.items())))
        return self.one("create", id=name, type=kind, version=version, digest=digest, **more)

    def message(
        self, name: str = "a", body: bytes = b"hello", message_id: str = "", **more: Any
    ) -> dict[str, Any]:
        """The item of a send that creates what is absent; the id of the message is made of its body."""
        return {
            "id": name,
            "message_id": message_id or f"m-{body.decode()}",
            "digest": digest_of(body),
            "message": b"\0" + body,
            "create": True,
            "type": "t",
            "version": "v1",
            "create_digest": digest_of("t", "v1", []),
            **more,
        }

    def send(self, name: str = "a", body: bytes = b"hello", message_id: str = "", **more: Any) -> Any:
        """Sends one message; `more` are item fields and arguments of `send`."""
        args = {name: more.pop(name) for name in ("max_pending", "max_message", "max_state") if name in more}
        [reply] = self.call("send", items=[self.message(name, body, message_id, **more)], **args).replies
        return reply

    def signal(
        self,
        signal_id: str = "s1",
        name: str = "go",
        value: bytes = b"v",
        *,
        turn: int = 1,
        on: str = "a",
        **more: Any,
    ) -> Any:
        """Sends a signal to a turn of `on`, with turn 0 to the instance; `more` as for `send`."""
        args = {each: more.pop(each) for each in list(more) if each.startswith("max_") or each == "reserve"}
        [reply] = self.call(
            "signal", items=[self.signal_item(signal_id, name, value, turn=turn, on=on, **more)], **args
        ).replies
        return reply

    def signal_item(
        self,
        signal_id: str = "s1",
        name: str = "go",
        value: bytes = b"v",
        *,
        turn: int = 1,
        on: str = "a",
        **more: Any,
    ) -> dict[str, Any]:
        """The item of a signal."""
        item = {"id": on, "turn": turn, "signal_id": signal_id, "name": name, "value": b"\0" + value, **more}
        return {"digest": digest_of(name, value, more.get("rejected", False)), **item}

    def answer(self, key: str = "call", value: bytes = b"v", **more: Any) -> Any:
        """Gives a callback its result."""
        return self.signal("", "", value, callback=key, **more)

    def get(self, name: str = "a") -> Any:
        """Reads one instance."""
        return self.one("get_instance", id=name)

    def turn(self, turn: int, name: str = "a") -> TurnView:
        """Reads one turn with its payloads."""
        reply = self.one("get_turn", id=name, turn=turn, payloads=True)
        assert reply.word == "OK", reply
        return records.turn_view(reply.view)

    # operators

    def control(self, script: str, name: str = "a", **given: Any) -> Any:
        """Makes a control call."""
        self._requests += 1
        digest = digest_of(
            script, name, sorted((key, value) for key, value in given.items() if key != "request_id")
        )
        fields: dict[str, Any] = {"request_id": f"r-{self._requests}", "id": name}
        if script != "delete":
            fields["digest"] = digest
        return self.one(script, **{**fields, **given})

    def pause(self, name: str = "a", **given: Any) -> Any:
        """Stops dispatch."""
        return self.control("pause", name, **given)

    def resume(self, name: str = "a", **given: Any) -> Any:
        """Starts dispatch again."""
        return self.control("resume", name, **given)

    def wake(self, name: str = "a", **given: Any) -> Any:
        """Ends the delay of the head."""
        return self.control("wake", name, **given)

    def retry(self, turn: int = 1, name: str = "a", **given: Any) -> Any:
        """Gives a failed turn more attempts."""
        return self.control("retry", name, turn=turn, **given)

    def skip(self, turn: int = 1, name: str = "a", **given: Any) -> Any:
        """Ends a failed turn."""
        return self.control("skip", name, turn=turn, **given)

    def park(self, turn: int = 1, name: str = "a", **given: Any) -> Any:
        """Ends a failed turn and keeps its message."""
        return self.control("park", name, turn=turn, **given)

    def redrive(self, turn: int = 1, name: str = "a", **given: Any) -> Any:
        """Sends the message of a parked turn again."""
        return self.control("redrive", name, turn=turn, **{"max_pending": 1_024, **given})

    def resolve(
        self, decision: int, turn: int = 1, name: str = "a", *, key: str = "step", **given: Any
    ) -> Any:
        """Decides about the step of an uncertain turn: 1 to save, 2 to run it again, 3 to fail."""
        fields = {"turn": turn, "key": key, "decision": decision, **given}
        return self.control("resolve_step", name, **fields)

    def cancel(self, turn: int = 1, name: str = "a", **given: Any) -> Any:
        """Ends an unfinished turn; one that is leased only with `force`, else it has the grace."""
        return self.control("cancel", name, turn=turn, **{"grace_ms": CANCEL_GRACE_MS, **given})

    def cancel_message(self, message_id: str, name: str = "a", **given: Any) -> Any:
        """Takes back a message."""
        return self.control("cancel_message", name, message_id=message_id, **given)

    def delete(self, name: str = "a", **given: Any) -> Any:
        """Removes an instance."""
        return self.control("delete", name, **{"max_turns": 1_000, **given})

    # workers

    def claim(self, limit: int = 1, *, tv: str = TV, conn: str = "", **args: Any) -> list[Held]:
        """Claims up to `limit` heads; nobody has received them yet."""
        item = {"tv": tv, "limit": limit, "conn": conn or self.conn}
        [reply] = self.call("claim", items=[item], **args).replies
        return [Held(self, records.claimed_turn(view)) for view in reply.turns]

    def lease(self, name: str = "a", **args: Any) -> Held:
        """Claims the head of `name`, which must be the next one; it is not received yet."""
        [held] = self.claim(**args)
        assert held.view.instance_id == name
        return held

    def take(self, name: str = "a", **args: Any) -> Held:
        """Claims the head of `name` and receives it."""
        held = self.lease(name, **args)
        assert held.renew().word == "OK"
        return held

    # servers

    def expire(self, limit: int = 256) -> list[Any]:
        """Applies what is due; the replies without NEXT."""
        return self.call("expire", limit=limit).replies[:-1]

    def sweep(self, **args: Any) -> tuple[int, int]:
        """Sweeps all busy instances; how many were repaired and orphaned."""
        cursor, repaired, orphaned = "0", 0, 0
        while True:
            [reply] = self.call("sweep", cursor=cursor, **{"limit": 1000, **args}).replies
            cursor, repaired, orphaned = reply.cursor, repaired + reply.repaired, orphaned + reply.orphaned
            if cursor == "0":
                return repaired, orphaned

    def trim(self, name: str = "a", limit: int = 256) -> Any:
        """Trims one instance."""
        return self.one("trim", id=name, limit=limit)

    def put_type(self, name: str = "t", **settings: float | str | None) -> Any:
        """Stores settings of a workflow type, whatever was stored."""
        packed = records.pack_type(settings)
        return self.one("put_type", name=name, settings=packed, digest=digest_of(settings))

    def hello(self, run_id: str, **args: Any) -> Any:
        """Introduces a connection to a Redis with this run id."""
        return self.one("hello", **{"run_id": run_id, "partitions": 1, "virtual": True, **args})

    # what is stored

    def record(self, name: str = "a") -> InstanceRecord:
        """Record `r` of an instance."""
        return records.instance_record(self.redis.call("HGET", f"{self.tag}i:{name}", "r"))

    def head(self, name: str = "a") -> str:
        """State of the head of an instance, "" while its inbox is empty."""
        return state_name(self.record(name).state)

    def receipt(self, turn: int, name: str = "a") -> Receipt:
        """The receipt of a finished turn."""
        return records.receipt(self.redis.call("HGET", f"{self.tag}i:{name}", f"{turn}.h"))

    def bytes_of(self, turn: int, name: str = "a") -> int:
        """A recount of the stored bytes of a turn."""
        fields = self.redis.call("HGETALL", f"{self.tag}i:{name}")
        pairs = {key.decode(): value for key, value in zip(fields[::2], fields[1::2], strict=True)}
        return Instance(name, pairs).payload_bytes(turn)

    def fields(self, name: str = "a") -> set[str]:
        """Names of the stored fields of an instance."""
        return {name.decode() for name in self.redis.call("HKEYS", f"{self.tag}i:{name}")}

    def due(self) -> dict[str, int]:
        """Everything that is due some time."""
        flat = self.redis.call("ZRANGE", f"{self.tag}due", 0, -1, "WITHSCORES")
        return {name.decode(): int(score) for name, score in zip(flat[::2], flat[1::2], strict=True)}

    def ready(self, tv: str = TV) -> list[str]:
        """Ready instances, oldest first."""
        return [one.decode() for one in self.redis.call("ZRANGE", f"{self.tag}ready:{tv}:0", 0, -1)]

    def meta(self, field: str) -> int:
        """A number of the partition."""
        return int(self.redis.call("HGET", f"{self.tag}meta", field) or 0)

    def set_meta(self, **fields: int | str) -> None:
        """Changes the partition's numbers by hand."""
        flat = [part for pair in fields.items() for part in pair]
        self.redis.call("HSET", f"{self.tag}meta", *flat)

    def events(self, name: str = "a") -> list[Event]:
        """The ledger of an instance."""
        names = {number: name for name, number in constants("ledger").items()}
        raw = self.redis.call("LRANGE", f"{self.tag}e:{name}", 0, -1)
        events = [records.ledger_event(one) for one in raw]
        return [
            Event(names[e.type], e.turn, e.attempt, state_name(e.state), e.status, detail_text(e.detail))
            for e in events
        ]

    def event_names(self, name: str = "a") -> list[str]:
        """The names of the ledger's events."""
        return [event.name for event in self.events(name)]

    def violations(self) -> list[str]:
        """What does not hold now."""
        return violations(self.redis, self.tag, self.now)

    @contextmanager
    def unchanged(self, *ignore: str) -> Iterator[State]:
        """Asserts that nothing stored is different afterwards, but what `ignore` names as `changes` does."""
        before = self.state()
        yield before
        found = changes(before, self.state())
        assert {key: value for key, value in found.items() if key not in ignore} == {}


@dataclass
class Held:
    """A lease in a worker's hands, and the turn it came with."""

    driver: Driver
    view: ClaimedTurn
    n: int = 0
    """Number of the last command that was applied."""

    @property
    def lease(self) -> dict[str, Any]:
        """The lease as every call names it."""
        view = self.view
        return {"id": view.instance_id, "inc": view.incarnation, "turn": view.turn, "fence": view.fence}

    @property
    def fence(self) -> int:
        """Fence of the lease."""
        return self.view.fence

    def item(self, script: str, *, n: int = 0, digest: bytes = b"", **given: Any) -> dict[str, Any]:
        """The item of a call under this lease."""
        if script not in COMMANDS:
            return {**self.lease, **given, **({"digest": digest} if digest else {})}
        digest = digest or digest_of(script, sorted(given.items()))
        return {**self.lease, **given, "n": n or self.n + 1, "digest": digest}

    def do(self, script: str, *, limits: Mapping[str, int] | None = None, **given: Any) -> Any:
        """Makes one call under this lease."""
        item = self.item(script, **given)
        [reply] = self.driver.call(script, items=[item], **(limits or {})).replies
        if script in COMMANDS and reply.word == "OK":
            self.n = max(self.n, item["n"])
        return reply

    def renew(self) -> Any:
        """Says that the worker is there; receives the delivery."""
        return self.driver.one("renew", **self.lease)

    def detach(self, ordinal: int = 0) -> Any:
        """Says that the worker is there, but has no stream."""
        return self.driver.one("renew", **self.lease, ordinal=ordinal, detach_ms=DETACHED_MS)

    def adopt(self, conn: str) -> Any:
        """Moves the lease to another stream."""
        return self.do("adopt", conn=conn)

    def orphan(self, conn: str = "", *, accepted: bool = False, grace_ms: int = 300) -> Any:
        """Says that a stream closed."""
        return self.do(
            "orphan", conn=conn or self.driver.conn, accepted=accepted, limits={"grace_ms": grace_ms}
        )

    def checkpoint(self, key: str = "step", output: bytes = b"out", **given: Any) -> Any:
        """Saves a step."""
        return self.do("checkpoint", key=key, kind="step", output=b"\0" + output, **given)

    def finish(
        self,
        reply: bytes | None = None,
        *,
        state: bytes | None = None,
        step: tuple[str, bytes] | None = None,
        onward: bytes | None = None,
        **given: Any,
    ) -> Any:
        """Completes the turn, with what is given."""
        if reply is not None:
            given |= {"has_reply": True, "result": b"\0" + reply}
        if state is not None:
            given |= {"has_state": True, "state": b"\0" + state}
        if step is not None:
            key, output = step
            given |= {"has_step": True, "key": key, "kind": "step", "output": b"\0" + output}
            given |= {"step_digest": digest_of(key, output)}
        if onward is not None:
            given |= {"has_next": True, "next_message": b"\0" + onward, "next_digest": digest_of(onward)}
        return self.do("finish", **given)

    def fail(self, reason: str = "ERROR", *, delay_ms: int = -1, **given: Any) -> Any:
        """Fails the attempt."""
        return self.do("fail", reason=reason, delay_ms=delay_ms, **given)

    def release(self, **given: Any) -> Any:
        """Gives the turn back."""
        return self.do("release", **given)

    def sleep(self, key: str = "nap", ms: int = 1_000, **given: Any) -> Any:
        """Sleeps."""
        return self.do("sleep", key=key, ms=ms, **given)

    def defer(self, ms: int = 1_000, reason: str = "", **given: Any) -> Any:
        """Puts the turn off."""
        return self.do("defer", ms=ms, reason=reason, **given)

    def start(self, key: str = "step", **given: Any) -> Any:
        """Registers the step that runs, by default the next one, for 5 s."""
        position = self.driver.record(self.view.instance_id).steps + 1
        fields = {"position": position, "kind": "step", "timeout_ms": 5_000, "on_restart": 1, **given}
        return self.do("start_operation", key=key, **fields)

    def report(self, sequence: int, key: str = "step", **given: Any) -> Any:
        """Reports progress of the registered step."""
        position = self.driver.record(self.view.instance_id).steps + 1
        digest = given.pop("digest", digest_of(sorted(given.items())))
        fields = {"position": position, **given}
        return self.do("report_progress", key=key, sequence=sequence, digest=digest, **fields)

    def wait(
        self, key: str = "wait", name: str = "go", ms: int = 0, *, callback: str = "", **given: Any
    ) -> Any:
        """Waits for a signal, or for a callback."""
        return self.do(
            "wait_signal", key=key, name="" if callback else name, callback=callback, ms=ms, **given
        )

    def end(self, how: str) -> None:
        """Ends the lease in the way that the record will call `how`; received before, unless "returned"."""
        if how == "failed":
            self.fail(delay_ms=0)
        elif how == "sleeping":
            self.sleep(ms=1)
        elif how == "deferred":
            self.defer(ms=1)
        elif how == "waiting":
            self.wait(ms=1)
        elif how == "cancelled":
            self.driver.cancel(self.view.turn, self.view.instance_id, force=True)
        elif how == "released":
            self.release()
        elif how == "completed":
            self.finish(state=b"mine")
        else:
            if how == "lost":
                self.orphan(accepted=True)
            elif how == "expired":
                self.renew()
            self.driver.later(60_000)
            self.driver.expire()


@pytest.fixture
def driver(redis_server: RedisServer) -> Iterator[Driver]:
    """A fresh partition in virtual time; the invariants are checked after the test.

    Redis keeps the scripts: to load them anew takes longer than most tests.
    """
    redis_server.call("FLUSHALL")
    driver = Driver(redis_server)
    yield driver
    assert driver.violations() == []
