"""The figures of all runs: as a table, and as JSON."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.judge import Failure
from tests.chaos.process import Ended
from tests.chaos.treatments import Treatment

_LONGEST_NAME = 22


@dataclass(frozen=True)
class RunResult:
    """A watched run and what is wrong with it.

    Attributes:
        name: The program.
        index: Number of the run among those of the program, which with the seed repeats it.
        treatment: What was done to it.
        failures: What is wrong.
        watched: How it ended.
        bare: How the bare program ended.
    """

    name: str
    index: int
    treatment: Treatment
    failures: tuple[Failure, ...]
    watched: Ended
    bare: Ended


@dataclass
class Results:
    """The results of all runs so far.

    Attributes:
        seed: What the random choices came from.
        runs: The runs.
    """

    seed: int
    runs: list[RunResult] = field(default_factory=list)

    @property
    def n_failed(self) -> int:
        """Number of runs with any failure."""
        return sum(bool(run.failures) for run in self.runs)

    def write(self, file: Path) -> None:
        """Write the figures as JSON."""
        programs = {name: _figures(runs) for name, runs in self._by_program()}
        document = {
            "seed": self.seed,
            "n_runs": len(self.runs),
            "n_failed": self.n_failed,
            "treatments": Counter(run.treatment.value for run in self.runs),
            "failures": Counter(kind.value for run in self.runs for kind in run.failures),
            "programs": programs,
        }
        file.write_text(json.dumps(document, indent=1))

    def table(self) -> str:
        """Return the figures by program, and in all."""
        columns = "".join(f"{kind.value:>10}" for kind in Failure)
        lines = [f"{'program':{_LONGEST_NAME}}{'runs':>5}{columns}{'wall':>7}{'cpu':>7}"]
        rows = [(name, _figures(runs)) for name, runs in self._by_program()]
        rows.append(("all", _figures(self.runs)))
        for name, figures in rows:
            counts = "".join(f"{figures[kind.value] or '·':>10}" for kind in Failure)
            ratios = _ratio_text(figures["wall_ratio"]) + _ratio_text(figures["cpu_ratio"])
            lines.append(f"{name:{_LONGEST_NAME}}{figures['runs']:5}{counts}{ratios}")
        return "\n".join(lines)

    def _by_program(self) -> Iterable[tuple[str, list[RunResult]]]:
        names = sorted({run.name for run in self.runs})
        return ((name, [run for run in self.runs if run.name == name]) for name in names)


def _figures(runs: list[RunResult]) -> dict[str, Any]:
    counts = Counter(kind for run in runs for kind in run.failures)
    # A run with signals ends early, or pauses.
    whole = [run for run in runs if run.treatment is Treatment.NONE and not run.watched.is_hung]
    return {
        "runs": len(runs),
        **{kind.value: counts[kind] for kind in Failure},
        "wall_ratio": _median(run.watched.wall_s / run.bare.wall_s for run in whole),
        "cpu_ratio": _median(run.watched.cpu_s / run.bare.cpu_s for run in whole),
        "failed": [_failed_run(run) for run in runs if run.failures],
    }


def _failed_run(run: RunResult) -> dict[str, Any]:
    return {
        "run": run.index,
        "treatment": run.treatment.value,
        "failures": [kind.value for kind in run.failures],
        "code": run.watched.code,
        "wall_s": round(run.watched.wall_s, 1),
        "signal_at_s": round(run.watched.sent[0].at_s, 3) if run.watched.sent else None,
    }


def _median(ratios: Iterable[float]) -> float | None:
    values = list(ratios)
    return round(statistics.median(values), 2) if values else None


def _ratio_text(ratio: float | None) -> str:
    return f"{'':>7}" if ratio is None else f"{ratio:6.2f}x"
