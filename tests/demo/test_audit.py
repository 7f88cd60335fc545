"""The demo's judgement: each thing that could be wrong makes the report say so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from pawl._convert import turn_of as converted
from pawl.cli.demo import show
from pawl.demo.audit import Evidence, Report, executed_after_saving, judge
from pawl.demo.chaos import Kill, held_turns, running_steps
from pawl.demo.marks import Kind, Mark
from pawl.demo.progress import Display
from pawl.demo.workflows import STEPS
from pawl.models import Failure, Turn
from pawl.payloads import encode
from pawl.v1.step_pb2 import Step
from pawl.v1.turn_pb2 import Turn as TurnMessage
from pawl.v1.turn_pb2 import TurnState

CRASHED, FAILING, PLAIN = "doc-crashed", "doc-failing", "doc-plain"


def effect(instance: str, step: str) -> str:
    return f"{instance}/{step}"


def turn_of(
    instance: str, attempt: int, saved_in: dict[str, int] | None = None, state: str = "COMPLETED"
) -> Turn:
    steps = [
        Step(
            position=at, key=key, kind="step", attempt=(saved_in or {}).get(key, attempt), output=encode(None)
        )
        for at, key in enumerate(STEPS, 1)
    ]
    message = TurnMessage(
        instance_id=instance,
        incarnation=1,
        turn=1,
        state=TurnState.Value(f"TURN_STATE_{state}"),
        message_id="ingest",
        attempt=attempt,
        step_count=len(steps),
        steps=steps,
        reply=encode({"words": 10, "definitions": 2, "links": 1, "refused": 3}),
    )
    return converted(message)


class Story:
    """Marks in the order in which they happen."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []

    def tell(self, kind: Kind, instance: str, step: str, worker: str, attempt: int = 1) -> Mark:
        effect_id = "-" if kind == "R" else effect(instance, step)
        mark = Mark(kind, effect_id, step, instance, attempt, attempt * 10, len(self.marks), worker)
        self.marks.append(mark)
        return mark

    def steps(self, instance: str, keys: tuple[str, ...], worker: str, attempt: int = 1) -> None:
        for key in keys:
            self.tell("S", instance, key, worker, attempt)
            self.tell("E", instance, key, worker, attempt)


def good() -> Evidence:
    """A run as it should be: one document untouched, one killed inside "hash", one that failed in "count"."""
    story = Story()
    story.steps(PLAIN, STEPS, "b")
    story.steps(CRASHED, STEPS[:1], "a")
    inside = story.tell("S", CRASHED, "hash", "a")
    kill = Kill("worker", inside.at_ns, (inside,), frozenset({CRASHED}), inside.at_ns + 2_000_000_000)
    story.tell("R", CRASHED, "read", "b", 2)
    story.steps(CRASHED, STEPS[1:], "b", 2)
    story.steps(FAILING, STEPS[:3], "b")
    story.tell("S", FAILING, "count", "b")
    story.tell("F", FAILING, "count", "b")
    for key in STEPS[:3]:
        story.tell("R", FAILING, key, "b", 2)
    story.steps(FAILING, STEPS[3:], "b", 2)
    turns = [
        turn_of(PLAIN, 1),
        turn_of(CRASHED, 2, {"read": 1}),
        turn_of(FAILING, 2, {"read": 1, "hash": 1, "extract": 1}),
    ]
    return Evidence(
        plan={effect(one, key): (one, key) for one in (PLAIN, CRASHED, FAILING) for key in STEPS},
        marks=story.marks,
        turns={turn.instance_id: turn for turn in turns},
        kills=[kill],
        collected={"documents": 3, "words": 30, "definitions": 6, "links": 3, "batches": 1},
        collector_turns=5,
        failing=FAILING,
    )


def test_a_good_run() -> None:
    report = judge(good())
    assert report.ok, report.problems
    assert report.as_json() | {
        "documents": 3, "turns": 8, "steps_run": 18, "steps_replayed": 4, "attempts": 5, "workers_killed": 1,
        "recovery_seconds": 2.0, "lost": 0, "duplicated": 0, "effects_planned": 18, "effects_repeated": 0,
        "failures_retried": 1, "sends_refused": 9, "batches": 1, "ok": True,
    } == report.as_json()  # fmt: skip
    json.dumps(report.as_json())


def without_effect(found: Evidence) -> Evidence:
    gone = effect(PLAIN, "summarise")
    return replace(found, marks=[m for m in found.marks if (m.kind, m.effect_id) != ("E", gone)])


def without_saved_step(found: Evidence) -> Evidence:
    turn = replace(found.turns[PLAIN], steps=found.turns[PLAIN].steps[:-1])
    return replace(found, turns={**found.turns, PLAIN: turn})


@pytest.mark.parametrize("spoil", [without_effect, without_saved_step])
def test_a_missing_effect_is_lost(spoil: Callable[[Evidence], Evidence]) -> None:
    report = judge(spoil(good()))
    assert report.lost == 1
    assert not report.ok


def test_a_saved_step_that_a_later_attempt_runs_again_is_duplicated() -> None:
    found = good()
    again = Mark("S", effect(CRASHED, "read"), "read", CRASHED, 2, 20, 10_000, "b")
    report = judge(replace(found, marks=[*found.marks, again, replace(again, kind="E", at_ns=10_001)]))
    assert (report.duplicated, report.effects_repeated) == (1, 1)
    assert not report.ok


