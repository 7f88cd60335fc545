"""The commands that talk to a server."""

from __future__ import annotations

import base64
import itertools
import json
import re
import uuid
from typing import Any

import pytest
from click.testing import Result

from pawl.cli.exits import Exit
from tests.cli.conftest import Run

COUNTER = ("--type", "counter", "--version", "v1", "--state", '{"count": 0}')


@pytest.fixture
def name() -> str:
    """An instance id that no other test uses."""
    return f"cli-{uuid.uuid4().hex}"


def ok(result: Result) -> str:
    assert (result.exit_code, result.stderr) == (Exit.OK, "")
    return result.stdout


def value(result: Result) -> Any:
    out = ok(result)
    assert out.count("\n") == 1
    return json.loads(out)


def rows(result: Result) -> list[list[str]]:
    """The cells of a table: columns are at least two spaces apart."""
    return [re.split(r" {2,}", line) for line in ok(result).splitlines() if line]


def test_info(pawl: Run, dev_server: str) -> None:
    info = value(pawl("info", "--json"))
    assert (info["address"], info["durability"], info["namespace"]) == (dev_server, "fsync", "default")
    assert info["limits"]["pending_messages"] == 128
    assert info["store"].split()[0] in ("valkey", "redis")
    cells = dict(row for row in rows(pawl("info")) if len(row) == 2)
    assert (cells["address"], cells["durability"], cells["pending_messages"]) == (dev_server, "fsync", "128")


def test_create_and_get(pawl: Run, name: str) -> None:
    assert ok(pawl("create", name, *COUNTER)) == f"{name} is an instance of counter v1\n"
    created = value(pawl("create", name, *COUNTER, "--json"))
    assert (created["id"], created["type"], created["version"]) == (name, "counter", "v1")
    assert "state" not in created
    instance = value(pawl("get", name, "--json"))
    assert (instance["state"], instance["status"], instance["last_turn"]) == ({"count": 0}, "IDLE", 0)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", instance["create_time"])
    cells = dict(rows(pawl("get", name)))
    assert (cells["type"], cells["status"], cells["state"]) == ("counter v1", "IDLE", '{"count": 0}')


def test_settings_of_an_instance(pawl: Run, name: str) -> None:
    ok(pawl("create", name, *COUNTER, "--lease-timeout", "90", "--max-attempts", "7"))
    instance = value(pawl("get", name, "--json"))
    assert (instance["lease_timeout_s"], instance["max_attempts"]) == (90.0, 7)
    cells = dict(rows(pawl("get", name)))
    assert (cells["lease timeout"], cells["max attempts"]) == ("90 s", "7")


def test_creating_something_else_under_the_same_id_is_refused(pawl: Run, name: str) -> None:
    ok(pawl("create", name, *COUNTER))
    refused = pawl("create", name, "--type", "counter", "--version", "v2")
    assert refused.exit_code == Exit.FAILED
    assert refused.stderr.startswith("error: BODY_CONFLICT: ")
    assert f"{name} is counter v1, not counter v2" in refused.stderr
    error = json.loads(pawl("create", name, "--type", "counter", "--version", "v2", "--json").stderr)["error"]
    assert (error["reason"], error["exit_code"]) == ("BODY_CONFLICT", 1)
    sent = pawl("send", name, "1", "--type", "other", "--version", "v1")
    assert sent.stderr == f"error: BODY_CONFLICT: instance {name} is counter v1, not other v1\n"
    other_state = pawl("create", name, "--type", "counter", "--version", "v1")
    assert "exists with another state or other settings" in other_state.stderr


def test_a_bad_id_is_refused_by_the_server(pawl: Run) -> None:
    for words in (("get", "a b"), ("send", "a b", "1"), ("send", "a b", "1", "--wait", "1")):
        refused = pawl(*words, "--json")
        error = json.loads(refused.stderr)["error"]
        assert (refused.exit_code, error["reason"]) == (Exit.FAILED, "INVALID_FIELD")
        assert error["metadata"]["field"] == "instance_id"
        assert error["message"].startswith("instance_id ")


@pytest.mark.parametrize("words", [("get",), ("turns",), ("send",)])
def test_what_is_not_there(pawl: Run, name: str, words: tuple[str, ...]) -> None:
    missing = pawl(*words, name)
    assert missing.exit_code == Exit.NOT_FOUND
    assert missing.stdout == ""
    assert missing.stderr.startswith("error: NOT_FOUND: ")
    assert missing.stderr.count("\n") == 1
    assert ("--type and --version create it" in missing.stderr) == (words == ("send",))


