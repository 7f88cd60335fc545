"""Runs the Lua scripts on a real server, in virtual time and under the guard of lua_guard.py.

    harness.call("create", items=[{"id": "a", "type": "t", "version": "v1"}])
    harness.now += 1000
    result = harness.call("claim", items=[{"tv": "t:v1", "limit": 1, "conn": harness.conn}])

Arguments and item fields that a call does not name have defaults: the limits of LIMITS, the harness's `now`
and `server`, else 0, False, "" or b"". Replies come as the tuples of scripts_gen, words are noted for the
coverage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hiredis

from pawl_server.store import scripts_gen
from pawl_server.store.bundle import LUA, Bundle
from pawl_server.store.keys import partition_tag
from pawl_server.store.lua_header import Field
from pawl_server.store.script_call import Result
from tests.support import reply_log
from tests.support.lua_guard import guarded_bundles
from tests.support.redis_server import Command, RedisServer, Store, call_all

FOLDER = Path(os.environ.get("PAWL_TEST_LUA") or LUA)
"""Where the scripts come from."""
START_MS = 1_800_000_000_000
"""Engine time at which every test begins."""

LIMITS: dict[str, Any] = {
    "max_steps": 64,
    "max_step": 65_536,
    "max_turn": 262_144,
    "max_state": 65_536,
    "max_reply": 65_536,
    "max_message": 32_768,
    "max_pending": 128,
    "max_signals": 64,
    "max_signal": 32_768,
    "reserve": 40_000,
    "delivery_ms": 5_000,
    "max_bytes": 262_144,
    "limit": 16,
    "grace_ms": 300,
    "cursor": "0",
    "reader": 1,
    "writer": 1,
    "max_defers": 10_000,
    "expected": -1,
}
"""What a call gets where it names nothing else."""

_ZERO: dict[str, Any] = {"int": 0, "bool": False, "str": "", "bytes": b""}

State = dict[str, Any]
"""Every key of a partition, without its tag, with its value as Python sees it."""


class ScriptError(AssertionError):
    """A script ended with an error; the text names the source line."""


class WriteFailed(Exception):
    """The write that was told to fail failed."""


@dataclass(frozen=True)
class FailedWrite:
    """One round of `failing_writes`: the n-th write failed with `error`; `before` is the state before the
    call."""

    n: int
    error: str
    before: State


class Harness:
    """One partition of one virtual-time namespace on `redis`."""

    def __init__(self, redis: RedisServer, namespace: str = "test") -> None:
        self.redis = redis
        self.tag = partition_tag(namespace, 0, 1)
        self.now = START_MS
        self.server = "server01"
        self.conn = f"{self.server}.1.1"
        self.fail_write = 0
        self.commands: dict[str, int] = {}
        """Redis commands that the last call ran, when `count` is on."""
        self.count = False
        _flush_scripts(redis)
        self.call("open_namespace", partitions=1, virtual=True)
        self.call("hello", run_id="run-1", partitions=1, virtual=True)

    def call(
        self, script: str, *, items: Sequence[Mapping[str, Any] | tuple[Any, ...]] = (), **args: Any
    ) -> Result[Any]:
        """Runs a script and decodes its answer. Raises ScriptError, WriteFailed for an injected failure."""
        argv = self.argv(script, items=items, **args)
        return self.decode(script, self._run(_bundles()[script], argv))

    def argv(
        self, script: str, *, items: Sequence[Mapping[str, Any] | tuple[Any, ...]] = (), **args: Any
    ) -> list[Any]:
        """The ARGV list of a call, with defaults."""
        reply_log.called(script)
        header = _bundles()[script].header
        given = {"now_ms": self.now, "server": self.server, **args}
        values = {field.name: self._default(field, given) for field in header.args}
        unknown = set(args) - set(values)
        assert not unknown, f"{script} has no argument {', '.join(sorted(unknown))}"
        if header.items:
            values["items"] = [self.item(script, one) for one in items]
        else:
            assert not items, f"{script} takes no items"
        return getattr(scripts_gen, f"{script}_args")(**values)

    def evalsha(self, script: str, argv: Sequence[Any]) -> tuple[Any, ...]:
        """The command that runs a script, for connections of the test's own; loads the script."""
        self.redis.call("SCRIPT", "LOAD", _bundles()[script].text)
        return ("EVALSHA", _bundles()[script].sha1, 1, f"{self.tag}meta", *argv, 0)

    def decode(self, script: str, raw: Any) -> Result[Any]:
        """Decodes a raw answer and notes its words for the coverage."""
        result: Result[Any] = getattr(scripts_gen, f"{script}_decode")(raw)
        words = (reply.word for reply in result.replies if not isinstance(reply, Exception))
        reply_log.record(script, words)
        return result

    def one(self, script: str, **args: Any) -> Any:
        """Calls a script with one item, whose fields and arguments are both keywords; returns the one
        reply."""
        header = _bundles()[script].header
        fields = {field.name for field in header.items}
        item = {name: value for name, value in args.items() if name in fields}
        rest = {name: value for name, value in args.items() if name not in fields}
        [reply] = self.call(script, items=[item] if header.items else (), **rest).replies
        return reply

    def item(self, script: str, given: Mapping[str, Any] | tuple[Any, ...]) -> tuple[Any, ...]:
        """Makes the item tuple of a script, with defaults."""
        if isinstance(given, tuple):
            return given
        fields = _bundles()[script].header.items
        unknown = set(given) - {field.name for field in fields}
        assert not unknown, f"items of {script} have no field {', '.join(sorted(unknown))}"
        values = {field.name: self._default(field, given) for field in fields}
        name = "".join(part.capitalize() for part in script.split("_"))
        return getattr(scripts_gen, f"{name}Item")(**values)

    def _default(self, field: Field, given: Mapping[str, Any]) -> Any:
        if field.name in given:
            return given[field.name]
        if field.name == "conn":
            return self.conn
        return LIMITS.get(field.name, _ZERO[field.type])

    def _run(self, bundle: Bundle, argv: Sequence[Any]) -> Any:
        if self.count:
            self.redis.call("CONFIG", "RESETSTAT")
        command = (bundle.sha1, 1, f"{self.tag}meta", *argv, self.fail_write)
        try:
            try:
                return self.redis.call("EVALSHA", *command)
            except hiredis.ReplyError as error:
                if not str(error).startswith("NOSCRIPT"):
                    raise
            self.redis.call("SCRIPT", "LOAD", bundle.text)
            return self.redis.call("EVALSHA", *command)
        except hiredis.ReplyError as error:
            if str(error).startswith("INJECTED"):
                raise WriteFailed(str(error).partition(" script:")[0]) from None
            raise ScriptError(f"{bundle.name}: {bundle.explain(str(error))}") from None
        finally:
            if self.count:
                self.commands = self._command_counts()

    def _command_counts(self) -> dict[str, int]:
        lines = self.redis.call("INFO", "commandstats").decode().split()
        entries = (line.removeprefix("cmdstat_").split(":calls=") for line in lines if ":calls=" in line)
        ignored = ("evalsha", "config|resetstat", "info", "script|load")
        return {name: int(rest.split(",")[0]) for name, rest in entries if name not in ignored}

    def keys(self) -> list[str]:
        """Names of all keys of the partition, without the tag, sorted."""
        found = self.redis.call("KEYS", self.tag.replace("{", "\\{") + "*")
        return sorted(key.decode().removeprefix(self.tag) for key in found)

    def state(self) -> State:
        """Reads the whole partition."""
        names = self.keys()
        return dict(zip(names, read_keys(self.redis, [self.tag + name for name in names]), strict=True))

    def dump(self) -> dict[str, bytes]:
        """Serializes the whole partition, for `restore`."""
        names = self.keys()
        return dict(
            zip(names, call_all(self.redis, [("DUMP", self.tag + name) for name in names]), strict=True)
        )

    def restore(self, dump: Mapping[str, bytes]) -> None:
        """Makes the partition exactly what it was."""
        commands: list[Command] = [("DEL", self.tag + name) for name in self.keys()]
        commands += [("RESTORE", self.tag + name, 0, data) for name, data in dump.items()]
        call_all(self.redis, commands)

    def failing_writes(self, call: Callable[[], object]) -> Iterator[FailedWrite]:
        """Makes the first, second, … write of `call` fail, each time from the state before it.

        Yields after each failure, with the partition as the failed script left it. At the end the call has
        run without a failure. The test says what must hold in between.
        """
        dump, before = self.dump(), self.state()
        for n in range(1, 1000):
            self.restore(dump)
            self.fail_write = n
            try:
                call()
            except WriteFailed as failed:
                self.fail_write = 0
                yield FailedWrite(n, str(failed), before)
            else:
                return
            finally:
                self.fail_write = 0
        raise AssertionError("a script with a thousand writes")


