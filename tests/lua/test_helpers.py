"""Pure helpers of lua/lib, without Redis: ring 2 of the Lua tests."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tests.support.invariants import constants
from tests.support.lua_helpers import Helpers, to_list

RECORD = constants("record")


def record(**values: Any) -> list[Any]:
    """A record with the named fields set."""
    r: list[Any] = [0] * RECORD["LAST_FIELD"]
    r[0] = 1
    for name, value in values.items():
        r[RECORD[name] - 1] = value
    return r


def delays(policy: list[Any], *failures: int, fence: int = 1) -> list[int]:
    """The delay after so many failures in a row."""
    return [Helpers("policy_delay").policy_delay({"r": record(FENCE=fence)}, policy, n) for n in failures]


@pytest.mark.spec("R-FAIL-1")
def test_delays_double_up_to_their_maximum() -> None:
    found = delays([1_000, 60_000, 2, 0], 1, 2, 3, 6, 7, 1_000)
    assert found == [1_000, 2_000, 4_000, 32_000, 60_000, 60_000]


def test_delays_with_a_fractional_factor_are_whole_milliseconds() -> None:
    assert delays([100, 10_000, 1.5, 0], 1, 2, 3, 4) == [100, 150, 225, 337]


@pytest.mark.spec("R-FAIL-5")
def test_jitter_takes_off_a_part_that_differs_from_lease_to_lease() -> None:
    found = [delays([1_000, 1_000, 1, 0.25], 1, fence=fence)[0] for fence in range(1, 201)]
    assert all(750 <= delay <= 1_000 for delay in found)
    assert len(set(found)) > 100
    assert min(found) < 760
    assert max(found) > 990
    assert delays([1_000, 1_000, 1, 1], 1, fence=7) == delays([1_000, 1_000, 1, 1], 1, fence=7)


@pytest.mark.parametrize(("value", "bits"), [(0, set()), (1, {1}), (6, {2, 4}), (31, {1, 2, 4, 8, 16})])
def test_has_bit(value: int, bits: set[int]) -> None:
    has_bit = Helpers("has_bit").has_bit
    assert {bit for bit in (1, 2, 4, 8, 16) if has_bit(value, bit)} == bits


def test_an_idle_record_is_small_and_reads_back_whole() -> None:
    helpers = Helpers("record_new", "record_pack", "record_unpack")
    packed = helpers.record_pack(helpers.record_new(7, 1))
    assert len(packed) <= 31
    assert to_list(helpers.record_unpack(packed)) == record(INC=7, HEAD=1, OLDEST=1, KEPT=1)


def test_a_record_keeps_an_unknown_tail() -> None:
    helpers = Helpers("record_pack", "record_unpack")
    newer = [*record(INC=7, FENCE=2**40 + 1), b"from a newer version", 5]
    assert (
        msgpack.unpackb(helpers.record_pack(helpers.record_unpack(msgpack.packb(newer))), raw=True) == newer
    )


def test_engine_time() -> None:
    clock_now = Helpers("clock_now").clock_now
    assert clock_now(True, 500, 1_800_000_000_123) == 1_800_000_000_123
    with pytest.raises(Exception, match="calls redis"):
        clock_now(False, 0, 1)


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({}, 1),
        ({"PENDING": 1, "STATE": 1}, 2),
        ({"PENDING": 1, "STATE": 10}, 3),
        ({"PENDING": 1, "STATE": 10, "FLAGS": 1 + 4}, 4),
        ({"FLAGS": 2 + 1}, 5),
    ],
)
def test_instance_status(values: dict[str, int], status: int) -> None:
    assert Helpers("instance_status").instance_status(record(**values)) == status


_LEASED = {"INC": 7, "HEAD": 3, "TAIL": 3, "PENDING": 1, "STATE": 2, "FENCE": 50}
_BEFORE = {"PFENCE": 40, "PHOW": 4, "PN": 2, "PDIGEST": b"p", "PWORD": 1, "PANSWER1": 9}


@pytest.mark.parametrize(
    ("values", "command", "reply"),
    [
        ({}, (7, 3, 50, 1, b"d"), None),
        ({}, (7, 3, 50, 2, b"d"), [b"GAP", 0]),
        ({}, (6, 3, 50, 1, b"d"), [b"STALE_FENCE"]),
        ({}, (7, 4, 50, 1, b"d"), [b"STALE_FENCE"]),
        ({}, (7, 3, 49, 1, b"d"), [b"STALE_FENCE"]),
        ({}, (7, 3, 0, 1, b"d"), [b"STALE_FENCE"]),
        ({"N": 2, "DIGEST": b"d", "WORD": 1, "ANSWER1": 6}, (7, 3, 50, 3, b"e"), None),
        ({"N": 2, "DIGEST": b"d", "WORD": 1, "ANSWER1": 6}, (7, 3, 50, 2, b"d"), [b"OK", 6]),
        ({"N": 2, "DIGEST": b"d", "WORD": 1, "ANSWER1": 6}, (7, 3, 50, 2, b"x"), [b"BODY_CONFLICT"]),
        ({"N": 2, "DIGEST": b"d", "WORD": 1, "ANSWER1": 6}, (7, 3, 50, 1, b"x"), [b"ALREADY"]),
        ({"N": 2, "DIGEST": b"d", "WORD": 1, "ANSWER1": 6}, (7, 3, 50, 4, b"d"), [b"GAP", 2]),
        (
            {"N": 1, "DIGEST": b"d", "WORD": 2, "ANSWER1": 5, "ANSWER2": 99},
            (7, 3, 50, 1, b"d"),
            [b"OK", 5, 99],
        ),
        ({"N": 1, "DIGEST": b"d", "WORD": 3, "HOW": 3}, (7, 3, 50, 1, b"d"), [b"OK"]),
        ({"HOW": 4}, (7, 3, 50, 1, b"d"), [b"LEASE_ENDED", b"expired"]),
        (_BEFORE, (7, 3, 40, 2, b"p"), [b"OK", 9]),
        (_BEFORE, (7, 3, 40, 2, b"x"), [b"BODY_CONFLICT"]),
        (_BEFORE, (7, 3, 40, 1, b"p"), [b"ALREADY"]),
        (_BEFORE, (7, 3, 40, 3, b"p"), [b"LEASE_ENDED", b"expired"]),
    ],
)
def test_command_check(values: dict[str, Any], command: tuple[Any, ...], reply: list[Any] | None) -> None:
    answer = Helpers("command_check").command_check({"r": record(**{**_LEASED, **values})}, *command)
    assert (None if answer is None else to_list(answer)) == reply


def test_command_check_of_an_absent_instance() -> None:
    assert to_list(Helpers("command_check").command_check(None, 7, 3, 50, 1, b"d")) == [b"NOT_FOUND"]
