"""Takes one refusal or write at a time out of the transitions and sees that their tests notice.

    python tools/mutants.py                     all mutants
    python tools/mutants.py --count 40          as many drawn at random; prints the seed, --seed S repeats it
    python tools/mutants.py --only finish,fail  those of some transitions and of the code of lua/lib they use
    python tools/mutants.py --last              those that survived last time

The tests of a transition are those of tests/transitions that call it; code of lua/lib has the tests of all
transitions that use it. A mutant that none of them notices has survived. That fails the run, unless
tests/mutants.toml lists the mutant with a reason. What does not compile is no mutant.

To look closer at one, change a copy of server/pawl_server/lua and run the tests with PAWL_TEST_LUA=<copy>.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

from pawl_server.store.bundle import LUA
from tools.mutating.choice import Choice
from tools.mutating.operators import Mutant, mutants_of
from tools.mutating.pool import Pool, WorkerFailed
from tools.mutating.scripts import Scripts
from tools.mutating.worker import Job

ROOT = Path(__file__).resolve().parents[1]
ACCEPTED = ROOT / "tests/mutants.toml"
LAST = ROOT / "build/mutants/last.json"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: the test that noticed it and what that saw, both empty if it survived."""

    mutant: Mutant
    test: str
    why: str
    seconds: float

    def __str__(self) -> str:
        where = f"{self.mutant.file}:{self.mutant.line}"
        what = self.mutant.name.removeprefix(self.mutant.file).strip()
        if not self.test:
            return f"survived {where}  {what}"
        return f"noticed  {where}  {what}  [{self.test.rpartition('/')[2]} {self.seconds:.1f} s]"


def read_sources(folder: Path = LUA) -> dict[str, str]:
    """Returns the texts of all Lua sources by file name below `folder`."""
    paths = sorted(folder.glob("*/*.lua"))
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def read_accepted(path: Path = ACCEPTED) -> dict[str, str]:
    """Returns the reasons why survivors are accepted, by mutant. Raises ValueError, which names the entry."""
    accepted: dict[str, str] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("survivor", []):
        reason = entry.get("reason", "").strip()
        for name in entry["mutants"]:
            if not reason or name in accepted:
                raise ValueError(f"{path.name}: {'listed twice' if reason else 'no reason given'}: {name}")
            accepted[name] = reason
    return accepted


def find_mutants(scripts: Scripts, only: Sequence[str] = ()) -> list[Mutant]:
    """Returns the mutants of all transitions, or of the named ones and the code of lua/lib that they use."""
    code = {name: text for name, text in scripts.sources.items() if not name.startswith("queries/")}
    wanted = set(only or scripts.transitions)
    return [mutant for mutant in mutants_of(code) if wanted & set(scripts.of(mutant))]


def draw(mutants: Sequence[Mutant], scripts: Scripts, count: int, seed: int) -> list[Mutant]:
    """Returns the viable ones of `mutants`, or `count` of them (0: all) drawn by `seed`."""
    if not count:
        return [mutant for mutant in mutants if scripts.viable(mutant)]
    drawn: list[Mutant] = []
    for mutant in random.Random(seed).sample(mutants, len(mutants)):
        if len(drawn) < count and scripts.viable(mutant):
            drawn.append(mutant)
    return drawn


def judge(mutant: Mutant, choice: Choice, pool: Pool) -> Verdict:
    """Runs the tests of a mutant until one fails. Raises WorkerFailed."""
    started = time.perf_counter()
    change = (mutant.file, mutant.apply(choice.scripts.sources[mutant.file]))
    usual = {name: one.seconds for name, one in choice.tested.items()}
    tests = choice.order(mutant)
    test = why = ""
    for attempt in range(2 if tests else 0):
        ran = pool.run(Job(tests, change), usual)
        test = why = ""
        if ran.stalled:
            test, why = ran.stalled, "does not come back"
        elif ran.done[-1].why:
            test, why = ran.done[-1].id, ran.done[-1].why
        if ran.spoiled and attempt:
            raise WorkerFailed(f"{test} fails without a mutant as well: {why}")
        # Both may be the fault of the worker, or of a busy machine: a new worker decides.
        if not ran.spoiled and not ran.stalled:
            break
    if test:
        choice.noticed(mutant, test)
    return Verdict(mutant, test, why, time.perf_counter() - started)


