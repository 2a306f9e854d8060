"""The part of ``docs/truth.md`` on programs that have their problem on a CPU too."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MEASURED: Final = Path(__file__).with_name("measured.json")
WITHIN: Final = 0.1
"""How far a prediction may be off."""
_TEXT: Final = f"""\
## On a CPU

`make truth` runs each program with its problem, fixed, and with its problem under `profkit run`, one
after the other and several times, and writes this section. Its figures are in
`examples/truth/measured.json`. Programs use one thread, and glibc keeps freed memory
(`MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_`): else page faults in newly allocated tensors
take more of a step of `zeroed_gradients` than its fix saves.

- **problem**, **fixed**: step time without profiling: the time from the end of one optimizer step to
  the end of the next one; the median over the steps of a run, and of these the median over the runs.
- **saved**: problem minus fixed. In parentheses the range over the runs, each with the one after it.
- **recorded**: the length of a step with its problem in the recordings, the median over them.
- **predicted**: the cost per step of the rule's finding, the median over the recordings; a range where
  the replay gives one. In parentheses the range over the recordings.
- **within {WITHIN:.0%}**: whether predicted / saved, or a part of its range, is from {1 - WITHIN:.1f} to {1 + WITHIN:.1f}; for an
  upper bound whether it is at least {1 - WITHIN:.1f}.
"""  # noqa: E501  (a sentence of the page)
_NOTES: Final = {
    "starved_loader": (
        "the prediction is for batches that are ready; the fixed program still crops, flips and "
        "collates them in the loop."
    ),
    "zeroed_gradients": (
        "the fix saves less than the step time varies between runs of the same program; see the "
        "ranges. Its gradients are new memory in each step, which the replay does not count."
    ),
    "recompiles": (
        "the recorded steps took longer than those without profiling, because of the recording or "
        "of other programs on the machine; the cost is a part of the recorded steps."
    ),
}
"""What is known about predictions that are off."""


@dataclass(frozen=True)
class Pair:
    """A program with its problem and fixed, measured several times.

    Attributes:
        rule: The name of the rule that finds the problem.
        problem_ms: Of each run without profkit, the median step time, in milliseconds.
        fixed_ms: The same of the fixed program.
        predicted_ms: Of each recording, the cost per step of the finding, in milliseconds.
        predicted_max_ms: The upper end of its range.
        recorded_ms: Of each recording, the length of a step, in milliseconds.
        basis: The basis of the cost.
    """

    program: str
    rule: str
    problem_ms: Sequence[float]
    fixed_ms: Sequence[float]
    predicted_ms: Sequence[float]
    predicted_max_ms: Sequence[float]
    recorded_ms: Sequence[float]
    basis: str

    @property
    def saved_ms(self) -> float:
        """Milliseconds per step that the fix saves."""
        return statistics.median(self.problem_ms) - statistics.median(self.fixed_ms)

    @property
    def each_saved_ms(self) -> list[float]:
        """The same of each run with the one after it."""
        return [a - b for a, b in zip(self.problem_ms, self.fixed_ms, strict=True)]

    @property
    def varies(self) -> bool:
        """Whether the savings of runs differ by more from their median than a prediction may."""
        middle = statistics.median(self.each_saved_ms)
        return any(abs(each - middle) > WITHIN * abs(middle) for each in self.each_saved_ms)

    @property
    def ratios(self) -> tuple[float, float] | None:
        """The ends of predicted / saved, or None if nothing was saved."""
        if self.saved_ms <= 0:
            return None
        low, high = (statistics.median(each) for each in (self.predicted_ms, self.predicted_max_ms))
        return low / self.saved_ms, high / self.saved_ms

    @property
    def is_within(self) -> bool:
        """Whether the prediction is as near as it should be."""
        if self.ratios is None:
            return False
        low, high = self.ratios
        return high >= 1 - WITHIN and (low <= 1 + WITHIN or self.basis == "upper-bound")


def section(measured: Mapping[str, Any]) -> str:
    """The section.

    Args:
        measured: The content of ``measured.json``.
    """
    machine = measured["machine"]
    pairs = [Pair(**facts) for facts in measured["pairs"]]
    where = (
        f"Measured on {measured['date']}: {machine['cpu']}, {machine['cores']} cores, shared with "
        f"other programs (load {measured['load'][0]:.1f} to {measured['load'][1]:.1f}), one thread "
        f"per program; {machine['system']}, torch {machine['torch']}, Python {machine['python']}.\n"
    )
    right = sum(pair.is_within for pair in pairs)
    count = f"{right} of {len(pairs)} predictions are within {WITHIN:.0%}.\n"
    varied = [f"`{pair.program}`" for pair in pairs if pair.varies]
    if varied:
        count += (
            f"The savings of {', '.join(varied)} vary between runs by more than {WITHIN:.0%} of "
            "their median: more runs on an idle machine may give another answer.\n"
        )
    known = [f"- `{pair.program}`: {_NOTES[pair.program]}\n" for pair in pairs
             if not pair.is_within and pair.program in _NOTES]  # fmt: skip
    return "\n".join([_TEXT, where, _table(pairs), count, *(["".join(known)] if known else [])])


def _table(pairs: Iterable[Pair]) -> str:
    head = ["program", "rule", "runs", "problem ms", "fixed ms", "saved ms", "recorded ms",
            "predicted ms", "predicted / saved", "basis", f"within {WITHIN:.0%}"]  # fmt: skip
    lines = [head, ["---"] * len(head)]
    for pair in pairs:
        lowest, highest = min(pair.each_saved_ms), max(pair.each_saved_ms)
        lines.append(
            [
                f"`{pair.program}`",
                pair.rule,
                str(len(pair.problem_ms)),
                f"{statistics.median(pair.problem_ms):.2f}",
                f"{statistics.median(pair.fixed_ms):.2f}",
                f"{pair.saved_ms:.2f} ({lowest:.2f} to {highest:.2f})",
                f"{statistics.median(pair.recorded_ms):.2f}",
                _predicted(pair),
                "-" if pair.ratios is None else _range(pair.ratios),
                pair.basis,
                "yes" if pair.is_within else "**no**",
            ]
        )
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _predicted(pair: Pair) -> str:
    ends = statistics.median(pair.predicted_ms), statistics.median(pair.predicted_max_ms)
    spread = f"({min(pair.predicted_ms):.2f} to {max(pair.predicted_max_ms):.2f})"
    return f"{_range(ends)} {spread}"


def _range(ends: Iterable[float]) -> str:
    low, high = (f"{end:.2f}" for end in ends)
    return low if low == high else f"{low}-{high}"


def recorded() -> str:
    """The section on what is recorded."""
    return section(json.loads(MEASURED.read_text(encoding="utf-8")))
