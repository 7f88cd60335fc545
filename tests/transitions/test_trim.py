"""trim, and the trimming that rides on finish and expire: payloads first, receipts later, nothing left."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from pawl_server.store import records
from tests.support.driver import Driver
from tests.support.invariants import constants, unpack

RECEIPT_MS = 900_000
DAY_MS = 86_400_000
LATE_MS = 60_000
"""Work trims by itself what the timer has left so long."""


def run_turn(driver: Driver, body: bytes, name: str = "a") -> None:
    """Admits one message and completes its turn with three steps, after a failed attempt."""
    driver.send(name, body)
    held = driver.take(name)
    held.checkpoint("one", b"1")
    held.fail(delay_ms=0)
    held = driver.take(name)
    held.checkpoint("two", b"2")
    held.finish(b"reply", step=("three", b"3"))


def of_turn(driver: Driver, turn: int) -> set[str]:
    """The fields that are stored for a turn, besides the memory of its message id."""
    return {field.partition(".")[2] for field in driver.fields() if field.startswith(f"{turn}.")}


@pytest.mark.spec("R-TRIM-1", "R-TRIM-3")
def test_trimming_leaves_the_receipt_alone_and_then_nothing(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=1_000)
    run_turn(driver, b"1")
    assert of_turn(driver, 1) == {"m", "1", "2", "h"}
    driver.later(999)
    with driver.unchanged():
        reply = driver.trim()
    assert (reply.word, reply.trimmed, reply.next_ms) == ("OK", 0, driver.now + 1)
    driver.later(1)
    reply = driver.trim()
    assert (reply.trimmed, reply.next_ms) == (1, driver.now - 1_000 + RECEIPT_MS)
    assert of_turn(driver, 1) == {"h"}
    receipt = driver.receipt(1)
    assert (receipt.reply, receipt.last_step, receipt.trimmed) == (None, None, True)
    assert (receipt.message_id, receipt.attempts, receipt.steps) == ("m-1", 2, 3)
    assert driver.record().kept_bytes == 0
    driver.later(RECEIPT_MS - 1_000)
    reply = driver.trim()
    assert (reply.trimmed, reply.next_ms) == (1, 0)
    assert driver.fields() == {"r", "y", "o"}


@pytest.mark.spec("R-TRIM-2")
def test_receipts_live_fifteen_minutes_whatever_the_settings(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=0, max_turns=1, max_bytes=0)
    driver.send("a", b"1")
    held = driver.take()
    first = held.finish(b"reply")
    assert of_turn(driver, 1) == {"h"}
    for turn in range(2, 30):
        run_turn(driver, b"%d" % turn)
    driver.later(RECEIPT_MS - 1)
    driver.trim()
    assert {turn for turn in range(1, 30) if of_turn(driver, turn) == {"h"}} == set(range(1, 30))
    with driver.unchanged():
        assert held.finish(b"reply", n=1) == first
    driver.later(1)
    assert driver.trim().trimmed == 29
    assert held.finish(b"reply", n=1).word == "STALE_FENCE"


@pytest.mark.spec("R-TRIM-1")
def test_the_newest_turns_are_kept_whatever_their_age(driver: Driver) -> None:
    driver.put_type(min_turns=5, max_age_ms=0)
    for turn in range(1, 9):
        driver.send("a", b"%d" % turn)
        driver.take().finish()
    driver.later(DAY_MS)
    driver.trim()
    assert [turn for turn in range(1, 9) if "m" in of_turn(driver, turn)] == [4, 5, 6, 7, 8]
    assert (driver.record().kept, driver.record().oldest) == (4, 4)
    assert "gc:a" not in driver.due()


@pytest.mark.spec("R-TRIM-1")
def test_young_turns_are_kept_within_a_count(driver: Driver) -> None:
    driver.put_type(min_turns=2, max_age_ms=DAY_MS, max_turns=4)
    for turn in range(1, 9):
        driver.send("a", b"%d" % turn)
        driver.take().finish()
    driver.trim()
    assert [turn for turn in range(1, 9) if "m" in of_turn(driver, turn)] == [5, 6, 7, 8]
    driver.later(DAY_MS)
    driver.trim()
    assert [turn for turn in range(1, 9) if "m" in of_turn(driver, turn)] == [7, 8]


@pytest.mark.spec("R-TRIM-1", "R-LIMIT-3")
def test_young_turns_are_kept_within_their_bytes(driver: Driver) -> None:
    driver.put_type(min_turns=1, max_age_ms=DAY_MS, max_bytes=2_500)
    for turn in range(1, 6):
        driver.send("a", b"%d" % turn)
        driver.take().finish(b"x" * 1_000)
    driver.trim()
    assert [turn for turn in range(1, 6) if "m" in of_turn(driver, turn)] == [4, 5]
    assert 2_000 < driver.record().kept_bytes <= 2_500


@pytest.mark.spec("R-TRIM-1")
def test_the_defaults_keep_256_turns_and_younger_ones_up_to_2000(driver: Driver) -> None:
    for number in range(2_300):
        driver.send("a", b"%d" % number)
        driver.claim()[0].finish()
    record = driver.record()
    assert 2_000 <= record.head - record.kept <= 2_016
    driver.later(DAY_MS)
    for _ in range(400):
        driver.expire()
    record = driver.record()
    assert (record.head - record.kept, record.oldest) == (256, record.kept)


@pytest.mark.spec("R-TRIM-1")
def test_steady_work_keeps_itself_trimmed_without_any_timer(driver: Driver) -> None:
    driver.put_type(min_turns=8, max_age_ms=0)
    for number in range(100):
        driver.send("a", b"%d" % number)
        driver.take().finish()
    record = driver.record()
    assert record.head - record.kept <= 8 + 4
    driver.later(RECEIPT_MS + LATE_MS)
    for number in range(100, 104):
        driver.send("a", b"%d" % number)
        driver.take().finish()
    assert driver.record().oldest > 92


@pytest.mark.spec("R-TRIM-1", "R-WAKE-1")
def test_one_gc_entry_is_armed_while_something_is_left_and_cleared_after(driver: Driver) -> None:
    driver.put_type(min_turns=1, max_age_ms=1_000)
    driver.send("a", b"1")
    driver.take().finish()
    assert driver.due() == {}
    driver.send("a", b"2")
    driver.later(100)
    driver.take().finish()
    assert driver.due() == {"gc:a": driver.now + 900}
    driver.later(900)
    assert [(reply.kind, reply.outcome) for reply in driver.expire()] == [("gc", "1")]
    assert driver.due() == {"gc:a": driver.now - 1_000 + RECEIPT_MS}
    driver.later(RECEIPT_MS)
    assert [(reply.kind, reply.outcome) for reply in driver.expire()] == [("gc", "1")]
    assert driver.due() == {}
    assert driver.record().flags == 0
    driver.later(10**9)
    assert driver.expire() == []


@pytest.mark.parametrize("min_turns", [1, 5])
@pytest.mark.spec("R-TRIM-1")
def test_a_payload_that_is_due_before_a_receipt_moves_the_entry(driver: Driver, min_turns: int) -> None:
    driver.put_type(min_turns=min_turns, max_age_ms=20_000)
    for number in range(min_turns):
        driver.send("a", b"old %d" % number)
        driver.take().finish()
    driver.later(60_000)
    for number in range(2 * min_turns):
        driver.send("a", b"new %d" % number)
        driver.take().finish()
    assert driver.due() == {"gc:a": driver.now}
    driver.expire()
    assert driver.due() == {"gc:a": driver.now + 20_000}
    driver.later(20_000)
    driver.expire()
    record = driver.record()
    assert record.head - record.kept == min_turns
    assert driver.due() == {"gc:a": driver.now - 80_000 + RECEIPT_MS}


@pytest.mark.spec("R-TRIM-1")
def test_a_long_history_goes_in_bounded_pieces_one_right_after_the_other(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=DAY_MS)
    for turn in range(1, 151):
        driver.send("a", b"%d" % turn)
        driver.take().finish()
    driver.later(DAY_MS)
    pieces = []
    while replies := driver.expire():
        pieces += [int(reply.outcome) for reply in replies]
    assert pieces == [128, 128, 44]
    assert driver.fields() == {"r", "y", "o"}


@pytest.mark.spec("R-TRIM-1", "R-TYPE-1")
def test_what_is_above_the_bytes_goes_at_once_however_much_it_is(driver: Driver) -> None:
    """A large finish after many small ones: the rest does not wait for its age."""
    driver.put_type(min_turns=1, max_age_ms=DAY_MS, max_bytes=100_000)
    for turn in range(1, 61):
        driver.send("a", b"%d" % turn)
        driver.take().finish(b"x" * 1_000)
    assert driver.record().kept_bytes > 60_000
    driver.send("a", b"big")
    driver.take().finish(b"x" * 65_000)
    while driver.expire():
        pass
    assert driver.record().kept_bytes <= 100_000


@pytest.mark.spec("R-TRIM-1", "R-TYPE-1")
def test_lower_settings_hold_from_the_next_finish_on(driver: Driver) -> None:
    for turn in range(1, 61):
        driver.send("a", b"%d" % turn)
        driver.take().finish(b"x" * 1_000)
    driver.put_type(min_turns=1, max_age_ms=DAY_MS, max_bytes=5_000)
    driver.send("a", b"last")
    driver.take().finish()
    while driver.expire():
        pass
    assert driver.record().kept_bytes <= 5_000
    assert driver.due() == {"gc:a": driver.now + RECEIPT_MS}


@pytest.mark.spec("R-TRIM-1")
def test_an_absent_instance_is_not_found(driver: Driver) -> None:
    driver.create("b")
    with driver.unchanged():
        items = [{"id": "a"}, {"id": "b"}]
        assert [reply.word for reply in driver.call("trim", items=items, limit=5).replies] == [
            "NOT_FOUND",
            "OK",
        ]


@pytest.mark.spec("R-TRIM-1", "R-STEP-1")
def test_neither_the_head_nor_queued_turns_are_touched(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=0)
    run_turn(driver, b"1")
    driver.send("a", b"2")
    driver.send("a", b"3")
    held = driver.take()
    held.checkpoint("one")
    driver.later(RECEIPT_MS)
    driver.trim()
    assert [of_turn(driver, turn) for turn in (1, 2, 3)] == [set(), {"m", "1"}, {"m"}]
    assert held.finish().word == "OK"


@pytest.mark.spec("R-TRIM-3", "R-READ-2")
def test_a_trimmed_turn_reads_as_its_receipt_and_then_as_pruned(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=0)
    run_turn(driver, b"1")
    turn = driver.turn(1)
    assert (turn.message, turn.steps, turn.failure) == (None, [], None)
    assert turn.receipt is not None
    assert turn.receipt.message_id == "m-1"
    driver.later(RECEIPT_MS)
    driver.trim()
    assert driver.one("get_turn", id="a", turn=1).word == "PRUNED"


@pytest.mark.spec("R-TRIM-3")
def test_the_ledger_keeps_its_newest_200_events(driver: Driver) -> None:
    for number in range(400):
        driver.send("a", b"%d" % number)
        driver.take().finish()
    events = driver.events()
    assert 200 <= len(events) < 264
    assert driver.record().seq == 1 + 3 * 400
    assert events[-1] == ("TURN_COMPLETED", 400, 1, "COMPLETED", 1, "")


@pytest.mark.parametrize("end", ["cancel", "skip", "expire", "pass"])
@pytest.mark.spec("R-TRIM-1", "R-TRIM-3", "R-CANCEL-2")
def test_turns_that_never_complete_are_trimmed_all_the_same(driver: Driver, end: str) -> None:
    """Nothing but such turns for long: the fields of an instance do not grow."""
    driver.put_type(min_turns=2, max_age_ms=1_000, on_exhausted=2)
    sizes: list[int] = []
    for round_number in range(6):
        for body in (b"%d-%d" % (round_number, at) for at in range(5)):
            driver.send("a", body, ttl_ms=10 if end == "expire" else 0)
        for turn in range(driver.record().head, driver.record().tail + 1):
            if end == "cancel":
                driver.cancel(turn)
            elif end == "skip":
                driver.take().fail(final=True)
        if end == "pass":
            for turn in range(driver.record().tail, driver.record().head - 1, -1):
                driver.cancel(turn)
        driver.elapse(10)
        driver.elapse(1_000_000)
        while driver.expire():
            pass
        sizes.append(len(driver.fields()))
    assert driver.head() == ""
    assert driver.record().tail - driver.record().kept < 3
    assert sizes[2:] == [sizes[2]] * 4


def ended_turns(driver: Driver, last: int) -> None:
    """Turn 1 is completed, those up to `last` are cancelled, and one more waits behind them."""
    driver.call("send", items=[driver.message("a", b"%d" % turn) for turn in range(1, last + 2)])
    held = driver.take()
    for turn in range(2, last + 1):
        driver.cancel(turn)
    held.finish()


@pytest.mark.parametrize("then", ["pass", "cancel the last"])
@pytest.mark.spec("R-TRIM-1", "R-CANCEL-2")
def test_a_head_that_passes_many_turns_later_arms_the_timer(driver: Driver, then: str) -> None:
    driver.put_type(min_turns=40, max_age_ms=5_000)
    ended_turns(driver, 60)
    assert (driver.record().head, "gc:a" in driver.due()) == (18, False)
    if then == "pass":
        driver.expire()
        driver.expire()
        assert driver.record().head == 50
    else:
        driver.cancel(61)
        assert driver.record().head == 62
    assert driver.due()["gc:a"] == driver.now + 5_000


@pytest.mark.spec("R-TRIM-1", "R-CANCEL-2")
def test_a_head_that_passes_turns_moves_a_timer_that_waits_for_receipts(driver: Driver) -> None:
    driver.put_type(min_turns=4, max_age_ms=5_000)
    for number in range(8):
        driver.send("a", b"%d" % number)
        driver.take().finish()
    driver.later(5_000)
    driver.trim()
    assert (driver.record().kept, driver.due()["gc:a"]) == (5, driver.now - 5_000 + 900_000)
    for turn in (9, 10, 11):
        driver.send("a", b"x%d" % turn)
    held = driver.take()
    driver.cancel(10)
    held.finish()
    assert (driver.record().head, driver.due()["gc:a"]) == (11, driver.now)


@pytest.mark.spec("R-SEND-2", "R-TRIM-3")
def test_a_message_id_that_is_forgotten_and_used_again_in_one_script_is_known(driver: Driver) -> None:
    """The send settles: the head expires, which trims the receipt that had the id before."""
    driver.put_type(min_turns=0, max_age_ms=0)
    driver.send("a", b"1", "again")
    driver.take().finish()
    driver.send("a", b"2", ttl_ms=RECEIPT_MS)
    driver.later(RECEIPT_MS + LATE_MS)
    assert driver.send("a", b"3", "again").turn == 3
    assert driver.send("a", b"3", "again").turn == 3, "a repeat"
    assert driver.record().tail == 3


def turns_cost(driver: Driver, turns: int, *, first: int) -> int:
    """Redis commands of so many turns, each sent, claimed and finished."""
    total = 0
    for number in range(first, first + turns):
        driver.send("a", b"%d" % number)
        total += sum(driver.commands.values())
        [held] = driver.claim()
        total += sum(driver.commands.values())
        held.finish(b"reply")
        total += sum(driver.commands.values())
    return total


@pytest.mark.spec("R-TRIM-4")
def test_a_turn_within_the_limits_costs_the_same_however_much_is_kept(driver: Driver) -> None:
    driver.count = True
    driver.put_type(min_turns=40)
    turns_cost(driver, 1, first=0)
    without = turns_cost(driver, 32, first=1)
    turns_cost(driver, 10, first=33)
    assert driver.record().gc_at_ms == driver.due()["gc:a"] == driver.now + DAY_MS
    assert turns_cost(driver, 32, first=43) == without


@pytest.mark.spec("R-TRIM-4")
def test_above_a_limit_several_turns_are_trimmed_together(driver: Driver) -> None:
    driver.count = True
    driver.put_type(min_turns=5, max_turns=80)
    turns_cost(driver, 7, first=0)
    within = turns_cost(driver, 64, first=7)
    turns_cost(driver, 20, first=71)
    kept: list[int] = []
    above = 0
    for number in range(91, 91 + 64):
        above += turns_cost(driver, 1, first=number)
        kept.append(driver.record().head - driver.record().kept)
    assert (min(kept), max(kept)) == (80, 90)
    # 11 turns at a time: their receipts and messages are read, and their fields removed.
    assert above - within == 3 * kept.count(80) > 12


@pytest.mark.spec("R-TRIM-1", "R-TRIM-4")
def test_bytes_may_be_a_little_above_their_limit(driver: Driver) -> None:
    driver.put_type(min_turns=1, max_bytes=16_000)
    kept: list[int] = []
    for turn in range(1, 400):
        driver.send("a", b"%d" % turn)
        driver.claim()[0].finish(b"x" * 100)
        kept.append(driver.record().kept_bytes)
    assert 16_000 < max(kept) <= 17_000
    assert kept.count(max(kept)) < 60


@pytest.mark.spec("R-TRIM-1", "R-TRIM-4")
def test_many_turns_of_which_each_is_large_are_within_reach_of_their_bytes(driver: Driver) -> None:
    """The newest ones are kept whatever their bytes, and some more are trimmed together."""
    driver.put_type(min_turns=16, max_bytes=1_024)
    kept: list[int] = []
    for turn in range(1, 60):
        driver.send("a", b"%d" % turn)
        driver.claim()[0].finish(b"x" * 1_000)
        kept.append(driver.record().head - driver.record().kept)
    assert (max(kept), min(kept[20:])) == (18, 16)


@pytest.mark.spec("R-TRIM-4")
def test_what_is_due_by_age_waits_a_while_for_more(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=400_000)
    fired: list[int] = []
    for number in range(1_400):
        driver.send("a", b"%d" % number)
        driver.claim()[0].finish()
        fired += [int(reply.outcome) for reply in driver.elapse(1_000)]
        record = driver.record()
        assert record.head - record.kept <= 400 + 31
        assert record.head - record.oldest <= 900 + 31
    assert len(fired) <= 1_000 / 30 + 500 / 30 + 2
    assert sum(fired) == driver.record().kept + driver.record().oldest - 2


@pytest.mark.parametrize(("age_ms", "wait_ms"), [(8_000, 1_000), (800_000, 30_000)])
@pytest.mark.spec("R-TRIM-4")
def test_it_waits_at_most_an_eighth_of_its_age(driver: Driver, age_ms: int, wait_ms: int) -> None:
    driver.put_type(min_turns=0, max_age_ms=age_ms)
    for number in range(2):
        driver.send("a", b"%d" % number)
        driver.claim()[0].finish()
        driver.later(10)
    driver.later(age_ms - 20)
    assert [reply.outcome for reply in driver.expire()] == ["1"]
    assert driver.due() == {"gc:a": driver.now + wait_ms}


@pytest.mark.spec("R-TRIM-1")
def test_one_script_trims_a_bounded_number_of_turns(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=DAY_MS)
    names = [f"i{at}" for at in range(10)]
    for number in range(64):
        driver.call("send", items=[driver.message(name, b"%d" % number) for name in names])
        for held in driver.claim(10):
            held.finish()
    driver.later(DAY_MS)
    result = driver.call("expire", limit=256)
    assert sum(int(reply.outcome) for reply in result.replies[:-1]) == 1_024
    assert result.replies[-1].due_ms == driver.now
    assert sum(int(reply.outcome) for reply in driver.expire()) == 256
    assert driver.expire() == []


@pytest.mark.spec("R-TRIM-4")
def test_work_trims_by_itself_what_the_timer_has_left_for_a_minute(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=1_000)
    for number in range(40):
        driver.send("a", b"%d" % number)
        driver.claim()[0].finish()
    due = driver.due()["gc:a"]
    driver.now = due + LATE_MS - 1
    run_turn(driver, b"not yet")
    assert driver.record().kept == 1
    driver.later(1)
    run_turn(driver, b"now")
    assert driver.record().kept == 33
    assert driver.record().gc_at_ms == due
    run_turn(driver, b"the rest")
    assert driver.record().kept == 41
    assert driver.record().gc_at_ms > driver.now


@pytest.mark.spec("R-TRIM-4", "R-SWEEP-1")
def test_a_trim_gives_back_a_lost_timer(driver: Driver) -> None:
    driver.put_type(min_turns=0)
    run_turn(driver, b"1")
    due = driver.due()
    driver.redis.call("ZREM", f"{driver.tag}due", "gc:a")
    driver.trim()
    assert driver.due() == due


def simple_turn(driver: Driver, body: bytes = b"1", name: str = "a") -> None:
    """One turn without steps."""
    driver.send(name, body)
    driver.take(name).finish()


@pytest.mark.spec("R-TRIM-5")
def test_a_shorter_age_holds_for_turns_that_have_finished(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=DAY_MS)
    simple_turn(driver)
    driver.put_type(min_turns=0, max_age_ms=1_000)
    driver.later(1_000)
    assert driver.trim().trimmed == 1


@pytest.mark.spec("R-TRIM-5")
def test_fewer_turns_hold_for_an_instance_that_rests(driver: Driver) -> None:
    driver.put_type(min_turns=5)
    for number in range(5):
        simple_turn(driver, b"%d" % number)
    driver.put_type(min_turns=2, max_age_ms=1_000)
    assert "gc:a" not in driver.due()
    assert driver.trim().trimmed == 0
    assert driver.due()["gc:a"] == driver.now + 1_000
    driver.later(1_000)
    assert [reply.outcome for reply in driver.expire()] == ["3"]


@pytest.mark.spec("R-TRIM-5")
def test_a_longer_age_holds_for_turns_that_finish_after_it(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=1_000)
    simple_turn(driver, b"before")
    driver.later(400)
    driver.put_type(min_turns=0, max_age_ms=DAY_MS)
    simple_turn(driver, b"after")
    driver.later(600)
    assert [reply.outcome for reply in driver.expire()] == ["1"]
    assert driver.due()["gc:a"] == driver.now - 1_000 + RECEIPT_MS
    driver.later(DAY_MS - 601)
    driver.trim()
    assert driver.record().kept == 2
    driver.later(1)
    driver.trim()
    assert driver.record().kept == 3


@pytest.mark.spec("R-TRIM-5", "R-TYPE-1")
def test_the_default_is_an_age_like_any_other(driver: Driver) -> None:
    simple_turn(driver)
    driver.later(1)
    driver.put_type(min_turns=0, max_age_ms=2 * DAY_MS)
    driver.put_type(min_turns=0)
    driver.put_type(min_turns=0, max_age_ms=3 * DAY_MS)
    driver.later(DAY_MS - 1)
    driver.trim()
    assert driver.record().kept == 2


@pytest.mark.parametrize(
    "ages",
    [
        (5, 9, 3, 7, 20, 12, 30),
        (30, 20, 10, 5, 40, 6, 50),
        (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12),
        (8, 8, 2, 8, 2, 8),
    ],
)
@pytest.mark.spec("R-TRIM-5")
def test_the_least_age_since_a_turn_finished_holds_for_it(driver: Driver, ages: tuple[int, ...]) -> None:
    finished: list[int] = []
    least: list[int] = []
    for second in range(3 * len(ages) + 60):
        if second % 3 == 0 and second // 3 < len(ages):
            age = ages[second // 3]
            driver.put_type(min_turns=0, max_age_ms=1_000 * age)
            least = [min(each, age) for each in least]
        if second < 3 * len(ages):
            simple_turn(driver, b"%d" % second)
            finished.append(second)
            least.append(ages[second // 3])
        driver.later(1_000)
        driver.trim()
        gone = [at for at, each in zip(finished, least, strict=True) if second + 1 - at >= each]
        assert driver.record().kept - 1 == len(gone) == max(gone, default=-1) + 1


@pytest.mark.spec("R-TRIM-5")
def test_what_is_remembered_of_former_ages_is_bounded(driver: Driver) -> None:
    def remembered() -> list[int]:
        packed: list[Any] = unpack(driver.redis.call("HGET", f"{driver.tag}type:t", "p"))
        kept = packed[constants("type")["CAPS"] - 1 :]
        return kept[0] if kept else []

    begin = driver.now
    for step in range(1, 12):
        driver.put_type(max_age_ms=DAY_MS * step)
        driver.later(1)
    # The eight newest; the first of them holds for all turns before it.
    assert remembered() == [number for step in range(3, 11) for number in (begin + step, DAY_MS * step)]
    driver.later(5 * DAY_MS)
    driver.put_type(max_age_ms=DAY_MS * 11)
    assert len(remembered()) == 2 * 5, "no turn is left for which the others could matter"
    driver.put_type(max_age_ms=DAY_MS * 9)
    assert remembered()[1::2] == [DAY_MS * step for step in range(6, 9)]
    driver.put_type(max_age_ms=1)
    assert remembered() == []


@pytest.mark.spec("R-TRIM-5", "R-TYPE-1")
def test_former_ages_leave_the_settings_as_they_are(driver: Driver) -> None:
    """Also where a caller of another build sends fewer of them."""
    driver.put_type(max_age_ms=1_000)
    few = msgpack.packb([1, 0, 7_000, -1, -1, -1, -1, -1, 3, DAY_MS])
    reply = driver.one("put_type", name="t", settings=few, digest=b"few")
    _, settings = records.unpack_type(reply.settings)
    given = {name: value for name, value in settings.items() if value is not None}
    assert given == {"lease_ms": 7_000, "min_turns": 3, "max_age_ms": DAY_MS}


@pytest.mark.spec("R-TRIM-4")
def test_a_long_trim_reads_in_blocks(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=DAY_MS)
    for number in range(40):
        simple_turn(driver, b"%d" % number)
    driver.later(DAY_MS)
    driver.count = True
    assert driver.trim().trimmed == 80
    # Receipts, then messages, in blocks of 1, 2, 4, 8 and 16; receipts without payloads are known then.
    both = driver.commands["hmget"]
    driver.count = False
    for number in range(40):
        simple_turn(driver, b"again %d" % number)
    driver.later(DAY_MS)
    driver.count = True
    driver.trim(limit=40)
    assert driver.commands["hmget"] == both <= 12
    assert driver.commands.get("hget", 0) <= 1


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.spec("R-TRIM-4")
def test_receipts_alone_are_read_in_blocks(driver: Driver, kept: bool) -> None:
    driver.put_type(min_turns=0, max_age_ms=1_000)
    for number in range(40):
        simple_turn(driver, b"%d" % number)
    driver.later(1_000)
    assert driver.trim().trimmed == 40
    driver.later(RECEIPT_MS - 1_000)
    if not kept:
        driver.redis.call("HSET", f"{driver.tag}i:a", "20.h", b"\xc1")
    driver.count = True
    assert driver.trim().trimmed == (40 if kept else 19)
    driver.count = False
    assert driver.commands["hmget"] <= 9
    assert driver.commands.get("hget", 0) <= 1
    if not kept:
        driver.delete()


@pytest.mark.spec("R-TRIM-1", "R-DAMAGE-1")
def test_a_receipt_that_cannot_be_read_ends_the_trimming_of_payloads(driver: Driver) -> None:
    driver.put_type(min_turns=0, max_age_ms=DAY_MS)
    for number in range(3):
        simple_turn(driver, b"%d" % number)
    driver.redis.call("HSET", f"{driver.tag}i:a", "2.h", b"\xc1")
    driver.later(DAY_MS)
    driver.trim()
    assert (driver.record().kept, driver.record().oldest) == (2, 2)
    driver.delete()
