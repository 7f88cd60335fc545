"""await, waiting and the private channels: who is told what, once, and without telling the caller itself."""

from __future__ import annotations

import pytest

from tests.support.driver import TV, Driver
from tests.support.listener import listening


def as_server(driver: Driver, server: str) -> Driver:
    """The calls after this come from `server`."""
    driver.server = server
    return driver


@pytest.mark.spec("R-DELIVER-2")
def test_a_waiting_server_is_told_once(driver: Driver) -> None:
    with listening(driver, "s1", "s2", "s3") as (one, two, three):
        as_server(driver, "s1").claim()
        driver.later(1)
        as_server(driver, "s2").claim()
        as_server(driver, "s3").send("a")
        assert [one.heard(), two.heard(), three.heard()] == [[f"ready {TV}"], [], []]
        assert list(driver.state()[f"waiting:{TV}"]) == ["s2"], "one that was told waits no more"
        driver.send("b")
        assert [one.heard(), two.heard()] == [[], [f"ready {TV}"]]
        driver.send("c")
        assert [one.heard(), two.heard()] == [[], []]


@pytest.mark.spec("R-DELIVER-2")
def test_several_heads_of_one_script_make_one_hint_for_each_type(driver: Driver) -> None:
    with listening(driver, "s1") as (one,):
        as_server(driver, "s1")
        driver.claim()
        driver.claim(tv="t:v2")
        items = [driver.message("a"), driver.message("b"), driver.message("c", version="v2")]
        as_server(driver, "s2").call("send", items=items)
        assert sorted(one.heard()) == [f"ready {TV}", "ready t:v2"]


@pytest.mark.spec("R-DELIVER-2")
def test_the_caller_learns_from_its_reply_and_nobody_else_is_woken(driver: Driver) -> None:
    with listening(driver, "s1", "s2") as (one, two):
        as_server(driver, "s1").claim()
        driver.later(1)
        as_server(driver, "s2").claim()
        result = driver.call("send", items=[driver.message("a")])
        assert result.ready == [TV]
        assert [one.heard(), two.heard()] == [[], []]
        assert list(driver.state()[f"waiting:{TV}"]) == ["s1", "s2"]


@pytest.mark.spec("R-DELIVER-2")
def test_who_waited_long_ago_is_not_told(driver: Driver) -> None:
    with listening(driver, "s1") as (one,):
        as_server(driver, "s1").claim()
        driver.later(5_001)
        as_server(driver, "s2").send("a")
        assert one.heard() == []


@pytest.mark.parametrize(
    "how", ["finish", "release", "fail", "continue", "expire", "backoff", "sweep", "settle"]
)
@pytest.mark.spec("R-DELIVER-2", "R-WAKE-1")
def test_every_path_to_ready_tells_a_waiting_server(driver: Driver, how: str) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    if how in ("backoff", "settle"):
        held.fail()
        driver.later(1_000)
    elif how == "expire":
        driver.later(60_000)
    elif how == "sweep":
        held.release()
        driver.redis.call("ZREM", f"{driver.tag}ready:{TV}:0", "a")
    paths = {
        "finish": held.finish,
        "release": held.release,
        "fail": lambda: held.fail(delay_ms=0),
        "continue": lambda: held.finish(onward=b"more"),
        "expire": driver.expire,
        "backoff": driver.expire,
        "sweep": driver.sweep,
        "settle": lambda: driver.one("settle", id="a"),
    }
    with listening(driver, "s2") as (two,):
        as_server(driver, "s2").claim()
        as_server(driver, "s1")
        paths[how]()
        assert two.heard() == [f"ready {TV}"]