def test_a_turn_that_is_not_there(pawl: Run, name: str) -> None:
    ok(pawl("create", name, *COUNTER))
    assert pawl("turns", name, "1").exit_code == Exit.NOT_FOUND
    assert ok(pawl("turns", name)) == f"{name} has no turns\n"
    assert value(pawl("turns", name, "--json")) == []


def test_send_creates_and_waits(pawl: Run, name: str) -> None:
    assert ok(pawl("send", name, '{"add": 2}', *COUNTER, "--wait", "10")) == "2\n"
    assert ok(pawl("send", name, '{"add": 3}', "--wait", "10")) == "5\n"
    sent = value(pawl("send", name, '{"add": 3}', "--wait", "10", "--json"))
    assert (sent["turn"], sent["outcome"]["state"], sent["outcome"]["reply"]) == (3, "COMPLETED", 8)


def test_sending_again_with_the_same_id(pawl: Run, name: str) -> None:
    words = ("send", name, '{"add": 2}', *COUNTER, "--id", "click-1", "--wait", "10", "--json")
    first, again = value(pawl(*words)), value(pawl(*words))
    assert (first["turn"], first["outcome"]["reply"]) == (again["turn"], again["outcome"]["reply"]) == (1, 2)
    other = pawl("send", name, '{"add": 4}', "--id", "click-1")
    assert other.stderr.startswith("error: BODY_CONFLICT: ")


def test_send_without_waiting(pawl: Run, name: str) -> None:
    ok(pawl("create", name, "--type", "nobody", "--version", "v1"))
    assert ok(pawl("send", name, "[1, 2]", "--id", "one")) == f"turn 1 of {name}, message one\n"
    assert value(pawl("turns", name, "1", "--json"))["message"] == [1, 2]


def test_a_turn_that_is_not_finished_in_time(pawl: Run, name: str) -> None:
    late = pawl("send", name, "1", "--type", "nobody", "--version", "v1", "--wait", "0.05", "--json")
    assert late.exit_code == Exit.UNFINISHED
    sent = json.loads(late.stdout)
    assert sent["outcome"]["state"] == "QUEUED"
    error = json.loads(late.stderr)["error"]
    assert (error["reason"], error["metadata"]["message_id"]) == ("UNFINISHED", sent["message_id"])
    assert error["message"].endswith("is not finished: waiting for a worker of nobody v1")
    behind = pawl("send", name, "2", "--id", "second", "--wait", "0.05")
    assert behind.stderr == (
        f"error: UNFINISHED: turn 2 of {name}, message second, is not finished: "
        "behind turn 1, which is waiting for a worker of nobody v1\n"
    )
    cells = dict(rows(pawl("get", name)))
    assert cells["head turn"] == "1: waiting for a worker of nobody v1"


def test_a_turn_that_fails(pawl: Run, name: str) -> None:
    failed = pawl("send", name, "1", "--type", "failing", "--version", "v1", "--wait", "10")
    assert failed.exit_code == Exit.FAILED
    assert failed.stdout == ""
    assert re.match(rf"error: TURN_FAILED: turn 1 of {name} is FAILED: BROKEN: it is broken", failed.stderr)
    turn = value(pawl("turns", name, "1", "--json"))
    assert (turn["last_failure"]["reason"], turn["last_failure"]["non_retryable"]) == ("BROKEN", True)
    instance = value(pawl("get", name, "--json"))
    assert (instance["status"], instance["head"]["last_failure"]["reason"]) == ("BLOCKED", "BROKEN")
    assert dict(rows(pawl("get", name)))["blocked by"] == "turn 1: BROKEN: it is broken"
    behind = pawl("send", name, "2", "--wait", "0.05")
    assert behind.stderr.endswith("is not finished: behind turn 1, which FAILED: BROKEN: it is broken\n")
    assert "BROKEN: it is broken" in ok(pawl("turns", name))


