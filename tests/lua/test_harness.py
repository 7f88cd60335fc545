"""The harness: defaults, virtual time, snapshots, failing writes, counting."""

from __future__ import annotations

import pytest

from pawl_server.store.scripts_gen import ClaimOk, CreateItem, CreateOk, SendOk
from tests.support import reply_log
from tests.support.lua_harness import (
    START_MS,
    FailedWrite,
    Harness,
    ScriptError,
    changes,
    for_each_failing_write,
)


def _send(harness: Harness, message_id: str = "m1") -> SendOk:
    return harness.one(
        "send", id="a", message_id=message_id, message=b"json\0{}", create=True, type="t", version="v1"
    )


def test_defaults_and_virtual_time(harness: Harness) -> None:
    result = harness.call("create", items=[{"id": "a", "type": "t", "version": "v1"}])
    assert result.now_ms == START_MS
    assert result.replies == [CreateOk(1, START_MS, 1, 1)]
    harness.now += 10
    assert (
        harness.call("create", items=[CreateItem("b", "t", "v1", b"", b"", 0, 0, b"", b"", "")]).now_ms
        == START_MS + 10
    )
    assert harness.one("claim", tv="t:v1", limit=1) == ClaimOk(False, [])


def test_mistakes_in_a_call_are_told(harness: Harness) -> None:
    with pytest.raises(AssertionError, match="create has no argument limits"):
        harness.call("create", limits=1)
    with pytest.raises(AssertionError, match="items of create have no field name"):
        harness.call("create", items=[{"name": "a"}])
    with pytest.raises(AssertionError, match="takes no items"):
        harness.call("poll", items=[{"id": "a"}])


def test_an_error_of_a_script_names_the_source_line(harness: Harness) -> None:
    with pytest.raises(ScriptError, match=r"^put_type: .* transitions/put_type\.lua:\d+"):
        harness.one("put_type", name="t", settings=b"not packed")


def test_state_dump_and_restore(harness: Harness) -> None:
    before, dump = harness.state(), harness.dump()
    _send(harness)
    after = harness.state()
    assert changes(before, after)["busy t:v1:a"] == (None, 0.0)
    assert changes(before, after)["i:a y"] == (None, b"t:v1")
    assert changes(before, after)["types t:v1"] == (None, float(START_MS))
    assert changes(after, after) == {}
    harness.restore(dump)
    assert harness.state() == before


def test_each_write_fails_in_turn_from_the_same_state(harness: Harness) -> None:
    _send(harness)
    before = harness.state()
    seen: list[FailedWrite] = []
    writes = for_each_failing_write(harness, lambda: harness.one("claim", tv="t:v1", limit=1), seen.append)
    assert [failed.n for failed in seen] == list(range(1, writes + 1))
    assert writes >= 4
    assert "HSET" in seen[0].error
    assert all(failed.before == before for failed in seen)
    assert harness.state() != before


def test_commands_are_counted(harness: Harness) -> None:
    harness.count = True
    _send(harness)
    assert harness.commands["rpush"] == 1
    assert "evalsha" not in harness.commands


def test_reply_words_are_noted(harness: Harness) -> None:
    _send(harness)
    assert ("send", "OK") in reply_log._pairs
