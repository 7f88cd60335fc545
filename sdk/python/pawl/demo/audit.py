"""The report: what the marks say and what the server says, compared with the plan."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pawl.client import Client
from pawl.demo.chaos import Kill
from pawl.demo.marks import Mark
from pawl.demo.workflows import STEPS
from pawl.models import Sent, Turn

_PARALLEL_READS = 16


@dataclass(slots=True)
class Report:
    """What the demo found. A good run has nothing lost, nothing duplicated and no problems."""

    documents: int = 0
    """Documents whose turn completed."""
    turns: int = 0
    """Completed turns, those of the collector included."""
    steps_run: int = 0
    """Step bodies that ran to their effect, counted in the files of the workers."""
    steps_replayed: int = 0
    """Saved steps that were handed back to a later attempt without running."""
    attempts: int = 0
    """Attempts of all document turns."""
    workers_killed: int = 0
    """Workers killed with -9, each proved to be inside a step."""
    recovery_seconds: float = 0.0
    """Longest time from a kill until all that it stopped was under way again."""
    lost: int = 0
    """Planned steps whose effect did not happen, or that the server has not saved."""
    duplicated: int = 0
    """Times that a step was run again although its result had been saved."""
    effects_planned: int = 0
    """Documents times steps."""
    effects_repeated: int = 0
    """Effects that happened again because a kill came before their step was saved."""
    failures_retried: int = 0
    """Steps that raised and were run again by a later attempt."""
    sends_refused: int = 0
    """Messages refused because the collector's inbox was full, and repeated."""
    batches: int = 0
    """Batches that the collector added up."""
    servers_killed: int = 0
    stores_killed: int = 0
    seconds: float = 0.0
    """From the first message to the last turn."""
    steps_per_second: float = 0.0
    store: str = ""
    durability: str = ""
    corpus: str = ""
    problems: list[str] = field(default_factory=list)
    """Everything else that was not as it has to be."""

    @property
    def ok(self) -> bool:
        """True for a good run."""
        return not (self.lost or self.duplicated or self.problems)

    def as_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {"ok": self.ok, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the report is made of."""

    plan: Mapping[str, tuple[str, str]]
    """Effect id of every planned step → instance, step."""
    marks: Sequence[Mark]
    turns: Mapping[str, Turn]
    """Turn of each document, as the server has it."""
    kills: Sequence[Kill]
    collected: Mapping[str, int]
    """What the collector added up."""
    collector_turns: int
    failing: str
    """Instance whose step fails once."""


async def read_turns(client: Client, sent: Iterable[Sent], wait: float) -> dict[str, Turn]:
    """Reads the turn of every document from the server, once it is finished or `wait` seconds are over."""
    gate = asyncio.Semaphore(_PARALLEL_READS)

    async def one(answer: Sent) -> Turn:
        async with gate:
            turn = await client.get_turn(answer.instance_id, answer.turn)
            if not turn.finished:
                await client.await_turn(answer.instance_id, answer.turn, wait=wait)
                turn = await client.get_turn(answer.instance_id, answer.turn)
            return turn

    turns = await asyncio.gather(*(one(answer) for answer in sent))
    return {turn.instance_id: turn for turn in turns}


def judge(found: Evidence) -> Report:
    """Compares the evidence with the plan."""
    happened = Counter(mark.effect_id for mark in found.marks if mark.kind == "E")
    saved_in = _saved_attempts(found)
    completed = [turn for turn in found.turns.values() if turn.state == "COMPLETED"]
    report = Report(
        documents=len(completed),
        turns=len(completed) + found.collector_turns,
        steps_run=happened.total(),
        steps_replayed=sum(mark.kind == "R" for mark in found.marks),
        attempts=sum(turn.attempt for turn in found.turns.values()),
        workers_killed=sum(kill.target == "worker" for kill in found.kills),
        servers_killed=sum(kill.target == "server" for kill in found.kills),
        stores_killed=sum(kill.target == "store" for kill in found.kills),
        recovery_seconds=round(max((kill.recovery_seconds for kill in found.kills), default=0.0), 3),
        lost=sum(not (happened[effect] and effect in saved_in) for effect in found.plan),
        duplicated=len(executed_after_saving(found.marks, saved_in)),
        effects_planned=len(found.plan),
        effects_repeated=sum(times - 1 for times in happened.values()),
        failures_retried=sum(mark.kind == "F" for mark in found.marks),
        sends_refused=sum(turn.reply["refused"] for turn in completed),
        batches=found.collected.get("batches", 0),
    )
    report.problems += _problems(found, report, happened, saved_in, completed)
    return report


def _saved_attempts(found: Evidence) -> dict[str, int]:
    """Gives the attempt that saved each planned step, by effect id, as the server has it."""
    by_place = {place: effect for effect, place in found.plan.items()}
    return {
        by_place[turn.instance_id, step.key]: step.attempt
        for turn in found.turns.values()
        for step in turn.steps
        if (turn.instance_id, step.key) in by_place
    }


def executed_after_saving(marks: Sequence[Mark], saved_in: Mapping[str, int]) -> list[Mark]:
    """Finds the executions of steps that began after their result was saved.

    There are two proofs of that, and either counts: the attempt comes after the one that saved the step; or a
    later step of the turn had begun before, which takes an acknowledged checkpoint of this one.
    """
    first_begin: dict[tuple[str, str], int] = {}
    for mark in marks:
        if mark.kind == "S":
            place = mark.instance_id, mark.step
            first_begin[place] = min(first_begin.get(place, mark.at_ns), mark.at_ns)
    found: list[Mark] = []
    for mark in marks:
        if mark.kind != "S":
            continue
        later = STEPS[STEPS.index(mark.step) + 1 :]
        begun = [
            first_begin[mark.instance_id, key] for key in later if (mark.instance_id, key) in first_begin
        ]
        if mark.attempt > saved_in.get(mark.effect_id, mark.attempt) or any(at < mark.at_ns for at in begun):
            found.append(mark)
    return found


def _problems(
    found: Evidence,
    report: Report,
    happened: Counter[str],
    saved_in: Mapping[str, int],
    completed: Sequence[Turn],
) -> list[str]:
    problems = [
        f"turn of {turn.instance_id} is {turn.state}: {turn.last_failure}"
        for turn in found.turns.values()
        if turn.state != "COMPLETED"
    ]
    problems += [
        f"{turn.instance_id} has saved other steps than planned: {', '.join(step.key for step in turn.steps)}"
        for turn in completed
        if tuple(step.key for step in turn.steps) != STEPS
    ]
    if unknown := happened.keys() - found.plan.keys():
        problems.append(f"{len(unknown)} effects happened that nobody planned, for example {min(unknown)}")
    for name in ("words", "definitions", "links"):
        expected = sum(turn.reply[name] for turn in completed)
        if found.collected.get(name) != expected:
            problems.append(f"the collector has {found.collected.get(name)} {name}, the documents {expected}")
    if found.collected.get("documents") != len(found.turns):
        problems.append(
            f"the collector got {found.collected.get('documents')} of {len(found.turns)} documents"
        )
    return problems + _unproved_kills(found, saved_in) + _unproved_failure(found, report)


def _unproved_kills(found: Evidence, saved_in: Mapping[str, int]) -> list[str]:
    """The server must agree that each step a worker died in was saved by a later attempt only."""
    return [
        f"{mark.step} of {mark.instance_id} was saved by attempt {saved_in.get(mark.effect_id)}, although the"
        f" worker was killed inside it in attempt {mark.attempt}"
        for kill in found.kills
        for mark in kill.inside
        if saved_in.get(mark.effect_id, mark.attempt) <= mark.attempt
    ]


def _unproved_failure(found: Evidence, report: Report) -> list[str]:
    failing = found.turns.get(found.failing)
    if report.failures_retried >= 1 and failing is not None and failing.attempt > 1:
        return []
    return [f"the document that fails once failed {report.failures_retried} times"]