@pytest.mark.parametrize(
    ("words", "given", "message"),
    [
        ((), None, None),
        (("null",), None, None),
        (("-",), '{"from": "stdin"}', {"from": "stdin"}),
        (("plain words", "--text"), None, "plain words"),
        (("-", "--text"), "a line\n", "a line\n"),
        (("--text",), None, ""),
        (('"ä"',), None, "ä"),
        (
            ("--binary",),
            b"\x00\xff",
            {"encoding": "binary", "base64": base64.b64encode(b"\x00\xff").decode()},
        ),
    ],
)
def test_what_is_sent(
    pawl: Run, name: str, words: tuple[str, ...], given: str | bytes | None, message: Any
) -> None:
    ok(pawl("send", name, *words, "--type", "nobody", "--version", "v1", given=given))
    assert value(pawl("turns", name, "1", "--json"))["message"] == message


def test_turns_with_steps_and_continuations(pawl: Run, name: str) -> None:
    first = pawl("send", name, '{"add": 2, "remaining": 3}', *COUNTER, "--wait", "10")
    assert (first.exit_code, first.stderr) == (Exit.OK, "continued by turn 2\n")
    # What waits behind the last continuation is finished after it.
    ok(pawl("send", name, '{"add": 0}', "--wait", "10"))
    turns = value(pawl("turns", name, "--json"))
    assert [turn["turn"] for turn in turns] == [4, 3, 2, 1]
    assert "steps" not in turns[0]
    one = value(pawl("turns", name, "1", "--json"))
    assert [(step["position"], step["key"], step["output"]) for step in one["steps"]] == [(1, "add", 2)]
    kinds = [turn["origin"]["kind"] for turn in reversed(turns)]
    assert kinds.count("continuation") == 2
    table = rows(pawl("turns", name, "--limit", "2"))
    assert (table[0][0], [row[0] for row in table[1:]]) == ("TURN", ["4", "3"])
    shown = ok(pawl("turns", name, "1"))
    assert "continued by  turn " in shown
    assert re.search(r"^finished +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+$", shown, re.MULTILINE), "with its zone"
    assert re.search(r"^1 +add +step +1 +.* 2$", shown, re.MULTILINE)


def test_list(pawl: Run, name: str) -> None:
    kind = f"t{name}"
    ids = [f"{name}-{number}" for number in range(3)]
    for instance in ids:
        ok(pawl("create", instance, "--type", kind, "--version", "v1"))
    assert [one["id"] for one in value(pawl("list", kind, "--json"))] == ids
    assert [one["id"] for one in value(pawl("list", kind, "--limit", "2", "--json"))] == ids[:2]
    assert [row[0] for row in rows(pawl("list", kind, "--limit", "0"))] == ["ID", *ids]
    assert ok(pawl("list", f"{kind}x")) == f"no instances of type {kind}x\n"
    assert value(pawl("list", f"{kind}x", "--json")) == []


def test_list_of_types(pawl: Run) -> None:
    ok(pawl("list"))
    # All of them: the session's other tests have made types of their own by now.
    types = {one["name"]: one for one in value(pawl("list", "--limit", "0", "--json"))}
    assert types["tuned"]["lease_timeout_s"] == 90.0
    table = rows(pawl("list", "--limit", "0"))
    assert table[0][0] == "TYPE"
    assert ["tuned", "90 s", "3"] in [row[:3] for row in table[1:]]
    assert len(value(pawl("list", "--limit", "1", "--json"))) == 1


def test_more_than_a_page(pawl: Run, name: str) -> None:
    ok(pawl("create", name, "--type", "nobody", "--version", "v1"))
    for _ in range(3):
        ok(pawl("send", name))
    assert len(value(pawl("turns", name, "--limit", "0", "--json"))) == 3
    assert [turn["turn"] for turn in value(pawl("turns", name, "--limit", "1", "--json"))] == [3]


def test_a_message_that_is_too_large(pawl: Run, name: str) -> None:
    ok(pawl("create", name, "--type", "nobody", "--version", "v1"))
    refused = pawl("send", name, "-", "--text", "--json", given="x" * 40_000)
    error = json.loads(refused.stderr)["error"]
    assert (refused.exit_code, error["reason"]) == (Exit.FAILED, "LIMIT_EXCEEDED")
    assert (error["metadata"]["limit"], error["metadata"]["max"]) == ("message_bytes", "32768")


def test_a_full_inbox(pawl: Run, name: str) -> None:
    ok(pawl("create", name, "--type", "nobody", "--version", "v1"))
    answers = (pawl("send", name, str(number)) for number in itertools.count())
    refused = next(answer for answer in answers if answer.exit_code != 0)
    assert refused.stderr.startswith("error: LIMIT_EXCEEDED: ")
    assert value(pawl("get", name, "--json"))["pending_turns"] == 128