def for_each_failing_write(
    harness: Harness, call: Callable[[], object], check: Callable[[FailedWrite], object]
) -> int:
    """Runs `check` after each single failing write of `call`; returns how many writes it has."""
    rounds = 0
    for failed in harness.failing_writes(call):
        check(failed)
        rounds += 1
    return rounds


def changes(before: State, after: State) -> dict[str, tuple[Any, Any]]:
    """Returns what differs: key or `key field` → (before, after), None for absent."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if isinstance(old, dict) or isinstance(new, dict):
            old, new = old or {}, new or {}
            for field in sorted(old.keys() | new.keys()):
                if old.get(field) != new.get(field):
                    found[f"{key} {field}"] = (old.get(field), new.get(field))
        else:
            found[key] = (old, new)
    return found


def read_keys(redis: Store, keys: Sequence[str]) -> list[Any]:
    """Reads keys: hashes and zsets as dicts, sets as sets of str, streams as lists of (id, fields); None for
    what is not there."""
    kinds = [kind.decode() for kind in call_all(redis, [("TYPE", key) for key in keys])]
    found = [(key, kind) for key, kind in zip(keys, kinds, strict=True) if kind != "none"]
    raw = iter(call_all(redis, [_READ[kind](key) for key, kind in found]))
    return [_decoded(kind, next(raw)) if kind != "none" else None for kind in kinds]


_READ: dict[str, Callable[[str], Command]] = {
    "hash": lambda key: ("HGETALL", key),
    "zset": lambda key: ("ZRANGE", key, 0, -1, "WITHSCORES"),
    "list": lambda key: ("LRANGE", key, 0, -1),
    "set": lambda key: ("SMEMBERS", key),
    "stream": lambda key: ("XRANGE", key, "-", "+"),
    "string": lambda key: ("GET", key),
}


def _decoded(kind: str, raw: Any) -> Any:
    if kind == "hash":
        return {name.decode(): value for name, value in zip(raw[::2], raw[1::2], strict=True)}
    if kind == "zset":
        return {name.decode(): float(score) for name, score in zip(raw[::2], raw[1::2], strict=True)}
    if kind == "set":
        return {member.decode() for member in raw}
    if kind == "stream":
        return [(id_.decode(), dict(zip(flat[::2], flat[1::2], strict=True))) for id_, flat in raw]
    return raw


_scripts: Mapping[str, Bundle] = {}
_to_flush = False


def use_scripts(bundles: Mapping[str, Bundle]) -> None:
    """From now on all harnesses of this process run these guarded bundles; Redis forgets the others."""
    global _scripts, _to_flush
    _scripts, _to_flush = bundles, True


def _flush_scripts(redis: RedisServer) -> None:
    global _to_flush
    if _to_flush:
        redis.call("SCRIPT", "FLUSH", "SYNC")
        _to_flush = False


def _bundles() -> Mapping[str, Bundle]:
    if not _scripts:
        use_scripts(guarded_bundles(FOLDER))
    return _scripts