def judge_all(mutants: Sequence[Mutant], scripts: Scripts, options: argparse.Namespace) -> list[Verdict]:
    """Judges the mutants on several workers and prints each that survives. Raises WorkerFailed."""
    last = json.loads(LAST.read_text()) if LAST.exists() else {}
    with Pool(ROOT, scripts.sources, options.tests, options.jobs) as pool:
        tested = pool.run_all()
        for one in tested.values():
            if one.why:
                raise WorkerFailed(f"{one.id} fails without any mutant: {one.why}")
        choice = Choice(scripts, tested, last.get("killers", {}))

        def one_more(mutant: Mutant) -> Verdict:
            verdict = judge(mutant, choice, pool)
            if options.verbose or not verdict.test:
                print(verdict, flush=True)
            return verdict

        with ThreadPoolExecutor(options.jobs) as threads:
            verdicts = list(threads.map(one_more, mutants))
    survivors = [verdict.mutant.name for verdict in verdicts if not verdict.test]
    LAST.parent.mkdir(parents=True, exist_ok=True)
    LAST.write_text(json.dumps({"survivors": survivors, "killers": choice.killers}, indent=0))
    return verdicts


def differences(verdicts: Sequence[Verdict], accepted: Mapping[str, str]) -> list[str]:
    """Says where the verdicts are not what the list of accepted survivors says."""
    found: list[str] = []
    for one in verdicts:
        if not one.test and one.mutant.name not in accepted:
            found.append(f"no test notices {one.mutant.name}")
        elif one.test and one.mutant.name in accepted:
            found.append(f"{ACCEPTED.name} lists what {one.test} notices: {one.mutant.name}")
    return found


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    options = parse_options(arguments)
    started = time.perf_counter()
    scripts, accepted = Scripts(read_sources()), read_accepted()
    every = {mutant.name for mutant in find_mutants(scripts)}
    wrong = [f"{ACCEPTED.name} lists what is no mutant: {name}" for name in accepted if name not in every]
    mutants = find_mutants(scripts, options.only)
    if options.last:
        last = json.loads(LAST.read_text())["survivors"] if LAST.exists() else []
        mutants = [mutant for mutant in mutants if mutant.name in last]
    if options.count:
        mutants = [mutant for mutant in mutants if mutant.name not in accepted]
    seed = f", seed {options.seed}" if options.count else ""
    drawn = draw(mutants, scripts, options.count, options.seed)
    print(f"mutants: {len(drawn)} of {len(every)}{seed}", flush=True)
    if options.list:
        print(*(f"{mutant.line:4d} {mutant.name}" for mutant in drawn), sep="\n")
        return 0
    try:
        verdicts = judge_all(drawn, scripts, options)
    except WorkerFailed as error:
        print(f"mutants: {error}")
        return 2
    wrong += differences(verdicts, accepted)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    noticed = sum(bool(verdict.test) for verdict in verdicts)
    seconds = time.perf_counter() - started
    print(f"mutants: {noticed} of {len(drawn)} noticed, {len(wrong)} findings, {seconds:.0f} s{seed}")
    return 1 if len(wrong) > options.allow else 0


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=0, help="how many to draw; all if not given")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--allow", type=int, default=0, help="findings that are told but do not fail the run")
    parser.add_argument("--only", default="", help="transitions, separated by commas")
    parser.add_argument("--last", action="store_true", help="only those that survived last time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; one per core")
    parser.add_argument("--list", action="store_true", help="list them and run nothing")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each mutant")
    parser.add_argument("tests", nargs="*", default=["tests/transitions"], help="files or folders")
    options = parser.parse_args(arguments)
    options.only = [name for name in options.only.split(",") if name]
    unknown = sorted(name for name in options.only if not (LUA / f"transitions/{name}.lua").exists())
    if unknown:
        parser.error(f"no transition is called {', '.join(unknown)}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
