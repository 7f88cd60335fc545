"""`python -m bench`: measures the workloads and prints one JSON line each.

It fails if a message was lost or handled twice, and if durable timers are later than they may be although
others left the machine alone.

With --base COMMIT the same workloads run on that commit and on the working tree in turn, five rounds, and the
medians and their ratio are printed. Rounds in which others used more than 15 % of a core are repeated, at
most twice as many in all.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

ROUNDS = 5
FOREIGN_PCT = 15.0
SCRIPT_GROWTH = 1.35
"""Script time of a turn with much stored, against that with least stored, at most."""
SOAK_GROWTH = 1.1
"""Memory at the end of the soak, against that after the warm-up, at most."""
ROOT = Path(__file__).resolve().parents[1]
MEASURES = ("turns_per_s", "steps_per_s", "p50_ms", "p99_ms", "bytes", "recovery_s")


def _tree_env(tree: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(tree / part) for part in ("", "server", "sdk/python")),
    }


def _run_once(tree: Path, workload: str, scripts: bool, quick: bool) -> dict[str, Any]:
    flags = (["--scripts"] if scripts else []) + (["--quick"] if quick else [])
    done = subprocess.run(
        [sys.executable, "-m", "bench", *flags, "--workloads", workload],
        cwd=tree, env=_tree_env(tree), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise click.ClickException(f"{workload} failed in {tree}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _median(rows: list[dict[str, Any]], measure: str) -> float | None:
    values = [row[measure] for row in rows if row.get(measure) is not None]
    return statistics.median(values) if values else None


def _summary(workload: str, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = {"workload": workload, "tree": name, "rounds": len(rows)}
    summary |= {measure: _median(rows, measure) for measure in MEASURES}
    summary["foreign_pct"] = _median(rows, "foreign_pct")
    summary["exact"] = all(row["exact"] for row in rows)
    return summary


def _compare(base: str, workloads: list[str], scripts: bool, quick: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="pawl-base-") as folder:
        other = Path(folder) / "base"
        subprocess.run(
            ["git", "worktree", "add", "--detach", str(other), base],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        try:
            for workload in workloads:
                rows: dict[str, list[dict[str, Any]]] = {"base": [], "here": []}
                repeated = 0
                for attempt in range(2 * ROUNDS):
                    if len(rows["here"]) == ROUNDS:
                        break
                    pair = {
                        "base": _run_once(other, workload, scripts, quick),
                        "here": _run_once(ROOT, workload, scripts, quick),
                    }
                    noisy = max((row.get("foreign_pct") or 0) for row in pair.values()) > FOREIGN_PCT
                    click.echo(json.dumps({"round": attempt, "noisy": noisy, **pair}), err=True)
                    repeated += noisy
                    if not noisy or 2 * ROUNDS - attempt <= ROUNDS - len(rows["here"]):
                        for name, row in pair.items():
                            rows[name].append(row)
                summaries = {name: _summary(workload, name, found) for name, found in rows.items()}
                for summary in summaries.values():
                    click.echo(json.dumps(summary))
                ratios = {
                    measure: round(summaries["here"][measure] / summaries["base"][measure], 3)
                    for measure in MEASURES
                    if summaries["here"][measure] and summaries["base"][measure]
                }
                click.echo(
                    json.dumps({"workload": workload, "ratio_here_to_base": ratios, "noisy_rounds": repeated})
                )
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=False)


def _sweeps(scaling: bool, soak: float, quick: bool) -> bool:
    """Runs the sweeps; False if a count is wrong or a bar is missed."""
    from bench.scaling import KEPT, ROUNDS, STORED, run_scaling
    from bench.workloads import run_soak

    good = True
    if scaling:
        sizes = ((100, 1_000), (0, 40), 2) if quick else (STORED, KEPT, ROUNDS)
        rows = asyncio.run(run_scaling(*sizes))
        for row in rows:
            click.echo(json.dumps(row))
        good = all(row["exact"] and row["script_ratio"] <= SCRIPT_GROWTH for row in rows)
        for count in ("calls_per_turn", "commands_per_turn"):
            good = good and len({round(row[count], 1) for row in rows}) == 1
    if soak:
        row = asyncio.run(run_soak(soak, lambda progress: click.echo(json.dumps(progress), err=True)))
        click.echo(json.dumps(row))
        good = good and row["exact"]
        good = good and all(row[f"{name}_growth"] <= SOAK_GROWTH for name in ("store", "server"))
    return good


@click.command()
@click.option(
    "--workloads", default="", help="Comma-separated; default all: W1,W1b,W2,W3,W4,W5,W5t,W5b,W6,W7."
)
@click.option("--scripts", is_flag=True, help="Replay the script calls of W1 without gRPC.")
@click.option("--scaling", is_flag=True, help="Cost of a turn as more is stored.")
@click.option(
    "--soak",
    default=0.0,
    metavar="MINUTES",
    help="Steady load in virtual time: 17 minutes until the first receipts have gone, then so many in which "
    "memory must not grow. 10 take about six real minutes.",
)
@click.option("--base", default="", help="Compare with this commit, interleaved, five rounds, medians.")
@click.option("--quick", is_flag=True, help="Small sizes: a look, not a result.")
def main(workloads: str, scripts: bool, scaling: bool, soak: float, base: str, quick: bool) -> None:
    """Measures the workloads; one JSON line each."""
    from bench.common import QUICK, Sizes
    from bench.workloads import WORKLOADS, run

    names = [name for name in workloads.split(",") if name] or (["W1"] if scripts else list(WORKLOADS))
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        raise click.UsageError(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if scaling or soak:
        sys.exit(0 if _sweeps(scaling, soak, quick) else 1)
    if base:
        _compare(base, names, scripts, quick)
        return
    sizes = QUICK if quick else Sizes()
    failed = False
    for name in names:
        if scripts:
            from bench.scripts import run_scripts

            row = asyncio.run(run_scripts(sizes))
        else:
            row = asyncio.run(run(name, sizes))
        click.echo(json.dumps(row))
        failed = failed or not row["exact"]
        failed = failed or (row.get("late") is True and row["foreign_pct"] <= FOREIGN_PCT)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
