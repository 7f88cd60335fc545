"""The guard that test bundles run under refuses what a script must not do."""

from __future__ import annotations

from pathlib import Path

import hiredis
import pytest

from pawl_server.store.bundle import make_bundle
from tests.support.lua_guard import guard
from tests.support.redis_server import RedisServer

_HEADER = "--- probe: a sample.\n-- @keyspace meta i\n-- @reply OK\n-- @oom {oom}\n"
_META = "{test.00.a}meta"


def _run(redis: RedisServer, body: str, *, fail_write: int = 0, kind: str = "transition") -> list[bytes]:
    text = _HEADER.format(oom="reads" if kind == "query" else "allow") + body
    bundle = make_bundle(Path("probe.lua"), text + "\nreturn { #ARGV }", kind, {}, guard=guard)
    return redis.call("EVAL", bundle.text, 1, _META, "first", fail_write)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("redis.call('HSET', '{test.00.b}meta', 'a', 1)", "GUARD HSET outside the partition"),
        (
            "redis.call('HSET', T .. 'e:a', 'a', 1)",
            "GUARD HSET of a keyspace that the header does not declare: e",
        ),
        (
            "redis.call('DEL', T .. 'meta', T .. 'due')",
            "GUARD DEL of a keyspace that the header does not declare",
        ),
        ("redis.call('HSET', T .. 'meta', 'a', 1)\nredis.call('TIME')", "GUARD a read after a write: TIME"),
        ("redis.call('FLUSHALL')", "GUARD unlisted command: FLUSHALL"),
    ],
)
@pytest.mark.spec("R-STORE-9")
def test_a_transition_is_refused(redis_server: RedisServer, redis_url: str, body: str, error: str) -> None:
    with pytest.raises(hiredis.ReplyError, match=error.replace(".", r"\.")):
        _run(redis_server, body)


def test_a_query_that_writes_is_refused(redis_server: RedisServer, redis_url: str) -> None:
    with pytest.raises(hiredis.ReplyError, match="GUARD a query writes: HSET"):
        _run(redis_server, "redis.call('HSET', T .. 'meta', 'a', 1)", kind="query")


def test_what_is_declared_runs_and_the_extra_argument_is_gone(
    redis_server: RedisServer, redis_url: str
) -> None:
    body = "redis.call('HGET', T .. 'i:a', 'r')\nredis.call('HSET', T .. 'meta', 'a', 1)"
    assert _run(redis_server, body) == [1]


def test_each_write_can_be_made_to_fail(redis_server: RedisServer, redis_url: str) -> None:
    body = "redis.call('HSET', T .. 'meta', 'a', 1)\nredis.call('HSET', T .. 'i:a', 'r', 1)"
    with pytest.raises(hiredis.ReplyError, match=r"INJECTED write 2: HSET .*i:a"):
        _run(redis_server, body, fail_write=2)
    assert redis_server.call("EXISTS", _META) == 1
    assert _run(redis_server, body, fail_write=3) == [1]