@pytest.mark.spec("R-AWAIT-1")
def test_await_answers_what_is_over_and_registers_for_the_rest(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    driver.send("b", b"1")
    first, other = driver.claim(2)
    first.finish()
    other.fail(final=True)
    turns = [("a", 1), ("a", 2), ("a", 3), ("a", 0), ("a", -1), ("b", 1), ("absent", 1)]
    replies = driver.call("await", items=[{"id": name, "turn": turn} for name, turn in turns]).replies
    assert [reply.word for reply in replies] == [
        "DONE", "PENDING", "NOT_FOUND", "NOT_FOUND", "NOT_FOUND", "DONE", "NOT_FOUND",
    ]  # fmt: skip
    assert driver.state()["i:a"]["a"] == driver.server.encode()
    assert "a" not in driver.state()["i:b"]


@pytest.mark.spec("R-AWAIT-1")
def test_registering_again_changes_nothing(driver: Driver) -> None:
    driver.send()
    assert driver.one("await", id="a", turn=1).word == "PENDING"
    with driver.unchanged():
        assert driver.again().word == "PENDING"
    as_server(driver, "server").one("await", id="a", turn=1)
    assert driver.state()["i:a"]["a"] == b"server01,server", "a part of a name is another name"


@pytest.mark.parametrize("end", ["finish", "fail", "expire", "lose"])
@pytest.mark.spec("R-AWAIT-1", "R-DELIVER-2")
def test_the_end_of_a_turn_is_told_to_everybody_but_the_caller(driver: Driver, end: str) -> None:
    driver.put_type(max_attempts=1)
    driver.send("a.b-c", b"1")
    held = driver.take("a.b-c")
    for _ in range(9 if end == "lose" else 0):
        held.orphan()
        driver.later(300)
        driver.expire()
        held = driver.take("a.b-c")
    for server in ("s1", "s2", "s3"):
        as_server(driver, server).one("await", id="a.b-c", turn=1)
    with listening(driver, "s1", "s2", "s3") as (one, two, three):
        as_server(driver, "s2")
        if end == "finish":
            held.finish()
        elif end == "fail":
            held.fail()
        else:
            if end == "lose":
                held.orphan()
            driver.later(60_000)
            driver.expire()
        assert [one.heard(), two.heard(), three.heard()] == [["done 1 a.b-c"], [], ["done 1 a.b-c"]]
    assert "a" not in driver.fields("a.b-c")
    assert driver.record("a.b-c").flags == 0


@pytest.mark.spec("R-AWAIT-1")
def test_an_attempt_that_will_be_repeated_is_no_end(driver: Driver) -> None:
    driver.send()
    held = driver.take()
    as_server(driver, "s1").one("await", id="a", turn=1)
    with listening(driver, "s1") as (one,):
        as_server(driver, "s2")
        held.fail(delay_ms=0)
        held = driver.take()
        held.release()
        driver.take().orphan()
        driver.later(300)
        driver.expire()
        assert one.heard() == []
        driver.take().finish()
        assert one.heard() == ["done 1 a"]


@pytest.mark.spec("R-AWAIT-1")
def test_any_end_uses_up_the_note_and_says_which_turn_it_was(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    as_server(driver, "s1").one("await", id="a", turn=2)
    with listening(driver, "s1") as (one,):
        as_server(driver, "s2").take().finish()
        assert one.heard() == ["done 1 a"]
        as_server(driver, "s1").one("await", id="a", turn=2)
        as_server(driver, "s2").take().finish()
        assert one.heard() == ["done 2 a"]


@pytest.mark.spec("R-DELIVER-2")
def test_the_end_of_a_lease_is_told_to_the_server_of_its_stream(driver: Driver) -> None:
    for name in ("a", "b", "c", "d"):
        driver.send(name)
    driver.take("a", conn="s1.4.7")
    driver.take("b", conn="s2.1.1")
    driver.take("c", conn="s1.4.7").detach()
    driver.lease("d", conn="s1.4.8")
    with listening(driver, "s1", "s2") as (one, two):
        driver.later(60_000)
        as_server(driver, "s2").expire()
        heard = one.heard()
        assert sorted(heard) == ["ended s1.4.7 1 1 1 expired a", "ended s1.4.8 4 1 4 returned d"]
        assert two.heard() == [], "the caller learns from its replies"


@pytest.mark.spec("R-DELIVER-2", "R-FENCE-1")
def test_a_hint_names_high_fences_exactly(driver: Driver) -> None:
    driver.set_meta(fence=2**52, incarnation=2**51)
    driver.send()
    driver.take(conn="s1.1.1")
    with listening(driver, "s1") as (one,):
        driver.later(60_000)
        driver.expire()
        assert one.heard() == [f"ended s1.1.1 {2**51 + 1} 1 {2**52 + 1} expired a"]


@pytest.mark.spec("R-DELIVER-2")
def test_a_claim_that_leaves_heads_behind_tells_another_waiting_server(driver: Driver) -> None:
    with listening(driver, "s1", "s2") as (one, two):
        as_server(driver, "s1").claim()
        driver.later(1)
        as_server(driver, "s2").claim()
        driver.call("send", items=[driver.message("a"), driver.message("b")])
        assert [one.heard(), two.heard()] == [[], []], "the caller waits itself"
        assert len(driver.claim(1)) == 1
        assert [one.heard(), two.heard()] == [[f"ready {TV}"], []]
        assert f"waiting:{TV}" not in driver.state()


@pytest.mark.spec("R-DELIVER-2")
def test_a_hint_without_use_is_passed_on_until_nobody_waits(driver: Driver) -> None:
    with listening(driver, "s1", "s2") as (one, two):
        for server in ("s1", "s2"):
            as_server(driver, server).claim()
            driver.later(1)
        as_server(driver, "s3").send("a")
        assert [one.heard(), two.heard()] == [[f"ready {TV}"], []]
        as_server(driver, "s1")
        assert driver.claim(0) == []
        assert [one.heard(), two.heard()] == [[], [f"ready {TV}"]]
        as_server(driver, "s2")
        assert driver.claim(0) == []
        assert [one.heard(), two.heard()] == [[], []]
        assert driver.head("a") == "QUEUED"
        assert f"waiting:{TV}" not in driver.state()


@pytest.mark.spec("R-AWAIT-1")
def test_a_sender_that_waits_is_noted_with_its_message(driver: Driver) -> None:
    with listening(driver, "s1") as (one,):
        as_server(driver, "s1")
        assert driver.send("a", b"1", waits=True).noted
        assert not driver.send("a", b"1", waits=True).noted, "a repeat has to ask how the turn stands"
        assert not driver.send("a", b"2").noted
        as_server(driver, "s2").take("a").finish()
        assert one.heard() == ["done 1 a"]
        driver.take("a").finish()
        assert one.heard() == [], "any end uses the note up"


@pytest.mark.parametrize("asks", ["by sending", "by waiting"])
@pytest.mark.spec("R-AWAIT-1", "R-DELIVER-2")
def test_who_waits_as_another_turn_expires_is_noted_anew(driver: Driver, asks: str) -> None:
    """The end of the head uses the note up in the script that makes the next one."""
    with listening(driver, "s1") as (one,):
        as_server(driver, "s1")
        assert driver.send("a", b"1", waits=True, ttl_ms=1_000).noted
        if asks == "by waiting":
            driver.send("a", b"2")
        driver.later(1_000)
        if asks == "by sending":
            assert driver.send("a", b"2", waits=True).noted
        else:
            assert driver.call("await", items=[{"id": "a", "turn": 2}]).replies[0].word == "PENDING"
        assert one.heard() == ["done 1 a"]
        as_server(driver, "s2").take("a").finish()
        assert one.heard() == ["done 2 a"]


@pytest.mark.spec("R-AWAIT-1")
def test_a_turn_behind_a_failed_one_is_not_over(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    driver.take().fail(final=True)
    items = [{"id": "a", "turn": turn} for turn in (1, 2)]
    assert [reply.word for reply in driver.call("await", items=items).replies] == ["DONE", "PENDING"]


@pytest.mark.spec("R-DELIVER-2")
def test_a_finish_that_claims_what_it_made_ready_announces_nothing(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    result = driver.call("finish", items=[held.item("finish", tv=TV, conn=driver.conn)])
    assert (len(result.replies[0].turns), result.ready) == (1, [])


@pytest.mark.spec("R-DELIVER-1", "R-WAKE-1")
def test_what_a_list_of_finishes_makes_ready_and_leaves_stays_announced(driver: Driver) -> None:
    for name in ("a", "b"):
        driver.send(name, b"1")
        driver.send(name, b"2")
    one, two = driver.claim(2)
    assert TV not in driver.state().get("types", {})
    driver.later(5)
    items = [one.item("finish", tv=TV, conn=driver.conn), two.item("finish")]
    result = driver.call("finish", items=items)
    [view] = result.replies[0].turns
    left = "a" if view[0] == b"b" else "b"
    assert (driver.ready(), result.ready) == ([left], [TV])
    assert driver.state()["types"] == {TV: driver.now}


@pytest.mark.spec("R-DELIVER-1")
def test_the_time_since_when_a_type_waits_moves_with_what_is_left(driver: Driver) -> None:
    for name in ("a", "b"):
        driver.send(name, b"1")
        driver.send(name, b"2")
    one, two = driver.claim(2)
    driver.later(5)
    driver.send("c")
    driver.later(5)
    items = [one.item("finish", tv=TV, conn=driver.conn), two.item("finish")]
    [view] = driver.call("finish", items=items).replies[0].turns
    assert (view[0], sorted(driver.ready())) == (b"c", ["a", "b"])
    assert driver.state()["types"] == {TV: driver.now}


@pytest.mark.spec("R-DELIVER-1")
def test_a_finish_that_leaves_older_heads_has_nothing_to_announce(driver: Driver) -> None:
    driver.send("a", b"1")
    driver.send("a", b"2")
    held = driver.take()
    for name in ("b", "c"):
        driver.later(1)
        driver.send(name)
    since = driver.state()["types"]
    driver.later(1)
    driver.count = True
    assert len(held.finish(tv=TV, conn=driver.conn).turns) == 1
    assert driver.commands["zadd"] == 2, "ready and due; types has an earlier time"
    assert driver.state()["types"] == since