def test_a_step_that_begins_behind_its_successor_is_duplicated_within_one_attempt_too() -> None:
    found = good()
    again = Mark("S", effect(PLAIN, "read"), "read", PLAIN, 1, 10, 10_000, "a")
    assert executed_after_saving([*found.marks, again], {}) == [again]


def test_a_step_that_was_cut_off_and_runs_again_is_not_duplicated() -> None:
    found = good()
    assert sum(mark.kind == "S" and mark.effect_id == effect(CRASHED, "hash") for mark in found.marks) == 2
    assert executed_after_saving(found.marks, {}) == []


def test_an_effect_repeated_before_its_checkpoint_is_within_the_promise() -> None:
    found = good()
    at = next(n for n, mark in enumerate(found.marks) if mark.instance_id == CRASHED and mark.step == "hash")
    late = replace(found.marks[at], kind="E", at_ns=found.marks[at].at_ns)
    report = judge(replace(found, kills=[], marks=[*found.marks[: at + 1], late, *found.marks[at + 1 :]]))
    assert report.ok, report.problems
    assert report.effects_repeated == 1


def failed_turn(found: Evidence) -> Evidence:
    failure = Failure("X", "broken", False, 3, None, False)
    turn = replace(found.turns[PLAIN], state="FAILED", last_failure=failure)
    return replace(found, turns={**found.turns, PLAIN: turn})


def other_order(found: Evidence) -> Evidence:
    turn = replace(found.turns[PLAIN], steps=found.turns[PLAIN].steps[::-1])
    return replace(found, turns={**found.turns, PLAIN: turn})


def unplanned(found: Evidence) -> Evidence:
    return replace(found, marks=[*found.marks, replace(found.marks[1], effect_id="foreign", at_ns=0)])


def wrong_sum(found: Evidence) -> Evidence:
    return replace(found, collected={**found.collected, "links": 4})


def missing_document(found: Evidence) -> Evidence:
    return replace(found, collected={**found.collected, "documents": 2})


def killed_outside(found: Evidence) -> Evidence:
    # The server says that the attempt which was killed had saved the step: it was not inside of it.
    turn = turn_of(CRASHED, 2, {"read": 1, "hash": 1})
    return replace(found, turns={**found.turns, CRASHED: turn})


def never_failed(found: Evidence) -> Evidence:
    return replace(found, marks=[mark for mark in found.marks if mark.kind != "F"])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (failed_turn, "doc-plain is FAILED"),
        (other_order, "saved other steps than planned"),
        (unplanned, "nobody planned"),
        (wrong_sum, "4 links, the documents 3"),
        (missing_document, "2 of 3 documents"),
        (killed_outside, "hash of doc-crashed was saved by attempt 1"),
        (never_failed, "failed 0 times"),
    ],
)
def test_what_else_is_wrong_is_a_problem(spoil: Callable[[Evidence], Evidence], says: str) -> None:
    report = judge(spoil(good()))
    assert not report.ok
    assert any(says in problem for problem in report.problems), report.problems


def test_which_steps_a_worker_is_inside_of() -> None:
    story = Story()
    story.steps("doc-1", ("read",), "a")
    inside = story.tell("S", "doc-1", "hash", "a")
    story.tell("S", "doc-2", "count", "a")
    story.tell("F", "doc-2", "count", "a")
    story.tell("R", "doc-3", "read", "a", 2)
    story.tell("S", "doc-4", "read", "b")
    assert running_steps(story.marks, "a") == [inside]


def test_which_turns_a_worker_holds() -> None:
    story = Story()
    story.tell("S", "doc-inside", "hash", "a")
    story.tell("E", "doc-between", "hash", "a")
    story.tell("E", "doc-done", STEPS[-1], "a")
    story.tell("F", "doc-waiting", "count", "a")
    story.tell("E", "doc-moved", "read", "a")
    story.tell("R", "doc-moved", "read", "b", 2)
    assert held_turns(story.marks, "a") == {"doc-inside", "doc-between"}


def test_the_report_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(
        documents=3, turns=8, effects_planned=18, effects_repeated=2, workers_killed=1, sends_refused=4
    )
    show(report)
    out = capsys.readouterr().out
    for line in (
        r"turns +8 with the collector's, 0 attempts",
        r"effects +18 planned, 2 ran again: their worker died before saving \(at least once\)",
        r"sends held back +4: the collector's inbox was full; repeated",
        r"duplicated behind a saved step +0",
    ):
        assert re.search(rf"^{line}", out, re.MULTILINE), out
    show(Report(effects_planned=18))
    out = capsys.readouterr().out
    assert re.search(r"^effects +18 planned$", out, re.MULTILINE)
    assert "held back" not in out


def test_progress_is_seen_before_a_kill(capsys: pytest.CaptureFixture[str]) -> None:
    with Display(3) as display:
        display.show(0, 0)
        display.show(0, 5, now=True)
        display.show(1, 6)
        display.show(1, 9, now=True)
    assert capsys.readouterr().err.splitlines() == ["0 of 3 documents, 5 steps", "1 of 3 documents, 9 steps"]
