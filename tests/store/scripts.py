"""Small scripts with the shape of the real ones."""

from __future__ import annotations

from typing import Any

from pawl_server.store.script_call import ADMISSION, CLAIM, URGENT, Script
from pawl_server.store.wire import Home

KEY = "{test.00.a}meta"
HOME = Home((1, KEY))


def script(name: str, body: str, *, priority: int = ADMISSION, flags: str = "") -> Script[Any]:
    """A script with shebang flags `flags`."""
    text = f"#!lua{f' flags={flags}' if flags else ''}\n{body}"
    return Script(name, text, Script.sha_of(text), priority, "allow" if flags == "allow-oom" else "deny")


ECHO = script("echo", "return {1, {{'OK', ARGV[1]}}, {}}", flags="no-writes")

_ADD = "redis.call('RPUSH', KEYS[1], ARGV[1])\nreturn {1, {{'OK', redis.call('LLEN', KEYS[1])}}, {}}"
ADD = script("add", _ADD)
ADD_FIRST = script("add_first", "local first = 1\n" + _ADD, priority=URGENT, flags="allow-oom")
ADD_SECOND = script("add_second", "local second = 1\n" + _ADD, priority=CLAIM)

ONCE = script(
    "once",
    """
local done = redis.call('HGET', KEYS[1], 'receipt:' .. ARGV[1])
if done then return {1, {{'OK', tonumber(done)}}, {}} end
local turn = redis.call('HINCRBY', KEYS[1], 'turn', 1)
redis.call('HSET', KEYS[1], 'receipt:' .. ARGV[1], turn)
return {1, {{'OK', turn}}, {}}
""",
    priority=URGENT,
    flags="allow-oom",
)
"""Advances a turn and keeps a receipt, as finish does: a repeat gets the first answer."""

FAIL_FIRST = script(
    "fail_first",
    """
if redis.call('INCR', KEYS[1]) == 1 then return redis.error_reply(ARGV[1]) end
return {1, {{'OK', redis.call('GET', KEYS[1])}}, {}}
""",
)
"""Answers the error ARGV[1] once, then OK with the number of runs."""

STEP = script(
    "step",
    """
local done = redis.call('HGET', KEYS[1], 'step:' .. ARGV[1])
if done then return {1, {{'OK', tonumber(done)}}, {}} end
local n = redis.call('HINCRBY', KEYS[1], 'steps', 1)
redis.call('HSET', KEYS[1], 'step:' .. ARGV[1], n)
redis.call('SET', string.sub(KEYS[1], 1, -5) .. 'i:' .. ARGV[1], n)
return {1, {{'OK', n}}, {}}
""",
    priority=URGENT,
    flags="allow-oom",
)
"""Keeps a receipt, then writes a key that did not exist: a node that has only some keys runs half of it."""

ALL = [ECHO, ADD, ADD_FIRST, ADD_SECOND, ONCE, FAIL_FIRST]


def value(raw: Any) -> Any:
    """The field of the one reply of a raw answer."""
    return raw[1][0][1]
