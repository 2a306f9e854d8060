"""Measures what the fixes of examples save on a CPU, and writes ``docs/truth.md``.

Each program runs with its problem and fixed, in turn and in one process; then with its problem
under ``profkit run``; then the next program; then all again, until the time is up. Other programs
on the machine make it less exact, not wrong: times are CPU times, and runs are compared with their
neighbours.

Run: ``python -m examples.truth.measure [--minutes M] [NAME…]``, or ``make truth``.
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
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from examples.gpu import record
from examples.gpu.recording.rows import ROOT, Rows
from examples.truth.section import MEASURED, Pair, Round
from examples.truth.timed import PREFIX

TIMED: Final = Path(__file__).with_name("timed.py")
MINUTES: Final = 17.0
MIN_ROUNDS: Final = 2
ON_CPU: Final = ("--device", "cpu", "--scale", "0.05")
SETTINGS: Final = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
KEPT_BYTES: Final = "1000000000"
KEEPS_MEMORY: Final = {"MALLOC_MMAP_THRESHOLD_": KEPT_BYTES, "MALLOC_TRIM_THRESHOLD_": KEPT_BYTES}
"""glibc does not return freed memory to the system."""


@dataclass(frozen=True)
class Programs:
    """A pair of programs.

    Attributes:
        rule: The name of the rule that finds the problem.
        problem: Path and arguments of the program with its problem.
        fixed: The same of the fixed program.
        n_steps: Steps to record, and to time without a recording.
        settings: Further environment variables.
        is_inference: Whether no optimizer ends the steps, which are calls of a model.
    """

    rule: str
    problem: tuple[str, ...]
    fixed: tuple[str, ...]
    n_steps: int
    settings: Mapping[str, str] = field(default_factory=dict)
    is_inference: bool = False

    @classmethod
    def sized(
        cls, rule: str, name: str, *sizes: str, n_steps: int = 30, is_inference: bool = False
    ) -> "Programs":
        """Return a program that ``sized.py`` runs, with steps of milliseconds."""
        command = ("truth/sized.py", name, "--steps", str(n_steps + MORE_STEPS), *sizes)
        return cls(
            rule, command, (*command, "--cured"), n_steps, KEEPS_MEMORY, is_inference=is_inference
        )


MORE_STEPS: Final = 10
"""Steps before and after those that are recorded."""
STARVED: Final = ("starved_loader.py", "30"), ("starved_loader_cured.py", "30")
WIDE: Final = ("70", "--sizes", "2048", "2")
ZEROED: Final = ("zeroed_gradients.py", *WIDE), ("zeroed_gradients_cured.py", *WIDE)
RECOMPILES: Final = ("gpu/recompiles.py", "--steps", "8", "--warm-up", "4", *ON_CPU)
BREAKS: Final = ("gpu/graph_breaks.py", "--steps", "300", *ON_CPU)
AVERAGES: Final = ("gpu/averaged_weights.py", "--steps", "40", "--warm-up", "4", *ON_CPU)
PROGRAMS: Final = {
    "starved_loader": Programs("starved-by-loader", *STARVED, 20),
    "starved_loader, freed memory kept": Programs("starved-by-loader", *STARVED, 20, KEEPS_MEMORY),
    "zeroed_gradients": Programs("zeroed-gradients", *ZEROED, 60),
    "zeroed_gradients, freed memory kept": Programs("zeroed-gradients", *ZEROED, 60, KEEPS_MEMORY),
    "recompiles": Programs("recompiles", RECOMPILES, (*RECOMPILES, "--cured"), 6),
    "graph_breaks": Programs("graph-breaks", BREAKS, (*BREAKS, "--cured"), 300),
    "unfused_update, Adam": Programs.sized("unfused-optimizer", "unfused_update"),
    "unfused_update, SGD": Programs.sized("unfused-optimizer", "unfused_update", "MOMENTUM=1"),
    "averaged_weights": Programs("per-tensor-loop", AVERAGES, (*AVERAGES, "--cured"), 30),
    "attention_by_hand": Programs.sized("unfused-attention", "attention_by_hand"),
    "attention_by_hand, long": Programs.sized(
        "unfused-attention", "attention_by_hand", "LENGTH=512", "BATCH=2"
    ),
    "half_convolutions": Programs.sized(
        "slow-convolutions", "half_convolutions", is_inference=True
    ),
    "dense_table": Programs.sized("dense-table-update", "dense_table"),
    "one_hot_words": Programs.sized("one-hot-product", "one_hot_words", n_steps=20),
    "pairs_in_one_tensor": Programs.sized("pairwise-broadcast", "pairs_in_one_tensor"),
    "table_in_float64": Programs.sized("double-precision", "table_in_float64", "WIDTH=512"),
    "taught_student": Programs.sized("unused-gradients", "taught_student"),
    "anomaly_detection": Programs.sized(
        "debug-left-on", "anomaly_detection", "WIDTH=256", "BATCH=64", n_steps=60
    ),
    "saved_every_step": Programs.sized("host-function", "saved_every_step", n_steps=250),
    "listed_arrays": Programs.sized("host-function", "listed_arrays"),
    "cleaned_every_step": Programs.sized("host-function", "cleaned_every_step", n_steps=20),
}


def ran(
    command: Sequence[str], folder: Path, settings: Mapping[str, str]
) -> list[list[list[float]]]:
    """Run Python in a folder.

    Returns:
        What ``timed.py`` printed: per program and run, the mean wall time and the mean CPU time of
        a step, in milliseconds.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    finished = subprocess.run(  # noqa: S603
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **SETTINGS, **settings, "PYTHONPATH": path},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
    )
    line = next(line for line in finished.stdout.splitlines() if line.startswith(PREFIX))
    return list(json.loads(line.removeprefix(PREFIX)))


