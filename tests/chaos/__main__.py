"""Programs of all kinds under ``profkit run``, with random signals: none may break.

``make chaos`` runs it. Each program runs bare, and then under ``profkit run`` a number of times,
half of them with signals at random times. Output, exit code and end must be those of the bare
program; the report must have a whole step where the program has ten; and torch's profiler may be
started and stopped at safe points only. Figures are written to ``build/chaos.json``, failed runs to
``build/chaos/failed``. The exit status is 1 if any run failed.

Run it with ``python -m tests.chaos [--runs N] [--seed S] [--jobs 2] [PROGRAM ...]``.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Final

from tests.chaos.bare_runs import BareRuns
from tests.chaos.results import Results, RunResult
from tests.chaos.runs import MIN_LIMIT_S, Plan, run_once
from tests.chaos.table import PROGRAMS
from tests.chaos.treatments import Treatment
from tests.chaos.watching import BUILD, ROOT
from tests.processes import let_interrupts_through

RESULTS: Final = ROOT / "build" / "chaos.json"
MAX_JOBS: Final = 2


def main() -> int:
    """Run, print each run and the table, and return the exit status."""
    options = read_arguments()
    let_interrupts_through()
    plan = Plan(options.seed, options.share, options.limit, is_watched=not options.bare)
    bare_runs, results = BareRuns(BUILD / "bare.json"), Results(options.seed)
    treatment = Treatment[options.treatment] if options.treatment else None

    def run(task: tuple[str, int]) -> RunResult:
        return run_once(*task, plan, bare_runs, treatment)

    tasks = plan_tasks(options.programs or list(PROGRAMS), options.runs, options.seed)
    RESULTS.parent.mkdir(exist_ok=True)
    with ThreadPoolExecutor(min(options.jobs, MAX_JOBS)) as pool:
        for result in pool.map(run, tasks):
            results.runs.append(result)
            print(describe(result, len(results.runs), len(tasks)), flush=True)
            results.write(RESULTS)

    print("", results.table(), sep="\n")
    print(f"\n{results.n_failed} of {len(results.runs)} runs failed; figures in {RESULTS}")
    return 1 if results.n_failed else 0


def read_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.chaos")
    add = partial(parser.add_argument, metavar="N")
    add("programs", nargs="*", metavar="PROGRAM", help="names of programs; all by default")
    add("--runs", type=int, default=1, help="runs of each program (1)")
    add("--seed", type=int, default=0, help="what random choices come from (0)")
    add("--jobs", type=int, default=1, help="runs at a time, at most 2 (1)")
    add("--share", type=float, default=0.5, help="share of the runs with signals (0.5)")
    add("--limit", type=float, default=MIN_LIMIT_S, help="seconds after which a run hangs (60)")
    treatments = [treatment.name for treatment in Treatment]
    parser.add_argument("--treatment", choices=treatments, help="do this in all runs")
    parser.add_argument("--bare", action="store_true", help="send signals to bare programs")
    options = parser.parse_args()
    if unknown := set(options.programs) - set(PROGRAMS):
        parser.error(f"no such program: {', '.join(sorted(unknown))}")

    return options


def plan_tasks(names: list[str], n_runs: int, seed: int) -> list[tuple[str, int]]:
    """Return the runs in their order: all programs once, in a random order, then again."""
    random = Random(seed)  # noqa: S311  (runs that can be repeated)
    tasks = []
    for index in range(n_runs):
        round_names = random.sample(names, len(names))
        tasks += [(name, index) for name in round_names]
    return tasks


def describe(result: RunResult, n_done: int, n_all: int) -> str:
    """Return one line on a run."""
    verdict = ", ".join(kind.value for kind in result.failures) or "ok"
    treatment = "" if result.treatment is Treatment.NONE else f"  [{result.treatment.value}]"
    seconds = f"{result.watched.wall_s:.1f} s, bare {result.bare.wall_s:.1f} s"
    return f"{n_done:4}/{n_all} {result.name:22}{verdict:12} {seconds}{treatment}"


if __name__ == "__main__":
    sys.exit(main())
