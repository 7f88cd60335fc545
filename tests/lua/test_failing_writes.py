"""Redis undoes nothing when a script fails half-way. Whichever write fails, later scripts mend what it left.

A failed write is a bug or a broken Redis; what must survive is that nothing hangs: the caller repeats its
call, the sweep walks, due entries are applied as time goes on, and then every head has its one reason to wake
and every index is right. Ledger events of the failed script may be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.invariants import violations
from tests.support.lua_harness import Harness

Lease = dict[str, Any]
STEP = {"key": "one", "kind": "run", "output": b"json\x001"}


def _send(harness: Harness, name: str = "a", message_id: str = "m1") -> None:
    sent: dict[str, Any] = {"id": name, "message_id": message_id, "message": b"json\0{}"}
    harness.one("send", create=True, type="t", version="v", **sent)


def _claim(harness: Harness) -> Lease:
    [view] = harness.one("claim", tv="t:v", limit=1).turns
    return {"id": view[0].decode(), "inc": view[1], "turn": view[2], "fence": view[3]}


def _create(harness: Harness) -> Callable[[], Any]:
    return lambda: harness.one("create", id="a", type="t", version="v")


def _first_send(harness: Harness) -> Callable[[], Any]:
    return lambda: _send(harness)


def _second_send(harness: Harness) -> Callable[[], Any]:
    _send(harness)
    return lambda: _send(harness, message_id="m2")


def _claiming(harness: Harness) -> Callable[[], Any]:
    _send(harness)
    return lambda: harness.one("claim", tv="t:v", limit=1)


def _checkpoint(harness: Harness) -> Callable[[], Any]:
    _send(harness)
    lease = _claim(harness)
    return lambda: harness.one("checkpoint", n=1, digest=b"d", **STEP, **lease)


def _finish(harness: Harness) -> Callable[[], Any]:
    _send(harness)
    _send(harness, "b")
    lease = _claim(harness)
    more = {"has_next": True, "next_message": b"json\x002", "next_digest": b"n", "tv": "t:v"}
    return lambda: harness.one("finish", n=1, digest=b"d", has_step=True, **STEP, **more, **lease)


def _last_finish(harness: Harness) -> Callable[[], Any]:
    _send(harness)
    lease = _claim(harness)
    return lambda: harness.one("finish", n=1, digest=b"d", **lease)


def _fail(harness: Harness) -> Callable[[], Any]:
    _send(harness)
    lease = _claim(harness)
    return lambda: harness.one("fail", n=1, digest=b"d", reason="R", delay_ms=-1, **lease)


def _release(harness: Harness) -> Callable[[], Any]:
    _send(harness)
    lease = _claim(harness)
    return lambda: harness.one("release", n=1, digest=b"d", **lease)


def _expire(harness: Harness) -> Callable[[], Any]:
    _send(harness)
    _claim(harness)
    harness.now += 5_000
    return lambda: harness.call("expire")


@pytest.mark.parametrize(
    "prepare",
    [
        _create,
        _first_send,
        _second_send,
        _claiming,
        _checkpoint,
        _finish,
        _last_finish,
        _fail,
        _release,
        _expire,
    ],
)
def test_a_failed_write_is_mended(harness: Harness, prepare: Callable[[Harness], Callable[[], Any]]) -> None:
    call = prepare(harness)
    for failed in harness.failing_writes(call):
        call()
        for _ in range(3):
            harness.now += 70_000
            harness.call("sweep")
            harness.call("expire")
        left = [text for text in violations(harness.redis, harness.tag) if not text.startswith("e:")]
        assert left == [], failed
