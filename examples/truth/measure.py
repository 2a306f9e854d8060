"""Measures what the fixes of examples save on a CPU, and writes ``docs/truth.md``.

Each program runs with its problem, fixed, and with its problem under ``profkit run``, one after the
other, several times. Nothing else should run on the machine; a lower nice value is taken if it is
allowed. It takes about five minutes on two cores.

Run: ``python -m examples.truth.measure [--rounds N] [NAME…]``, or ``make truth``.
"""

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from examples.gpu import record
from examples.gpu.recording.rows import ROOT, Rows
from examples.truth.section import MEASURED, Pair
from examples.truth.timed import PREFIX

TIMED: Final = Path(__file__).with_name("timed.py")
NICE: Final = -5
ON_CPU: Final = ("--device", "cpu", "--scale", "0.05")
DIGITS: Final = 4
KEPT_BYTES: Final = "1000000000"
SETTINGS: Final = {
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": KEPT_BYTES,
    "MALLOC_TRIM_THRESHOLD_": KEPT_BYTES,
}
"""Without the last two, glibc returns freed tensors to the system: page faults in the next step."""


@dataclass(frozen=True)
class Programs:
    """A pair of programs.

    Attributes:
        rule: The name of the rule that finds the problem.
        problem: Path and arguments of the program with its problem.
        fixed: The same of the fixed program.
        n_recorded: Steps to record.
    """

    rule: str
    problem: tuple[str, ...]
    fixed: tuple[str, ...]
    n_recorded: int = 20


RECOMPILES: Final = ("gpu/recompiles.py", "--steps", "8", "--warm-up", "4", *ON_CPU)
PROGRAMS: Final = {
    "starved_loader": Programs(
        "starved-by-loader", ("starved_loader.py",), ("starved_loader_cured.py",)
    ),
    "zeroed_gradients": Programs(
        "zeroed-gradients", ("zeroed_gradients.py",), ("zeroed_gradients_cured.py",)
    ),
    "recompiles": Programs("recompiles", RECOMPILES, (*RECOMPILES, "--cured"), n_recorded=6),
}


def ran(command: Sequence[str], folder: Path) -> str:
    """Run Python in a folder and return what it printed."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    settings = {**os.environ, **SETTINGS, "PYTHONPATH": path}
    finished = subprocess.run(  # noqa: S603
        [sys.executable, *command],
        cwd=folder, env=settings, check=True, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return finished.stdout


def step_ms(program: Sequence[str], folder: Path) -> float:
    """The median step time of a program without profkit, in milliseconds."""
    printed = ran([str(TIMED), *program], folder)
    line = next(line for line in printed.splitlines() if line.startswith(PREFIX))
    return float(json.loads(line.removeprefix(PREFIX))["median_ms"])


def cost_of(report: dict[str, Any], rule: str) -> dict[str, Any]:
    """The cost of the first finding of a rule; its figures are None if there is no finding.

    Args:
        report: A decoded JSON report.
    """
    none = {"per_step_ns": None}
    found = (finding["cost"] for finding in report["findings"] if finding["name"] == rule)
    return next(found, none)


def predicted(programs: Programs, folder: Path) -> tuple[float, float, float, str]:
    """Record a program with its problem.

    Returns:
        The ends of the cost per step, and the length of a step, in milliseconds; the basis.

    Raises:
        ValueError: If the rule finds nothing with a cost.
    """
    options = ["--active", str(programs.n_recorded), "--dir", "out", "--json", "report.json"]
    program = [str(ROOT / "examples" / programs.problem[0]), *programs.problem[1:]]
    ran(["-m", "profkit", "run", *options, *program], folder)
    report = json.loads((folder / "report.json").read_text())
    cost, n_steps = cost_of(report, programs.rule), len(report["summary"]["steps"])
    if cost["per_step_ns"] is None:
        raise ValueError(f"{programs.rule} finds nothing with a cost in {programs.problem[0]}.")
    lower_ms = cost["ns"] / n_steps / 1e6
    upper_ms = lower_ms if cost["max_ns"] is None else cost["max_ns"] / n_steps / 1e6
    return lower_ms, upper_ms, report["summary"]["window_ns"] / n_steps / 1e6, cost["basis"]


def measure(name: str, n_rounds: int) -> Pair:
    """Run a pair of programs.

    Args:
        name: Its name in ``PROGRAMS``.
        n_rounds: How often each runs.
    """
    programs = PROGRAMS[name]
    problem, fixed = (
        [str(ROOT / "examples" / each[0]), *each[1:]] for each in (programs.problem, programs.fixed)
    )
    problem_ms, fixed_ms, lower_ms, upper_ms, recorded_ms = [], [], [], [], []
    basis = ""
    for _ in range(n_rounds):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            problem_ms.append(step_ms(problem, folder))
            fixed_ms.append(step_ms(fixed, folder))
            lower, upper, step, basis = predicted(programs, folder)
        lower_ms.append(round(lower, DIGITS))
        upper_ms.append(round(upper, DIGITS))
        recorded_ms.append(round(step, DIGITS))
        print(
            f"{name}: {problem_ms[-1]} ms, fixed {fixed_ms[-1]} ms, predicted {lower_ms[-1]} ms",
            flush=True,
        )
    return Pair(
        name, programs.rule, problem_ms, fixed_ms, lower_ms, upper_ms, recorded_ms, basis
    )  # fmt: skip


def machine() -> dict[str, Any]:
    """This machine's processor and versions."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        cpu = next(iter(names), cpu)
    return {
        "cpu": cpu, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__, "python": platform.python_version(),
    }  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and write the page.

    Args:
        words: The arguments, or None for those of the command line.
    """
    parser = argparse.ArgumentParser(description="Measure what fixes save on a CPU.")
    parser.add_argument("names", nargs="*", help="pairs (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each program (5)")
    parser.add_argument("--only-table", action="store_true", help="run nothing; write the page")
    options = parser.parse_args(words)
    if not options.only_table:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
        old = json.loads(MEASURED.read_text())["pairs"] if MEASURED.exists() else []
        pairs = {pair["program"]: pair for pair in old}
        loads = [os.getloadavg()[0]]
        for name in options.names or PROGRAMS:
            pairs[name] = asdict(measure(name, options.rounds))
            loads.append(os.getloadavg()[0])
        measured = {
            "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
            "machine": machine(),
            "load": [round(min(loads), 1), round(max(loads), 1)],
            "pairs": [pairs[name] for name in PROGRAMS if name in pairs],
        }
        MEASURED.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    record.write_table(Rows(record.OUT), {}, record.TABLE, expects=False)


if __name__ == "__main__":
    main()
