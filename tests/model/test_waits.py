"""The outcome of each wait is a function of stored times alone: when it began, when its time is over, and
when signals came. A wait receives the oldest signal of its name that no earlier wait has taken and that came
strictly before its deadline, else none; whichever scripts ran meanwhile and whenever they did, also while
the instance is paused. Reads never show anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pawl_server.store.records import TurnView
from tests.model.parts import RECEIVED, TIMED_OUT
from tests.support.driver import TV, Driver, Held
from tests.support.redis_server import RedisServer

MAX_WAITS = 8


class Wait(NamedTuple):
    """A wait that has begun; `deadline` is 0 for one without end."""

    name: str
    began: int
    deadline: int


class Arrival(NamedTuple):
    """A signal that came."""

    signal_id: str
    name: str
    at: int


Outcome = tuple[int, str]
"""How a wait ended, and the id of what it received."""


def outcomes(waits: list[Wait], arrivals: list[Arrival], now: int) -> list[Outcome]:
    """How those of the waits that are over at `now` ended; all but the last one must be."""
    left, ended = list(arrivals), list[Outcome]()
    for wait in waits:
        fitting = [
            one for one in left if one.name == wait.name and (not wait.deadline or one.at < wait.deadline)
        ]
        if fitting:
            left.remove(fitting[0])
            ended.append((RECEIVED, fitting[0].signal_id))
        elif wait.deadline and wait.deadline <= now:
            ended.append((TIMED_OUT, ""))
    return ended


Action = tuple[str, int, str]
"""What happens, how long after the last thing (ms), and the name it is about."""
names = st.sampled_from(["go", "go", "stop"])
THINGS = (
    *(
        "work",
        "work",
        "work",
        "signal",
        "signal",
        "signal to the instance",
        "signal again",
        "at the deadline",
    ),
    *("pause", "resume", "wake", "expire", "sweep", "get", "list", "message", "settle", "restart"),
)
actions = st.tuples(st.sampled_from(THINGS), st.sampled_from([0, 0, 1, 5, 10, 100]), names)
plans = st.lists(st.tuples(names, st.sampled_from([0, 1, 10, 50, 1_000])), min_size=1, max_size=MAX_WAITS)


@dataclass
class Play:
    """One turn that carries out its `plan` of waits: names, each with its time in ms or 0."""

    driver: Driver
    plan: list[tuple[str, int]]
    waits: list[Wait] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)

    def act(self, what: str, ms: int, name: str) -> None:
        """Does one thing."""
        driver = self.driver
        driver.later(ms)
        things: dict[str, Callable[[], object]] = {
            "work": self.work,
            "signal": lambda: self.signal(name),
            "signal to the instance": lambda: self.signal(name, turn=0),
            "signal again": self.signal_again,
            "at the deadline": lambda: self.signal_at_the_deadline(ms % 3 - 1),
            "message": lambda: driver.send("a", b"%d" % driver.now),
            "list": lambda: driver.one("list_inbox", id="a", after=0, limit=5),
            "settle": lambda: driver.one("settle", id="a"),
            "restart": lambda: driver.hello(f"run-{driver.now}"),
        }
        thing = things[what] if what in things else getattr(driver, what)
        thing()
        self.compare(driver.turn(1))

    def work(self) -> None:
        """A worker carries the plan on as far as it goes, and gives the turn back."""
        if len(self.waits) >= len(self.plan) and self.driver.head() != "QUEUED":
            return
        for held in self.driver.claim():
            held.renew()
            self.go_on(held)

    def go_on(self, held: Held) -> None:
        saved = len(held.view.steps)
        assert saved == len(self.waits), "all that have begun are over"
        for place in range(saved, len(self.plan)):
            name, ms = self.plan[place]
            self.waits.append(Wait(name, self.driver.now, self.driver.now + ms if ms else 0))
            reply = held.wait(f"wait-{place}", name, ms)
            assert reply.word == "OK"
            if reply.suspended:
                assert reply.deadline_ms == self.waits[-1].deadline
                return
            assert (reply.outcome, reply.value) == (RECEIVED, self.value(place))
            self.driver.later(1)
        held.release()

    def value(self, place: int) -> bytes:
        """What a wait must have received."""
        outcome, signal_id = outcomes(self.waits, self.arrivals, self.driver.now)[place]
        return b"\0" + signal_id.encode() if outcome == RECEIVED else b""

    def signal(self, name: str, turn: int = 1) -> None:
        signal_id = f"s{len(self.arrivals)}"
        reply = self.driver.signal(signal_id, name, signal_id.encode(), turn=turn)
        assert (reply.word, reply.turn, reply.received_ms) == ("OK", 1, self.driver.now)
        self.arrivals.append(Arrival(signal_id, name, self.driver.now))

    def signal_again(self) -> None:
        """A repeat is no arrival."""
        if self.arrivals:
            one = self.arrivals[self.driver.now % len(self.arrivals)]
            reply = self.driver.signal(one.signal_id, one.name, one.signal_id.encode())
            assert (reply.word, reply.received_ms) == ("OK", one.at)

    def signal_at_the_deadline(self, after: int) -> None:
        """One comes 1 ms before the end of the wait, at it, or after it."""
        if self.waits and self.waits[-1].deadline + after > self.driver.now:
            self.driver.now = self.waits[-1].deadline + after
            self.signal(self.waits[-1].name)

    def compare(self, view: TurnView) -> None:
        """What reads show is what the times say."""
        expected = outcomes(self.waits, self.arrivals, self.driver.now)
        shown = [
            (step.outcome, step.blob[1:].decode() if step.outcome == RECEIVED else "") for step in view.steps
        ]
        assert shown == expected, (self.waits, self.arrivals)
        consumed = {one.signal_id: one.position for one in view.signals if one.position}
        assert consumed == {
            signal_id: place for place, (outcome, signal_id) in enumerate(expected, 1) if outcome == RECEIVED
        }
        assert (view.wait is None) == (len(expected) == len(self.waits))

    def end(self) -> None:
        """All time passes; then a worker sees what the reads have shown."""
        self.driver.resume()
        self.driver.later(2_000)
        expected = outcomes(self.waits, self.arrivals, self.driver.now)
        self.driver.expire()
        self.compare(self.driver.turn(1))
        if len(expected) < len(self.waits):
            self.signal(self.waits[-1].name)
            expected = outcomes(self.waits, self.arrivals, self.driver.now)
        [reply] = self.driver.call("claim", items=[{"tv": TV, "limit": 1, "conn": self.driver.conn}]).replies
        assert len(reply.turns) == 1
        self.compare(self.driver.turn(1))
        events = self.driver.event_names()
        assert events.count("STEP_SAVED") == len(expected) == len(self.waits)
        assert events.count("SIGNAL_RECEIVED") == len(self.arrivals)
        assert not any(member.startswith("wait:") for member in self.driver.due())


def paused_until(ms: int) -> list[Action]:
    """A signal 5 ms after `ms`, while the instance is paused and nobody has looked."""
    times = {"work": 0, "pause": ms, "signal": 5, "resume": 100}
    return [*((what, at, "go") for what, at in times.items()), ("work", 0, "go")]


@pytest.mark.spec("R-SIGNAL-1", "R-SIGNAL-2", "R-SIGNAL-3", "R-SIGNAL-4", "R-WAIT-1", "R-WAIT-3")
@given(plan=plans, story=st.lists(actions, min_size=5, max_size=30))
@example(plan=[("go", 10), ("go", 50)], story=paused_until(5))
@example(plan=[("go", 10), ("go", 50)], story=paused_until(4))
def test_outcomes_follow_from_times_alone(
    redis_server: RedisServer, plan: list[tuple[str, int]], story: list[Action]
) -> None:
    redis_server.call("FLUSHALL")
    driver = Driver(redis_server)
    driver.send()
    play = Play(driver, plan)
    for action in story:
        play.act(*action)
    play.end()
    assert driver.violations() == []
