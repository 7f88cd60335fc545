"""checkpoint: steps are saved once, in order, and never change."""

from __future__ import annotations

import pytest

from tests.support.driver import Driver
from tests.support.lua_harness import changes


@pytest.mark.spec("R-STEP-1")
def test_steps_get_dense_positions(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    before = driver.state()
    assert held.checkpoint("one", b"1").position == 1
    assert set(changes(before, driver.state())) == {"i:a r", "i:a 1.1", "i:a k", "e:a"}
    assert driver.events()[-1] == ("STEP_SAVED", 1, 1, "RUNNING", 2, "one 1")
    assert held.checkpoint("two", b"2").position == 2
    steps = driver.turn(1).steps
    assert [(step.key, step.kind, step.blob, step.attempt) for step in steps] == [
        ("one", "step", b"\0001", 1), ("two", "step", b"\0002", 1),
    ]  # fmt: skip


@pytest.mark.spec("R-LEASE-3", "R-LEASE-4")
def test_the_first_checkpoint_receives_the_delivery(driver: Driver) -> None:
    driver.send()
    held = driver.lease()
    assert held.checkpoint().word == "OK"
    assert driver.event_names()[-2:] == ["ATTEMPT_STARTED", "STEP_SAVED"]
    assert driver.due()["lease:a"] == driver.now + 60_000


@pytest.mark.spec("R-STEP-2")
def test_a_key_is_saved_once_in_a_turn(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    held.checkpoint("one")
    held.checkpoint("one.more")
    with driver.unchanged():
        for key in ("one", "one.more"):
            reply = held.checkpoint(key, b"else")
            assert (reply.word, reply.state) == ("WRONG_STATE", "step_saved")
    assert held.checkpoint("on").word == "OK", "a part of a key is another key"
    held.fail(delay_ms=0)
    again = driver.take()
    with driver.unchanged():
        assert again.checkpoint("one").word == "WRONG_STATE"
        assert again.finish(step=("one", b"x")).word == "WRONG_STATE"
    again.finish()
    assert driver.take().checkpoint("one").position == 1


@pytest.mark.spec("R-STEP-3", "R-LIMIT-1", "R-CMD-4")
def test_the_number_of_steps_is_limited(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    limits = {"max_steps": 2}
    assert held.checkpoint("one", limits=limits).word == "OK"
    assert held.checkpoint("two", limits=limits).word == "OK"
    with driver.unchanged():
        reply = held.checkpoint("three", limits=limits)
        assert (reply.word, *reply) == ("LIMIT_EXCEEDED", "steps_per_turn", 3, 2)
        assert held.finish(step=("three", b""), limits=limits) == reply
    assert held.finish(limits=limits).word == "OK"


@pytest.mark.spec("R-STEP-3", "R-LIMIT-1", "R-CMD-4")
def test_the_output_is_limited(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    limits = {"max_step": 10}
    with driver.unchanged():
        reply = held.do("checkpoint", key="one", output=b"enc\0" + b"x" * 11, limits=limits)
        assert (reply.word, *reply) == ("LIMIT_EXCEEDED", "step_output_bytes", 11, 10)
        assert held.finish(step=("one", b"x" * 11), limits=limits) == reply
    assert held.do("checkpoint", key="one", output=b"enc\0" + b"x" * 10, limits=limits).word == "OK"
    assert held.finish(step=("two", b"x" * 10), limits=limits).word == "OK"


@pytest.mark.spec("R-STEP-3", "R-LIMIT-1", "R-LIMIT-3")
def test_the_stored_bytes_of_a_turn_are_limited(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    message = driver.record().bytes
    limits = {"max_turn": message + 200}
    assert held.checkpoint("one", b"x" * 99, limits=limits).word == "OK"
    assert driver.record().bytes == message + 100
    with driver.unchanged():
        reply = held.checkpoint("two", b"x" * 100, limits=limits)
        assert (reply.word, *reply) == ("LIMIT_EXCEEDED", "turn_bytes", message + 201, message + 200)
        assert held.finish(step=("two", b"x" * 100), limits=limits) == reply
    assert held.checkpoint("two", b"x" * 99, limits=limits).word == "OK"


@pytest.mark.spec("R-STEP-3", "R-STEP-1")
def test_two_thousand_steps_fit_through_every_script(driver: Driver) -> None:
    """Lua unpacks some thousands of values at most: the highest limit an operator may set."""
    count, limits = 2_000, {"max_steps": 2_000, "max_turn": 1 << 20}
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    for start in range(0, count - 1, 500):
        items = [
            held.item("checkpoint", n=number + 1, key=f"k{number}", output=b"\0x")
            for number in range(start, min(start + 500, count - 1))
        ]
        assert {reply.word for reply in driver.call("checkpoint", items=items, **limits).replies} == {"OK"}
    held.n = count - 1
    assert len(driver.turn(1).steps) == count - 1
    held.release()
    again = driver.take()
    assert len(again.view.steps) == count - 1
    assert again.finish(step=("last", b"x"), limits=limits).word == "OK"
    assert len(driver.turn(1).steps) == count
    driver.put_type(min_turns=0, max_age_ms=0)
    assert driver.trim().trimmed == 1
    assert not {field for field in driver.fields() if field.startswith("1.")} - {"1.h"}


@pytest.mark.spec("R-CMD-5", "R-STEP-1")
def test_commands_of_one_lease_in_one_list_are_applied_in_order(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    items = [held.item("checkpoint", n=n, key=f"k{n}", output=b"\0") for n in (1, 2, 2, 1, 4, 3)]
    replies = driver.call("checkpoint", items=items).replies
    assert [(reply.word, *reply) for reply in replies] == [
        ("OK", 1), ("OK", 2), ("OK", 2), ("ALREADY",), ("GAP", 2), ("OK", 3),
    ]  # fmt: skip
    assert [step.key for step in driver.turn(1).steps] == ["k1", "k2", "k3"]


@pytest.mark.spec("R-CMD-5", "R-CMD-4")
def test_after_a_refused_command_the_later_ones_of_a_list_are_gaps(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    items = [held.item("checkpoint", n=n, key=f"k{n}", output=b"\0" + b"x" * (3 * n)) for n in (1, 2, 3)]
    replies = driver.call("checkpoint", items=items, max_step=5).replies
    assert [reply.word for reply in replies] == ["OK", "LIMIT_EXCEEDED", "GAP"]
    assert held.checkpoint("other", n=2).position == 2


@pytest.mark.spec("R-STEP-1")
def test_steps_survive_fail_release_expiry_and_loss(driver: Driver) -> None:
    driver.put_type(max_attempts=10)
    driver.send()
    for number, end in enumerate(("fail", "release", "expire", "lose")):
        held = driver.take()
        assert [step.key for step in held.view.steps] == [f"k{before}" for before in range(number)]
        held.checkpoint(f"k{number}", b"%d" % number)
        if end == "fail":
            held.fail(delay_ms=0)
        elif end == "release":
            held.release()
        else:
            if end == "lose":
                held.orphan()
            driver.later(60_000)
            driver.expire()
    steps = driver.take().view.steps
    assert [(step.blob, step.attempt) for step in steps] == [
        (b"\0000", 1), (b"\0001", 2), (b"\0002", 2), (b"\0003", 3),
    ]  # fmt: skip
