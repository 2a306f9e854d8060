"""A run of a program under ``profkit run`` with random signals, and its judgement."""

import contextlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.chaos.bare_runs import BareRuns
from tests.chaos.judge import find_failures
from tests.chaos.process import Ended, run_process
from tests.chaos.results import RunResult
from tests.chaos.table import PROGRAMS
from tests.chaos.treatments import Treatment, choose_treatment, plan_signals
from tests.chaos.watching import (
    BUILD,
    bare_environment,
    program_command,
    watched_command,
    watched_environment,
)

MIN_LIMIT_S: Final = 60.0
_LIMIT_RATIO: Final = 5
_REPORT_S: Final = 2.0
"""How long the report takes after the program's end: a signal may come then."""


@dataclass(frozen=True)
class Plan:
    """How the runs are made.

    Attributes:
        seed: What the random choices come from.
        share: Share of the runs that are sent signals.
        min_limit_s: A run that takes longer hangs, unless the bare program takes a fifth of it.
        is_watched: Whether programs run under ``profkit run``. Without it the same signals are sent
            to bare programs, which tells whether the table is right.
    """

    seed: int = 0
    share: float = 0.5
    min_limit_s: float = MIN_LIMIT_S
    is_watched: bool = True


def run_once(
    name: str, index: int, plan: Plan, bare_runs: BareRuns, treatment: Treatment | None = None
) -> RunResult:
    """Run a program once, and judge the run; a failed one is kept in ``build/chaos``.

    Args:
        name: The program.
        index: Number of the run, which the random choices depend on.
        plan: How it is run.
        bare_runs: What it is compared with.
        treatment: What is done to it, instead of a random choice.
    """
    program = PROGRAMS[name]
    random = Random(f"{plan.seed} {name} {index}")  # noqa: S311  (a run that can be repeated)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder_name:
        folder = Path(folder_name)
        bare = bare_runs.find(name, program, folder)
        chosen = choose_treatment(program, random, plan.share)
        treatment = treatment or chosen
        run_s = bare.wall_s - (bare.first_output_s or 0) + _REPORT_S
        signals = plan_signals(treatment, random, run_s)

        report_file, violations = folder / "report.json", folder / "violations"
        command, environment = program_command(name, program), bare_environment()
        if plan.is_watched:
            command = watched_command(name, program, report_file)
            environment = watched_environment(violations)
        limit_s = max(plan.min_limit_s, _LIMIT_RATIO * bare.wall_s)
        watched = run_process(command, folder, environment, limit_s, signals)

        failures = find_failures(
            program,
            bare,
            watched,
            _read_report(report_file),
            violations.read_text() if violations.exists() else "",
            is_watched=plan.is_watched,
        )
        if failures:
            _keep(folder, f"{name}-{index}", bare)
    return RunResult(name, index, treatment, failures, watched, bare)


def _read_report(file: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        report: dict[str, Any] = json.loads(file.read_text())
        return report
    return None


def _keep(folder: Path, name: str, bare: Ended) -> None:
    kept = BUILD / "failed" / name
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder, kept, ignore_dangling_symlinks=True)
    (kept / "bare_out").write_text(bare.out)