def cost_of(report: dict[str, Any], rule: str) -> dict[str, Any]:
    """Return the cost of the first finding of a rule; its figures are None if there is no finding.

    Args:
        report: A decoded JSON report.
    """
    costs = (finding["cost"] for finding in report["findings"] if finding["name"] == rule)
    return next(costs, {"ns": None})


def measure(programs: Programs) -> tuple[Round, str]:
    """Run a pair of programs once: without profkit in turn, then recorded.

    Returns:
        The figures, and the basis of the cost.

    Raises:
        ValueError: If the rule finds nothing with a cost.
    """
    problem, fixed = (
        [str(ROOT / "examples" / command[0]), *command[1:]]
        for command in (programs.problem, programs.fixed)
    )
    timed = [str(TIMED), *(["--calls"] if programs.is_inference else []), str(programs.n_steps)]
    options = ["--active", str(programs.n_steps), "--dir", "out", "--json", "report.json"]

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        plain, cured = ran([*timed, *problem, "--", *fixed], folder, programs.settings)
        command = ["-m", "profkit", "run", *options, *timed, *problem]
        (((wall_ms, cpu_ms),),) = ran(command, folder, programs.settings)
        report = json.loads((folder / "report.json").read_text())

    cost, n_steps = cost_of(report, programs.rule), len(report["summary"]["steps"])
    if cost["ns"] is None or n_steps != programs.n_steps:
        raise ValueError(f"No cost of {programs.rule} in {n_steps} steps of {programs.problem[0]}.")
    # The recording's clock is that of the wall, of which the program had this share.
    per_step = cpu_ms / wall_ms / n_steps / 1e6
    steps_ns = sum(step["dur_ns"] for step in report["summary"]["steps"])
    low_ns, high_ns = (
        cost["ns"] if cost[end] is None else cost[end] for end in ("low_ns", "high_ns")
    )
    figures = Round(
        problem_ms=[cpu_ms for _, cpu_ms in plain],
        fixed_ms=[cpu_ms for _, cpu_ms in cured],
        recorded_ms=round(steps_ns * per_step, 4),
        predicted_ms=round(low_ns * per_step, 4),
        predicted_max_ms=round(high_ns * per_step, 4),
        cpu_share=round(sum(cpu for _, cpu in plain) / sum(wall for wall, _ in plain), 3),
    )
    return figures, cost["basis"]


def measure_pairs(names: Sequence[str], minutes: float) -> Iterator[Pair]:
    """Run pairs in turn until the time is up, each at least twice.

    Yields each pair after each of its runs, with all runs so far, so that a command that is
    stopped has measured something.

    Args:
        names: Their names in ``PROGRAMS``.
        minutes: The time.
    """
    began, longest, number = time.monotonic(), 0.0, 0
    rounds: dict[str, list[Round]] = {name: [] for name in names}

    while number < MIN_ROUNDS or time.monotonic() - began + longest < 60 * minutes:
        number += 1
        start = time.monotonic()
        for name in names:
            try:
                figures, basis = measure(PROGRAMS[name])
            except (ValueError, OSError, StopIteration, subprocess.CalledProcessError) as error:
                print(f"{name}: left out of this round: {error}", flush=True)
                continue
            rounds[name].append(figures)
            print(f"{name}: {figures}", flush=True)
            yield Pair(name, PROGRAMS[name].rule, basis, rounds[name])
        longest = max(longest, time.monotonic() - start)


def machine() -> dict[str, Any]:
    """This machine's processor and versions."""
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        cpu = next(iter(names), cpu)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and write the page.

    Args:
        words: The arguments, or None for those of the command line.
    """
    parser = argparse.ArgumentParser(description="Measure what fixes save on a CPU.")
    parser.add_argument("names", nargs="*", help="pairs (default: all)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"how long ({MINUTES:g})")
    parser.add_argument("--only-table", action="store_true", help="run nothing; write the page")
    options = parser.parse_args(words)

    if not options.only_table:
        old = json.loads(MEASURED.read_text())["pairs"] if MEASURED.exists() else []
        pairs = {pair["program"]: pair for pair in old}
        before = os.getloadavg()[0]
        today = dt.datetime.now(dt.UTC).date().isoformat()
        for pair in measure_pairs(options.names or list(PROGRAMS), options.minutes):
            pairs[pair.program] = asdict(replace(pair, date=today))
            facts = {
                "date": today,
                "machine": machine(),
                "load": [round(before, 1), round(os.getloadavg()[0], 1)],
                "pairs": [pairs[name] for name in PROGRAMS if name in pairs],
                "missing": [name for name in PROGRAMS if name not in pairs],
            }
            MEASURED.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")

    record.write_table(Rows(record.OUT), {}, record.TABLE, expects=False)


if __name__ == "__main__":
    main()
