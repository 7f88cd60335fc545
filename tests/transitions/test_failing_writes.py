"""Each write of each transition fails in turn. Redis takes nothing back, so what is written must be mended.

None of these writes can fail as things are: a key has one type for ever, and memory is asked for before a
script begins. Should one fail all the same, then the repeat of the call, the sweep and the timers restore
every rule of invariants.py, and no turn is lost or stuck. Some things stay behind and do no harm: an event
that the ledger lacks (RPUSH failed), fields of an instance that nothing reads any more (HDEL failed), and
members of a set that its readers pass over (ZREM failed).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.support.driver import TV, Driver, Held
from tests.support.lua_harness import FailedWrite, for_each_failing_write

Call = Callable[[], object]

HARMLESS = re.compile(
    r"^e:|field \S+ should not be there|step keys are b'.*', the steps say b'\\x00'|flags \d+, servers that"
    r"|^(failed|paused|parked): has |^dead: |^x:\w+: |something expires at 0, in x:"
)


def create(driver: Driver) -> Call:
    items = [{"id": name, "type": kind, "version": "v1", "digest": b"d"} for name, kind in ("at", "bu")]
    return lambda: driver.call("create", items=items)


def send(driver: Driver) -> Call:
    driver.send("c", b"1")
    driver.take("c").fail()
    driver.later(1_000)
    items = [driver.message("a"), driver.message("b"), driver.message("a", b"2"), driver.message("c", b"2")]
    return lambda: driver.call("send", items=items)


def claim(driver: Driver) -> Call:
    for name in ("a", "b"):
        driver.send(name)
    return lambda: driver.call("claim", items=[{"tv": TV, "limit": 5}])


def leased(driver: Driver) -> Held:
    """A delivery of a turn with a step and a failure; one turn waits, one was trimmed, somebody awaits."""
    driver.put_type(min_turns=0, max_age_ms=0)
    driver.send("a", b"0")
    driver.take().finish(b"reply")
    driver.later(900_000)
    driver.send("a", b"1")
    held = driver.take()
    held.checkpoint("before")
    held.fail(delay_ms=0)
    held = driver.lease()
    driver.send("a", b"2")
    driver.one("await", id="a", turn=2)
    driver.server = "server02"
    driver.later(1)
    return held


def renew(driver: Driver) -> Call:
    held = leased(driver)
    return held.renew


def adopt(driver: Driver) -> Call:
    held = leased(driver)
    return lambda: held.adopt("server02.2.1")


def orphan(driver: Driver) -> Call:
    held = leased(driver)
    return lambda: held.orphan("server01.1.1", accepted=True)


def checkpoint(driver: Driver) -> Call:
    held = leased(driver)
    return lambda: held.checkpoint("new", n=1)


def fail(driver: Driver) -> Call:
    held = leased(driver)
    return lambda: held.fail(n=1)


def fail_for_good(driver: Driver) -> Call:
    held = leased(driver)
    return lambda: held.fail(n=1, final=True)


def release(driver: Driver) -> Call:
    held = leased(driver)
    return lambda: held.release(n=1)


def finish(driver: Driver) -> Call:
    held = leased(driver)
    return lambda: held.finish(b"reply", state=b"new", step=("last", b"x"), onward=b"more", tv=TV, n=1)


def expire(driver: Driver) -> Call:
    driver.put_type(min_turns=0, max_age_ms=1_000)
    for name in "abcd":
        driver.send(name)
    finished, expired, failed, _ = driver.claim(4)
    finished.finish()
    expired.renew()
    failed.fail()
    driver.later(60_000)
    return lambda: driver.call("expire", limit=20)


def sweep(driver: Driver) -> Call:
    for name in "abcd":
        driver.send(name)
    _, failed, finished = driver.claim(3)
    failed.fail()
    finished.finish()
    for key, member in (("due", "lease:a"), ("due", "backoff:b"), (f"ready:{TV}:0", "d"), ("types", TV)):
        driver.redis.call("ZREM", f"{driver.tag}{key}", member)
    driver.redis.call("ZADD", f"{driver.tag}busy", 0, f"{TV}:c")
    return lambda: driver.call("sweep", limit=20, dead="server01")


def settle(driver: Driver) -> Call:
    driver.send()
    driver.take().fail()
    driver.later(1_000)
    return lambda: driver.one("settle", id="a")


def register(driver: Driver) -> Call:
    driver.send()
    return lambda: driver.one("await", id="a", turn=1)


def trim(driver: Driver) -> Call:
    driver.put_type(min_turns=0, max_age_ms=1_000)
    for body in (b"1", b"2"):
        driver.send("a", body)
        driver.take().finish()
    driver.later(1_000)
    return lambda: driver.trim(limit=1)


def create_with_words(driver: Driver) -> Call:
    item = {
        "id": "at",
        "type": "t",
        "version": "v1",
        "digest": b"d",
        "words": b"key\0tag\0",
        "request_id": "r",
    }
    return lambda: driver.call("create", items=[item])


def create_anew(driver: Driver) -> Call:
    driver.send("a", b"1")
    driver.delete("a")
    return lambda: driver.call("send", items=[driver.message("a", b"2")])


def send_later(driver: Driver) -> Call:
    driver.send("c", b"1")
    items = [
        driver.message("a", b"1", delay_ms=5_000), driver.message("a", b"2", delay_ms=5_000, ttl_ms=1_000),
        driver.message("c", b"2", ttl_ms=5_000), driver.message("c", b"3", delay_ms=500),
    ]  # fmt: skip
    return lambda: driver.call("send", items=items)


def admit(driver: Driver) -> Call:
    for body in (b"1", b"2"):
        driver.send("a", body, delay_ms=1_000, ttl_ms=1_000_000_000)
    driver.send("a", b"3", delay_ms=5_000)
    driver.later(1_000)
    return lambda: driver.call("expire", limit=20)


def end_expired(driver: Driver) -> Call:
    driver.send("a", b"1", ttl_ms=1_000)
    driver.send("a", b"2", ttl_ms=1_000)
    driver.send("a", b"3", ttl_ms=5_000)
    driver.one("await", id="a", turn=1)
    driver.later(1_000)
    return lambda: driver.call("expire", limit=20)


def pass_ended(driver: Driver) -> Call:
    driver.call("send", items=[driver.message("a", b"%d" % turn) for turn in range(1, 31)])
    held = driver.take()
    for turn in range(2, 30):
        driver.cancel(turn)
    held.finish()
    return lambda: driver.call("expire", limit=20)


def sleep(driver: Driver) -> Call:
    held = leased(driver)
    return lambda: held.sleep(n=1)


def defer(driver: Driver) -> Call:
    held = leased(driver)
    return lambda: held.defer(n=1)


def wait(driver: Driver) -> Call:
    held = leased(driver)
    return lambda: held.wait(n=1, ms=1_000)


def consume(driver: Driver) -> Call:
    held = leased(driver)
    assert driver.signal(turn=2).word == "OK"
    return lambda: held.wait(n=1)


def wait_is_over(driver: Driver) -> Call:
    leased(driver).wait(ms=1_000)
    driver.later(1_000)
    return lambda: driver.call("expire", limit=20)


def signal(driver: Driver) -> Call:
    driver.send()
    return driver.signal


def signal_who_waits(driver: Driver) -> Call:
    leased(driver).wait(ms=1_000)
    return lambda: driver.signal(turn=0)


def signal_the_next(driver: Driver) -> Call:
    driver.create()
    return lambda: driver.signal(turn=0)


def fail_and_park(driver: Driver) -> Call:
    held = leased(driver)
    driver.put_type(on_exhausted=3)
    return lambda: held.fail(n=1, final=True)


def controlling(driver: Driver, script: str, **given: object) -> Call:
    return lambda: driver.control(script, "a", request_id="once", **given)


def pause(driver: Driver) -> Call:
    driver.send()
    return controlling(driver, "pause")


def pause_a_sleeper(driver: Driver) -> Call:
    driver.send()
    driver.take().sleep()
    return controlling(driver, "pause")


def resume(driver: Driver) -> Call:
    driver.send()
    driver.take().sleep()
    driver.pause()
    return controlling(driver, "resume")


def wake(driver: Driver) -> Call:
    driver.send()
    driver.take().defer()
    return controlling(driver, "wake")


def blocked(driver: Driver) -> None:
    """The second turn has failed for good; somebody awaits the third."""
    leased(driver).fail(final=True, n=1)


def retry(driver: Driver) -> Call:
    blocked(driver)
    return controlling(driver, "retry", turn=2)


def skip(driver: Driver) -> Call:
    blocked(driver)
    return controlling(driver, "skip", turn=2)


def park(driver: Driver) -> Call:
    blocked(driver)
    return controlling(driver, "park", turn=2)


def redrive(driver: Driver) -> Call:
    blocked(driver)
    driver.park(2)
    return controlling(driver, "redrive", turn=2, max_pending=99)


def cancel(driver: Driver) -> Call:
    leased(driver)
    return controlling(driver, "cancel", turn=2, grace_ms=10_000)


def cancel_at_once(driver: Driver) -> Call:
    leased(driver)
    return controlling(driver, "cancel", turn=2, force=True)


def give_up_cancelled(driver: Driver) -> Call:
    held = leased(driver)
    driver.cancel(2)
    return lambda: held.finish(step=("last", b"out"), n=1)


def end_cancelled(driver: Driver) -> Call:
    leased(driver)
    driver.cancel(2)
    driver.later(10_000)
    return lambda: driver.one("settle", id="a")


def cancel_queued(driver: Driver) -> Call:
    leased(driver)
    return controlling(driver, "cancel", turn=3)


def cancel_the_last(driver: Driver) -> Call:
    driver.send()
    return controlling(driver, "cancel_message", message_id="m-hello")


def cancel_delayed(driver: Driver) -> Call:
    driver.send("a", b"1", delay_ms=5_000)
    driver.send("a", b"2", delay_ms=6_000)
    return controlling(driver, "cancel_message", message_id="m-1")


def full_of_everything(driver: Driver) -> None:
    """An instance with something in every index; nothing of it is due yet."""
    driver.create(words=b"key\0tag\0")
    driver.send("a", b"0")
    driver.take().fail(final=True)
    driver.park()
    driver.send("a", b"1", ttl_ms=5_000)
    driver.send("a", b"2", delay_ms=5_000)
    driver.pause()
    driver.one("await", id="a", turn=2)
    driver.send("b", b"1")
    driver.server = "server02"


def delete(driver: Driver) -> Call:
    full_of_everything(driver)
    return controlling(driver, "delete", max_turns=99)


def delete_running(driver: Driver) -> Call:
    leased(driver)
    return controlling(driver, "delete", max_turns=99)


def delete_later(driver: Driver) -> Call:
    full_of_everything(driver)
    return controlling(driver, "delete", max_turns=-1)


def bury(driver: Driver) -> Call:
    full_of_everything(driver)
    driver.delete(max_turns=-1)
    return lambda: driver.call("expire", limit=20)


def forget_the_dead(driver: Driver) -> Call:
    driver.send()
    driver.delete()
    driver.later(86_400_000)
    return lambda: driver.call("sweep", limit=20)


def hello(driver: Driver) -> Call:
    return lambda: driver.hello("run-2")


def beat(driver: Driver) -> Call:
    driver.one("beat", server="gone", name="gone")
    driver.later(10_000)
    driver.one("beat", server="alive", name="alive", swept="gone")
    driver.later(3_600_000)
    return lambda: driver.one("beat", server="alive", name="alive")


def name_type(driver: Driver) -> Call:
    return lambda: driver.one("name_type", name="t")


def put_type(driver: Driver) -> Call:
    return lambda: driver.one("put_type", name="t", settings=b"\x92\x01\x00", request_id="r1", digest=b"d")


SCRIPTS = [
    create, send, claim, renew, adopt, orphan, checkpoint, fail, fail_for_good, release, finish, expire,
    sweep, settle, register, trim, hello, beat, put_type, name_type, create_with_words, create_anew,
    send_later, admit, end_expired, pass_ended, sleep, wait, consume, wait_is_over, signal, signal_who_waits,
    signal_the_next, defer, fail_and_park, pause, pause_a_sleeper, resume, wake, retry, skip,
    park, redrive, cancel, cancel_at_once, give_up_cancelled, end_cancelled, cancel_queued, cancel_the_last,
    cancel_delayed, delete, delete_running,
    delete_later, bury, forget_the_dead,
]  # fmt: skip


def run_dry(driver: Driver) -> None:
    """Lets time pass until nothing is due, and workers complete whatever can run; nothing is left behind."""
    for _ in range(30):
        for held in driver.claim(50):
            held.finish()
        driver.later(1_000_000)
        if not driver.expire() and not driver.ready():
            break
    for key in driver.state():
        if key.startswith("i:"):
            record = driver.record(key[2:])
            assert record.paused or driver.head(key[2:]) in ("", "FAILED")
            assert (record.deleting, record.delayed) == (False, 0)


@pytest.mark.parametrize("before", SCRIPTS, ids=lambda before: before.__name__)
@pytest.mark.spec("R-STORE-3")
def test_a_failed_write_is_mended(driver: Driver, before: Callable[[Driver], Call]) -> None:
    call = before(driver)
    now = driver.now

    def mended(failed: FailedWrite) -> None:
        if failed.n == 1:
            assert driver.state() == failed.before
        call()
        driver.sweep()
        run_dry(driver)
        assert [text for text in driver.violations() if not HARMLESS.search(text)] == []
        driver.now = now

    assert for_each_failing_write(driver, call, mended) > 0
    run_dry(driver)
