"""What scripts read: a command for each instance, whatever the turn carries, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.driver import TV, Driver


def reads(driver: Driver, call: Callable[[], object]) -> dict[str, int]:
    """HGET and HMGET commands of a call."""
    driver.count = True
    call()
    driver.count = False
    return {name: driver.commands.get(name, 0) for name in ("hget", "hmget")}


def prepare(driver: Driver, kind: str) -> None:
    """A head that is ready and has steps, a failure, both, a registered step, or settings of its own."""
    if kind == "lease":
        driver.create("a", lease_ms=9_000)
    elif kind == "attempts":
        driver.create("a", max_attempts=9)
    driver.send("a", b"1")
    if kind == "registered":
        held = driver.take()
        held.start()
        held.release()
    if kind in ("steps", "failure", "both"):
        held = driver.take()
        for number in range(0 if kind == "failure" else 20):
            held.checkpoint(f"k{number}")
        held.release() if kind == "steps" else held.fail(delay_ms=0)


@pytest.mark.parametrize(
    ("kind", "hget", "hmget"),
    [
        ("plain", 2, 2),  # message, settings; partition, instance
        ("steps", 1, 3),  # settings; partition, instance, message with all steps
        ("failure", 1, 3),
        ("both", 1, 3),
        ("registered", 1, 3),
        ("lease", 3, 2),  # one more: what it was created with
        ("attempts", 3, 2),
    ],
)
@pytest.mark.spec("R-LEASE-1")
def test_a_claim_reads_all_that_a_turn_carries_in_one_command(
    driver: Driver, kind: str, hget: int, hmget: int
) -> None:
    prepare(driver, kind)
    assert reads(driver, driver.claim) == {"hget": hget, "hmget": hmget}


@pytest.mark.spec("R-LEASE-1")
def test_what_instances_of_a_list_share_is_read_once(driver: Driver) -> None:
    for name in ("a", "b", "c"):
        driver.send(name)
    assert reads(driver, lambda: driver.claim(3)) == {"hget": 1 + 3, "hmget": 1 + 3}
    driver.later(60_000)
    assert reads(driver, lambda: driver.claim(3)) == {"hget": 0, "hmget": 1}


@pytest.mark.spec("R-SEND-5")
def test_an_instance_is_read_once_for_all_its_messages_in_a_list(driver: Driver) -> None:
    driver.send("a", b"1")
    items = [driver.message("a", b"%d" % number) for number in range(2, 6)]
    # The first message's id comes with the instance, those of the others one by one.
    assert reads(driver, lambda: driver.call("send", items=items)) == {"hget": 3, "hmget": 2}


@pytest.mark.parametrize("steps", [0, 20])
@pytest.mark.spec("R-FINISH-4")
def test_a_repeated_finish_hands_out_its_claim_as_cheaply(driver: Driver, steps: int) -> None:
    driver.send("b")
    other = driver.take("b")
    for number in range(steps):
        other.checkpoint(f"k{number}")
    driver.send("a")
    held = driver.take("a")
    other.release()
    assert len(held.finish(tv=TV, conn=driver.conn).turns) == 1
    expected = {"hget": 2, "hmget": 4} if steps else {"hget": 3, "hmget": 3}
    assert reads(driver, driver.again) == expected


@pytest.mark.spec("R-FINISH-4")
def test_a_repeated_finish_that_claimed_nothing_reads_its_instance_alone(driver: Driver) -> None:
    driver.send("a")
    driver.take("a").finish(tv=TV, conn=driver.conn)
    assert reads(driver, driver.again) == {"hget": 1, "hmget": 2}
