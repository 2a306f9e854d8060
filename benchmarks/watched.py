"""What it costs a program to be watched: CPU time under ``profkit run`` against bare Python.

The programs of ``benchmarks/programs`` run bare, under ``profkit run``, and with ``--no-trace``.
CPU time is that of the process and of its children; the minimum of several runs is printed, in
seconds:

* ``start-up``: until the program's first line, beyond that of bare Python;
* ``hooks``: what the program takes longer with ``--no-trace``: hooks, samples of memory, searches;
* ``window``: what it takes longer still with the recording of a few steps;
* ``end``: after the program's last line: export, analysis, and the report.

Output and exit code must be those of the bare program. The targets are
:data:`MAX_START_UP_S` beyond bare Python for a program without torch, :data:`MAX_TINY_RATIO` for
the hooks of programs of thousands of tiny steps, and :data:`MAX_SERVICE_RATIO` for services that
run for ten seconds or more: start-up and end take the same time whatever the length, and up to
:data:`profkit.capture.recording.recording_budget.FREE_S` are for the recording.

Run it with ``python benchmarks/watched.py [--runs N] [--longer N] [--json FILE] [PROGRAM ...]``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.figures import compared

ROOT: Final = Path(__file__).parents[1]
PROGRAMS: Final = ROOT / "benchmarks" / "programs"
MAX_START_UP_S: Final = 0.2
MAX_SERVICE_RATIO: Final = 1.1
MAX_TINY_RATIO: Final = 1.05
WITHOUT_TORCH: Final = ("no_torch", "syntax_error")
TINY_STEPS: Final = ("iris_mlp", "linear_regression")
SERVICES: Final = ("asyncio_service", "inference_loop", "threaded_service")
_RUNNER: Final = """\
import os, resource, sys
from profkit.capture.process import program

def spent():
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)

def run(start, original=program._run):
    began = spent()
    try:
        return original(start)
    finally:
        with open(os.environ["BENCHMARK_STAMPS"], "w") as file:
            file.write(f"{began} {spent()}")

program._run = run
from profkit.cli.main import main
sys.argv[:] = ["profkit", "run", *sys.argv[1:]]
sys.exit(main())
"""
"""``profkit run`` that notes the CPU time at the program's first and last line."""


class Cost(NamedTuple):
    """CPU seconds of a program.

    Attributes:
        bare: In all, without profkit.
        watched: In all, under ``profkit run``.
        start_up: Until its first line, beyond bare Python.
        hooks: Hooks and memory monitoring while it runs.
        window: Recording while it runs.
        end: After its last line.
    """

    bare: float
    watched: float
    start_up: float
    hooks: float
    window: float
    end: float

    @property
    def ratio(self) -> float:
        """Watched against bare."""
        return self.watched / self.bare


class Run(NamedTuple):
    """CPU seconds of a process, in all and at the program's first and last line, and its result."""

    total: float
    began: float
    ended: float
    result: tuple[int, bytes]


def run_on_one_core(command: list[str], folder: Path) -> Run:
    """Run a command on one core in a folder."""
    stamps = folder / "stamps"
    stamps.unlink(missing_ok=True)
    settings = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "PROFKIT_DIR": str(folder / "traces"),
        "BENCHMARK_STAMPS": str(stamps),
    }

    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=folder, env=settings, stdout=output, stderr=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        result = process.returncode, output.read()

    began, ended = map(float, stamps.read_text().split()) if stamps.exists() else (0.0, 0.0)
    return Run(used.ru_utime + used.ru_stime, began, ended, result)


def fastest(command: list[str], folder: Path, runs: int) -> Run:
    """Return the run that took least."""
    return min((run_on_one_core(command, folder) for _ in range(runs)), key=lambda run: run.total)


def measure_costs(program: Path, folder: Path, runs: int, longer: int = 1) -> Cost:
    """Measure the costs of one program.

    Args:
        longer: How many times its usual requests a service answers.

    Raises:
        RuntimeError: Its output or exit code is another one when it is watched.
    """
    start = fastest([sys.executable, "-c", ""], folder, runs).total
    run, command = [sys.executable, "-c", _RUNNER], [str(program), str(longer)]
    bare = fastest([sys.executable, *command], folder, runs)
    watched = fastest([*run, *command], folder, runs)
    untraced = fastest([*run, "--no-trace", *command], folder, runs)

    for instrumented in (watched, untraced):
        if instrumented.result != bare.result:
            raise RuntimeError(f"{program.name}: {instrumented.result} instead of {bare.result}")
    inside = untraced.ended - untraced.began
    return Cost(
        bare=bare.total,
        watched=watched.total,
        start_up=watched.began - start,
        hooks=inside - (bare.total - start),
        window=watched.ended - watched.began - inside,
        end=watched.total - watched.ended,
    )


def programs() -> list[str]:
    """Return the names of all programs."""
    return sorted(path.stem for path in PROGRAMS.iterdir() if path.is_file())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What it costs a program to be watched.")
    parser.add_argument("program", nargs="*", help="names of programs; all by default")
    parser.add_argument("--runs", type=int, default=1, help="runs of each, of which the least (1)")
    parser.add_argument("--longer", type=int, default=12, help="times the usual requests (12)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args()

    figures = {}
    print(f"{'CPU seconds':20}" + "".join(f"{field:>9}" for field in (*Cost._fields, "ratio")))

    with tempfile.TemporaryDirectory() as folder:
        for name in options.program or programs():
            (source,) = PROGRAMS.glob(f"{name}.*")
            cost = measure_costs(source, Path(folder), options.runs, options.longer)
            figures[name] = {**cost._asdict(), "ratio": cost.ratio}
            columns = "".join(f"{seconds:9.2f}" for seconds in cost)
            print(f"{name:20}{columns}{cost.ratio:9.2f}", flush=True)
            if name in WITHOUT_TORCH:
                compared(f"{name}: start-up", cost.start_up, "s", MAX_START_UP_S)
            elif name in SERVICES:
                what = f"{name}: processor time of {cost.bare:.0f} s, of the bare program"
                compared(what, cost.ratio, "x", MAX_SERVICE_RATIO)
            elif name in TINY_STEPS:
                what = f"{name}: hooks and memory monitoring, of the bare program"
                compared(what, 1 + cost.hooks / cost.bare, "x", MAX_TINY_RATIO)

    if options.json is not None:
        options.json.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
